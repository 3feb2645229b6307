"""Tools of the workers that run beside a benchmark: nothing else is loaded there, so what is measured is a worker's."""

from __future__ import annotations

from typing import Any

from perdure import tool


@tool
async def nothing(x: Any = None) -> int:
    """Do nothing."""
    del x
    return 1


@tool(approval="always")
async def asks(x: Any = None) -> int:
    """Do nothing, once a person lets it."""
    del x
    return 1
