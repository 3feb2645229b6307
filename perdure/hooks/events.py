"""Hook events: their types, their table, and the messages to the activity that calls hooks."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, Self, TypeAlias

from pydantic import ConfigDict, Field

from perdure.values.json import Json, JsonObject, WireModel


class HookEvent(WireModel):
    """The base of all hook events. An event is a value: `changed` returns another one.

    ```python
    @hook("agent_end")
    def log(event: HookEvent) -> None:
        print(event.at, event.agent, event.run_id, event.sender)
    ```
    """

    model_config = ConfigDict(frozen=True)

    CHANGES: ClassVar[tuple[str, ...]] = ()
    """The fields that a hook may change."""

    key: str = ""
    """The key of this point of this run, or session: the same if the hook is called again because a worker was lost."""
    at: str = ""
    """ISO 8601, UTC: the time of the event."""
    run_id: str = ""
    """The run. For an event of a session its active run; empty between two runs, except for a reply or a compaction."""
    session: str = ""
    """The session's key; empty in a run without a session."""
    agent: str = ""
    """The agent's name."""
    tenant: str = ""
    sender: str = ""
    """The sender on whose behalf it runs, if one was named. For an event of a session who caused it."""
    context: JsonObject = Field(default_factory=dict)
    """The context that its start, or its message, was given beside sender and tenant."""

    def changed(self, **fields: object) -> Self:
        """Return the event with these fields changed. Raises `TypeError` for a field that a hook may not change.

        ```python
        @hook("message_sending")
        def sign(event: MessageSending) -> Any:
            return event.changed(text=f"{event.text} (your shop)")
        ```
        """
        if wrong := [name for name in fields if name not in self.CHANGES]:
            may = ", ".join(self.CHANGES) or "nothing"
            raise TypeError(f"{type(self).__name__}.{wrong[0]} cannot be changed by a hook; a hook may change {may}")
        made: Self = type(self).model_validate({**{name: getattr(self, name) for name in self.fields()}, **fields})
        return made

    @classmethod
    def fields(cls) -> tuple[str, ...]:
        """Return the names of all its fields."""
        return tuple(cls.model_fields)


class _OfCall(HookEvent):
    call: str = ""
    """`R.N`, or `R.N[i]` in a loop."""
    tool: str = ""
    """The agent's name for the tool."""
    code: str = ""
    """The name of the code behind the tool, which an agent file may rename; for a delegate its agent's name."""
    params: JsonObject = Field(default_factory=dict)
    """The parameters, with every reference resolved."""


class BeforeAgentStart(HookEvent):
    """The beginning of a run: no model was called yet. If refused, the run fails with the reason.

    ```python
    @hook("before_agent_start")
    def add_date(event: BeforeAgentStart) -> Any:
        return event.changed(system=f"{event.system} Today is {event.at[:10]}.")
    ```
    """

    CHANGES: ClassVar[tuple[str, ...]] = ("input", "system")

    input: Json = None
    """The run's input; a change is validated against the agent's schema again."""
    system: str = ""
    """The agent's system text, which the model reads before the person's message."""
    above: list[str] = Field(default_factory=list)
    """The ancestors of a delegate, outermost first."""


class AgentEnd(HookEvent):
    """The end of a run, in any way.

    ```python
    @hook("agent_end")
    def bill(event: AgentEnd) -> None:
        print(event.tenant, event.status, event.tokens, event.cost)
    ```
    """

    above: list[str] = Field(default_factory=list)
    """The ancestors of a delegate, whose runs include this one's usage; outermost first."""
    status: str = ""
    """`completed`, `failed` or `cancelled`."""
    output: Json = None
    stop_reason: str | None = None
    error: str | None = None
    requests: int = 0
    tokens: int = 0
    cost: float | None = None
    """Dollars, those of its delegates included; `None`: unknown."""
    messages: list[JsonObject] = Field(default_factory=list)
    """The messages of the last Request as its model received them, the newest 1,000,000 bytes, and the output behind
    them."""


