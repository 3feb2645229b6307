"""The table of hooks: when each is called, what it may change, whether it may refuse, and what it means that it fails (R10.17)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from perdure.hooks import events
from perdure.hooks.events import HookEvent

Where: TypeAlias = Literal["run", "session", "gateway"]
"""Whose hooks they are: a run records those of a run when it starts, a session those of a session when an execution of it begins."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row."""

    name: str
    event: type[HookEvent]
    where: Where
    when: str
    """In words."""
    refused: str = ""
    """What it means that a hook refuses; empty: it cannot."""
    fails: Literal["closed", "open", "declared"] = "open"
    """What it means that one fails: `closed` is as if it had refused, `open` as if it were not there. `declared`: open where the function
    is annotated to return nothing, so that it only looks; else closed."""

    @property
    def changes(self) -> tuple[str, ...]:
        return self.event.CHANGES

    @property
    def answers(self) -> bool:
        """Whether a hook may return anything."""
        return bool(self.changes or self.refused)


HOOKS: Final[Mapping[str, Rule]] = {
    rule.name: rule
    for rule in (
        Rule(
            "before_agent_start",
            events.BeforeAgentStart,
            "run",
            "a run begins, a delegate's too; no model was asked",
            "the run fails with the reason",
            "closed",
        ),
        Rule("agent_end", events.AgentEnd, "run", "a run has ended, however it did"),
        Rule(
            "before_tool_call",
            events.BeforeToolCall,
            "run",
            "a call is ready, before anybody is asked about it, and again where a person has edited it",
            "the call has failed with `refused_by_hook`",
            "closed",
        ),
        Rule(
            "after_tool_call",
            events.AfterToolCall,
            "run",
            "a call has run, before its result is in the state or read by anybody",
            "the result is withheld: the call has failed with `refused_by_hook`",
            "declared",
        ),
        Rule(
            "tool_result_persist",
            events.ToolResultPersist,
            "run",
            "a result is about to be kept in a session's transcript",
            "the reason is kept in its place",
            "declared",
        ),
        Rule(
            "agent_bootstrap",
            events.AgentBootstrap,
            "run",
            "the files that a run's prompt begins with were read",
            "the run fails with the reason",
            "declared",
        ),
        Rule("session_start", events.SessionStart, "session", "a session begins"),
        Rule("session_end", events.SessionEnd, "session", "a session is deleted"),
        Rule(
            "message_received",
            events.MessageReceived,
            "session",
            "a message that is no command comes in, before it is accepted",
            "the sender is told the reason, and nothing is accepted",
            "closed",
        ),
        Rule("command", events.Command, "session", "a command was accepted"),
        Rule(
            "before_compaction",
            events.BeforeCompaction,
            "session",
            "a conversation is about to be compacted",
            "it is not compacted now",
            "closed",
        ),
        Rule("after_compaction", events.AfterCompaction, "session", "a conversation was compacted"),
        Rule(
            "message_sending",
            events.MessageSending,
            "session",
            "a reply is about to be delivered",
            "the reply is kept as refused, with the reason",
            "closed",
        ),
        Rule("message_sent", events.MessageSent, "session", "a reply was delivered, or was not"),
        Rule("gateway_start", events.GatewayStart, "gateway", "the gateway listens"),
        Rule("gateway_stop", events.GatewayStop, "gateway", "the gateway listens no more"),
    )
}
"""All of them, in the order in which they happen."""
