"""Events: their kinds, their form on the wire, and the cursor of a reader."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from pydantic import Field

from perdure.errors import CursorError
from perdure.models.usage import Usage
from perdure.values.json import Json, JsonObject, WireModel
from perdure.values.limits import MAX_EVENT_DATA, MAX_REPLY
from perdure.values.media import beginning_without_media, media_kind, read_media, without_file
from perdure.values.templates import PLAIN, TextForm

Topic: TypeAlias = Literal[
    "lifecycle",
    "request",
    "assistant",
    "reasoning",
    "tool",
    "hosted",
    "approval",
    "compaction",
    "message",
    "reply",
    "hook",
    "notification",
    "score",
]


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a run or session, as its readers receive it.

    ```python
    async for event in run.events(topics=["tool"]):
        print(event.at, event.phase, event.data.get("tool"))
    ```
    """

    # R10.14

    topic: Topic
    phase: str
    """Phase of the topic: see `TOPICS`."""
    at: str
    """Time: ISO 8601, UTC, to the millisecond. Of a delta, the time of reading."""
    run_id: str
    """Run that the event belongs to; empty for the session's own events."""
    data: JsonObject = field(default_factory=dict)
    """Data, as `TOPICS` describes it. `cut` names the values that were cut."""
    cursor: str = ""
    """Cursor from which a reader continues after this event."""

    def as_json(self) -> JsonObject:
        """Return the event as `perdure events --json` prints it, one per line."""
        return {
            "topic": self.topic,
            "phase": self.phase,
            "at": self.at,
            "runId": self.run_id,
            "cursor": self.cursor,
            "data": self.data,
        }


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a topic: the occasion of its events, and their data."""

    when: str
    """Occasion of the event, in words."""
    data: Mapping[str, str]
    """Description of each key. A key that ends with `?` is present only where it has a value."""
    noted: bool = True
    """Whether a journal keeps it; other events are made for each reader."""
    most: int = MAX_EVENT_DATA
    """Characters of its data; longer data is cut."""


_CALL: Final = {"call": "the call's id, `R.N`", "tool": "the tool's name"}
_HOOK: Final = {
    "event": "the name of the hook's event",
    "hook": "the hook's name, `module:function`",
    "call?": "the call's id",
    "reason": "the reason",
}
_NOTIFICATION: Final = {
    "key": "the notification's idempotency key",
    "kind": "`approval_requested`, `approval_waiting`, `budget_nearly_used`, `run_failed` or `run_ended`",
    "route": "the route's name; for a callback, the host",
    "call?": "the call's id",
}
_PIECE: Final = {
    "request": "the Request's number",
    "attempt": "the number of the Request's attempt",
    "start": "the number of characters of the text before this piece",
    "text": "the new piece of the text",
}
_FORM: Final = {
    "form?": "the relation of the text to the output: `json`, the output's JSON; `member`, the output's only member; `remark`, not the output. Without this key, the text is the output",
    "member?": "the member's name",
}
_SUPERSEDED: Final = {
    "request": "the Request's number",
    "attempt": "the attempt whose text no longer counts",
    "reason": "the reason",
}

TOPICS: Final[Mapping[Topic, Mapping[str, Phase]]] = {
    "lifecycle": {
        "start": Phase(
            "a run begins, or a session and each of its runs",
            {"agent": "the agent's name", "number?": "in a session: the run's number there"},
        ),
        "end": Phase(
            "a run has ended with an output, or a session has ended",
            {
                "status": "`completed`, or of a session `deleted` or `cancelled`",
                "stopReason?": "the stop reason",
                "output?": "the output",
                "number?": "in a session: the run's number there",
            },
        ),
        "error": Phase(
            "the run or the session has ended without an output",
            {
                "status": "`refused`, `failed`, `cancelled`, `terminated` or `timed_out`",
                "stopReason?": "the reached limit",
                "error?": "the error, in one line",
                "number?": "in a session: the run's number there",
            },
        ),
        "reset": Phase(
            "Temporal reset the run or the session; events after the point of the reset do not count",
            {
                "number": "the number of the reset among the history's resets",
                "runId?": "in a session: the run that continues",
            },
        ),
        "snapshot": Phase(
            "earlier events are no longer stored; the event has the current state",
            {
                "first": "the number of the first missed event",
                "next": "the number of the next event",
                "view": "the run or the session in the form of `show --json`, shortened",
            },
            noted=False,
        ),
    },
    "request": {
        "start": Phase(
            "a Request is sent to a model",
            {"number": "1 for the run's first", "model": "the model", "reason": "the reason for this model"},
        ),
        "update": Phase(
            "the Request is sent again",
            {
                "number": "as in `start`",
                "model?": "the model, if it is known",
                "reason": "the reason for the retry",
            },
        ),
        "end": Phase(
            "the answer is complete, or the Request has failed",
            {
                "number": "as in `start`",
                "model": "the model that answered",
                "attempt?": "the number of the attempt that answered",
                "usage": "the tokens, as the model's server counts them",
                "cost?": "the cost in dollars",
                "problem?": "the reason why the answer is not valid or was ended",
                "says?": "`true`: the answer has a text; `assistant` `end` has it after the answer's calls have ended",
            },
        ),
    },
    "assistant": {
        "delta": Phase("the model wrote text", _PIECE | _FORM, noted=False, most=MAX_REPLY),
        "superseded": Phase("the text so far no longer counts", _SUPERSEDED, noted=False),
        "end": Phase(
            "the text is complete",
            {
                "request": "the Request's number",
                "attempt": "the number of the attempt that wrote the text",
                "text": "the complete text",
                **_FORM,
                "anew?": "`true`: the `delta` events are reasoning or outdated, and not part of the text",
                "accepted": "whether the text counts: `false` if it is not a valid output, or calls of the answer have failed",
                "output?": "`true`: the text is the run's output, or becomes it",
                "reason?": "the reason if it does not count",
            },
            most=MAX_REPLY + MAX_EVENT_DATA,
        ),
    },
    "reasoning": {
        "delta": Phase("the model wrote reasoning", _PIECE, noted=False, most=MAX_REPLY),
        "superseded": Phase("the reasoning so far no longer counts", _SUPERSEDED, noted=False),
        "end": Phase(
            "the reasoning is complete",
            {
                "request": "the Request's number",
                "attempt": "the attempt's number",
                "characters": "the number of characters",
            },
        ),
    },
    "tool": {
        "start": Phase(
            "a call starts", _CALL | {"params": "the call's parameters", "runId?": "the id of the delegate's run"}
        ),
        "update": Phase(
            "the tool reports progress, or the call is retried",
            _CALL
            | {
                "attempt?": "the running attempt",
                "progress?": "the reported progress",
                "reason?": "the reason for the retry",
            },
        ),
        "end": Phase(
            "the call has ended, or will not run",
            _CALL
            | {
                "status": "`done`, `failed`, `rejected`, `skipped`, `invalid`, `deferred` or `unknown`",
                "result?": "the call's result",
                "error?": "`{code, message}`",
                "reason?": "the reason why the call was skipped",
                "attempts?": "the number of attempts",
            },
        ),
    },
    "hosted": {
        "end": Phase(
            "a tool that the model's provider runs has ended; the event follows the complete answer",
            {
                "request": "the Request's number",
                "tool": "`web_search` or `code_execution`",
                "input?": "the query, or the code",
                "result?": "the part of the result that the provider returns",
                "status": "`done` or `failed`",
            },
            most=2 * MAX_EVENT_DATA,
        )
    },
    "approval": {
        "start": Phase(
            "a call, or a whole plan, waits for a person",
            {
                "call": "the id for decisions: the call's id, or the plan's Request number",
                "tool": "the tool's name, empty for a plan",
                "params": "the call's parameters, empty for a plan",
                "calls?": "the plan's calls, as the model wrote them",
                "reason": "the reason of the request, or the question",
                "question?": "`true`: a question that needs an answer, not a decision",
                "server?": "the MCP server that asks during the call",
                "client?": "`true`: the program that started the run executes the call, and answers with the result",
            },
        ),
        "end": Phase(
            "the request no longer waits",
            {
                "call": "as in `start`",
                "tool": "as in `start`",
                "decision?": "the decision, or `dropped` if the call will not run; no value if a plan is requested again",
                "by?": "the person or program that decided",
                "reason?": "the reason",
            },
        ),
    },
    "hook": {
        "refused": Phase("a hook refused an operation, or failed and so stopped it", _HOOK),
        "failed": Phase("a hook that only observes has failed; the operation continues", _HOOK),
    },
    "notification": {
        "start": Phase("a notification is sent", _NOTIFICATION),
        "end": Phase(
            "a route accepted or rejected the notification",
            _NOTIFICATION
            | {
                "status": "`delivered`, `refused` or `unknown`",
                "reason?": "the reason why the status is refused or unknown",
            },
        ),
    },
    "score": {
        "end": Phase(
            "an ended run was scored by its agent's `config.evaluate`; the event follows the run's end",
            {
                "share": "the share of conditions that hold, from 0 to 1",
                "passed": "whether the run completed and all conditions hold",
                "assertions?": "whether the condition holds, by evaluator",
                "scores?": "the returned number, by evaluator",
                "labels?": "the returned text, by evaluator",
                "reasons?": "the reason, by evaluator",
                "problems?": "the errors of failed evaluators",
                "reason?": "the reason why the run has no score; then the event has no other key",
            },
            noted=False,
        )
    },
    "compaction": {
        "start": Phase(
            "the conversation is summarised, or truncated for a model with a smaller context",
            {"reason": "the reason", "before?": "the tokens before compaction"},
        ),
        "end": Phase(
            "the compaction has ended",
            {
                "reason": "the reason",
                "before?": "the tokens before compaction",
                "after?": "the tokens after compaction",
                "kind?": "`summary` (by a model) or `extract` (from the messages), if the compaction saves tokens",
                "problem?": "the reason for a missing summary",
            },
        ),
    },
    "message": {
        "accepted": Phase(
            "a message or a command was accepted",
            {
                "messageId": "the message's id, from its sender",
                "sender": "the sender",
                "mode?": "the mode",
                "text": "the text",
                "done?": "in a session: the effect of the message, as in its receipt",
                "position?": "the message's position in the queue",
                "runId?": "the run that gets the message",
            },
        ),
        "taken": Phase(
            "a Request contains the message, or a run has it; or the command was executed",
            {
                "messageId": "as in `accepted`",
                "runId?": "the run",
                "request?": "the first Request that contains the message",
                "command?": "the command",
            },
        ),
        "withdrawn": Phase(
            "the message was withdrawn, or no run will get it",
            {"messageId": "as in `accepted`", "reason?": "the reason"},
        ),
    },
    "reply": {
        "end": Phase(
            "a run of the session has its reply",
            {"text?": "the reply", "reason?": "the reason for a missing reply"},
            most=MAX_REPLY + MAX_EVENT_DATA,
        ),
        "delivery": Phase(
            "the delivery of a reply has ended",
            {
                "key": "`<run>/<reply>`",
                "kind": "`answer`, `reasoning`, `tools` or `failure`",
                "route": "the route",
                "status": "`delivered`, `refused` or `unknown`",
                "reason?": "the reason why the status is refused or unknown",
            },
        ),
    },
}
"""Every topic, in the order of docs/events.md."""


IN_SESSION_JOURNAL: Final = frozenset(
    {
        ("lifecycle", "start"),
        ("lifecycle", "end"),
        ("lifecycle", "error"),
        ("message", "accepted"),
        ("message", "withdrawn"),
    }
)
"""Events of a run that the session reports too: a reader of the session receives them once."""


def as_topic(name: object) -> Topic | None:
    """Return the topic of this name; `None` if there is none."""
    return next((topic for topic in TOPICS if topic == name), None)


EVENTS_QUERY: Final = "events"
"""Query of a run and of a session: `(first: int, limit: int)`, both optional, returns an `EventsPage`."""

WATCHED: Final = "watched"
"""Signal to a run: it is watched for the next `WATCH_LASTS`; arguments are ignored. Query: the time at which the watch
ends (`float`, seconds since 1970), 0 for nobody."""
WATCH_LASTS: Final = 90.0
"""Seconds; a reader repeats the signal once a minute."""


class JournalEntry(WireModel):
    """An event as a journal keeps it: its number is its place."""

    topic: Topic
    phase: str
    at: str
    """ISO 8601, UTC, to the millisecond."""
    run_id: str = ""
    """Run that the event of a session is about; empty for the session's own. In a run always empty."""
    data: JsonObject = Field(default_factory=dict)