class BeforeToolCall(_OfCall):
    """A call that is ready, before any approval. If refused, it fails with the code `refused_by_hook`.

    ```python
    @hook("before_tool_call", tools=["order"])
    def at_most_ten(event: BeforeToolCall) -> Any:
        return refuse("At most ten pieces.") if event.params.get("count", 1) > 10 else None
    ```
    """

    CHANGES: ClassVar[tuple[str, ...]] = ("params",)

    sources: dict[str, list[str]] = Field(default_factory=dict)  # R15.1
    """The provenance of each parameter; `!` before a name: others wrote the value."""
    tokens: int = 0
    """Tokens that the run has used so far, in answered Requests."""
    cost: float | None = None
    """Dollars that the run has used so far; `None`: a model's price is unknown."""


class AfterToolCall(_OfCall):
    """A call that has run. If refused, its result is withheld, although the call was made.

    ```python
    @hook("after_tool_call", tools=["read_mail"])
    def redact(event: AfterToolCall) -> Any:
        return event.changed(result=str(event.result).replace("secret", "…"))
    ```
    """

    CHANGES: ClassVar[tuple[str, ...]] = ("result", "message")

    status: str = "done"
    """`done`, or `failed` with `error` and `message`."""
    result: Json = None
    """The result for the state and the model."""
    error: str | None = None
    """The failure's code."""
    message: str | None = None
    attempt: int = 1


class ToolResultPersist(_OfCall):
    """A call's result before it is stored in a session's transcript. If refused, the reason is stored in its place.

    ```python
    @hook("tool_result_persist", tools=["read_mail"])
    def forget(event: ToolResultPersist) -> Any:
        return refuse("Mails are not stored.")
    ```
    """

    CHANGES: ClassVar[tuple[str, ...]] = ("result",)

    result: Json = None
    """The result for later runs of the session; the state and the current run keep the original."""


class BeforeCompaction(HookEvent):
    """A session's conversation before it is compacted. If refused, the conversation is not compacted now.

    ```python
    @hook("before_compaction")
    def keep_name(event: BeforeCompaction) -> Any:
        return event.changed(addition=f"The customer is {event.sender}.")
    ```
    """

    CHANGES: ClassVar[tuple[str, ...]] = ("addition",)

    reason: str = ""
    tokens: int = 0
    """The estimated number of tokens in the part to summarise."""
    text: str = ""
    """The part to compact, as a model reads it for the summary: at most 320,000 characters."""
    addition: str = ""
    """Text that follows the summary word for word; at most 2,000 characters."""


class AfterCompaction(HookEvent):
    """A session's conversation after it was compacted.

    ```python
    @hook("after_compaction")
    def log(event: AfterCompaction) -> None:
        print(event.session, event.kind, event.before, event.after)
    ```
    """

    kind: str = ""
    """`summary`, or `extract` if no model returned a usable one."""
    text: str = ""
    """The text that replaces the part from now on."""
    before: int = 0
    after: int = 0
    """Tokens, estimated."""


class MessageReceived(HookEvent):
    """A message, not a command, that a session has not accepted yet. If refused, its sender learns the reason.

    ```python
    @hook("message_received")
    def trim(event: MessageReceived) -> Any:
        return event.changed(text=event.text.strip())
    ```
    """

    CHANGES: ClassVar[tuple[str, ...]] = ("text",)

    message_id: str = ""
    text: str = ""
    mode: str | None = None
    rights: list[str] = Field(default_factory=list)


class MessageSending(HookEvent):
    """A reply before it is delivered. If refused, it is stored as refused, with the reason.

    ```python
    @hook("message_sending")
    def sign(event: MessageSending) -> Any:
        return event.changed(text=f"{event.text} (your shop)")
    ```
    """

    CHANGES: ClassVar[tuple[str, ...]] = ("text",)

    reply: str = ""
    """`<run>/<reply>`: the key of its delivery."""
    route: str = ""
    text: str = ""


