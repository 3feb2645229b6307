"""Readers of events: each durable event once and in order, each word once, over any cuts, attempts, reconnects and relays (R10.14)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import CursorError
from perdure.models.requests import OutputForm
from perdure.runs.event_journal import EventJournal
from perdure.runs.event_stream import EventAdapter, EventBuffer, LiveState, RunEventReader, SessionEventReader
from perdure.runs.events import Cursor, Event, EventsPage, JournalEntry, TextPiece, Topic, WrittenText, parse_cursor
from tests.event_reader import Reader

AT = "2026-01-01T00:00:00.000Z"


@dataclass
class World:
    """A run, or a session: what it notes, and what its Request's activity tells meanwhile."""

    window: int = 1_000
    journal: EventJournal = field(default_factory=EventJournal)
    noted: list[tuple[str, str]] = field(default_factory=list)
    written: WrittenText | None = None
    final: dict[int, tuple[int, str]] = field(default_factory=dict)
    """Request → the attempt and the text that counts."""

    def note(self, topic: Topic, phase: str, run_id: str = "", **data: Any) -> None:
        self.noted.append((topic, phase))
        self.journal.note(topic, phase, AT, run_id, **data)

    def write(self, request: int, attempt: int, text: str) -> None:
        piece = TextPiece(start=max(0, len(text) - self.window), text=text[-self.window :])
        self.written = WrittenText(request=request, attempt=attempt, assistant=piece, reasoning=piece)

    def complete(self, request: int, attempt: int, text: str) -> None:
        """The answer is complete; its calls may still run."""
        self.written = None
        self.note("reasoning", "end", request=request, attempt=attempt, characters=len(text))
        self.note("request", "end", number=request, says=True)

    def know(self, request: int, attempt: int, text: str) -> None:
        """A call has ended, so that more of the text is known."""
        self.note("tool", "end", call=f"{request}.0")
        self.journal.show(WrittenText(request=request, attempt=attempt, assistant=TextPiece(text=text)))

    def answer(self, request: int, attempt: int, text: str, *, accepted: bool) -> None:
        self.complete(request, attempt, text)
        self.end_text(request, attempt, text, accepted=accepted)

    def end_text(self, request: int, attempt: int, text: str, *, accepted: bool) -> None:
        self.note("tool", "end", call=f"{request}.1")
        self.note("assistant", "end", request=request, attempt=attempt, text=text, accepted=accepted)
        self.journal.show(None)
        if accepted:
            self.final[request] = (attempt, text)

    def break_off(self, request: int) -> None:
        self.written = None
        self.note("request", "end", number=request, problem="it broke off")

    def carry_on(self) -> None:
        """Continue as new, with a part of the journal."""
        carried = self.journal.carried()
        carried.events = carried.events[-3:]
        self.journal = EventJournal(carried)

    def end(self) -> None:
        self.note("lifecycle", "end", status="completed")
        self.journal.ended = True


Deed = Callable[[World], None]


@st.composite
def runs(draw: st.DrawFn) -> list[Deed]:
    """What happens in a run, one thing after the other."""
    deeds: list[Deed] = [lambda world: world.note("lifecycle", "start", agent="a")]
    for number in range(1, draw(st.integers(1, 3)) + 1):
        deeds.append(lambda world, n=number: world.note("request", "start", number=n))  # type: ignore[misc]
        text, attempt = "", 0
        for attempt in range(1, draw(st.integers(1, 3)) + 1):
            text = draw(st.text("abcdefgh", max_size=12))
            for end in sorted(draw(st.lists(st.integers(0, len(text)), max_size=4))):
                deeds.append(lambda world, n=number, k=attempt, t=text[:end]: world.write(n, k, t))  # type: ignore[misc]
                if draw(st.booleans()):
                    deeds.append(lambda world, c=f"{number}.0": world.note("tool", "end", call=c))  # type: ignore[misc]
        accepted = draw(st.sampled_from([True, True, False, None]))
        if accepted is None:
            deeds.append(lambda world, n=number: world.break_off(n))  # type: ignore[misc]
        else:
            deeds.append(lambda world, n=number, k=attempt, t=text: world.complete(n, k, t))  # type: ignore[misc]
            for end in sorted(draw(st.sets(st.integers(1, max(1, len(text))), max_size=3))):
                deeds.append(lambda world, n=number, k=attempt, t=text[:end]: world.know(n, k, t))  # type: ignore[misc]
            deeds.append(
                lambda world, n=number, k=attempt, t=text, a=accepted: world.end_text(n, k, t, accepted=a)  # type: ignore[misc]
            )
        if draw(st.integers(0, 5)) == 0:
            deeds.append(World.carry_on)
    return [*deeds, World.end]