class RunReset(NamedTuple):
    """A reset of a run, in its journal."""

    event: int
    """Number of the event that records it: earlier events from this number on do not count. 0: no earlier event counts,
    and no event records the reset.
    """
    at: str
    """Time of the first task after it: ISO 8601, UTC, to the millisecond."""

    @property
    def mark(self) -> int:
        """The digits of its time, to the millisecond: 20261123090444167.

        A later reset has a higher mark, even if it goes back before an earlier reset, which the run then no longer has.
        """
        return int("".join(filter(str.isdigit, self.at[:_TO_MILLISECOND])))


_TO_MILLISECOND: Final = len("2026-11-23T09:04:44.167")


def last_reset(resets: Sequence[RunReset]) -> int:
    """Return the mark of the last reset; 0 for none."""
    return resets[-1].mark if resets else 0


class TextPiece(WireModel, extra="ignore"):
    """The last piece of a text that is being written."""

    start: int = 0
    """Number of characters before it."""
    text: str = ""
    form: TextForm = Field(default=PLAIN, exclude_if=lambda form: form == PLAIN)
    """The form in which it shows the output."""


class WrittenText(WireModel, extra="ignore"):
    """The text that a Request's model has written so far: its activity's heartbeat details, which no history keeps."""

    request: int
    attempt: int
    """Attempt, counted as in `RequestResult.attempt`: attempts of earlier activities included."""
    assistant: TextPiece = Field(default_factory=TextPiece)
    reasoning: TextPiece = Field(default_factory=TextPiece)
    spent: Usage | None = Field(default=None, exclude_if=operator.not_)
    """The usage of this attempt so far, and of those before it: the next attempt adds it to its own."""


