"""Perdure: a durable engine for AI agents, on Temporal.

`__all__` has the public names. Each is imported at its first use, so that `import perdure` takes no time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from perdure.activities.a2a import a2a_tool
    from perdure.agents.agent import Agent
    from perdure.agents.media import Image, Media
    from perdure.approvals.requests import WaitingEntry, WaitingView
    from perdure.client.errors import RunFailedError, RunRefusedError
    from perdure.client.evaluations import Evaluation
    from perdure.client.perdure import Perdure
    from perdure.client.run import Run
    from perdure.client.schedules import ListedSchedule, Schedule, ScheduledRun, ScheduleView
    from perdure.client.selection import (
        ListedRun,
        ListedSession,
        RunPage,
        Selection,
        SessionPage,
        WaitingPage,
        WaitingRequest,
        WaitingRow,
    )
    from perdure.client.session import Session
    from perdure.errors import (
        DecisionRefusedError,
        MediaError,
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
    from perdure.runs.evaluation import EvaluationProgress, EvaluationResult, RunScore
    from perdure.runs.events import Event
    from perdure.runs.notifications import Notification, notification_route
    from perdure.runs.what_if import CallNote, RunReport, WhatIfReport
    from perdure.runs.wire import CallView, RunView
    from perdure.sessions.replies import Reply, reply_route
    from perdure.sessions.status_webhooks import StatusWebhook
    from perdure.sessions.wire import Receipt, SessionInfo, SessionView, WaitResult
    from perdure.tools.decorator import ToolContext, branch, tool
    from perdure.tools.framework_agents import agent_tool
    from perdure.tools.temporal import activity_tool, nexus_tool, workflow_tool

_LATER: Final = {
    "Agent": "perdure.agents.agent",
    "Evaluation": "perdure.client.evaluations",
    **dict.fromkeys(("EvaluationProgress", "EvaluationResult", "RunScore"), "perdure.runs.evaluation"),
    "Event": "perdure.runs.events",
    **dict.fromkeys(("Image", "Media"), "perdure.agents.media"),
    "Notification": "perdure.runs.notifications",
    "Perdure": "perdure.client.perdure",
    "PerdurePlugin": "perdure.hosting.plugin",
    "Reply": "perdure.sessions.replies",
    "Run": "perdure.client.run",
    "RunFailedError": "perdure.client.errors",
    "RunRefusedError": "perdure.client.errors",
    "Session": "perdure.client.session",
    "ToolContext": "perdure.tools.decorator",
    "agent_tool": "perdure.tools.framework_agents",
    "a2a_tool": "perdure.activities.a2a",
    "branch": "perdure.tools.decorator",
    "hook": "perdure.hooks.decorator",
    "notification_route": "perdure.runs.notifications",
    "refuse": "perdure.hooks.answers",
    "reply_route": "perdure.sessions.replies",
    "tool": "perdure.tools.decorator",
    **dict.fromkeys(("CallNote", "RunReport", "WhatIfReport"), "perdure.runs.what_if"),
    **dict.fromkeys(("CallView", "RunView"), "perdure.runs.wire"),
    **dict.fromkeys(("ListedSchedule", "Schedule", "ScheduleView", "ScheduledRun"), "perdure.client.schedules"),
    "StatusWebhook": "perdure.sessions.status_webhooks",
    **dict.fromkeys(("Receipt", "SessionInfo", "SessionView", "WaitResult"), "perdure.sessions.wire"),
    **dict.fromkeys(("WaitingEntry", "WaitingView"), "perdure.approvals.requests"),
    **dict.fromkeys(
        (
            "ListedRun",
            "ListedSession",
            "RunPage",
            "Selection",
            "SessionPage",
            "WaitingPage",
            "WaitingRequest",
            "WaitingRow",
        ),
        "perdure.client.selection",
    ),
    **dict.fromkeys(("activity_tool", "nexus_tool", "workflow_tool"), "perdure.tools.temporal"),
}

__all__ = [
    "Agent",
    "CallNote",
    "CallView",
    "DecisionRefusedError",
    "Evaluation",
    "EvaluationProgress",
    "EvaluationResult",
    "Event",
    "Image",
    "ListedRun",
    "ListedSchedule",
    "ListedSession",
    "Media",
    "MediaError",
    "MessageRefusedError",
    "NoWorkerError",
    "Notification",
    "OutputError",
    "Perdure",
    "PerdureError",
    "PerdurePlugin",
    "Receipt",
    "Reply",
    "Run",
    "RunEndedError",
    "RunError",
    "RunExistsError",
    "RunFailedError",
    "RunNotFoundError",
    "RunPage",
    "RunRefusedError",
    "RunReport",
    "RunScore",
    "RunTimeoutError",
    "RunView",
    "Schedule",
    "ScheduleView",
    "ScheduledRun",
    "Selection",
    "ServerError",
    "Session",
    "SessionInfo",
    "SessionPage",
    "SessionView",
    "ToolContext",
    "ToolError",
    "WaitResult",
    "StatusWebhook",
    "WaitingEntry",
    "WaitingPage",
    "WaitingRequest",
    "WaitingRow",
    "WaitingView",
    "WhatIfReport",
    "a2a_tool",
    "activity_tool",
    "agent_tool",
    "branch",
    "hook",
    "nexus_tool",
    "notification_route",
    "refuse",
    "reply_route",
    "tool",
    "workflow_tool",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER.get(name, "perdure.errors")), name)
