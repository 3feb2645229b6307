"""What a hook is given: one class for each of R10.17's names, and what of it a hook may change."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import ConfigDict, Field

from perdure.values.jsons import Json, JsonObject
from perdure.values.wire import Wire


class HookEvent(Wire):
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