class EventsPage(WireModel, extra="ignore"):
    """A page of events of one source, from a number on."""

    first: int
    """Number of the first of `events`: the requested one, or the oldest that is kept."""
    next: int
    """Number after the last of `events`, from which to continue. Less than `count` if more events exist."""
    kept_from: int
    """Number of the oldest kept event. A reader at an earlier number has missed the events between."""
    events: list[JournalEntry] = Field(default_factory=list)
    """Events in their order."""
    count: int
    """Number of events so far."""
    resets: list[RunReset] = Field(default_factory=list)
    """Resets of the run that its history holds, in their order."""
    ended: bool = False
    """Whether no event follows the last of `count`."""
    earlier: bool = False
    """Whether the previous execution, which answers the same query, may still have some of the missed events."""
    written: WrittenText | None = Field(default=None, exclude_if=operator.not_)
    """The known text of an answer that is complete and whose calls still run, where it has grown since number `first`.
    """


class CarriedEvents(WireModel):
    """The events that a journal carries into a new execution."""

    count: int = 0
    resets: list[RunReset] = Field(default_factory=list)
    events: list[JournalEntry] = Field(default_factory=list)
    """Newest events."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """A cursor of a reader, in one of four forms of dotted numbers, short enough to write by hand:

    `12`: the reader has seen the run's events before number 12.
    `12.3.1.400.0`: also 400 characters of the text of Request 3, attempt 1.
    `5.2.12`: the session's events before number 5, and of its run 2 those before 12.
    `5.2.12.3.1.400.0`: both. After a reset of a run `12r20261123090444167`, of a session `5r20261123090444167.2.12`.
    """

    events: int = 0
    """Number of the run's events that were seen."""
    request: int = 0
    """Request with seen text; 0 for none."""
    attempt: int = 0
    """Attempt that has written the text."""
    assistant: int = 0
    """Characters of its answer that were seen."""
    reasoning: int = 0
    """Characters of its reasoning that were seen."""
    session: int | None = None
    """Number of the session's events that were seen; `None` for a reader of a run."""
    run: int = 0
    """Number of the session's run that `events` counts; 0: none yet."""
    reset: int = 0
    """Mark of the last seen reset of the run; 0: none."""
    session_reset: int = 0
    """Mark of the last seen reset of the session; 0: none."""

    def __str__(self) -> str:
        events = _marked(self.events, self.reset)
        own = None if self.session is None else _marked(self.session, self.session_reset)
        parts = [events] if own is None else [own, str(self.run), events]
        text = [self.request, self.attempt, self.assistant, self.reasoning]
        return ".".join(parts + list(map(str, text)) if any(text) else parts)

    def after(self, resets: Sequence[RunReset]) -> Cursor:
        """Return the cursor after unseen resets: after the seen events that still count."""
        unseen = [each.event for each in resets if each.mark > self.reset]
        if not unseen:
            return self
        here = replace(self, request=0, attempt=0, assistant=0, reasoning=0)
        return replace(here, events=min(self.events, *unseen), reset=last_reset(resets))

    def after_session(self, resets: Sequence[RunReset]) -> Cursor:
        """Return the cursor after resets of the session. The place in its run stays."""
        unseen = [each.event for each in resets if each.mark > self.session_reset]
        if not unseen:
            return self
        return replace(self, session=min(self.session or 0, *unseen), session_reset=last_reset(resets))


