"""All names that a tool goes by: an agent file may call a worker's code otherwise."""

from __future__ import annotations

from perdure.tools.tool import Tool


def known_as(tool: Tool) -> tuple[str, ...]:
    """What the agent calls it, and last the code behind it; of a delegate its agent's name."""
    code = tool.calls.name if tool.calls is not None else tool.delegate or tool.activity or tool.name
    return tuple(dict.fromkeys((tool.name, tool.activity or code, code)))
