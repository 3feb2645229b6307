"""Trying models: small tasks with made-up tools, played for real by the engine, and judged by what happened.

A room of its own above the engine and its hosting, as the demo is: the tasks are data, the judgement is pure, and only
`play` starts anything. `perdure models check` prints what comes of it.
"""
