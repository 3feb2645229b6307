"""Checks of models: the engine runs small tasks with made-up tools, and judges the results.

The package depends on the engine and its hosting. The tasks are data, the judgement has no side effects, and only
`play` starts runs. `perdure models check` prints the report.
"""
