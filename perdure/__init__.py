"""Perdure: a durable engine for AI agents, on Temporal.

What is public stands here; each name is loaded when it is first used, so that whoever only needs tools, or nothing yet, waits for nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from perdure.agents.agent import Agent
    from perdure.client.errors import RunFailedError, RunRefusedError
    from perdure.client.perdure import Perdure
    from perdure.client.run import Run
    from perdure.client.selection import Selection
    from perdure.errors import (
        DecisionRefusedError,
        MessageRefusedError,
        NoWorkerError,
        OutputError,
        PerdureError,
        RunEndedError,
        RunError,
        RunExistsError,
        RunNotFoundError,
        RunTimeoutError,
        ServerError,
        ToolError,
    )
    from perdure.hooks.answers import refuse
    from perdure.hooks.decorator import hook
    from perdure.hosting.plugin import PerdurePlugin
    from perdure.runs.events import Event
    from perdure.runs.wire import RunView
    from perdure.sessions.replies import Reply, reply_route
    from perdure.tools.decorator import ToolContext, branch, tool
    from perdure.tools.temporal import activity_tool, nexus_tool, workflow_tool

_LATER: Final = {
    "Agent": "perdure.agents.agent",
    "Event": "perdure.runs.events",
    "Perdure": "perdure.client.perdure",
    "PerdurePlugin": "perdure.hosting.plugin",
    "Reply": "perdure.sessions.replies",
    "Run": "perdure.client.run",
    "RunFailedError": "perdure.client.errors",
    "RunRefusedError": "perdure.client.errors",
    "RunView": "perdure.runs.wire",
    "Selection": "perdure.client.selection",
    "ToolContext": "perdure.tools.decorator",
    "branch": "perdure.tools.decorator",
    "hook": "perdure.hooks.decorator",
    "refuse": "perdure.hooks.answers",
    "reply_route": "perdure.sessions.replies",
    "tool": "perdure.tools.decorator",
    **dict.fromkeys(("activity_tool", "nexus_tool", "workflow_tool"), "perdure.tools.temporal"),
}

__all__ = [
    "Agent",
    "DecisionRefusedError",
    "Event",
    "MessageRefusedError",
    "NoWorkerError",
    "OutputError",
    "Perdure",
    "PerdureError",
    "PerdurePlugin",
    "Reply",
    "Run",
    "RunEndedError",
    "RunError",
    "RunExistsError",
    "RunFailedError",
    "RunRefusedError",
    "RunNotFoundError",
    "RunTimeoutError",
    "RunView",
    "Selection",
    "ServerError",
    "ToolContext",
    "ToolError",
    "activity_tool",
    "branch",
    "hook",
    "nexus_tool",
    "refuse",
    "reply_route",
    "tool",
    "workflow_tool",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER.get(name, "perdure.errors")), name)
