"""A very small encyclopedia."""

from __future__ import annotations

from perdure import ToolError, tool

FACTS = {"tides": ["The Moon causes most of the tide.", "The Bay of Fundy has the highest."]}


@tool(safe=True)
def look_up(topic: str) -> list[str]:
    """Facts about a topic."""
    if topic not in FACTS:
        raise ToolError("unknown", f"nothing is known about {topic}")
    return FACTS[topic]
