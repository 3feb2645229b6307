"""Event streams: each event once and in order for each reader, live text of a model, and adapters to other forms."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar, Final, Generic, TypeVar

from perdure.models.usage import Usage
from perdure.runs.events import (
    IN_SESSION_JOURNAL,
    TOPICS,
    Cursor,
    Event,
    EventsPage,
    JournalEntry,
    RunReset,
    TextPiece,
    Topic,
    WrittenText,
    last_reset,
    may_be_silence,
)
from perdure.values.json import JsonObject, dumps
from perdure.values.limits import KEPT_EVENTS
from perdure.values.templates import PLAIN, TextForm

KEPT: Final = 2 * KEPT_EVENTS
"""Events that are held for slow readers: more than a journal keeps, so that those readers need not query the journal.
"""


@dataclass(frozen=True, slots=True)
class LiveState:
    """The live state of a run that no journal keeps, at one moment."""

    at: str = ""
    """Time of the state: ISO 8601, UTC."""
    written: WrittenText | None = None
    """Text that a model is writing."""
    updates: tuple[JournalEntry, ...] = ()
    """Newest update of each call that runs, and of the Request."""


NOTHING: Final = LiveState()


class EventBuffer:
    """The events of one source, from `first` to `next` without a gap, and its last live state.

    A live state comes before the pages that were queried after it. A call that those pages report as ended is no longer
    live.
    """

    def __init__(self) -> None:
        self._events: deque[JournalEntry] = deque()
        self.begun = False
        """Whether any page was added."""
        self.next = 0
        self.resets: list[RunReset] = []
        """Resets of the source that its history holds."""
        self.ended = False
        self.live = NOTHING
        self._known: WrittenText | None = None
        """Known text of an answer whose calls still run, from the pages."""
        self.asked: JsonObject = {}
        """Data of the event with which the last Request began."""

    @property
    def first(self) -> int:
        return self.next - len(self._events)

    def look(self, live: LiveState) -> None:
        """Add a live state; its pages, if any, follow."""
        known = self._known
        is_newer = known is not None and (live.written is None or live.written.request <= known.request)
        self.live = replace(live, written=known) if is_newer else live

    def add(self, page: EventsPage) -> None:
        """Add the next events. If some are missing before them, drop the earlier ones, so that there is no gap."""
        if page.first > self.next:
            self._events.clear()
            self.next, self._known = page.first, None
        for noted in page.events[self.next - page.first :]:
            self._take(noted)
        self._known = page.written or self._known
        self.look(self.live)
        self.begun = True
        self.ended = self.ended or (page.ended and self.next >= page.count)

    def go_back(self, resets: list[RunReset]) -> bool:
        """Drop the events after the point of a reset; return whether there were any."""
        before = self.next
        if resets != self.resets:
            self._known = None
        self.next = Cursor(before, reset=last_reset(self.resets)).after(resets).events
        self.resets = resets
        for _ in range(min(before - self.next, len(self._events))):
            self._events.pop()
        return self.next < before

    def end(self, noted: JournalEntry | None = None) -> None:
        """End the source: no event follows. `noted` is the last event of a source that was terminated."""
        if noted is not None and not self.ended:
            self._take(noted)
        self.begun = self.ended = True
        self.live = NOTHING

    def since(self, number: int, limit: int = KEPT) -> EventsPage:
        """Return the events from a number on, as a source returns them."""
        begin = min(max(number, self.first), self.next)
        skip = begin - self.first
        events = list(islice(self._events, skip, skip + limit))
        return EventsPage.model_construct(
            first=begin,
            next=begin + len(events),
            kept_from=self.first,
            events=events,
            count=self.next,
            resets=self.resets,
            ended=self.ended,
            earlier=False,
        )

    def run_id(self, number: int) -> str | None:
        """Return the id of a session's run of this number, where the run's start is held."""
        for noted in reversed(self._events):
            if noted.topic == "lifecycle" and noted.phase == "start" and noted.data.get("number") == number:
                return noted.run_id
        return None

    def now(self) -> Cursor:
        """Return the cursor behind all held events of a session, at the beginning of its current run."""
        number, _ = self.run_before(self.next)
        return Cursor(session=self.next, run=number, session_reset=last_reset(self.resets))

    def run_before(self, number: int) -> tuple[int, str]:
        """Return the number and the id of the run that a session was in before its event of this number; 0 for none."""
        for noted in islice(reversed(self._events), max(0, self.next - number), None):
            if noted.topic == "lifecycle" and noted.run_id:
                return (int(noted.data.get("number", 0)), noted.run_id) if noted.phase == "start" else (0, "")
        return 0, ""

    def _take(self, noted: JournalEntry) -> None:
        self._events.append(noted)
        self.next += 1
        if len(self._events) > KEPT:
            self._events.popleft()
        if noted.phase == "end":
            self._close(noted)
        elif (noted.topic, noted.phase) == ("request", "start"):
            self.asked = noted.data

    def _close(self, noted: JournalEntry) -> None:
        live, data = self.live, noted.data
        number = {"request": "number", "assistant": "request"}.get(noted.topic)
        if number and live.written is not None and live.written.request <= data.get(number, 0):
            self.live = live = replace(live, written=None)
        if noted.topic == "assistant":
            self._known = None
        if noted.topic == "tool" and live.updates:
            left = tuple(each for each in live.updates if each.data.get("call") != data.get("call"))
            self.live = replace(live, updates=left)


_TEXTS: tuple[Topic, Topic] = ("reasoning", "assistant")


class RunEventReader:
    """A reader of one run, from a cursor on.

    Its position is its cursor, which each event carries. A reader that begins there, in any process, yields the events
    that follow, and none twice. Only an `update` may be repeated: it reports the present state.
    """

    def __init__(self, run_id: str, cursor: Cursor | None = None) -> None:
        self.run_id = run_id
        self.cursor = cursor or Cursor()
        self.ended = False
        """Whether the run was read to its end."""
        self._updates_seen: dict[tuple[Topic, object], JsonObject] = {}

    def take(self, page: EventsPage, live: LiveState = NOTHING) -> list[Event]:
        """Return the events that follow.

        The `page` begins at the cursor's `events`, or where the source begins. `live` counts if the page leaves no
        gap before it.
        """
        here = self.cursor.events
        found = list(self._anew(page, live))
        if self.cursor.events < here:
            return found  # the next events are in another page
        if page.first > self.cursor.events:
            found.append(self._snapshot(page.first, live))
        for noted in page.events[self.cursor.events - page.first :]:
            found += self._noted(noted)
        if self.cursor.events >= page.count:
            self.ended = page.ended
            if self.cursor.events == page.count and not page.ended:
                found += self._written(live)
                found += self._updates(live)
        return found

    def leave(self, reason: str, at: str) -> list[Event]:
        """Return the notices that the seen text does not count, because the run is no longer read."""
        return list(self._superseded(0, reason, at))

    def _anew(self, page: EventsPage, live: LiveState) -> Iterator[Event]:
        """Go back to the point of the run's reset. Text that was seen after that point no longer counts."""
        following = self.cursor.after(page.resets)
        if following == self.cursor:
            return
        unnoted = page.resets[0].event == 0 and page.resets[0].mark > self.cursor.reset
        yield from self._superseded(0, "the run was reset", live.at)
        self.cursor = following
        self._updates_seen.clear()
        if unnoted:  # its journal has no event of it
            yield Event("lifecycle", "reset", live.at, self.run_id, {"number": 1}, str(self.cursor))

    def _snapshot(self, first: int, live: LiveState) -> Event:
        missed: JsonObject = {"first": self.cursor.events, "next": first}
        self.cursor = replace(self.cursor, events=first)
        return Event("lifecycle", "snapshot", live.at, self.run_id, missed, str(self.cursor))

    def _noted(self, noted: JournalEntry) -> Iterator[Event]:
        if noted.phase == "end":
            if noted.topic == "assistant":
                yield from self._whole(noted)
            elif noted.topic == "request":
                yield from self._left(noted)
            elif noted.topic == "tool":
                self._updates_seen.pop(("tool", noted.data.get("call")), None)
        self.cursor = replace(self.cursor, events=self.cursor.events + 1)
        yield Event(noted.topic, noted.phase, noted.at, self.run_id, noted.data, str(self.cursor))

    def _whole(self, noted: JournalEntry) -> Iterator[Event]:
        """Yield the part of a text that is still missing before the event of its end."""
        data, here = noted.data, self.cursor
        request, attempt = int(data["request"]), int(data["attempt"])
        text, whole = str(data.get("text", "")), "text" not in data.get("cut", ())
        if not whole:
            text = text.rpartition("… (")[0]
        if here.request != request:
            self._begin(request, attempt)
        elif here.attempt != attempt:
            yield from self._superseded(attempt, f"attempt {attempt} has answered", noted.at)
        elif here.assistant and data.get("anew"):
            yield from self._superseded(attempt, "what was written is no part of the answer", noted.at)
        elif whole and here.assistant > len(text):
            yield from self._superseded(attempt, "the answer is another text", noted.at)
        if data.get("accepted", True):
            yield from self._delta("assistant", TextPiece(text=text, form=TextForm.of_event(data)), noted.at)
        self._begin(0, 0)

    def _left(self, noted: JournalEntry) -> Iterator[Event]:
        """Withdraw the text of a Request that has ended without an answer."""
        if self.cursor.request == noted.data.get("number") and not noted.data.get("says"):
            reason = str(noted.data.get("problem") or "it was no answer")
            yield from self._superseded(self.cursor.attempt + 1, reason, noted.at)
            self._begin(0, 0)

    def _written(self, live: LiveState) -> Iterator[Event]:
        written, here = live.written, self.cursor
        if written is None or (written.request, written.attempt) < (here.request, here.attempt):
            return
        if written.request != here.request:  # the end of the earlier Request was seen, or missed
            self._begin(written.request, written.attempt)
        elif written.attempt > here.attempt:
            yield from self._superseded(written.attempt, f"attempt {written.attempt} writes anew", live.at)
        for topic in _TEXTS:
            yield from self._delta(topic, written.reasoning if topic == "reasoning" else written.assistant, live.at)
        if here.request == 0 and not (self.cursor.assistant or self.cursor.reasoning):
            self._begin(0, 0)

    def _updates(self, live: LiveState) -> Iterator[Event]:
        for noted in live.updates:
            key = (noted.topic, noted.data.get("call", noted.data.get("number")))
            if self._updates_seen.get(key) != noted.data:
                self._updates_seen[key] = noted.data
                yield Event(noted.topic, noted.phase, noted.at, self.run_id, noted.data, str(self.cursor))

    def _begin(self, request: int, attempt: int) -> None:
        self.cursor = replace(self.cursor, request=request, attempt=attempt, assistant=0, reasoning=0)

    def _seen(self, topic: Topic) -> int:
        return self.cursor.reasoning if topic == "reasoning" else self.cursor.assistant

    def _delta(self, topic: Topic, piece: TextPiece, at: str) -> Iterator[Event]:
        """Yield the unseen part of a piece of text. A `start` after the last seen character shows a gap."""
        seen, end = self._seen(topic), piece.start + len(piece.text)
        if end <= seen:
            return
        start = max(seen, piece.start)
        here = self.cursor
        data = {
            "request": here.request,
            "attempt": here.attempt,
            "start": start,
            "text": piece.text[start - piece.start :],
            **piece.form.event_data(),
        }
        self.cursor = replace(here, reasoning=end) if topic == "reasoning" else replace(here, assistant=end)
        yield Event(topic, "delta", at, self.run_id, data, str(self.cursor))

    def _superseded(self, attempt: int, reason: str, at: str) -> Iterator[Event]:
        """Withdraw the seen text, because another attempt writes.

        The cursor stays until every topic was withdrawn. A reader that begins there receives the withdrawal again, and
        no withdrawn text.
        """
        here = self.cursor
        topics = [topic for topic in _TEXTS if self._seen(topic)]
        self._begin(here.request, attempt)
        for topic in topics:
            cursor = self.cursor if topic == topics[-1] else here
            data: JsonObject = {"request": here.request, "attempt": here.attempt, "reason": reason}
            yield Event(topic, "superseded", at, self.run_id, data, str(cursor))