def _marked(number: int, reset: int) -> str:
    return f"{number}r{reset}" if reset else str(number)


def parse_cursor(text: str) -> Cursor:
    """Parse the text of a cursor. Raise `CursorError` with one line for any other text."""
    parts = text.split(".")
    place = {1: 0, 3: 2, 5: 0, 7: 2}.get(len(parts))
    resets = {0: "0", place: "0"}
    for at in resets if place is not None else ():
        if at is not None and "r" in parts[at]:
            parts[at], _, resets[at] = parts[at].partition("r")
    if place is None or not all(
        0 < len(p) <= _DIGITS and p.isascii() and p.isdigit() for p in (*parts, *resets.values())
    ):
        raise CursorError(
            f"{text[:100]!r} is not a valid cursor of events: use one such as '12' for a run or '5.2.12' for a session"
        )
    numbers = list(map(int, parts))
    written = numbers[-4:] if len(numbers) > 4 else [0, 0, 0, 0]
    session, run = (numbers[0], numbers[1]) if place == 2 else (None, 0)
    request, attempt, assistant, reasoning = written
    reset, own = int(resets[place]), int(resets[0]) if place else 0
    return Cursor(numbers[place], request, attempt, assistant, reasoning, session, run, reset, own)


_DIGITS = 17


NO_REPLY: Final = "NO_REPLY"
_AROUND: Final = " \t\r\n\"'`*“”‘’«»"
"""Signs that a model may write around `NO_REPLY`."""


