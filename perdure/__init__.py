"""Perdure: a durable engine for AI agents, on Temporal. This package is the protocol: values and rules, no effects.

What a tool's author needs is here: `@tool`, `ToolContext`, `ToolError` and `branch`.
"""

from perdure.errors import ToolError
from perdure.tools.functions import ToolContext, branch, tool

__all__ = ["ToolContext", "ToolError", "branch", "tool"]