class SessionEventReader:
    """A reader of one session, from a cursor on. A run's events come between the session's events of its start and end.

    Only the session reports the start and end of a run. The caller reads `run_id`, and passes that run's page beside
    the session's.
    """

    def __init__(self, cursor: Cursor | None = None) -> None:
        self.cursor = cursor or Cursor(session=0)
        self.ended = False
        self.skips = False
        """Whether to skip the events that the run has noted so far."""
        self._run: RunEventReader | None = None

    @property
    def run_id(self) -> str | None:
        """The id of the run whose events come next; `None` without a run, or before `follow` has named it."""
        return None if self._run is None else self._run.run_id

    @property
    def lost(self) -> bool:
        """Whether the cursor is in a run whose id is not known yet."""
        return self.cursor.run != 0 and self._run is None

    def follow(self, run_id: str | None) -> None:
        """Set the id of the cursor's run; `None` leaves the run, because its id is no longer known."""
        self._leave() if run_id is None else self._enter(run_id, self.cursor)

    def go_back(self, own: EventBuffer) -> list[Event]:
        """Go back to the point of the session's reset; return the notices of the reset.

        A run before that point was not reset: its seen events count, and its later events come once.
        """
        following = self.cursor.after_session(own.resets)
        if following == self.cursor:
            return []
        at = own.resets[-1].at
        unnoted = own.resets[0].event == 0 and own.resets[0].mark > self.cursor.session_reset
        found: list[Event] = []
        undone = following.session != self.cursor.session
        self.cursor = following
        number, run_id = own.run_before(self._number)
        if undone and number != self.cursor.run:
            if self._run is not None:
                found += self._run.leave("the session was reset", at)
            self._leave()
            if number:
                self._enter(run_id, replace(self.cursor, run=number))
                self.skips = True
        if unnoted:  # its journal has no event of it
            found.append(Event("lifecycle", "reset", at, "", {"number": 1}, str(self.cursor)))
        return found

    def skip(self, events: int, reset: int) -> None:
        """Begin after this number of the run's events, and after its last reset."""
        if self._run is not None:
            self.cursor = self._run.cursor = replace(self.cursor, events=events, reset=reset)
        self.skips = False

    def take(
        self, own: EventsPage, run: EventsPage | None = None, live: LiveState = NOTHING, *, gone: bool = False
    ) -> list[Event]:
        """Return the next events, from the session's page and the run's. `gone`: the run can no longer be read."""
        if self.cursor.after_session(own.resets) != self.cursor:
            return []  # `go_back` comes first
        found = [] if run is None else self._side_by_side(own, run) + self._of_run(run, live)
        if own.first > self._number:
            missed: JsonObject = {"first": self._number, "next": own.first}
            self.cursor = replace(self.cursor, session=own.first)
            found.append(Event("lifecycle", "snapshot", live.at, "", missed, str(self.cursor)))
        for noted in own.events[self._number - own.first :]:
            if self._waits(noted, gone=gone):
                return found
            found.append(self._noted(noted))
        self.ended = own.ended and self._number >= own.count
        return found

    @property
    def _number(self) -> int:
        return self.cursor.session or 0

    def _side_by_side(self, own: EventsPage, run: EventsPage) -> list[Event]:
        """Return the session's events during its run, each after the run's earlier events."""
        found: list[Event] = []
        for noted in own.events[self._number - own.first :] if own.first <= self._number else ():
            if self._run is None or noted.topic == "lifecycle":
                break
            before = next((n for n, each in enumerate(run.events) if each.at >= noted.at), len(run.events))
            found += self._of_run(run.model_copy(update={"events": run.events[:before]}), NOTHING)
            found.append(self._noted(noted))
        return found

    def _of_run(self, run: EventsPage, live: LiveState) -> list[Event]:
        """Return the run's events, without those that the session reports too."""
        if self._run is None:
            return []
        own = self.cursor
        self._run.cursor = replace(self._run.cursor, session=own.session, session_reset=own.session_reset)
        found = [each for each in self._run.take(run, live) if (each.topic, each.phase) not in IN_SESSION_JOURNAL]
        self.cursor = self._run.cursor
        return found

    def _waits(self, noted: JournalEntry, *, gone: bool) -> bool:
        """Whether a run must be read to its end before this event."""
        if self._run is None or noted.topic != "lifecycle" or self._run.ended or gone:
            return False
        return noted.phase == "start" or noted.run_id == self._run.run_id

    def _noted(self, noted: JournalEntry) -> Event:
        self.cursor = replace(self.cursor, session=self._number + 1)
        if noted.topic == "lifecycle" and noted.run_id:
            self._leave()
            if noted.phase == "start":
                self._enter(noted.run_id, replace(self.cursor, run=int(noted.data.get("number", 0))))
        return Event(noted.topic, noted.phase, noted.at, noted.run_id, noted.data, str(self.cursor))

    def _enter(self, run_id: str, cursor: Cursor) -> None:
        self._run, self.cursor = RunEventReader(run_id, cursor), cursor

    def _leave(self) -> None:
        self._run = None
        self.cursor = Cursor(session=self.cursor.session, session_reset=self.cursor.session_reset)


