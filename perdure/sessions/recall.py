"""Recall: what a conversation does not show any more, word for word: results that were cut, runs that were summed up (R10.12).

`what` is a call's id as the conversation shows it (`c12_1_0`), an entry's place (`12`), or words to look for. Pure: who asks session and
segments is given.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Final, Protocol

from perdure.errors import RunError
from perdure.sessions.entries import (
    CallEntry,
    CommandEntry,
    CompactionEntry,
    DeliveryEntry,
    Entry,
    MessageEntry,
    ReplyEntry,
    RunEntry,
)
from perdure.sessions.segments import Entries, Span
from perdure.sessions.steps import call_id
from perdure.sessions.tending import AtHand
from perdure.values.jsons import Json, JsonObject, dumps
from perdure.values.media import without_media

PAGE: Final = 12_000
"""Characters of a page: somewhat less than a result may have."""
HITS: Final = 20
"""Entries that a search names on a page."""
_AROUND: Final = 150
"""Characters shown before and after what was found."""
_CALL: Final = re.compile(r"c(\d+)_(\w+)")


class Reader(Protocol):
    """Who can ask workflows."""

    async def at_hand(self, after: int) -> AtHand:
        """`ENTRIES_QUERY` of the session."""

    async def segment(self, id: str) -> Entries:
        """`SEGMENT_ENTRIES_QUERY` of a segment. Raises `RunError` where it is gone."""

    async def whole(self, run_id: str, what: str) -> Json:
        """A value of a run, whole: `state`, or a call's `{"params", "result", …}`. Raises `RunError` where nobody has it any more."""


async def recall(reader: Reader, what: str, page: int = 1) -> JsonObject:
    """`{"what", "page", "pages", "text"}`, or of a search `{"what", "page", "found": [{"n", "type", "at", "text"}], "more"}`.

    Raises `RunError` where there is nothing.
    """
    what, page = what.strip(), max(1, page)
    if not what:
        raise RunError("say what to recall: a call's id, an entry's number, or words to look for")
    if named := _CALL.fullmatch(what):
        return _paged(what, await _result(reader, int(named[1]), what), page)
    if what.lstrip("#").isdecimal() and len(what) < 12:
        if (entry := await entry_at(reader, int(what.lstrip("#")))) is None:
            raise RunError(f"the session has no entry {what}")
        return _paged(what, told(entry), page)
    return await _search(reader, what, page)


async def _result(reader: Reader, n: int, wanted: str) -> str:
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
    value = without_media(whole.get("result") if isinstance(whole, dict) else whole)
    return value if isinstance(value, str) else dumps(value)


async def _search(reader: Reader, what: str, page: int) -> JsonObject:
    words = what.lower().split()
    found: list[JsonObject] = []
    skip = (page - 1) * HITS
    async for entry in newest_first(reader):
        text = told(entry)
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
    return {"what": what, "page": page, "found": found, "more": False}


def _paged(what: str, text: str, page: int) -> JsonObject:
    pages = max(1, -(-len(text) // PAGE))
    if page > pages:
        raise RunError(f"{what} has {pages} pages")
    return {"what": what, "page": page, "pages": pages, "text": text[(page - 1) * PAGE : page * PAGE]}


def told(entry: Entry) -> str:
    """An entry in words."""
    if isinstance(entry, MessageEntry):
        return f"{entry.sender}: {entry.text}" + (f"\n[no answer: {entry.why}]" if entry.why else "")
    if isinstance(entry, ReplyEntry):
        return entry.text if entry.text is not None else f"[no reply: {entry.why or 'nothing to say'}]"
    if isinstance(entry, CompactionEntry):
        return entry.text
    if isinstance(entry, DeliveryEntry):
        why = f" ({entry.why})" if entry.why else ""
        return f"{entry.kind} to {entry.route} {entry.status}{why}: {entry.text or 'the reply'}"
    if isinstance(entry, CommandEntry):
        return f"/{entry.command} {entry.text}".strip()
    return "\n".join([f"run {entry.run_id}: {entry.status}", *(_told_call(entry.n, call) for call in entry.calls)])


def _told_call(n: int, call: CallEntry) -> str:
    return f"{call_id(n, call)} {call.tool} {dumps(call.params)} → {call.outcome}"


async def entry_at(reader: Reader, n: int) -> Entry | None:
    """The entry of a place; `None`: there is none."""
    hand = await reader.at_hand(n - 1)
    if hand.entries and hand.entries[0].n == n:
        return hand.entries[0]
    before = 0
    for span in hand.spans:
        if before < n <= span.last:
            entries = await _segment_with(reader, span, n)
            return next((entry for entry in entries if entry.n == n), None)
        before = span.last
    return None


async def _segment_with(reader: Reader, span: Span, n: int) -> list[Entry]:
    """The entries of the segment that a place lies in: half of what is left is ruled out with each question."""
    low, high = 1, span.segments
    while low <= high:
        middle = (low + high) // 2
        entries = (await reader.segment(span.id(middle))).entries
        if n < entries[0].n:
            high = middle - 1
        elif n > entries[-1].n:
            low = middle + 1
        else:
            return entries
    return []


async def newest_first(reader: Reader) -> AsyncIterator[Entry]:
    """All entries of the session, however many."""
    hand = await reader.at_hand(0)
    entries, spans = hand.entries, hand.spans
    while hand.more:
        hand = await reader.at_hand(hand.entries[-1].n)
        entries += hand.entries
    for entry in reversed(entries):
        yield entry
    for span in reversed(spans):
        for number in range(span.segments, 0, -1):
            for entry in reversed((await reader.segment(span.id(number))).entries):
                if entry.n <= span.last:
                    yield entry
