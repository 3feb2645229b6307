"""Entries of a transcript: messages, runs, replies, and compactions."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from perdure.models.dialects.output_text import text_of
from perdure.models.usage import Usage
from perdure.runs.events import is_silence
from perdure.runs.routes import Delivered, DeliveryStatus
from perdure.runs.wire import CallView, RunResult
from perdure.sessions.replies import PartKind, ReplyDelivery
from perdure.sessions.wire import message_key
from perdure.values.json import Json, JsonObject, WireModel, dumps
from perdure.values.limits import MAX_RESULT, MAX_RUN
from perdure.values.media import cut_text
from perdure.values.state import WriteRecord

_SHOWN: Final = 160
"""Characters of a result for which there is no room."""
_CALL: Final = 200
"""Bytes of a call beside its parameters, its result and its error."""


class _TranscriptEntry(WireModel):
    n: int = 0
    """Place in the session, from 1 without gaps, unless a fork leaves entries out. The transcript sets it."""
    at: str
    """ISO 8601, UTC."""

    @model_serializer(mode="wrap")
    def _with_type(self, handler: SerializerFunctionWrapHandler) -> JsonObject:
        """Keep the type when defaults are left out: a reader needs it."""
        return {"type": self.type, **handler(self)}  # type: ignore[attr-defined]

    def as_json(self) -> JsonObject:
        """Return the entry as `session show --json` prints it, without default values."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)


class MessageEntry(_TranscriptEntry):
    """A sender's message, once, in the order of acceptance."""

    type: Literal["message"] = "message"
    message_id: str
    """The sender's idempotency key (R10.1)."""
    sender: str = ""
    text: str
    mode: str = "steer"
    run_id: str | None = None
    """Run that received the message, once it is known."""
    request: int = 1
    """First Request of that run that held it."""
    branch: int = 0
    why: str | None = None
    """Reason why it has no answer: it was withdrawn, or stopped."""
    known: JsonObject = Field(default_factory=dict)
    """Data for the queue's answer if the message is sent again; set when the entry is archived, and not printed.
    """

    @property
    def key(self) -> str:
        """The name of the message in the session."""
        return message_key(self.sender, self.message_id)

    def as_json(self) -> JsonObject:
        whole = {"messageId": self.message_id, "sender": self.sender, "text": self.text, "mode": self.mode}
        plain = super().as_json() | whole | {"runId": self.run_id}
        plain.pop("known", None)
        return plain


class CallEntry(WireModel):
    """A call with its outcome: every call has one."""

    id: str
    """`R.N`, as in its run."""
    tool: str
    params: JsonObject = Field(default_factory=dict)
    """Resolved parameters; of large ones the beginning."""
    status: str
    """Status, as in a `CallView`, or `unknown`: it is not known whether the call took effect."""
    result: str | None = None
    """Result as text without images, cut by R10.18."""
    wrote: list[WriteRecord] = Field(default_factory=list)
    """Paths to which its result, or its error, was written."""
    reason: str | None = None
    error: JsonObject | None = None

    @property
    def request(self) -> int:
        """The number of its Request."""
        number = self.id.partition(".")[0]
        return int(number) if number.isdecimal() else 0

    @property
    def outcome(self) -> str:
        """The call's result as text for a model."""
        if self.status == "done":
            return "null" if self.result is None else self.result
        if self.error is not None:
            return dumps({"error": self.error})
        return dumps({"status": self.status, **({"reason": self.reason} if self.reason else {})})


class RunEntry(_TranscriptEntry):
    """A run that has ended, with any outcome."""

    type: Literal["run"] = "run"
    run_id: str
    status: str
    """`completed`, `refused`, `failed`, `cancelled`, `terminated` or `timed_out`; `forked`: this session begins in the middle of it."""
    stop_reason: str | None = None
    error: str | None = None
    started_at: str | None = None
    requests: int = 0
    context_tokens: int = 0
    """Tokens that the model's server counted in the last Request, its answer included; 0: the server reported none."""
    tight: bool = False
    """Whether the context was too long for a model: the next run's is shorter (R9.7)."""
    calls: list[CallEntry] = Field(default_factory=list)
    left_out: int = 0
    """Number of earlier calls that were left out for lack of room."""
    branch: int = 0

    def as_json(self) -> JsonObject:
        calls = [call.model_dump(mode="json", by_alias=True, exclude_defaults=True) for call in self.calls]
        return super().as_json() | {"runId": self.run_id, "status": self.status, "calls": calls}


