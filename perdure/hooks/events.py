"""Hook events: their types, their table, and what crosses to the activity that calls hooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias

from pydantic import ConfigDict, Field

from perdure.values.json import Json, JsonObject, WireModel


class HookEvent(WireModel):
    """What all of them have. An event is a value: `changed` gives another one."""

    model_config = ConfigDict(frozen=True)

    CHANGES: ClassVar[tuple[str, ...]] = ()
    """Its fields that a hook may change."""

    key: str = ""
    """Names this point of this run, or session: the same where the hook is called once more because a worker was lost."""
    at: str = ""
    """ISO 8601, UTC: when it happened."""
    run_id: str = ""
    session: str = ""
    """The session's key; empty in a run that is none of a session's."""
    agent: str = ""
    """The agent's name."""
    tenant: str = ""
    sender: str = ""
    """For whom it runs, where that was said."""

    def changed(self, **fields: Any) -> Self:
        """The event with these fields in place of its own. Raises `TypeError` for one that a hook may not change."""
        if wrong := [name for name in fields if name not in self.CHANGES]:
            may = ", ".join(self.CHANGES) or "nothing"
            raise TypeError(f"{type(self).__name__}.{wrong[0]} is not for a hook to change; it may change {may}")
        made: Self = type(self).model_validate({**{name: getattr(self, name) for name in self.fields()}, **fields})
        return made

    @classmethod
    def fields(cls) -> tuple[str, ...]:
        """The names of all that it is given."""
        return tuple(cls.model_fields)


class _OfCall(HookEvent):
    call: str = ""
    """`R.N`, or `R.N[i]` in a loop."""
    tool: str = ""
    """What the agent calls the tool."""
    code: str = ""
    """The name of the code behind it, which an agent file may call otherwise; of a delegate its agent's."""
    params: JsonObject = Field(default_factory=dict)
    """The parameters, with every reference in its place."""


class BeforeAgentStart(HookEvent):
    """A run begins: nothing was asked of a model yet. Refused, it fails with the reason."""

    CHANGES: ClassVar[tuple[str, ...]] = ("input", "system")

    input: Json = None
    """Checked against the agent's schema once more where a hook changes it."""
    system: str = ""
    """The agent's system text, which the model reads before the person's message."""
    above: list[str] = Field(default_factory=list)
    """The agents above a delegate, outermost first."""


class AgentEnd(HookEvent):
    """A run has ended, however it did."""

    above: list[str] = Field(default_factory=list)
    """The agents above a delegate, whose run counts what this one has used as well; outermost first."""
    status: str = ""
    """`completed`, `failed` or `cancelled`."""
    output: Json = None
    stop_reason: str | None = None
    error: str | None = None
    requests: int = 0
    tokens: int = 0
    cost: float | None = None
    """Dollars, those of its delegates too; `None`: not known."""
    messages: list[JsonObject] = Field(default_factory=list)
    """The messages of the last Request as its model was sent them, the newest 1,000,000 bytes, and the output behind them."""


class BeforeToolCall(_OfCall):
    """A call is ready, and nobody was asked about it yet. Refused, it has failed with the code `refused_by_hook`."""

    CHANGES: ClassVar[tuple[str, ...]] = ("params",)

    sources: dict[str, list[str]] = Field(default_factory=dict)
    """By parameter where it comes from; `!` before a name: others wrote it (R15.1)."""
    tokens: int = 0
    """What the run has used so far, in Requests that were answered."""
    cost: float | None = None
    """The same in dollars; `None`: a model's price is not known."""


class AfterToolCall(_OfCall):
    """A call has run. Refused, its result is withheld: it was made all the same."""

    CHANGES: ClassVar[tuple[str, ...]] = ("result", "message")

    status: str = "done"
    """Or `failed`, with `error` and `message`."""
    result: Json = None
    """What the state and the model get."""
    error: str | None = None
    """The failure's code."""
    message: str | None = None
    attempt: int = 1


class ToolResultPersist(_OfCall):
    """A call's result is about to be kept in a session's transcript. Refused, the reason is kept in its place."""

    CHANGES: ClassVar[tuple[str, ...]] = ("result",)

    result: Json = None
    """What later runs of the session read; the state and the running run have it as it was."""


class BeforeCompaction(HookEvent):
    """A session's conversation is about to be compacted. Refused, it is not now."""

    CHANGES: ClassVar[tuple[str, ...]] = ("addition",)

    reason: str = ""
    tokens: int = 0
    """About how many the part has that is to be told in short."""
    text: str = ""
    """The part that is compacted, as a model reads it to summarise it: at most 320,000 characters."""
    addition: str = ""
    """Text to stand word for word behind the summary; at most 2,000 characters."""


class AfterCompaction(HookEvent):
    """It was compacted."""

    kind: str = ""
    """`summary`, or `extract` where no model gave one that could be used."""
    text: str = ""
    """The text that stands for the part from now on."""
    before: int = 0
    after: int = 0
    """Tokens, about."""


class MessageReceived(HookEvent):
    """A session is given a message, which is no command, and has not accepted it yet. Refused, its sender is told so."""

    CHANGES: ClassVar[tuple[str, ...]] = ("text",)

    message_id: str = ""
    text: str = ""
    mode: str | None = None
    rights: list[str] = Field(default_factory=list)