class Relay:
    """A stream, and how it is fed: a look, what happens meanwhile, and the pages that were asked for after it."""

    def __init__(self) -> None:
        self.stream = EventBuffer()
        self._looked: LiveState | None = None

    def look(self, world: World) -> None:
        self._looked = LiveState(AT, world.written)

    def fetch(self, world: World, limit: int) -> None:
        if self._looked is None:
            return
        self.stream.look(self._looked)
        while not self.stream.begun or self.stream.next < world.journal.count:
            self.stream.add(world.journal.page(self.stream.next, limit))
        self._looked = None


@given(st.data(), runs(), st.sampled_from([4, 1_000]))
def test_r10_14_each_event_and_each_word_once_whatever_is_cut_and_wherever_is_read_on(
    data: st.DataObject, deeds: list[Deed], window: int
) -> None:
    world, relays, reader = World(window=window), [Relay(), Relay()], Reader()
    feed, relay = RunEventReader("r"), relays[0]
    doing = iter(deeds)
    draw = st.tuples(
        st.sampled_from(["look", "look", "look", "read", "hop"]), st.booleans(), st.integers(0, 3), st.integers(1, 5)
    )
    for move, other, meanwhile, limit in data.draw(st.lists(draw, max_size=40)):
        which = relays[other]
        if move == "look":
            which.look(world)
            for _ in range(meanwhile):
                next(doing, lambda _: None)(world)
            which.fetch(world, limit)
        elif move == "hop":
            relay, feed = which, RunEventReader("r", parse_cursor(reader.cursor) if reader.cursor else None)
        read(feed, relay, reader, limit, 1 + meanwhile if other else 100)
    for deed in doing:
        deed(world)
    relay = Relay()
    relay.look(world)
    relay.fetch(world, 100)
    feed = RunEventReader("r", parse_cursor(reader.cursor) if reader.cursor else None)
    while not feed.ended:
        read(feed, relay, reader, 3, 100)
    assert reader.next == len(world.noted)
    if not reader.missed:
        assert reader.seen == world.noted
        for request, text in world.final.items():
            assert reader.texts.get(request, (text[0], "")) == text or request in reader.jumped


def read(feed: RunEventReader, relay: Relay, reader: Reader, limit: int, most: int) -> None:
    """Take what is there, and go away after so many events: the next begins where the last one says."""
    if not relay.stream.begun:
        return
    for number, event in enumerate(feed.take(relay.stream.since(feed.cursor.events, limit), relay.stream.live)):
        if number == most:
            feed.__init__("r", parse_cursor(reader.cursor) if reader.cursor else None)  # type: ignore[misc]
            return
        reader.apply(event)