class ReplyEntry(_TranscriptEntry):
    """The reply of a run."""

    type: Literal["reply"] = "reply"
    run_id: str
    text: str | None = None
    """Text; `None` if the answer is `NO_REPLY`, or if the run has no answer, with the reason in `why`."""
    why: str | None = None
    sent: bool = False
    """Whether a message tool of the run has sent the text already, so that it is not delivered again."""

    def as_json(self) -> JsonObject:
        return super().as_json() | {"runId": self.run_id, "text": self.text}


class DeliveryEntry(_TranscriptEntry):
    """The outcome of a reply's delivery (R10.16)."""

    type: Literal["delivery"] = "delivery"
    run_id: str
    number: int
    """`<run>/<reply>`: the replies of a run count from 1."""
    kind: PartKind
    route: str
    status: DeliveryStatus
    why: str | None = None
    text: str | None = None
    """Text of the delivery, unless it is the run's unchanged answer. It is whole if it may be delivered again."""
    message_ids: list[str] = Field(default_factory=list)
    """Messages that an `unknown` delivery answers, and the sender of the first one, for another delivery."""
    sender: str = ""
    hooked: bool = Field(default=False, exclude_if=operator.not_)
    """Whether hooks have made or passed the text of an `unknown` delivery: another delivery does not call them again."""

    def as_json(self) -> JsonObject:
        return super().as_json() | {"runId": self.run_id, "kind": self.kind}


class CompactionEntry(_TranscriptEntry):
    """The text that replaces all entries before a Request (R10.11)."""

    type: Literal["compaction"] = "compaction"
    text: str
    kind: Literal["summary", "extract"]
    """Origin of the text: a model's summary, or, if the model failed, an extract of the messages."""
    why: str
    """Reason of the compaction: `tokens`, `refused` or `asked`."""
    up_to: int
    """Place of the run in which the unchanged part begins."""
    request: int
    """Last Request of that run that the text replaces."""
    before: int
    """Estimated tokens of the conversation before and after."""
    after: int
    problem: str | None = None
    """Reason why it is an extract."""
    model: str = ""
    usage: Usage = Field(default_factory=Usage)
    """Usage of the model, even if its summary was not usable."""
    branch: int = 0


class CommandEntry(_TranscriptEntry):
    """A command of a sender, or an action on the session."""

    type: Literal["command"] = "command"
    command: str
    """`new`, `reset`, `stop`, `withdraw`, `compact` or `fork`."""
    message_id: str = ""
    """Id of the message that was this command."""
    sender: str = ""
    text: str = ""
    """Further information."""
    known: JsonObject = Field(default_factory=dict)
    """Data as in `MessageEntry.known`."""

    @property
    def key(self) -> str:
        """The name of the command in the session, as of a message."""
        return message_key(self.sender, self.message_id)

    def as_json(self) -> JsonObject:
        plain = super().as_json() | {"command": self.command, "sender": self.sender}
        plain.pop("known", None)
        return plain


Entry: TypeAlias = Annotated[
    MessageEntry | RunEntry | ReplyEntry | DeliveryEntry | CompactionEntry | CommandEntry, Field(discriminator="type")
]


def run_entry(result: RunResult, at: str) -> RunEntry:
    """Return a run as a transcript keeps it, in `MAX_RUN` bytes. Each call has an outcome."""
    calls = [_call_entry(call) for call in result.calls]
    return RunEntry(
        at=at,
        run_id=result.run_id,
        status=result.status,
        stop_reason=result.stop_reason,
        error=result.error,
        requests=result.requests,
        context_tokens=0 if result.tight else result.context_tokens,  # the count of a cut context would mislead
        tight=result.tight,
        calls=(kept := fit_calls(calls, MAX_RUN)),
        left_out=len(calls) - len(kept),
    )


_WHY: Final = {
    "skipped": "the run ended before it was started",
    "unknown": "the run ended before this call had an outcome: it may have taken effect",
}


def _call_entry(call: CallView) -> CallEntry:
    status = call.status_without_outcome
    shown = call.told
    return CallEntry(
        id=call.id,
        tool=call.tool,
        params=shown.get("params", call.params),
        status=status,
        result=call.result if call.result is not None else shown.get("shown", call.shown),
        wrote=call.wrote,
        reason=call.reason if status == call.status else _WHY[status],
        error=shown.get("error", call.error),
    )


def fit_calls(calls: list[CallEntry], room: int) -> list[CallEntry]:
    """Return calls in about `room` bytes: the oldest lose most of their result, then the oldest are left out."""
    sizes = [_CALL + len(dumps([call.params, call.error]).encode()) for call in calls]
    results = [len((call.result or "").encode()) for call in calls]
    kept: list[CallEntry] = []
    for call, size, result in zip(reversed(calls), reversed(sizes), reversed(results), strict=True):
        if size + min(result, 2 * _SHOWN) > room:
            break
        if size + result > room // 2 and result > _SHOWN:
            call = call.model_copy(update={"result": cut_text(call.result or "", _SHOWN, f"{result:,} bytes")})
            result = 2 * _SHOWN
        room -= size + result
        kept.append(call)
    return kept[::-1]


