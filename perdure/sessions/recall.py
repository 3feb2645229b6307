"""Recall in a session: results and messages that its model no longer sees.

`what` is a call's id as the conversation shows it (`c12_1_0`), an entry's place (`12`), or words to search for. The
module has no I/O: a `WorkflowReader` queries session and segments.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Final, Protocol

from perdure.errors import RunError
from perdure.sessions.compaction import HeldEntries
from perdure.sessions.entries import (
    CallEntry,
    CommandEntry,
    CompactionEntry,
    DeliveryEntry,
    Entry,
    MessageEntry,
    ReplyEntry,
    RunEntry,
    call_id,
)
from perdure.sessions.transcript import EntryList, SegmentSpan
from perdure.values.json import Json, JsonObject, dumps
from perdure.values.media import page_of, without_media

HITS: Final = 20
"""Entries that a page of a search names."""
_AROUND: Final = 150
"""Characters that are shown before and after a hit."""
_TRIES: Final = 10
"""Attempts to read a session's entries while it archives, which is rare."""
_CALL: Final = re.compile(r"c(\d+)_(\w+)")


class HistoryGoneError(RunError):
    """The error for a segment or a run whose history is not in this namespace."""


class WorkflowReader(Protocol):
    """A reader that queries workflows."""

    async def at_hand(self, after: int) -> HeldEntries:
        """Send `ENTRIES_QUERY` to the session."""

    async def segment(self, id: str) -> EntryList:
        """Send `SEGMENT_ENTRIES_QUERY` to a segment. Raise `HistoryGoneError` if its history is not in this namespace."""

    async def whole(self, run_id: str, what: str) -> Json:
        """Return a whole value of a run: `state`, or a call's `{"params", "result", …}`. Raise `RunError` if it is not
        available.
        """


async def recall(reader: WorkflowReader, what: str, page: int = 1) -> JsonObject:
    """Return `{"what", "page", "pages", "text"}`, or for a search its hits.

    Hits are `{"what", "page", "found": [{"n", "type", "at", "text"}], "more"}`, with `gone` if an older segment no longer
    exists. Raise `RunError` if nothing is found.
    """
    what, page = what.strip(), max(1, page)
    if not what:
        raise RunError("no reference is given: give a call's id, an entry's number, or words to search for")
    if named := _CALL.fullmatch(what):
        return page_of(what, await _result(reader, int(named[1]), what), page)
    if what.lstrip("#").isdecimal() and len(what) < 12:
        if (entry := await entry_at(reader, int(what.lstrip("#")))) is None:
            raise RunError(f"the session has no entry {what}")
        return page_of(what, entry_text(entry), page)
    return await _search(reader, what, page)


async def _result(reader: WorkflowReader, n: int, wanted: str) -> str:
    run = await entry_at(reader, n)
    calls = run.calls if isinstance(run, RunEntry) else []
    call = next((each for each in calls if call_id(n, each) == wanted), None)
    if call is None or not isinstance(run, RunEntry):
        raise RunError(f"the session has no call {wanted}")
    if call.status != "done":
        return call.outcome
    try:
        whole = await reader.whole(run.run_id, call.id)
    except RunError as error:
        return f"{call.outcome}\n[{error}: this is what the transcript has]"
    if isinstance(whole, dict):
        whole = whole.get("persisted", whole.get("result"))
    value = without_media(whole, bare=False)
    return value if isinstance(value, str) else dumps(value)


async def _search(reader: WorkflowReader, what: str, page: int) -> JsonObject:
    words = what.lower().split()
    found: list[JsonObject] = []
    skip = (page - 1) * HITS
    gone: JsonObject = {}
    try:
        async for entry in newest_first(reader):
            text = entry_text(entry)
            lower = text.lower()
            if not all(word in lower for word in words):
                continue
            if skip:
                skip -= 1
            elif len(found) == HITS:
                return {"what": what, "page": page, "found": found, "more": True}
            else:
                at = lower.find(words[0])
                shown = text[max(0, at - _AROUND) : at + _AROUND]
                found.append({"n": entry.n, "type": entry.type, "at": entry.at, "text": shown})
    except HistoryGoneError as error:
        gone = {"gone": f"{error}: neither it nor older entries are searched"}
    return {"what": what, "page": page, "found": found, "more": False, **gone}


def entry_text(entry: Entry) -> str:
    """Return an entry as text."""
    if isinstance(entry, MessageEntry):
        return f"{entry.sender}: {entry.text}" + (f"\n[no answer: {entry.why}]" if entry.why else "")
    if isinstance(entry, ReplyEntry):
        return entry.text if entry.text is not None else f"[no reply: {entry.why or 'no text'}]"
    if isinstance(entry, CompactionEntry):
        return entry.text
    if isinstance(entry, DeliveryEntry):
        why = f" ({entry.why})" if entry.why else ""
        return f"{entry.kind} to {entry.route} {entry.status}{why}: {entry.text or 'the reply'}"
    if isinstance(entry, CommandEntry):
        return f"/{entry.command} {entry.text}".strip()
    return "\n".join([f"run {entry.run_id}: {entry.status}", *(_call_text(entry.n, call) for call in entry.calls)])


