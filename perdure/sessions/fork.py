"""Forks: a session that begins with the transcript of another one."""

from __future__ import annotations

import re
from typing import Final

from perdure.errors import RunError
from perdure.sessions.entries import (
    END,
    CallEntry,
    CommandEntry,
    CompactionEntry,
    Entry,
    MessageEntry,
    ReplyEntry,
    RunEntry,
)
from perdure.sessions.recall import WorkflowReader, read_at_hand
from perdure.sessions.transcript import FORK, SegmentSpan, Transcript, TranscriptSnapshot
from perdure.values.json import Json, JsonObject
from perdure.values.state import State, Write

_AT: Final = re.compile(r"(\d{1,9})(?:\.(\d{1,9}))?")


async def fork(reader: WorkflowReader, session: str, at: str, time: str) -> tuple[TranscriptSnapshot, JsonObject]:
    """Return the transcript and the state with which a fork at `R`, or at `R.N`, begins.

    `R` is a run's number in the session, the end of its id. `N` is its last Request that the fork keeps; without `N`
    the fork keeps the whole run and its reply. Raise `RunError` if there is no such place, or if a workflow does not
    answer.
    """
    number, request = read_place(at)
    hand = await read_at_hand(reader)
    entries, spans = hand.entries, hand.spans
    while (run := _run(entries, number)) is None or not _whole(entries, run):
        older = await _older(reader, spans)
        if older is None:
            break
        entries = [*older, *entries]
    if run is None:
        raise RunError(f"{session} has no run {number} that has ended")
    if request is not None and not any(call.request <= request for call in run.calls):
        raise RunError(f"run {number} of {session} has no Request {request} with calls")
    kept = _prefix(entries, run, request)
    state = await _state(reader, kept, run, request)
    carried = TranscriptSnapshot(
        entries=kept, last=kept[-1].n, branch=run.branch, limit=hand.limit, spans=_spans(spans, kept[0].n)
    )
    transcript = Transcript(carried)
    transcript.append(CommandEntry(at=time, command=FORK, text=f"{session} at {at}"))
    return transcript.carried(), state


def read_place(at: str) -> tuple[int, int | None]:
    """Return the numbers of a run and of a Request in it. Raise `RunError` for a text that is no point of a session."""
    found = _AT.fullmatch(at.strip())
    if found is None:
        raise RunError(f"{at!r} is not a point of a session: use R or R.N, the numbers of a run and of a Request")
    return int(found[1]), None if found[2] is None else int(found[2])


def run_number(run_id: str) -> int | None:
    """Return the number at the end of a run's id."""
    digits = re.search(r"(\d+)$", run_id)
    return None if digits is None else int(digits[1])


def _run(entries: list[Entry], number: int) -> RunEntry | None:
    runs = (entry for entry in reversed(entries) if isinstance(entry, RunEntry))
    return next((run for run in runs if run_number(run.run_id) == number), None)


def _whole(entries: list[Entry], run: RunEntry) -> bool:
    """Whether the entries contain the whole conversation: from the branch's beginning, or from the part that its
    compaction keeps.
    """
    before = [entry for entry in entries if entry.n <= run.n]
    compaction = _compaction(before, run)
    first = entries[0].n
    if compaction is None:
        return first <= max(1, run.branch)
    kept = [entry for entry in before if isinstance(entry, RunEntry) and entry.n == compaction.up_to]
    return bool(kept) and all(_first(entries, each) for each in kept)


def _first(entries: list[Entry], run: RunEntry) -> bool:
    return any(isinstance(entry, MessageEntry) and entry.run_id == run.run_id for entry in entries)


def _compaction(entries: list[Entry], run: RunEntry) -> CompactionEntry | None:
    found = (entry for entry in reversed(entries) if isinstance(entry, CompactionEntry))
    return next((entry for entry in found if entry.branch == run.branch), None)


async def _older(reader: WorkflowReader, spans: list[SegmentSpan]) -> list[Entry] | None:
    """Return the entries of the newest unread segment, and remove it from `spans`; `None` if there is none."""
    while spans and not spans[-1].segments:
        spans.pop()
    if not spans:
        return None
    span = spans[-1]
    entries = [entry for entry in (await reader.segment(span.id(span.segments))).entries if entry.n <= span.last]
    span.segments -= 1
    return entries


def _spans(spans: list[SegmentSpan], first: int) -> list[SegmentSpan]:
    """Return the segments before entry `first`, the oldest entry that was read."""
    left = [span for span in spans if span.segments]
    for span in left:
        span.last = min(span.last, first - 1)
    return left


def _prefix(entries: list[Entry], run: RunEntry, request: int | None) -> list[Entry]:
    """Return the entries up to this point of the run, without later runs and their messages."""
    ended = {entry.run_id for entry in entries if isinstance(entry, RunEntry) and entry.n <= run.n}
    kept: list[Entry] = []
    for entry in entries:
        if isinstance(entry, RunEntry) and entry.n == run.n and request is not None:
            calls = [call for call in entry.calls if call.request <= request]
            entry = entry.model_copy(update={"calls": calls, "status": "forked", "error": None, "context_tokens": 0})
        if isinstance(entry, ReplyEntry) and entry.run_id == run.run_id and request is None:
            kept.append(entry)
        elif isinstance(entry, MessageEntry) and entry.n <= run.n:
            later = entry.run_id == run.run_id and request is not None and entry.request > request
            if entry.why is not None or (entry.run_id in ended and not later):
                kept.append(entry)
        elif entry.n <= run.n:
            kept.append(entry)
    return kept


async def _state(reader: WorkflowReader, kept: list[Entry], run: RunEntry, request: int | None) -> JsonObject:
    """Return the state at that point: at the run's end, or before the run with the writes of its calls."""
    never_began = run.status == "cancelled" and run.started_at is None
    began_inside = run.status == "forked"  # this session is itself a fork, from the middle of the run
    if request is None and (began_inside or never_began):
        request = END
    if request is None:
        value = await reader.whole(run.run_id, "state")
        return value if isinstance(value, dict) else {}
    earlier = [entry for entry in kept if entry.n < run.n]
    before = next((each for each in reversed(earlier) if _keeps_state(each)), None)
    left = await _state(reader, earlier, before, None) if isinstance(before, RunEntry) else {}
    state = State([Write(path=(), value=left)] if left else [])
    for call in run.calls:
        if call.request <= request:
            for wrote in call.wrote:
                value = await _written(reader, run, call)
                state.append(Write(path=tuple(wrote.path), value=value, method=wrote.method))
    return dict(state.snapshot())


async def _written(reader: WorkflowReader, run: RunEntry, call: CallEntry) -> Json:
    if call.status != "done":
        return call.error
    value = await reader.whole(run.run_id, call.id)
    return value.get("result") if isinstance(value, dict) else None


def _keeps_state(entry: Entry) -> bool:
    """Whether an entry sets the state for the next run: a run, or a command that clears the state."""
    return isinstance(entry, RunEntry) or (isinstance(entry, CommandEntry) and entry.command == "reset")