class MaskedText:
    """A text that arrives in pieces, with every secret replaced. The possible beginning of a secret waits for the next
    piece.
    """

    def __init__(self, secrets: Iterable[str] = (), mask: str = "") -> None:
        both = {form for secret in secrets if secret for form in (secret, dumps(secret)[1:-1])}
        self._secrets = sorted(both, key=len, reverse=True)
        """Secrets, the longest first: one may contain another."""
        self._mask = mask
        self._rest = ""

    def push(self, text: str) -> str:
        """Add a piece; return the text that can be shown now."""
        text = self._rest + text
        end = self._shown_end(text)
        self._rest, text = text[end:], text[:end]
        for secret in self._secrets:
            text = text.replace(secret, self._mask)
        return text

    def _shown_end(self, text: str) -> int:
        """Return the index before which no unfinished secret begins."""
        end = len(text)
        for secret in self._secrets:
            for size in range(min(len(secret) - 1, len(text)), 0, -1):
                if text.endswith(secret[:size]):
                    end = min(end, len(text) - size)
                    break
        while (start := self._across(text, end)) is not None:
            end = start
        return end

    def _across(self, text: str, end: int) -> int | None:
        """Return the index at which a secret begins that `end` would cut."""
        for secret in self._secrets:
            start = text.find(secret, max(0, end - len(secret) + 1))
            if 0 <= start < end:
                return start
        return None