@given(st.data(), st.lists(runs(), min_size=1, max_size=3))
def test_r10_14_a_session_has_the_events_of_its_runs_between_their_start_and_end(
    data: st.DataObject, given_runs: list[list[Deed]]
) -> None:
    session, runs_ = World(), {f"s/{number}": World() for number in range(1, len(given_runs) + 1)}
    for (run_id, world), deeds in zip(runs_.items(), given_runs, strict=True):
        for deed in deeds:
            if deed is not World.carry_on:
                deed(world)
        number = int(run_id.partition("/")[2])
        session.note("message", "accepted", messageId=f"m{number}")
        session.note("lifecycle", "start", run_id, agent="a", number=number)
        session.note("message", "taken", run_id, messageId=f"m{number}")
        session.note("lifecycle", "end", run_id, status="completed", number=number)
        session.note("reply", "end", run_id, text="yes")
    streams = {"": stream_of(session)} | {run_id: stream_of(world) for run_id, world in runs_.items()}
    seen: list[Event] = []
    cursor = Cursor(session=0)
    while True:
        feed = SessionEventReader(cursor)
        for _ in range(data.draw(st.integers(2, 6))):  # what the session says as well is gone past in silence
            if feed.lost:
                feed.follow(streams[""].run_id(feed.cursor.run))
            limit = data.draw(st.integers(1, 4))
            own = streams[""].since(feed.cursor.session or 0, limit)
            run = None if feed.run_id is None else streams[feed.run_id].since(feed.cursor.events, limit)
            seen += feed.take(own, run)
        if seen:
            most = data.draw(st.integers(0, 2))  # the last ones were lost on their way
            seen = seen[: len(seen) - most] if len(seen) > most else seen
            cursor = parse_cursor(seen[-1].cursor)
        if feed.cursor.session == session.journal.count and not data.draw(st.booleans()):
            break
        if feed.cursor.session == session.journal.count and cursor == feed.cursor:
            break
    under_way = ""
    told: dict[str, list[tuple[str, str]]] = {run_id: [] for run_id in runs_}
    own_seen: list[tuple[str, str]] = []
    for event in seen:
        if event.topic in ("lifecycle", "message", "reply"):
            own_seen.append((event.topic, event.phase))
            under_way = event.run_id if event.phase == "start" else "" if event.topic == "lifecycle" else under_way
        else:
            assert event.run_id == under_way
            if event.phase not in ("delta", "superseded"):
                told[event.run_id].append((event.topic, event.phase))
    if cursor.session == session.journal.count:
        assert own_seen == session.noted
        assert told == {run_id: world.noted[1:-1] for run_id, world in runs_.items()}


def stream_of(world: World) -> EventBuffer:
    stream = EventBuffer()
    stream.add(world.journal.page())
    return stream


def delta(feed: RunEventReader, stream: EventBuffer) -> list[tuple[str, str, Any]]:
    events = feed.take(stream.since(feed.cursor.events), stream.live)
    return [(event.topic, event.phase, event.data.get("text", event.data.get("reason"))) for event in events]


def test_another_attempt_supersedes_what_was_seen_and_the_end_gives_what_is_missing() -> None:
    world, relay, feed = World(), Relay(), RunEventReader("r")
    world.note("request", "start", number=1)

    def looked() -> list[tuple[str, str, Any]]:
        relay.look(world)
        relay.fetch(world, 10)
        return delta(feed, relay.stream)

    assert looked() == [("request", "start", None)]
    world.write(1, 1, "The ans")
    assert looked() == [("reasoning", "delta", "The ans"), ("assistant", "delta", "The ans")]
    world.write(1, 2, "It")
    assert looked() == [
        ("reasoning", "superseded", "attempt 2 writes anew"),
        ("assistant", "superseded", "attempt 2 writes anew"),
        ("reasoning", "delta", "It"),
        ("assistant", "delta", "It"),
    ]
    assert str(feed.cursor) == "1.1.2.2.2"
    world.answer(1, 2, "It is 42.", accepted=True)
    assert looked() == [
        ("reasoning", "end", None),
        ("request", "end", None),
        ("tool", "end", None),
        ("assistant", "delta", " is 42."),
        ("assistant", "end", "It is 42."),
    ]
    assert str(feed.cursor) == "5"


def test_what_was_told_and_was_a_thought_does_not_count() -> None:
    world, relay, feed = World(), Relay(), RunEventReader("r")
    world.note("request", "start", number=1)
    world.write(1, 1, "I will")
    relay.look(world)
    relay.fetch(world, 10)
    delta(feed, relay.stream)
    world.note("assistant", "end", request=1, attempt=1, text="I will not.", accepted=True, anew=True)
    relay.look(world)
    relay.fetch(world, 10)
    assert [each for each in delta(feed, relay.stream) if each[0] == "assistant"] == [
        ("assistant", "superseded", "what was written is no part of the answer"),
        ("assistant", "delta", "I will not."),
        ("assistant", "end", "I will not."),
    ]


def test_who_has_missed_what_is_not_kept_is_told_what_and_goes_on() -> None:
    journal = EventJournal()
    for number in range(1_500):
        journal.note("tool", "start", AT, call=f"1.{number}", tool="t", params={})
    stream, feed = EventBuffer(), RunEventReader("r", Cursor(3))
    stream.add(journal.page(0))
    snapshot, first, *_ = feed.take(stream.since(3))
    assert (snapshot.topic, snapshot.phase, snapshot.data) == ("lifecycle", "snapshot", {"first": 3, "next": 500})
    assert (first.cursor, first.data["call"]) == ("501", "1.500")


