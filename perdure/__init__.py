"""Perdure: a durable engine for AI agents, on Temporal.

What is public stands here; each name is loaded when it is first used, so that whoever only needs tools, or nothing yet, waits for nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from perdure.authoring.agent import Agent
    from perdure.errors import PerdureError, ToolError
    from perdure.tools.functions import ToolContext, branch, tool

_LATER: Final = {
    "Agent": "perdure.authoring.agent",
    "PerdureError": "perdure.errors",
    "ToolContext": "perdure.tools.functions",
    "ToolError": "perdure.errors",
    "branch": "perdure.tools.functions",
    "tool": "perdure.tools.functions",
}

__all__ = ["Agent", "PerdureError", "ToolContext", "ToolError", "branch", "tool"]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