WINDOW: Final = 32_000
"""Characters of a text that are sent: a reader has the earlier text from its last update."""


class TextWriter:
    """The text and reasoning of one attempt. A possible `NO_REPLY`, or part of one of the `secrets`, is not sent."""

    def __init__(self, request: int, attempt: int, secrets: Iterable[str] = (), mask: str = "") -> None:
        self._request, self._attempt = request, attempt
        secrets = list(secrets)
        self._assistant = _StreamedText(MaskedText(secrets, mask))
        self._reasoning = _StreamedText(MaskedText(secrets, mask))
        self._held: str | None = ""
        """Text that may become `NO_REPLY`; `None`: the answer is not `NO_REPLY`."""
        self._told = 0

    def add(self, text: str, reasoning: str = "", form: TextForm = PLAIN) -> bool:
        """Add text of a form, and reasoning; return whether there is unsent text."""
        if self._held is not None:
            self._held, text = self._held + text, ""
            if not may_be_silence(self._held):
                text, self._held = self._held, None
        self._assistant.add(text)
        self._assistant.form = form
        self._reasoning.add(reasoning)
        return self._count > self._told

    @property
    def _count(self) -> int:
        return self._assistant.count + self._reasoning.count

    def written(self, spent: Usage | None = None) -> WrittenText:
        """Return the whole text that can be sent now, and count it as sent. `spent`: see `WrittenText`."""
        self._told = self._count
        return WrittenText(
            request=self._request,
            attempt=self._attempt,
            assistant=self._assistant.piece(),
            reasoning=self._reasoning.piece(),
            spent=spent if spent is not None and spent.tokens else None,
        )


