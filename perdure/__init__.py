"""Perdure: a durable engine for AI agents, on Temporal.

What is public stands here; each name is loaded when it is first used, so that whoever only needs tools, or nothing yet, waits for nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from perdure.authoring.agent import Agent
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
    from perdure.hosting.embedding.plugin import PerdurePlugin
    from perdure.run.events.kinds import Event
    from perdure.run.wire import RunView
    from perdure.sessions.replies.routes import Reply, reply_route
    from perdure.tools.functions import ToolContext, branch, tool
    from perdure.tools.temporal import activity_tool, nexus_tool, workflow_tool

_LATER: Final = {
    "Agent": "perdure.authoring.agent",
    "Event": "perdure.run.events.kinds",
    "Perdure": "perdure.client.perdure",
    "PerdurePlugin": "perdure.hosting.embedding.plugin",
    "Reply": "perdure.sessions.replies.routes",
    "Run": "perdure.client.run",
    "RunFailedError": "perdure.client.errors",
    "RunRefusedError": "perdure.client.errors",
    "RunView": "perdure.run.wire",
    "Selection": "perdure.client.selection",
    "ToolContext": "perdure.tools.functions",
    "branch": "perdure.tools.functions",
    "hook": "perdure.hooks.decorator",
    "refuse": "perdure.hooks.answers",
    "reply_route": "perdure.sessions.replies.routes",
    "tool": "perdure.tools.functions",
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