def is_silence(text: str) -> bool:
    """Whether the whole answer is `NO_REPLY`. A text that only mentions `NO_REPLY` is sent."""
    return text.strip(_AROUND) == NO_REPLY


def may_be_silence(text: str) -> bool:
    """Whether a text that is being written may still become `NO_REPLY`."""
    core = text.lstrip(_AROUND)
    return NO_REPLY.startswith(core) or (core.startswith(NO_REPLY) and is_silence(core))


_LEAST: Final = 80
"""Characters that each entry of an object may have if there is room, so that names stay whole beside a long text."""
_LEAST_ITEM: Final = 200
"""Characters that each item of a list may have: the first items stay whole, and the last are left out."""
_MARK: Final = 30
"""Characters of the note about the missing part."""
_KEY: Final = 200
"""Characters of a key."""

Clipped: TypeAlias = tuple[Any, int, bool]
"""A value in its form, so that an object stays an object; the approximate characters of its JSON; whether it is whole.
"""


def clip_value(value: Json, most: int, *, media: bool = False) -> Clipped:
    """Return the value in about `most` characters of JSON.

    Its form stays. A long text is cut and gives its length. A long list or object loses its end, with a count (in an
    object under the key `…`). The result is a copy as far as the value could change. The cost grows with the size
    of the result, not of the value.

    With `media`, descriptions replace files before the value is cut (R10.18); the cost then grows with the size of the
    files.
    """
    found = _clipped(value, most, fair=False, media=media)
    return found if found[2] else _clipped(value, most, fair=True, media=media)


