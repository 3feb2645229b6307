"""The event journal of a run: numbered without a gap over continue-as-new."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Final

from perdure.approvals.requests import ApprovalRequest, IncomingMessage, JudgedDecision, tool_question
from perdure.models.dialects import output_text
from perdure.models.requests import ModelWait, RequestResult, RequestView
from perdure.plan import Call
from perdure.runs.audit import AuditTrail, decision_data, policy_data, refusal_data, refused_decision_data, timeout_data
from perdure.runs.events import (
    TOPICS,
    CarriedEvents,
    EventsPage,
    JournalEntry,
    RunReset,
    TextPiece,
    Topic,
    WrittenText,
    clip_value,
    is_silence,
    may_be_silence,
)
from perdure.runs.notifications import NotificationView, RouteOutcome
from perdure.values.json import Json, JsonObject
from perdure.values.limits import (
    CARRIED_EVENTS,
    CARRIED_EVENTS_SIZE,
    EVENTS_AT_ONCE,
    KEPT_EVENTS,
    KEPT_EVENTS_SIZE,
    MAX_REPLY,
)
from perdure.values.media import parts_without_media
from perdure.values.sizes import Sizes, preview
from perdure.values.templates import PLAIN, TextForm


class EventJournal:
    """A bounded journal in memory. A replayed history yields the same journal, independent of its readers.

    Noting an event takes some microseconds, unless its data is larger than `_HELD`. The journal cuts an event's data
    when it is read, and larger data at once.
    """

    def __init__(self, carried: CarriedEvents | None = None) -> None:
        self._kept: deque[_JournalEntry] = deque()
        self._size = 0
        self.count = 0
        """Number of events so far."""
        self.resets: list[RunReset] = []
        """Resets of the run that its history holds."""
        self.ended = False
        """Whether the journal is closed: no event follows."""
        self._written: WrittenText | None = None
        self._written_at = 0
        self._begun = 0
        if carried is not None:
            self.take_up(carried)

    def take_up(self, carried: CarriedEvents) -> None:
        """Continue the journal of an earlier execution; events noted since then follow it.

        An event records a reset to the start of this execution.
        """
        noted, count, resets = list(self._kept), self.count, self.resets
        self._kept.clear()
        self._size, self._begun, self.count = 0, carried.count, carried.count
        self.resets = list(carried.resets)
        for each in carried.events:
            size = clip_value(each.data, KEPT_EVENTS_SIZE)[1]
            self._keep(_JournalEntry(each.topic, each.phase, each.at, each.run_id, each.data, size))
        if resets and resets[0].event == 0:
            self._note_reset(resets.pop(0).at)
        self.resets += [RunReset(self.count + mark.event, mark.at) for mark in resets]
        self.count += count
        for entry in noted:
            self._keep(entry)

    @property
    def kept_from(self) -> int:
        """The number of the oldest event that is kept."""
        return self.count - len(self._kept)

    def note(
        self, topic: Topic, phase: str, at: str, run_id: str = "", /, *, of: Sizes | None = None, **data: Json
    ) -> None:
        """Note an event at a time (ISO 8601, UTC). A `None` in `data` is left out; a long value is cut.

        With `of`, `data` holds values of a run that no longer change, and `of` holds their sizes.
        """
        data = {key: value for key, value in data.items() if value is not None}
        held = False
        found, size, whole = clip_value(data, _SHORT)
        if not whole:
            most = _most(topic, phase)
            size = _HELD + 1 if of is None else sum(map(of.of, data.values()))
            held = size <= _HELD
            found, size = (data, min(size, most)) if held else _small(data, most, values=of is not None)
        self.count += 1
        self._keep(_JournalEntry(topic, phase, at, run_id, found, size, held))

    def show(self, written: WrittenText | None) -> None:
        """Set the present text for readers of these events; `None`: none."""
        self._written, self._written_at = written, self.count

    def reset(self, at: str, run_id: str | None = None) -> None:
        """Note that the run continues from an earlier point. Events after that point no longer count.

        `at`: the time of the first task after the reset; `run_id`: the run with which a session continues. A workflow
        may detect the reset after messages of that task: their events still follow the reset.
        """
        self._written_at = self.count
        anew = sum(1 for _ in takewhile(lambda entry: entry.at == at, reversed(self._kept)))
        if anew < self.count:
            self._note_reset(at, anew, run_id)
        else:  # of several resets to the start only the last one matters
            self.resets = [RunReset(0, at)]

    def _note_reset(self, at: str, anew: int = 0, run_id: str | None = None) -> None:
        self.resets.append(RunReset(self.count - anew, at))
        self.note("lifecycle", "reset", at, number=len(self.resets), runId=run_id)
        self._kept.insert(max(0, len(self._kept) - 1 - anew), self._kept.pop())

    def page(self, first: int = 0, limit: int = KEPT_EVENTS) -> EventsPage:
        """Return at most `limit` events from number `first` on, as many as one answer holds.

        Where `first` is older than every kept event, the page begins with the oldest that is kept.
        """
        begin = min(max(first, self.kept_from), self.count)
        skip = begin - self.kept_from
        events: list[JournalEntry] = []
        room = EVENTS_AT_ONCE
        for entry in islice(self._kept, skip, skip + max(0, limit)):
            room -= entry.weight
            if room < 0 and events:
                break
            events.append(entry.noted())
        return EventsPage(
            first=begin,
            next=begin + len(events),
            kept_from=self.kept_from,
            events=events,
            count=self.count,
            resets=list(self.resets),
            ended=self.ended,
            earlier=0 <= first < min(self.kept_from, self._begun),
            written=self._written if first <= self._written_at else None,
        )

    def carried(self) -> CarriedEvents:
        """Return the newest events, for a new execution to continue with."""
        events: deque[JournalEntry] = deque()
        room = CARRIED_EVENTS_SIZE
        for entry in reversed(self._kept):
            room -= entry.weight
            if len(events) == CARRIED_EVENTS or room < 0:
                break
            events.appendleft(entry.noted())
        return CarriedEvents(count=self.count, resets=list(self.resets), events=list(events))

    def _keep(self, entry: _JournalEntry) -> None:
        self._kept.append(entry)
        self._size += entry.weight
        while len(self._kept) > KEPT_EVENTS or self._size > KEPT_EVENTS_SIZE:
            self._size -= self._kept.popleft().weight


@dataclass(slots=True)
class _JournalEntry:
    topic: Topic
    phase: str
    at: str
    run_id: str
    data: JsonObject
    size: int
    """Characters of `data`, or the most that it will have. Reading does not change them."""
    held: bool = False
    """Whether `data` holds uncut values: the first reader's page cuts them."""

    @property
    def weight(self) -> int:
        return self.size + _BESIDE

    def noted(self) -> JournalEntry:
        if self.held:
            self.data, _ = _small(parts_without_media(self.data), _most(self.topic, self.phase))
            self.held = False
        return JournalEntry(topic=self.topic, phase=self.phase, at=self.at, run_id=self.run_id, data=self.data)