def test_an_update_is_told_where_it_changes() -> None:
    stream, feed = EventBuffer(), RunEventReader("r")
    journal = EventJournal()
    journal.note("tool", "start", AT, call="1.0", tool="t", params={})
    half = JournalEntry(topic="tool", phase="update", at=AT, data={"call": "1.0", "tool": "t", "progress": "half"})
    for _ in range(2):
        stream.look(LiveState(AT, updates=(half,)))
        stream.add(journal.page(stream.next))
        told = [(event.phase, event.cursor) for event in feed.take(stream.since(feed.cursor.events), stream.live)]
        assert told in ([("start", "1"), ("update", "1")], [])
    journal.note("tool", "end", AT, call="1.0", tool="t", status="done")
    stream.look(LiveState(AT, updates=(half,)))
    stream.add(journal.page(stream.next))
    assert [event.phase for event in RunEventReader("r", Cursor(1)).take(stream.since(1), stream.live)] == ["end"]


@pytest.mark.parametrize("cut", [False, True])
def test_the_end_of_a_long_text_gives_what_it_has_of_it(cut: bool) -> None:
    journal = EventJournal()
    text = "word " * (20_000 if cut else 2_000)
    journal.note("assistant", "end", AT, request=1, attempt=1, text=text, accepted=True)
    stream = EventBuffer()
    stream.add(journal.page())
    given_text, end = RunEventReader("r").take(stream.since(0))
    assert text.startswith(given_text.data["text"])
    assert (given_text.data["text"] == text) is not cut
    assert (end.data.get("cut") == ["text"]) is cut


def test_what_a_session_says_stands_where_it_happened_and_is_said_once() -> None:
    session, run = EventJournal(), EventJournal()
    session.note("lifecycle", "start", "10:00", "s/1", agent="a", number=1)
    run.note("lifecycle", "start", "10:00", agent="a")
    run.note("request", "start", "10:01", number=1, model="m", reason="first")
    session.note("message", "accepted", "10:02", messageId="m2", sender="ann", text="quick")
    run.note("message", "accepted", "10:03", messageId="m2", sender="ann", text="quick")
    run.note("message", "taken", "10:03", messageId="m2", request=2)
    session.note("message", "accepted", "10:04", messageId="m3", sender="ann", text="later")
    run.note("request", "start", "10:05", number=2, model="m", reason="again")
    feed = SessionEventReader(Cursor(session=1, run=1))
    feed.follow("s/1")
    found = feed.take(session.page(1), run.page())
    assert [(event.at, event.topic, event.phase, event.cursor) for event in found] == [
        ("10:01", "request", "start", "1.1.2"),
        ("10:02", "message", "accepted", "2.1.2"),
        ("10:03", "message", "taken", "2.1.4"),
        ("10:04", "message", "accepted", "3.1.4"),
        ("10:05", "request", "start", "3.1.5"),
    ]


def test_r10_14_a_reader_goes_back_to_where_a_reset_run_goes_on_from() -> None:
    old, new = EventJournal(), EventJournal()
    for journal in (old, new):
        for number in range(3):
            journal.note("tool", "start", "", call=f"1.{number}")
    old.note("tool", "end", "", call="1.0")
    stream, feed = EventBuffer(), RunEventReader("r")
    stream.add(old.page())
    assert feed.take(stream.since(0))[-1].cursor == "4"
    new.reset(at(1))
    for number in range(3):
        new.note("approval", "start", "", call=f"1.{number}")
    page = new.page(stream.next)
    assert stream.go_back(page.resets)
    stream.add(new.page(stream.next))
    feed.take(stream.since(feed.cursor.events))
    told = feed.take(stream.since(feed.cursor.events))
    assert [f"{each.topic} {each.phase}" for each in told] == ["lifecycle reset", *["approval start"] * 3]
    assert told[0].cursor == "4r1001"
    assert RunEventReader("r", parse_cursor("2")).take(stream.since(2))[0].cursor == "3r1001", (
        "nothing before the point is told twice"
    )
    assert not stream.go_back(new.page().resets)