class MessageSent(HookEvent):
    """The fate of a reply.

    ```python
    @hook("message_sent")
    def log(event: MessageSent) -> None:
        print(event.reply, event.route, event.status)
    ```
    """

    reply: str = ""
    route: str = ""
    text: str = ""
    status: str = ""
    """`delivered`, `refused` or `unknown`."""


class SessionStart(HookEvent):
    """The beginning of a session: its first message arrives.

    ```python
    @hook("session_start")
    def greet(event: SessionStart) -> None:
        print("new session", event.session)
    ```
    """


class SessionEnd(HookEvent):
    """The end of a session: it was deleted, or its workflow was cancelled.

    ```python
    @hook("session_end")
    def log(event: SessionEnd) -> None:
        print("ended", event.session)
    ```
    """


class Command(HookEvent):
    """An accepted command: `/new`, `/reset` or `/stop`.

    ```python
    @hook("command")
    def log(event: Command) -> None:
        print(event.session, event.command)
    ```
    """

    command: str = ""
    message_id: str = ""


class AgentBootstrap(HookEvent):
    """The files at the beginning of a run's prompt, after they were read. If refused, or if a hook fails, the run does
    not start.

    ```python
    @hook("agent_bootstrap")
    def add_rules(event: AgentBootstrap) -> Any:
        return event.changed(files={**event.files, "RULES.md": "Answer in English."})
    ```
    """

    CHANGES: ClassVar[tuple[str, ...]] = ("files",)

    files: dict[str, str] = Field(default_factory=dict)
    """The text of each file, by name."""


class GatewayStart(HookEvent):
    """The start of the gateway: it listens.

    ```python
    @hook("gateway_start")
    def log(event: GatewayStart) -> None:
        print("listening at", event.address)
    ```
    """

    address: str = ""


class GatewayStop(HookEvent):
    """The end of the gateway: it no longer listens.

    ```python
    @hook("gateway_stop")
    def log(event: GatewayStop) -> None:
        print("stopped", event.address)
    ```
    """

    address: str = ""


Where: TypeAlias = Literal["run", "session", "gateway"]
"""The owner of the hooks: a run records those of a run when it starts, a session those of a session when an execution
of it begins."""


@dataclass(frozen=True, slots=True)
class HookEventRow:
    """One row of the table of events."""

    name: str
    event: type[HookEvent]
    where: Where
    when: str
    """The moment of the event, in words."""
    refused: str = ""
    """The effect of a refusal; empty: a hook cannot refuse."""
    fails: Literal["closed", "open", "declared"] = "open"
    """The effect of a hook's failure: `closed` counts it as a refusal, `open` as an absent hook. `declared`: open if
    the function's annotation is `-> None`, so that it only observes; else closed."""

    @property
    def changes(self) -> tuple[str, ...]:
        return self.event.CHANGES

    @property
    def answers(self) -> bool:
        """Whether a hook may return a value."""
        return bool(self.changes or self.refused)