def _call_text(n: int, call: CallEntry) -> str:
    return f"{call_id(n, call)} {call.tool} {dumps(call.params)} → {call.outcome}"


async def entry_at(reader: WorkflowReader, n: int) -> Entry | None:
    """Return the entry of a place; `None` if there is none. Raise `RunError` if it cannot be read."""
    hand = await reader.at_hand(n - 1)
    if hand.entries and hand.entries[0].n == n:
        return hand.entries[0]
    before = 0
    for span in hand.spans:
        if before < n <= span.last:
            entries = await _segment(reader, span, await _segment_number(reader, span, n))
            return next((entry for entry in entries if entry.n == n), None)
        before = span.last
    return None


async def read_at_hand(reader: WorkflowReader) -> HeldEntries:
    """Return all entries that the session has itself, and its segments, at one moment.

    Raise `RunError` if the session archives entries during each attempt to read them.
    """
    for _ in range(_TRIES):
        whole = page = await reader.at_hand(0)
        entries, spans = list(whole.entries), _filled(whole.spans)
        while page.more and _filled(page.spans) == spans:
            page = await reader.at_hand(entries[-1].n)
            entries += page.entries
        if _filled(page.spans) == spans:
            return whole.model_copy(update={"entries": entries, "more": False, "spans": spans})
    raise RunError("the session archived entries while they were read; read them again")


def _filled(spans: list[SegmentSpan]) -> list[SegmentSpan]:
    return [span for span in spans if span.segments]


async def oldest_first(reader: WorkflowReader, after: int = 0) -> AsyncIterator[Entry]:
    """Yield every entry of the session after a place. Raises `RunError` if one is missing, at the end at the latest."""
    hand = await read_at_hand(reader)
    place, missing = after, None
    async for entry in _behind(reader, hand, after):
        if entry.n != place + 1 and missing is None:
            missing = _missing(place + 1, entry.n - 1)
        if _is_fork(entry):  # a fork leaves entries out before it
            missing = None
        place = entry.n
        yield entry
    if missing is not None:
        raise missing


async def _behind(reader: WorkflowReader, hand: HeldEntries, after: int) -> AsyncIterator[Entry]:
    for span in hand.spans:
        if span.last <= after:
            continue
        for number in range(await _segment_number(reader, span, after + 1), span.segments + 1):
            for entry in await _segment(reader, span, number):
                if after < entry.n <= span.last:
                    yield entry
    for entry in hand.entries:
        if entry.n > after:
            yield entry


async def newest_first(reader: WorkflowReader) -> AsyncIterator[Entry]:
    """Yield every entry of the session, the newest first. Raises `RunError` if one is missing."""
    place: int | None = None
    forked = False
    async for entry in _backwards(reader, await read_at_hand(reader)):
        if place is not None and entry.n != place - 1 and not forked:
            raise _missing(entry.n + 1, place - 1)
        forked = forked or _is_fork(entry)
        place = entry.n
        yield entry
    if place is not None and place > 1 and not forked:
        raise _missing(1, place - 1)


async def _backwards(reader: WorkflowReader, hand: HeldEntries) -> AsyncIterator[Entry]:
    for entry in reversed(hand.entries):
        yield entry
    for span in reversed(hand.spans):
        for number in range(span.segments, 0, -1):
            for entry in reversed(await _segment(reader, span, number)):
                if entry.n <= span.last:
                    yield entry


async def _segment(reader: WorkflowReader, span: SegmentSpan, number: int) -> list[Entry]:
    """Return the entries of a segment, at least one. Raises `RunError` if they cannot be read."""
    entries = (await reader.segment(span.id(number))).entries
    if not entries:
        raise RunError(f"the segment {span.id(number)} returned no entries; the transcript cannot be read whole")
    return entries


async def _segment_number(reader: WorkflowReader, span: SegmentSpan, n: int) -> int:
    """Return the number of the last segment that begins at a place or before it, at least 1: a binary search."""
    low, high = 1, span.segments
    while low < high:
        middle = (low + high + 1) // 2
        if (await _segment(reader, span, middle))[0].n <= n:
            low = middle
        else:
            high = middle - 1
    return low


def _is_fork(entry: Entry) -> bool:
    return isinstance(entry, CommandEntry) and entry.command == "fork"


def _missing(first: int, last: int) -> RunError:
    which = f"entry {first} is" if first == last else f"the entries {first} to {last} are"
    return RunError(f"{which} missing from the session's transcript; nothing is returned in their place")