def at(milliseconds: int) -> str:
    return f"0000-00-00T00:00:01.{milliseconds:03}+00:00"


def journal_of(*parts: int) -> EventJournal:
    """A journal that was reset, at these milliseconds, between events; 0 is an event."""
    journal = EventJournal()
    for number, part in enumerate(parts):
        if part:
            journal.reset(at(part))
        else:
            journal.note("tool", "start", "", call=f"1.{number}")
    return journal


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ([0, 0, 0], [0, 0, 3, 0], ["3r1003 reset", "4r1003 start"]),
        ([3, 0, 0, 0], [3, 0, 4, 0], ["2r1004 reset", "3r1004 start"]),
        ([3, 0, 0], [4, 0], ["0r1004 reset", "1r1004 start"]),
        ([0, 0, 3, 0], [0, 4, 0], ["2r1004 reset", "3r1004 start"]),
        ([0, 0, 3, 0], [0, 4, 0, 5, 0], ["2r1005 reset", "3r1005 start", "4r1005 reset", "5r1005 start"]),
        ([0, 3, 0, 0, 4, 0], [0, 3, 0, 5, 0], ["4r1005 reset", "5r1005 start"]),
        ([0, 0, 3, 0], [4, 0, 5, 0], ["0r1005 reset", "1r1005 start", "2r1005 reset", "3r1005 start"]),
        ([0, 0], [0, 0], []),
    ],
    ids=["one", "start, later", "start, start", "back", "back, later", "back to between", "start and later", "none"],
)
def test_r10_14_a_reader_learns_of_every_reset_after_what_it_has_read(
    before: list[int], after: list[int], told: list[str]
) -> None:
    """A reset further back takes the sign of an earlier one out of the history: their number says nothing."""
    old, new = journal_of(*before), journal_of(*after)
    stream, feed = EventBuffer(), RunEventReader("r")
    assert not stream.go_back(old.page().resets)
    stream.add(old.page())
    for _ in range(2):
        feed.take(stream.since(feed.cursor.events))
    seen = str(feed.cursor)
    for reader in (feed, RunEventReader("r", parse_cursor(seen))):
        if stream.go_back(new.page(stream.next).resets):
            stream.add(new.page(stream.next))
        found: list[Event] = []
        for _ in range(3):
            found += reader.take(stream.since(reader.cursor.events))
        assert [f"{each.cursor} {each.phase}" for each in found] == told
    assert not stream.go_back(new.page().resets)


def test_a_journal_that_goes_on_from_an_earlier_execution_has_an_event_of_a_reset_to_its_start() -> None:
    journal = journal_of(4, 5, 0, 6)
    journal.take_up(journal_of(0, 3, 0).carried())
    assert [(each.event, each.mark) for each in journal.resets] == [(1, 1003), (3, 1005), (5, 1006)]
    assert [each.phase for each in journal.page().events] == ["start", "reset", "start", "reset", "start", "reset"]


def test_r10_14_what_was_written_before_a_reset_does_not_count() -> None:
    journal = EventJournal()
    journal.note("request", "start", "", number=1)
    live = LiveState("", WrittenText(request=1, attempt=1, assistant=TextPiece(text="Hel")))
    feed = RunEventReader("r")
    assert feed.take(journal.page(), live)[-1].data["text"] == "Hel"
    journal.reset(at(1))
    again = LiveState("", WrittenText(request=1, attempt=1, assistant=TextPiece(text="Hi")))
    told = feed.take(journal.page(1), again)
    assert [f"{each.topic} {each.phase}" for each in told] == [
        "assistant superseded",
        "lifecycle reset",
        "assistant delta",
    ]
    assert told[-1].data["text"] == "Hi"


def session_of(*parts: str | int) -> EventJournal:
    """A session's journal: `+1` begins its run 1, `-1` ends it, another word is a message, a number the time of a reset."""
    journal = EventJournal()
    for part in parts:
        if isinstance(part, int):
            journal.reset(at(part))
        elif part[0] in "+-":
            number = int(part[1:])
            journal.note("lifecycle", "start" if part[0] == "+" else "end", "", f"s/{number}", number=number)
        else:
            journal.note("message", "accepted", "", messageId=part)
    return journal