def reply_of(output: Json) -> str | None:
    """Return a run's output as the text of a reply, see `text_of`; `NO_REPLY` is no reply (R10.16)."""
    text = text_of(output)
    return None if output is None or is_silence(text) else text


def delivery_entry(delivery: ReplyDelivery, became: Delivered, text: str | None, at: str) -> DeliveryEntry:
    """Return the entry of a delivery's outcome.

    `text`: `None` for the run's answer, which the transcript already has. Other texts, and texts that hooks have
    changed, are kept here.
    """
    again = became.status == "unknown"
    return DeliveryEntry(
        at=at,
        run_id=delivery.run_id,
        number=delivery.number,
        kind=delivery.kind,
        route=delivery.route,
        status=became.status,
        why=became.why,
        text=text if text is None or again else cut_text(text, MAX_RESULT, f"{len(text):,} characters"),
        message_ids=delivery.message_ids if again else [],
        sender=delivery.sender if again else "",
        hooked=delivery.hooked and again,
    )


StepPosition: TypeAlias = tuple[int, int]
"""Position of a step: a run's place in the session, and a Request of the run."""
END: Final = 1_000_000
"""Number in place of a Request, for the step after the last one."""
_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")
_TOKEN: Final = 4
"""Bytes of text that count as one token, without a server's count."""


@dataclass(frozen=True, slots=True)
class ConversationStep:
    """A step of a conversation: messages that stay together, such as a call and its result."""

    place: StepPosition
    messages: list[JsonObject]

    @property
    def tokens(self) -> int:
        return sum(map(tokens_of, self.messages))


def tokens_of(message: JsonObject) -> int:
    """Return the estimated tokens of a chat message."""
    calls = message.get("tool_calls", ())
    texts = [message.get("content") or "", *(call["function"]["arguments"] for call in calls)]
    return estimate(*texts) + 8 * len(calls)


def estimate(*texts: str) -> int:
    """Return the estimated tokens of texts."""
    return 4 + sum(len(text.encode(errors="replace")) for text in texts) // _TOKEN


def message_text(message: MessageEntry) -> str:
    """Return a sender's message as a model reads it."""
    return f"{message.sender}: {message.text}" if message.sender else message.text


def steps_of(run: RunEntry, messages: Sequence[MessageEntry], reply: ReplyEntry | None) -> Iterator[ConversationStep]:
    """Yield the steps of an ended run, with its messages and its reply: one for each Request that called anything."""
    requests: dict[int, list[CallEntry]] = {}
    for call in run.calls:
        requests.setdefault(call.request, []).append(call)
    left = list(messages)
    first = [message for message in left if message.request <= 1]
    yield ConversationStep((run.n, -1), [_user(message_text(message)) for message in first])
    left = [message for message in left if message.request > 1]
    for number, calls in sorted(requests.items()):
        held = [message for message in left if message.request <= number]
        left = [message for message in left if message.request > number]
        yield ConversationStep(
            (run.n, number), [*(_user(message_text(message)) for message in held), *_called(run.n, calls)]
        )
    yield ConversationStep((run.n, END), [*(_user(message_text(message)) for message in left), *_ended(run, reply)])


def call_id(n: int, call: CallEntry) -> str:
    """Return the id of a call in a conversation, by the run's place: `c12_1_0`."""
    return f"c{n}_{_NAME.sub('_', call.id)}"[:60]


def _called(n: int, calls: Iterable[CallEntry]) -> Iterator[JsonObject]:
    ids = {id(call): call_id(n, call) for call in calls}
    made = [
        {
            "id": ids[id(call)],
            "type": "function",
            "function": {"name": _NAME.sub("_", call.tool)[:64] or "_", "arguments": dumps(call.params)},
        }
        for call in calls
    ]
    yield {"role": "assistant", "content": None, "tool_calls": made}
    for call in calls:
        yield {"role": "tool", "tool_call_id": ids[id(call)], "content": call.outcome}


def _ended(run: RunEntry, reply: ReplyEntry | None) -> Iterator[JsonObject]:
    if reply is not None and reply.text is not None:
        yield {"role": "assistant", "content": reply.text}
    elif run.status != "completed" and run.status != "forked":
        why = (reply.why if reply is not None else None) or run.error
        yield _user(f"# the run ended without an answer: {run.status}{f' ({why})' if why else ''}")


def _user(text: str) -> JsonObject:
    return {"role": "user", "content": text}
