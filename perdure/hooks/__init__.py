"""Hooks: calls of a worker's own code at points of a run or a session. The events, their table, `@hook`, and the effect
of answers (R10.17)."""

from __future__ import annotations

from perdure.hooks.answers import Refused, refuse
from perdure.hooks.decorator import hook
from perdure.hooks.events import (
    AfterCompaction,
    AfterToolCall,
    AgentBootstrap,
    AgentEnd,
    BeforeAgentStart,
    BeforeCompaction,
    BeforeToolCall,
    Command,
    GatewayStart,
    GatewayStop,
    HookEvent,
    MessageReceived,
    MessageSending,
    MessageSent,
    SessionEnd,
    SessionStart,
    ToolResultPersist,
)

__all__ = [
    "AfterCompaction",
    "AfterToolCall",
    "AgentBootstrap",
    "AgentEnd",
    "BeforeAgentStart",
    "BeforeCompaction",
    "BeforeToolCall",
    "Command",
    "GatewayStart",
    "GatewayStop",
    "HookEvent",
    "MessageReceived",
    "MessageSending",
    "MessageSent",
    "Refused",
    "SessionEnd",
    "SessionStart",
    "ToolResultPersist",
    "hook",
    "refuse",
]