def ended_run(count: int) -> EventJournal:
    journal = EventJournal()
    for number in range(count):
        journal.note("tool", "start", "", call=f"1.{number}")
    journal.ended = True
    return journal


@pytest.mark.parametrize(
    ("before", "after", "told", "cursor"),
    [
        (["+1", "-1", "b"], ["+1", "-1", 3, "c"], ["reset", "c"], "4r1003.0.0"),
        (["+1", "-1", "b", "+2"], ["+1", "-1", 3, "c", "+2"], ["reset", "c", "start 2", "1.0", "1.1"], "5r1003.2.2"),
        (["+1", "m"], ["+1", 3, "c"], ["reset", "c"], "3r1003.1.2"),
        (["+1", "-1", "+2", "-2"], ["+1", 3, "c", "-1"], ["reset", "c", "end 1"], "4r1003.0.0"),
        (["a", "+1", "-1"], [3, "b"], ["reset", "b"], "1r1003.0.0"),
        (["a", "+1"], [3, "b", "+1"], ["reset", "b", "start 1", "1.0", "1.1"], "2r1003.1.2"),
        (["a"], ["a", 3, "b"], ["reset", "b"], "3r1003.0.0"),
    ],
    ids=["idle", "run begun anew", "run goes on", "run before", "start", "start, run begun anew", "nothing undone"],
)
def test_r10_14_a_reader_of_a_session_goes_back_to_where_it_goes_on_from(
    before: list[str | int], after: list[str | int], told: list[str], cursor: str
) -> None:
    """What is read of a run that was begun before the point counts, and comes once."""
    own, runs = EventBuffer(), {f"s/{number}": ended_run(2) for number in (1, 2)}
    own.add(session_of(*before).page())

    def read(feed: SessionEventReader) -> list[Event]:
        found: list[Event] = []
        for _ in range(4):
            if feed.lost:
                feed.follow(own.run_id(feed.cursor.run))
            found += feed.go_back(own)
            run = None if feed.run_id is None else runs[feed.run_id]
            if run is not None and feed.skips:
                feed.skip(run.count, 0)
            found += feed.take(
                own.since(feed.cursor.session or 0), None if run is None else run.page(feed.cursor.events)
            )
        return found

    feed = SessionEventReader(Cursor(session=0))
    read(feed)
    seen = str(feed.cursor)
    new = session_of(*after)
    own.go_back(new.page().resets)
    own.add(new.page(own.next))
    for reader in (feed, SessionEventReader(parse_cursor(seen))):
        found = read(reader)
        words = [
            str(each.data.get("messageId") or each.data.get("call") or f"{each.phase} {each.data['number']}")
            for each in found
        ]
        assert [word.removesuffix(" 1") if "reset" in word else word for word in words] == told
        assert (found[-1].cursor, str(reader.cursor)) == (cursor, cursor)


def test_what_comes_with_the_task_that_learns_of_a_reset_comes_behind_its_event() -> None:
    """The server puts messages into the reset execution; their handlers run before the workflow learns of the reset."""
    journal = EventJournal()
    journal.note("message", "accepted", at(1), messageId="a")
    journal.note("message", "accepted", at(3), messageId="b")
    journal.note("message", "accepted", at(3), messageId="c")
    journal.reset(at(3))
    journal.note("message", "accepted", at(3), messageId="d")
    assert [each.data.get("messageId", each.phase) for each in journal.page().events] == ["a", "reset", "b", "c", "d"]
    assert [(each.event, each.mark) for each in journal.resets] == [(1, 1003)]
    journal = EventJournal()
    journal.note("lifecycle", "start", at(3), agent="a")
    journal.reset(at(3))
    assert ([each.phase for each in journal.page().events], journal.resets[0].event) == (["start"], 0)


def test_a_cursor_names_the_last_reset_of_its_run() -> None:
    for text in ("12r2", "12r20261123090444167.3.1.400.0", "5.2.12r1", "5.2.12r1.3.1.400.0", "5r1.2.12", "5r1.2.12r3"):
        assert str(parse_cursor(text)) == text
    for text in ("r2", "12r", "12r2r3", "5r.2.12", "5.2r1.12", "12r-1"):
        with pytest.raises(CursorError):
            parse_cursor(text)