HOOKS: Final[Mapping[str, HookEventRow]] = {
    rule.name: rule
    for rule in (
        HookEventRow(
            "before_agent_start",
            BeforeAgentStart,
            "run",
            "a run, or a delegate's run, begins, before its first Request",
            "the run fails with the reason",
            "closed",
        ),
        HookEventRow("agent_end", AgentEnd, "run", "a run has ended"),
        HookEventRow(
            "before_tool_call",
            BeforeToolCall,
            "run",
            "a call is ready, before an approval is requested, and again after a person has edited it",
            "the call fails with `refused_by_hook`",
            "closed",
        ),
        HookEventRow(
            "after_tool_call",
            AfterToolCall,
            "run",
            "a call has run, before its result is in the state or in a prompt",
            "the result is withheld: the call fails with `refused_by_hook`",
            "declared",
        ),
        HookEventRow(
            "tool_result_persist",
            ToolResultPersist,
            "run",
            "a result will be stored in a session's transcript",
            "the transcript has the reason instead",
            "declared",
        ),
        HookEventRow(
            "agent_bootstrap",
            AgentBootstrap,
            "run",
            "the worker has read the files of a run's prompt",
            "the run fails with the reason",
            "declared",
        ),
        HookEventRow("session_start", SessionStart, "session", "a session begins, also by a fork or an import"),
        HookEventRow(
            "session_end",
            SessionEnd,
            "session",
            "a session is deleted and its run ends within 30 s, or its workflow is cancelled",
        ),
        HookEventRow(
            "message_received",
            MessageReceived,
            "session",
            "a message that is not a command arrives, before it is accepted",
            "the message is rejected, and the sender gets the reason",
            "closed",
        ),
        HookEventRow("command", Command, "session", "a command was accepted"),
        HookEventRow(
            "before_compaction",
            BeforeCompaction,
            "session",
            "a conversation will be compacted",
            "the conversation is not compacted now",
            "closed",
        ),
        HookEventRow("after_compaction", AfterCompaction, "session", "a conversation was compacted"),
        HookEventRow(
            "message_sending",
            MessageSending,
            "session",
            "a reply will be delivered",
            "the reply is recorded as refused, with the reason",
            "closed",
        ),
        HookEventRow("message_sent", MessageSent, "session", "the delivery of a reply has ended"),
        HookEventRow("gateway_start", GatewayStart, "gateway", "the gateway is listening"),
        HookEventRow("gateway_stop", GatewayStop, "gateway", "the gateway has stopped listening"),
    )
}
"""All events, in the order of a run."""


HOOK_ACTIVITY: Final = "perdure.hook"
"""The activity that calls all hooks of one event at one point."""
SESSION_HOOKS_ACTIVITY: Final = "perdure.hooks"
"""The activity that returns the worker's hooks for a session."""
SESSION_HOOKS_PATCH: Final = "session-hooks-asked"
"""Marker of a session's execution that has hooks. Only a worker with session hooks records it."""
LOCAL_SESSION_HOOKS_PATCH: Final = "session-hooks"
"""Marker of such an execution that 0.1.0 began: it has recorded its hooks by a local activity. Workers no longer record
it.
"""
REFUSED_BY_HOOK: Final = "refused_by_hook"
"""Code of a call that a hook has refused, or that a failed hook with `closed` could not examine."""
NO_SUCH_HOOK: Final = "NoSuchHook"
"""Code of a failure that waits for a hook which the worker does not have: another worker of the queue may."""


class RunOwner(WireModel):
    """The session and sender on whose behalf a run works, if they are known. No model reads it (R19.1)."""

    tenant: str = ""
    sender: str = ""
    session: str = ""
    """The key of the run's session."""
    context: JsonObject = Field(default_factory=dict, exclude_if=operator.not_)
    """Verified data about the sender, set by the program that authenticated them."""


NOBODY: Final = RunOwner()
"""The owner of a run without a named person."""


class HookRef(WireModel):
    """A reference to a worker's hook, as a run records it."""

    event: str
    name: str
    """`module:function`."""
    tools: list[str] | None = None
    """The tools whose calls it is for; `None`: all."""
    timeout: float
    """Seconds."""
    closed: bool
    """Whether its failure counts as a refusal."""


class HookInput(WireModel):
    """The input of the activity that calls hooks."""

    event: str
    hooks: list[HookRef]
    """The hooks, in the order of their calls."""
    key: str
    """The event's key."""
    given: JsonObject | None = None
    """The event as JSON; `None`: a claim check, to be fetched by query."""


class HookProblem(WireModel):
    """A failure of a hook that counted as absent."""

    hook: str
    problem: str


class HookAnswer(WireModel):
    """The combined answer of the hooks of one event."""

    refused: str | None = None
    """The reason of a refusal; the hooks behind the refusing one were not called."""
    changed: JsonObject | None = None
    """The changeable fields with their new values; of parameters only those that were changed. `None`: unchanged."""
    gone: list[str] = Field(default_factory=list)
    """Removed parameters."""
    by: list[str] = Field(default_factory=list)
    """The hooks that have changed the event, or the one that refused it."""
    failed: list[HookProblem] = Field(default_factory=list)