def _clipped(value: Json, most: int, *, fair: bool, media: bool) -> Clipped:
    """Return the clipped value. With `fair` each part has its share of the room, so that a long part leaves room for
    others.
    """
    if isinstance(value, str):
        text, whole = beginning_without_media(value, max(most, 0)) if media else (value, True)
        if whole and len(text) + 2 <= most:
            return text, len(text) + 2, True
        kept = max(0, most - _MARK)
        return f"{text[:kept]}… ({len(value):,} characters)", kept + _MARK, False
    if isinstance(value, dict):
        file = read_media(value) if media else None
        return _clipped_object(value, most, fair, media) if file is None else (file.line, len(file.line), True)
    if isinstance(value, list | tuple):
        return _clipped_list(value, most, fair, media)
    if isinstance(value, int) and value.bit_length() > 100:
        digits = value.bit_length() * 3 // 10 + 1
        return (value, digits, True) if digits <= most else (f"… (about {digits:,} digits)", _MARK, False)
    return value, len(repr(value)), True


def _clipped_object(value: dict[str, Json], most: int, fair: bool, media: bool) -> Clipped:
    found: dict[str, Json] = {}
    kind = media_kind(value) if media else ""
    used, whole, left = 2, True, len(value)
    for key, item in value.items():
        room = most - used - len(key) - 4
        if room < 2 or len(key) > _KEY or (fair and left > 1 and room < _MARK):
            found["…"] = f"{left:,} more"
            return found, used + _MARK, False
        share = _share(room, left, _LEAST) if fair else room
        if (
            not media and type(item) is str and len(item) + 2 <= share
        ):  # as most parts are: this saves two function calls for each
            found[key], size, all_of_it = item, len(item) + 2, True
        else:
            found[key], size, all_of_it = _clipped(without_file(kind, key, item) or item, share, fair=fair, media=media)
        used, whole, left = used + size + len(key) + 4, whole and all_of_it, left - 1
    return found, used, whole


def _clipped_list(value: list[Json] | tuple[Json, ...], most: int, fair: bool, media: bool) -> Clipped:
    found: list[Json] = []
    used, whole, left = 2, True, len(value)
    for item in value:
        room = most - used - 1
        if room < 2 or (fair and left > 1 and room < _MARK):
            found.append(f"… ({left:,} more)")
            return found, used + _MARK, False
        share = _share(room, left, _LEAST_ITEM) if fair else room
        kept, size, all_of_it = _clipped(item, share, fair=fair, media=media)
        found.append(kept)
        used, whole, left = used + size + 1, whole and all_of_it, left - 1
    return found, used, whole


def _share(room: int, left: int, least: int) -> int:
    """Return the room of one of `left` parts, so that later parts have their share."""
    return max(room // left, min(room, least))