def test_r19_4_text_that_is_known_while_calls_run_comes_behind_their_ends() -> None:
    world, relay, feed = World(), Relay(), RunEventReader("r")
    world.note("request", "start", number=1)
    world.write(1, 1, "It is ")

    def looked() -> list[tuple[str, str, Any]]:
        relay.look(world)
        relay.fetch(world, 1)
        return delta(feed, relay.stream)

    assert looked()[-1] == ("assistant", "delta", "It is ")
    world.complete(1, 1, "It is 42, or 43.")
    world.know(1, 1, "It is 42, or ")
    assert looked() == [
        ("reasoning", "end", None),
        ("request", "end", None),
        ("tool", "end", None),
        ("assistant", "delta", "42, or "),
    ]
    assert looked() == []
    late = RunEventReader("r")
    assert [each for each in delta(late, relay.stream) if each[0] == "assistant"] == [
        ("assistant", "delta", "It is 42, or ")
    ]
    world.note("tool", "start", call="1.3")
    assert looked() == [("tool", "start", None)]
    assert delta(RunEventReader("r", parse_cursor("2")), relay.stream)[-1] == ("assistant", "delta", "It is 42, or ")
    world.end_text(1, 1, "It is 42, or 43.", accepted=True)
    assert looked() == [("tool", "end", None), ("assistant", "delta", "43."), ("assistant", "end", "It is 42, or 43.")]


def test_r19_4_known_text_is_sent_anew_after_a_reset() -> None:
    world, relay, feed = World(), Relay(), RunEventReader("r")
    world.note("request", "start", number=1)
    world.complete(1, 1, "It is 42.")
    world.know(1, 1, "It is ")
    relay.look(world)
    relay.fetch(world, 10)
    assert delta(feed, relay.stream)[-1] == ("assistant", "delta", "It is ")
    world.journal.reset("2026-01-01T00:00:01.000Z")
    relay.stream.look(LiveState(AT))
    relay.stream.go_back(world.journal.page(relay.stream.next).resets)
    relay.stream.add(world.journal.page(relay.stream.next))
    texts = [each for each in delta(feed, relay.stream) if each[0] == "assistant"]
    assert texts == [("assistant", "superseded", "the run was reset"), ("assistant", "delta", "It is ")]


def test_a_reader_of_an_older_release_reads_what_has_nothing_new_and_a_newer_writers_keys_are_left_out() -> None:
    written = WrittenText(request=1, attempt=1, assistant=TextPiece(text="Hello"))
    page = EventsPage(first=0, next=0, kept_from=0, count=0)
    assert set(written.as_json()["assistant"]) == {"start", "text"}
    assert "written" not in page.as_json()
    assert OutputForm(several=True).as_json() == {"member": None, "several": True}
    assert EventsPage.model_validate({**page.as_json(), "newer": 1}) == page
    assert TextPiece.model_validate({"text": "Hello", "newer": 1}) == written.assistant


class Calls(EventAdapter[str, int]):
    def __init__(self) -> None:
        self._calls = 0

    def on_tool(self, event: Event) -> Iterator[str]:
        self._calls += 1
        yield f"{event.data['call']} {event.phase}"


class Everything(Calls):
    def on_request(self, event: Event) -> Iterator[str]:
        yield f"Request {event.phase}"

    def end(self, ended: int) -> Iterator[str]:
        yield f"{self._calls} calls, {ended} expected"


def test_an_adapter_shows_the_topics_of_its_methods_and_of_its_bases() -> None:
    assert EventAdapter.topics == frozenset()
    assert Calls.topics == {"tool"}
    assert Everything.topics == {"request", "tool"}


def test_an_adapter_folds_what_it_shows_and_skips_the_rest() -> None:
    adapter = Everything()
    events = [
        Event("request", "start", "", "r"),
        Event("tool", "end", "", "r", {"call": "1.1"}),
        Event("reasoning", "end", "", "r"),
    ]
    folded = [line for event in events for line in adapter.fold(event)]
    assert [*adapter.begin(), *folded, *adapter.end(2)] == ["Request start", "1.1 end", "1 calls, 2 expected"]
    assert list(Calls().end(0)) == []
