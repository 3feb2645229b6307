"""Perdure: a durable engine for AI agents, on Temporal.

What a tool's author needs is loaded at once: `@tool`, `ToolContext`, `ToolError` and `branch`. The rest is loaded when it is first named,
so that a module of tools stays cheap to import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from perdure.errors import PerdureError, ToolError
from perdure.tools.functions import ToolContext, branch, tool

if TYPE_CHECKING:
    from perdure.authoring.agent import Agent

_LATER: Final = {"Agent": "perdure.authoring.agent"}

__all__ = ["Agent", "PerdureError", "ToolContext", "ToolError", "branch", "tool"]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
