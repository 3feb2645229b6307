"""Recall and forks over what a session has at hand and in segments (R10.12, R10.20)."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from perdure.errors import RunError
from perdure.runs.wire import CallView
from perdure.sessions.compaction import HeldEntries, compacted, cut_of
from perdure.sessions.entries import CommandEntry, MessageEntry, RunEntry
from perdure.sessions.fork import fork, run_number
from perdure.sessions.recall import HITS, HistoryGoneError, newest_first, oldest_first, recall
from perdure.sessions.transcript import EntryList, SegmentSpan, Transcript, TranscriptSnapshot
from perdure.values.json import Json, pack
from perdure.values.media import PAGE
from perdure.values.messages import parse_messages
from perdure.values.state import WriteRecord
from tests.sessions.test_compaction import AT, Random, exchange
from tests.soak import share, times


class Session:
    """A transcript whose old entries go to segments, and what its runs know whole."""

    def __init__(self, transcript: Transcript | None = None, name: str = "s/~1-") -> None:
        self.transcript = transcript or Transcript()
        self.name = name
        self.segments: dict[str, EntryList] = {}
        self.values: dict[tuple[str, str], Json] = {}

    def archive(self) -> None:
        transcript = self.transcript
        while old := transcript.old():
            if not transcript.spans or transcript.spans[-1].name != self.name:
                transcript.spans.append(SegmentSpan(name=self.name))
            span = transcript.spans[-1]
            self.segments[span.id(span.segments + 1)] = EntryList(entries=old)
            transcript.let_go(old[-1].n)
            span.segments, span.last = span.segments + 1, old[-1].n

    async def at_hand(self, after: int) -> HeldEntries:
        transcript = self.transcript
        entries, more = transcript.behind(after, 20_000)
        hand = HeldEntries(
            entries=entries, more=more, spans=transcript.spans, last=transcript.last, limit=transcript.limit
        )
        return HeldEntries.model_validate_json(hand.model_dump_json())

    async def segment(self, id: str) -> EntryList:
        if id not in self.segments:
            raise HistoryGoneError(f"{id} is not in this namespace")
        return self.segments[id]

    async def whole(self, run_id: str, what: str) -> Json:
        if (run_id, what) not in self.values:
            raise RunError(f"{run_id} is not in this namespace")
        return self.values[run_id, what]

    def compact(self) -> None:
        cut = cut_of(self.transcript, "tokens")
        assert cut is not None
        entry = compacted(cut, "They talked of tea.", None, AT)
        assert entry is not None
        self.transcript.append(entry)


@functools.cache
def long(exchanges: int = 400) -> Session:
    """Nobody changes it."""
    session = Session()
    for number in range(1, exchanges + 1):
        price = CallView(id="1.0", tool="price", params={}, status="done", result="7")
        wrote = WriteRecord(path=["tea", f"n{number}"])
        pay = CallView(id="2.0", tool="pay", params={"to": f"B-{number}"}, status="done", result="ok", wrote=[wrote])
        exchange(session.transcript, number, f"order A-{1000 + number} " + "word " * 200, "done", price, pay)
        session.values[f"s/{number}", "1.0"] = {"result": {"price": 7, "note": "x" * 30_000}}
        session.values[f"s/{number}", "2.0"] = {"result": f"receipt {number}"}
        session.values[f"s/{number}", "state"] = {"run": number}
        if number % 100 == 0:
            session.compact()
            session.archive()
    return session


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


def test_r10_12_a_result_that_was_cut_is_read_again_page_by_page() -> None:
    session = long()
    spans = session.transcript.spans
    assert spans[0].segments >= 2
    first = next(entry for entry in session.segments[spans[0].id(1)].entries if entry.type == "run")
    page = run(recall(session, f"c{first.n}_1_0"))
    assert (page["page"], page["pages"], len(page["text"])) == (1, 3, PAGE)
    assert page["text"].startswith('{"price":7')
    whole = session.values.pop(("s/1", "1.0"))  # its history is gone: what the transcript has is left
    assert run(recall(session, f"c{first.n}_1_0"))["text"].startswith("7\n[s/1 is not in this namespace")
    with pytest.raises(RunError, match="pages"):
        run(recall(session, f"c{first.n}_1_0", 2))
    session.values["s/1", "1.0"] = whole


def test_r10_12_every_entry_is_read_by_its_place_and_found_by_its_words() -> None:
    session = long()
    last = session.transcript.last
    places = [entry.n for entry in run(_all(session))]
    assert places == list(range(last, 0, -1))
    for n in (1, 2, 3, 500, last):
        assert run(recall(session, str(n)))["pages"] >= 1
    found = run(recall(session, "order a-1003"))["found"]
    assert [each["n"] for each in found] == [7]
    assert "A-1003" in found[0]["text"]
    pages = [run(recall(session, "order word", page)) for page in (1, 2)]
    assert [len(page["found"]) for page in pages] == [HITS, HITS]
    assert pages[0]["more"]
    assert pages[0]["found"][-1]["n"] > pages[1]["found"][0]["n"]
    for nothing in ("", "99999", "c2_9_9", "c1_1_0"):
        with pytest.raises(RunError):
            run(recall(session, nothing))


async def _all(session: Session) -> list[Any]:
    return [entry async for entry in newest_first(session)]


async def _behind(session: Session, after: int = 0) -> list[Any]:
    return [entry async for entry in oldest_first(session, after)]


class Archiving(Session):
    """Archives all that it may while it is read."""

    async def at_hand(self, after: int) -> HeldEntries:
        found = await super().at_hand(after)
        self.archive()
        return found


def test_r10_10_reading_all_entries_gives_all_of_them_also_while_some_are_archived() -> None:
    for read in (_behind, _all):
        session = Archiving()
        for number in range(1, 300):
            exchange(session.transcript, number, f"order {number} " + "word " * 200, "done")
        session.compact()
        assert {entry.n for entry in run(read(session))} == set(range(1, session.transcript.last + 1))
        assert session.segments  # some were, between two pages of what is at hand


def test_r10_10_entries_are_read_from_any_place_on() -> None:
    session = long()
    last = session.transcript.last
    for after in (0, 1, 2, 299, 300, 301, last - 1, last):
        assert [entry.n for entry in run(_behind(session, after))] == list(range(after + 1, last + 1))


@pytest.mark.parametrize("read", [_behind, _all])
@pytest.mark.parametrize("lost", ["gone", "empty", "first", "one"])
def test_r10_10_a_transcript_that_cannot_be_read_whole_is_not_read_in_part(read: Any, lost: str) -> None:
    whole = long()
    session = Session(whole.transcript)
    session.segments = dict(whole.segments)
    name = list(session.segments)[0 if lost == "first" else 1]
    entries = session.segments[name].entries
    if lost == "gone":
        del session.segments[name]
    else:
        left: list[Any] = {"empty": [], "first": entries[1:], "one": [*entries[:3], *entries[4:]]}[lost]
        session.segments[name] = EntryList(entries=left)
    with pytest.raises(RunError, match=r"is not in this namespace|missing|no entries"):
        run(read(session))


def test_r10_12_a_search_returns_what_is_left_of_an_erased_transcript() -> None:
    """A fork shares the older segments of a session, which may have been deleted since."""
    session = Session(long().transcript)
    session.segments = {name: each for name, each in long().segments.items() if not name.endswith("-1")}
    assert len(long().segments) - len(session.segments) == 1
    found = run(recall(session, "order a-1300"))
    assert "A-1300" in found["found"][0]["text"]
    assert found["gone"] == "s/~1-1 is not in this namespace: neither it nor older entries are searched"
    assert "gone" not in run(recall(long(), "order a-1300"))
    assert run(recall(session, "order a-1003"))["found"] == []


def test_r10_10_a_fork_leaves_entries_out_and_is_read_whole() -> None:
    session = long(120)
    carried, _ = run(fork(session, "s", "110.1", AT))
    forked = Session(Transcript(carried), "f/~2-")
    forked.segments = session.segments
    exchange(forked.transcript, 111, "another way", "yes")
    assert [each.n for each in run(_behind(forked))] == [each.n for each in reversed(run(_all(forked)))]


@pytest.mark.parametrize("at", ["400", "395", "250", "100", "3", "1", "400.1", "250.2", "3.1"])
def test_r10_20_a_fork_begins_with_what_was_said_and_done_by_then(at: str) -> None:
    session = long()
    before = session.transcript.carried().model_dump_json()
    carried, state = run(fork(session, "s", at, AT))
    assert session.transcript.carried().model_dump_json() == before  # the original is untouched
    number, _, request = at.partition(".")
    forked = Transcript(pack(carried, 1).read(TranscriptSnapshot, 1, "it"))
    chat = forked.conversation()
    parse_messages(chat)
    shown = str(chat)
    assert f"A-{1000 + int(number)}" in shown
    assert f"A-{1001 + int(number)}" not in shown
    if request:
        assert chat[-1]["role"] == "tool"
        assert (f"'B-{number}'" in shown or f'B-{number}"' in shown) == (request == "2")
        assert state == ({"run": int(number) - 1} if int(number) > 1 else {}) | (
            {"tea": {f"n{number}": f"receipt {number}"}} if request == "2" else {}
        )
    else:
        assert chat[-1] == {"role": "assistant", "content": "done"}
        assert state == {"run": int(number)}
    command = forked.entries[-1]
    assert isinstance(command, CommandEntry)
    assert command.command == "fork"


def test_r10_20_a_fork_goes_on_by_itself_and_is_forked_again() -> None:
    session = long(120)
    carried, _ = run(fork(session, "s", "110.1", AT))
    again = Session(Transcript(carried), "f/~2-")
    again.segments, again.values = {**session.segments}, {**session.values}
    last = again.transcript.last
    exchange(again.transcript, 111, "another way", "yes")
    again.values["s/111", "state"] = {"other": True}
    assert again.transcript.last == last + 3
    assert len(run(_all(again))) < len(run(_all(session)))
    carried, state = run(fork(again, "f", "111", AT))
    assert state == {"other": True}
    assert [entry.command for entry in carried.entries if isinstance(entry, CommandEntry)] == ["fork", "fork"]
    _, state = run(fork(again, "f", "110", AT))
    assert state == {"run": 109}  # the fork's own 110 had only begun to pay


def test_r10_20_a_fork_at_a_run_that_never_began_has_the_state_of_the_run_before_it() -> None:
    session = long(3)
    session.transcript.append(RunEntry(at=AT, run_id="s/4", status="cancelled"))
    assert run(fork(session, "s", "4", AT))[1] == run(fork(session, "s", "3", AT))[1] == {"run": 3}


def test_r10_20_what_was_said_later_is_not_part_of_a_fork() -> None:
    session = Session()
    transcript = session.transcript
    transcript.append(MessageEntry(at=AT, message_id="later", sender="bob", text="for the next run", run_id="s/2"))
    exchange(transcript, 1, "two teas", "done")
    exchange(transcript, 2, "more", "done")
    session.values["s/1", "state"] = {}
    carried, _ = run(fork(session, "s", "1", AT))
    assert "for the next run" not in carried.model_dump_json()
    assert "two teas" in carried.model_dump_json()


@pytest.mark.parametrize("at", ["", "x", "1.2.3", "9999", "3.9", "-1", "1." + "9" * 20])
def test_r10_20_a_place_that_is_none_is_refused(at: str) -> None:
    session = long(10)
    if at == "3.9":  # nothing comes after its last Request: all of its calls
        assert run(fork(session, "s", at, AT))
        return
    with pytest.raises(RunError):
        run(fork(session, "s", at, AT))


class Willing(Session):
    """Knows some value of whatever it is asked for."""

    async def whole(self, run_id: str, what: str) -> Json:
        return {"kept": run_id} if what == "state" else {"result": what}


def fork_at_random(seed: int) -> None:
    drawn = Random(seed)
    for _ in range(drawn.random.choice((2, 6, 15))):
        drawn.step()
        drawn.tend()
    session = Willing(drawn.transcript)
    runs = [entry for entry in drawn.transcript.entries if isinstance(entry, RunEntry)]
    if not runs:
        return
    chosen = drawn.random.choice(runs)
    called = sorted({call.request for call in chosen.calls})
    at = f"{run_number(chosen.run_id)}" + (f".{drawn.random.choice(called)}" if called and seed % 2 else "")
    before = drawn.transcript.carried().model_dump_json()
    carried, _ = run(fork(session, "s", at, AT))
    assert drawn.transcript.carried().model_dump_json() == before
    forked = Transcript(carried)
    chat = forked.conversation(chosen.branch)
    parse_messages(chat)
    drawn.transcript = forked
    for _ in range(3):  # and it goes on as any other
        drawn.step()
        drawn.tend()
    parse_messages(drawn.transcript.conversation())


def test_r10_20_a_fork_of_any_transcript_is_valid() -> None:
    for seed in range(share(60)):
        fork_at_random(seed)


@pytest.mark.soak
def test_r10_20_a_fork_of_thousands_of_transcripts_is_valid() -> None:
    for seed in range(60, 60 + times(700)):
        fork_at_random(seed)