class MessageSending(HookEvent):
    """A reply is about to be delivered. Refused, it is kept as refused, with the reason."""

    CHANGES: ClassVar[tuple[str, ...]] = ("text",)

    reply: str = ""
    """`<run>/<reply>`: the key of its delivery."""
    route: str = ""
    text: str = ""


class MessageSent(HookEvent):
    """What became of a reply."""

    reply: str = ""
    route: str = ""
    text: str = ""
    status: str = ""
    """`delivered`, `refused` or `unknown`."""


class SessionStart(HookEvent):
    """A session begins: its first message comes."""


class SessionEnd(HookEvent):
    """A session is deleted."""


class Command(HookEvent):
    """A command was accepted: `/new`, `/reset` or `/stop`."""

    command: str = ""
    message_id: str = ""


class AgentBootstrap(HookEvent):
    """The files that a run's prompt begins with were read. Refused, or where a hook fails, the run does not start."""

    CHANGES: ClassVar[tuple[str, ...]] = ("files",)

    files: dict[str, str] = Field(default_factory=dict)
    """Text by name."""


class GatewayStart(HookEvent):
    """The gateway listens."""

    address: str = ""


class GatewayStop(HookEvent):
    """It does not listen any more."""

    address: str = ""


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
            BeforeAgentStart,
            "run",
            "a run begins, a delegate's too; no model was asked",
            "the run fails with the reason",
            "closed",
        ),
        Rule("agent_end", AgentEnd, "run", "a run has ended, however it did"),
        Rule(
            "before_tool_call",
            BeforeToolCall,
            "run",
            "a call is ready, before anybody is asked about it, and again where a person has edited it",
            "the call has failed with `refused_by_hook`",
            "closed",
        ),
        Rule(
            "after_tool_call",
            AfterToolCall,
            "run",
            "a call has run, before its result is in the state or read by anybody",
            "the result is withheld: the call has failed with `refused_by_hook`",
            "declared",
        ),
        Rule(
            "tool_result_persist",
            ToolResultPersist,
            "run",
            "a result is about to be kept in a session's transcript",
            "the reason is kept in its place",
            "declared",
        ),
        Rule(
            "agent_bootstrap",
            AgentBootstrap,
            "run",
            "the files that a run's prompt begins with were read",
            "the run fails with the reason",
            "declared",
        ),
        Rule("session_start", SessionStart, "session", "a session begins"),
        Rule("session_end", SessionEnd, "session", "a session is deleted"),
        Rule(
            "message_received",
            MessageReceived,
            "session",
            "a message that is no command comes in, before it is accepted",
            "the sender is told the reason, and nothing is accepted",
            "closed",
        ),
        Rule("command", Command, "session", "a command was accepted"),
        Rule(
            "before_compaction",
            BeforeCompaction,
            "session",
            "a conversation is about to be compacted",
            "it is not compacted now",
            "closed",
        ),
        Rule("after_compaction", AfterCompaction, "session", "a conversation was compacted"),
        Rule(
            "message_sending",
            MessageSending,
            "session",
            "a reply is about to be delivered",
            "the reply is kept as refused, with the reason",
            "closed",
        ),
        Rule("message_sent", MessageSent, "session", "a reply was delivered, or was not"),
        Rule("gateway_start", GatewayStart, "gateway", "the gateway listens"),
        Rule("gateway_stop", GatewayStop, "gateway", "the gateway listens no more"),
    )
}
"""All of them, in the order in which they happen."""


HOOK_ACTIVITY: Final = "perdure.hook"
"""Calls all hooks of one event at one point."""
SESSION_HOOKS_ACTIVITY: Final = "perdure.hooks"
"""Which hooks of a session the worker has."""
HOOK_QUERY: Final = "hook"
"""What hooks are given that is too large to be sent, asked by their activity by the event's key (R18.2)."""
REFUSED_BY_HOOK: Final = "refused_by_hook"
"""Code of a call that a hook has refused, or that hooks which fail closed could not look at."""
NO_SUCH_HOOK: Final = "NoSuchHook"
"""Code of what waits for a hook that the worker does not have: another of the queue may."""


class RunOwner(WireModel):
    """For whom a run runs, where that was said."""

    tenant: str = ""
    sender: str = ""
    session: str = ""
    """The key of the session that it belongs to."""


class HookRef(WireModel):
    """A hook that a worker has, as a run records it."""

    event: str
    name: str
    """`module:function`."""
    tools: list[str] | None = None
    """Those whose calls it is for; `None`: all."""
    timeout: float
    """Seconds."""
    closed: bool
    """Whether what it guards does not happen where it fails."""


class HookInput(WireModel):
    """What the activity is given."""

    event: str
    hooks: list[HookRef]
    """In their order."""
    key: str
    """The event's."""
    given: JsonObject | None = None
    """The event as JSON; `None`: too large to be sent, it is to be asked for."""


class HookProblem(WireModel):
    """A hook that failed, and was gone past."""

    hook: str
    problem: str


class HookAnswer(WireModel):
    """What the hooks of one event have said together."""

    refused: str | None = None
    """Why; the hooks behind the one that says so were not called."""
    changed: JsonObject | None = None
    """The fields that they may change, as they are now; of parameters only those that were changed. `None`: as they were."""
    gone: list[str] = Field(default_factory=list)
    """Parameters that were taken out."""
    by: list[str] = Field(default_factory=list)
    """The hooks that have changed it, or the one that refused."""
    failed: list[HookProblem] = Field(default_factory=list)