_BESIDE: Final = 100
"""Characters of an event beside its data."""
_SHORT: Final = 250
"""Characters of data that is kept unchanged: every image is longer."""
_HELD: Final = 16_000
"""Bytes of values that an event holds by reference until it is read. Each kept event may hold that much."""
_LEAST: Final = 200
"""Characters up to which a part is short: it stays whole beside cut parts."""


def _most(topic: Topic, phase: str) -> int:
    return TOPICS[topic][phase].most - _BESIDE


def _small(data: JsonObject, most: int, *, values: bool = False) -> tuple[JsonObject, int]:
    """Return an event's data in at most `most` characters, and its characters.

    If the data is too long, short parts stay whole, and long parts share the remaining room. With `values` the data
    may hold images.
    """
    found, size, whole = clip_value(data, most, media=values)
    if whole:
        return found, size
    parts = {key: clip_value(value, _LEAST, media=values) for key, value in data.items()}
    long = [key for key, (_, _, whole) in parts.items() if not whole]
    room = most - sum(size + len(key) + 4 for key, (_, size, whole) in parts.items() if whole)
    for number, key in enumerate(long):
        parts[key] = clip_value(data[key], room // (len(long) - number) - len(key) - 4, media=values)
        room -= parts[key][1] + len(key) + 4
    small = {key: part for key, (part, _, _) in parts.items()}
    cut = [key for key, (_, _, whole) in parts.items() if not whole]
    return {**small, "cut": cut}, most - room


NOT_YET: Final[Mapping[str, str]] = {
    "structured": "the next Request puts it into form",
    "refined": "the next Request goes over it",
}
"""Reason why the last answer is no output, by the purpose of the next Request."""
CUT_BY_MESSAGE: Final = "a new message has ended it"


class RunJournal:
    """The journal of one run: decides when an event is noted, and under which id. `now` returns the time (ISO 8601,
    UTC).
    """

    def __init__(self, events: EventJournal | None = None, now: Callable[[], str] = str, run_id: str = "") -> None:
        self.events = events or EventJournal()
        self._now, self._run_id = now, run_id
        self.audit = AuditTrail(run_id)
        """Entries for the audit log."""
        self.sizes = Sizes()
        """Sizes of the run's values."""
        self._last_request = 0
        self._over = False
        self._unfinished_text: tuple[int, int, bool] | None = None
        """The Request, its attempt, and whether its text is new, while the text's outcome is not known yet."""
        self._known = ""
        """The part of that text that readers have until its outcome is known."""

    # The run.

    def run_began(self, agent: str) -> None:
        self.events.note("lifecycle", "start", self._now(), agent=agent)

    def was_reset(self) -> None:
        """Note that the run continues from an earlier point of its history."""
        self.events.reset(self._now())

    def run_ended(self, reason: str | None, output: Json) -> None:
        """Note that the run ended with an output; `reason`: why it stopped."""
        self.events.note("lifecycle", "end", self._now(), status="completed", stopReason=reason, output=output)
        self._over = True

    def run_failed(self, status: str, error: str | None, reason: str | None = None) -> None:
        """Note that the run ended without an output; `reason`: the limit that it reached."""
        if not self._over:
            self.events.note("lifecycle", "error", self._now(), status=status, error=error, stopReason=reason)
        self._over = True

    @contextmanager
    def to_end(self, *failures: type[Exception]) -> Iterator[None]:
        """Surround the whole work of a run, with its last hooks: no event follows it.

        One of the `failures` explains why a run could not begin.
        """
        try:
            yield
        except failures as error:
            self.run_failed("failed", str(getattr(error, "message", error)))
            raise
        finally:
            self.events.ended = self._over

    # Its Requests.

    def request_began(self, view: RequestView) -> None:
        """Note that a model receives a Request, or receives it again."""
        again, self._last_request = view.number == self._last_request, view.number
        self.events.note(
            "request",
            "update" if again else "start",
            self._now(),
            number=view.number,
            model=view.model,
            reason=view.reason,
        )

    def request_ended(self, view: RequestView, result: RequestResult, *, has_text: bool, cut: bool = False) -> None:
        """Note that the answer is complete.

        With `has_text` it has a text, and `text_ended` follows for the text. With `cut` a message ended it early.
        """
        self._unfinished_text, self._known = (view.number, result.attempt, result.anew) if has_text else None, ""
        if result.reasoned:
            self.events.note(
                "reasoning", "end", self._now(), request=view.number, attempt=result.attempt, characters=result.reasoned
            )
        for use in result.hosted:
            self.events.note(
                "hosted",
                "end",
                self._now(),
                request=view.number,
                tool=use.tool,
                input=use.input or None,
                result=use.result or None,
                status="failed" if use.failed else "done",
            )
        problem = CUT_BY_MESSAGE if cut else None
        if result.problem is not None:
            problem = f"{result.problem.get('code')}: {result.problem.get('message')}"
        self.events.note(
            "request",
            "end",
            self._now(),
            number=view.number,
            model=result.model or view.model,
            attempt=None if cut else result.attempt,
            usage=view.usage.as_json(),
            cost=view.cost,
            problem=problem,
            says=has_text or None,
        )

    def model_is_away(self, view: RequestView, wait: ModelWait) -> None:
        """Note that the provider of the Request's model is unavailable, and that the run waits for it."""
        self.events.note(
            "request", "update", self._now(), number=view.number, model=wait.model, reason=f"{wait.text()} UTC"
        )

    def unanswered(self, view: RequestView, problem: str) -> None:
        """Note that no model answered the Request."""
        self.events.note(
            "request",
            "end",
            self._now(),
            number=view.number,
            model=view.model,
            usage=view.usage.as_json(),
            problem=problem,
        )

    def text_known(self, text: str, form: TextForm) -> None:
        """Show readers the known part of the last answer's text: its beginning, longer each time (R19.4)."""
        if self._unfinished_text is None or len(text) <= len(self._known) or may_be_silence(text):
            return
        request, attempt, _ = self._unfinished_text
        self._known = text
        self.events.show(WrittenText(request=request, attempt=attempt, assistant=TextPiece(text=text, form=form)))

    def text_ended(self, text: str, refused: str | None, *, output: bool, form: TextForm = PLAIN) -> None:
        """Note the outcome of the last answer's text, if it had one.

        `refused` is the reason why the text does not count. With `output` the text is the run's output.
        """
        if self._unfinished_text is None:
            return
        request, attempt, anew = self._unfinished_text
        anew = anew or (refused is None and not text.startswith(self._known))
        self._unfinished_text, self._known = None, ""
        self.events.show(None)
        self.events.note(
            "assistant",
            "end",
            self._now(),
            request=request,
            attempt=attempt,
            text=text,
            **form.event_data(),
            anew=anew or None,
            accepted=refused is None,
            output=output or None,
            reason=refused,
        )

    def compacted(self, reason: str) -> None:
        """Note that the model sees a shortened context from now on."""
        for phase in ("start", "end"):
            self.events.note("compaction", phase, self._now(), reason=reason)

    # Its calls.

    def call_began(self, call: Call) -> None:
        """Note that a call starts, or only waits for its turn. A loop starts with its first iterations."""
        below = (
            call.spec.tool is not None
            and call.spec.tool.delegate is not None
            and call.spec.loop is None
            and not call.spec.repeats
        )
        self.events.note(
            "tool",
            "start",
            self._now(),
            call=call.id,
            tool=call.spec.tool_name,
            params=call.inputs.params,
            of=self.sizes,
            runId=f"{self._run_id}/{call.id}" if below else None,
        )

    def call_again(self, call: Call, reason: str) -> None:
        """Note that a call is retried after a failure that was not the call's fault."""
        self.events.note(
            "tool",
            "update",
            self._now(),
            call=call.id,
            tool=call.spec.tool_name,
            attempt=call.state.attempts + 1,
            reason=reason,
        )

    def call_ended(self, call: Call) -> None:
        """Note that a call ended, with any status."""
        if (refused := refusal_data(call)) is not None:
            self.audit.add("refusal", self._now(), refused)
        done = call.state.status == "done"
        self.events.note(
            "tool",
            "end",
            self._now(),
            call=call.id,
            tool=call.spec.tool_name,
            status=call.state.status,
            result=call.state.result if done else None,
            of=self.sizes,
            error=None if call.state.error is None else call.state.error.as_json(),
            reason=call.state.reason or None,
            attempts=call.state.attempts or None,
        )

    def hook(self, phase: str, event: str, hook: str, call: str, reason: str) -> None:
        """Note that a hook refused its subject, or that it failed and was ignored (R10.17)."""
        if phase == "refused":
            self.audit.add("refusal", self._now(), {"call": call, "by": hook, "event": event, "reason": reason})
        self.events.note("hook", phase, self._now(), event=event, hook=hook, call=call or None, reason=reason)

    # People.

    def notified(self, notification: NotificationView, outcome: RouteOutcome) -> None:
        """Note that a notification is sent to a route, or its outcome there."""
        sending = outcome.status == "sending"
        self.events.note(
            "notification",
            "start" if sending else "end",
            self._now(),
            key=notification.key,
            kind=notification.kind,
            route=outcome.route,
            call=notification.call,
            status=None if sending else outcome.status,
            reason=outcome.why,
        )

    def waits(self, request: ApprovalRequest) -> None:
        """Note that a request waits for a person, or for a client that executes the call."""
        call = request.call
        self.events.note(
            "approval",
            "start",
            self._now(),
            call=request.id,
            tool="" if call is None else call.spec.tool_name,
            params={} if call is None else call.inputs.params,
            calls=[each.spec.raw for each in request.calls] if call is None else None,
            of=self.sizes,
            reason=request.full_reason,
            ask=("" if request.question else tool_question(call)) or None,
            question=request.question or None,
            server=None if request.asked is None else request.asked.server,
            client=request.is_client_call or None,
        )

    def waits_no_more(self, request: ApprovalRequest) -> None:
        """Note that a request was decided, or no longer needs a decision."""
        approval = request.approval
        decided = approval.decision is not None
        if (timeout := timeout_data(request)) is not None:
            self.audit.add("decision", self._now(), timeout)
        self.events.note(
            "approval",
            "end",
            self._now(),
            call=request.id,
            tool="" if request.call is None else request.call.spec.tool_name,
            decision=approval.decision,
            by=(approval.by or None) if decided else None,
            reason=(approval.reason or None) if decided else None,
        )

    def decided(self, judged: JudgedDecision, missing: str = "") -> None:
        """Audit a decision that took effect. `missing`: the approvals of others that are still needed."""
        self.audit.add("decision", self._now(), decision_data(judged, missing))

    def decision_refused(self, sent: Json, problem: str) -> None:
        """Audit a decision, or a change of policy, that changed nothing."""
        self.audit.add("refusal", self._now(), refused_decision_data(sent, problem))

    def policy_changed(self, change: Json) -> None:
        """Audit a change of the run's policy."""
        self.audit.add("policy_change", self._now(), policy_data(change))

    def message_accepted(self, message: IncomingMessage) -> None:
        """Note that a message arrived while the run works."""
        self.events.note(
            "message", "accepted", self._now(), messageId=message.id, sender=message.sender, text=message.text
        )

    def taken(self, messages: Sequence[IncomingMessage], request: int) -> None:
        """Note that the Request that begins holds these messages."""
        for message in messages:
            self.events.note("message", "taken", self._now(), messageId=message.id, request=request)

    def withdrawn(self, message_id: str) -> None:
        self.events.note("message", "withdrawn", self._now(), messageId=message_id)


def why_not(result: RequestResult, wants: str) -> str | None:
    """Return the reason why an answer is no output: its own problem, or the purpose of the next Request."""
    return NOT_YET.get(wants) if result.problem is None else str(result.problem.get("message"))


def text_of(output: Json, sizes: Sizes, *, replies: bool = False) -> str:
    """Return an output as text. A long JSON value is cut to its beginning; a reply `NO_REPLY` gives an empty text."""
    texts = isinstance(output, dict) and len(output) == 1 and isinstance(next(iter(output.values())), str)
    if output is None or isinstance(output, str) or texts or sizes.of(output) <= 2 * MAX_REPLY:
        text = output_text.text_of(output)
        return "" if replies and is_silence(text) else text
    return preview(output, 2 * MAX_REPLY, compact=True)
