"""Where old entries go: segments, each immutable, held by a workflow of its own that idles (R10.13).

That is storage which any worker can read, and which needs no service beside Temporal; with external storage it lies there. A segment also
tells of the messages in those before it, so that one message among hundreds of thousands is found with a few questions: segment 12
knows those of 9 to 12, segment 8 those of 1 to 8, as a Fenwick tree does.
"""

from __future__ import annotations

import base64
import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeGuard

from pydantic import Field

from perdure.sessions.entries import CommandEntry, Entry, MessageEntry
from perdure.values.packing import Packed, pack
from perdure.values.wire import Wire

SEGMENT_WORKFLOW: Final = "SessionSegment"
SEGMENT_ENTRIES_QUERY: Final = "entries"
"""Its entries: `Entries`."""
SEGMENT_INDEX_QUERY: Final = "index"
"""The messages that it knows of: the text of an `Index`."""
SEGMENT_FIND_QUERY: Final = "find"
"""A message's id: the numbers of the segments that messages of it stand in, as far as this one knows, the newest first. In 0.1.0 one; 0: none."""
SEGMENT_DELETE: Final = "delete"
"""Signal: the session was deleted."""
SEGMENT_FORM: Final = 1
_FORM: Final = SEGMENT_FORM
_SPANS: Final = 64
"""Segments that one knows the messages of at most: of 64 there are some ten thousand, in 200 kB."""
_DIGEST: Final = 8
SENT: Final = ("new", "reset", "stop")
"""Commands that are messages: their id is their own."""
_RECORD: Final = _DIGEST + 4
"""Bytes of a message in an index: the beginning of its id's digest, and its segment."""


class Span(Wire):
    """Segments that were made of one session, one after the other: `name` followed by their number, from 1 on."""

    name: str
    segments: int = 0
    last: int = 0
    """The place of the last entry of them that counts: a fork's may go on behind it."""

    def id(self, number: int) -> str:
        return f"{self.name}{number}"


class Entries(Wire):
    """Some entries, in their order."""

    entries: list[Entry] = Field(default_factory=list)


class Segment(Wire):
    """The input of the workflow that holds it."""

    number: int
    first: int
    """The place of its first entry, and of its last."""
    last: int
    entries: Packed
    """`Entries`."""
    index: str = ""
    """An `Index`, as text."""

    @property
    def read(self) -> list[Entry]:
        """Its entries. Raises `ProtocolError` where another version has written it."""
        return self.entries.read(Entries, _FORM, f"segment {self.number}").entries


def segment_of(number: int, entries: Sequence[Entry]) -> Segment:
    """A segment of these entries, which knows its own messages only."""
    packed = pack(Entries(entries=list(entries)), _FORM)
    ids = [entry.message_id for entry in entries if is_said(entry)]
    return Segment(
        number=number, first=entries[0].n, last=entries[-1].n, entries=packed, index=Index.of(ids, number).text
    )


def is_said(entry: Entry) -> TypeGuard[MessageEntry | CommandEntry]:
    """Whether it is what somebody has sent under an id: a message, or a command that was one."""
    return isinstance(entry, MessageEntry) or (isinstance(entry, CommandEntry) and entry.command in SENT)


def joined_below(number: int) -> Iterator[int]:
    """The segments whose indexes that of segment `number` takes in beside its own."""
    step = 1
    while number % (2 * step) == 0 and 2 * step <= _SPANS:
        yield number - step
        step *= 2


def asked(segments: int) -> Iterator[int]:
    """The segments to ask for a message, that know of all up to `segments` together: the newest first."""
    while segments:
        yield segments
        step = 1
        while segments % (2 * step) == 0 and 2 * step <= _SPANS:
            step *= 2
        segments -= step


class Index:
    """Messages by the digest of their id, and the segment that each stands in."""

    def __init__(self, text: str = "") -> None:
        self._bytes = base64.b64decode(text)

    @classmethod
    def of(cls, ids: Iterable[str], segment: int) -> Index:
        """Of the messages of one segment."""
        return cls._made(_digest(id) + segment.to_bytes(4) for id in ids)

    @classmethod
    def _made(cls, records: Iterable[bytes]) -> Index:
        made = cls()
        made._bytes = b"".join(sorted(records))
        return made

    @property
    def text(self) -> str:
        return base64.b64encode(self._bytes).decode()

    def __len__(self) -> int:
        return len(self._bytes) // _RECORD

    def _record(self, at: int) -> bytes:
        return self._bytes[at * _RECORD : (at + 1) * _RECORD]

    def joined(self, other: Index) -> Index:
        """This one with another."""
        each = [index._record(at) for index in (self, other) for at in range(len(index))]
        return self._made(each)

    def find(self, id: str) -> int:
        """The newest segment of a message; 0: it is not here."""
        return next(iter(self.find_all(id)), 0)

    def find_all(self, id: str) -> list[int]:
        """The segments of the messages of an id, which several senders may have used, the newest first."""
        wanted = _digest(id)
        first = bisect_left(range(len(self)), wanted, key=self._record)
        last = bisect_left(range(len(self)), wanted + b"\xff" * 5, key=self._record)
        return sorted({int.from_bytes(self._record(at)[_DIGEST:]) for at in range(first, last)}, reverse=True)


def _digest(id: str) -> bytes:
    return hashlib.sha256(id.encode(errors="replace")).digest()[:_DIGEST]


class Remembered:
    """Whether a message may have been accepted before: never wrong where it says no; wrong once in a hundred where it says yes, as long
    as there are 100,000 messages. A Bloom filter of one size, whatever the session has: of more messages it says yes more often."""

    def __init__(self, text: str = "") -> None:
        self._bits = bytearray(base64.b64decode(text)) if text else bytearray(_BYTES)

    @property
    def text(self) -> str:
        return base64.b64encode(self._bits).decode() if any(self._bits) else ""

    def add(self, id: str) -> None:
        """Remember a message."""
        for place in _places(id):
            self._bits[place >> 3] |= 1 << (place & 7)

    def __contains__(self, id: str) -> bool:
        return all(self._bits[place >> 3] >> (place & 7) & 1 for place in _places(id))


_BYTES: Final = 128 * 1024


def _places(id: str) -> Iterator[int]:
    digest = hashlib.sha256(id.encode(errors="replace")).digest()
    for at in range(_DIGEST, _DIGEST + 16, 4):
        yield int.from_bytes(digest[at : at + 4]) % (8 * _BYTES)