class _StreamedText:
    def __init__(self, masked: MaskedText) -> None:
        self._masked = masked
        self._end = ""
        self.form = PLAIN
        self.count = 0

    def add(self, text: str) -> None:
        if text and (known := self._masked.push(text)):
            self.count += len(known)
            self._end = (self._end + known)[-WINDOW:]

    def piece(self) -> TextPiece:
        return TextPiece(start=self.count - len(self._end), text=self._end, form=self.form)


Form = TypeVar("Form")
Ended = TypeVar("Ended")


class EventAdapter(Generic[Form, Ended]):
    """A fold of events into another form, without I/O: a driver reads the events, and sends what the adapter yields.

    A subclass has a generator `on_TOPIC` for each topic that it shows, and state of its own where it needs one::

        class Progress(EventAdapter[str, None]):
            def on_tool(self, event: Event) -> Iterator[str]:
                yield f"{event.data['call']} {event.phase}"
    """

    topics: ClassVar[frozenset[Topic]] = frozenset()
    """Topics that the adapter shows: a driver needs no others."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.topics = frozenset(topic for topic in TOPICS if hasattr(cls, f"on_{topic}"))

    def begin(self) -> Iterator[Form]:
        """Yield the output before the first event."""
        yield from ()

    def fold(self, event: Event) -> Iterator[Form]:
        """Yield the output for an event."""
        handle: Callable[[Event], Iterator[Form]] | None = getattr(self, f"on_{event.topic}", None)
        return iter(()) if handle is None else handle(event)

    def end(self, ended: Ended) -> Iterator[Form]:
        """Yield the output after the last event. `ended`: the ended run."""
        del ended
        yield from ()
