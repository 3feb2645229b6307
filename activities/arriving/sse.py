"""What a model server sends, cut into events: server-sent ones, or one JSON document in their place.

Nothing is taken on trust: a byte order mark, any line ends, `retry:` and comments, lines without an empty one between them, no
end. It costs what its bytes cost, and holds one event at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perdure.values.limits import MAX_EVENT

_SHOWN: Final = 20_000
"""Bytes that are kept of what is neither, to say what it was."""
_BOM: Final = b"\xef\xbb\xbf"


class EventTooLongError(Exception):
    """More than `MAX_EVENT` bytes, and no end of the event."""

    def __init__(self) -> None:
        super().__init__(f"it sent {MAX_EVENT:,} bytes without the end of an event")


@dataclass(frozen=True, slots=True)
class Event:
    data: bytes
    name: str = ""


class Events:
    """Pushed bytes, gives events. With `document` the whole is one; it is also where it begins as JSON does."""

    def __init__(self, *, document: bool = False) -> None:
        self.strange = b""
        """The beginning of what was no event, where there was such."""
        self._document: bool | None = document or None
        self._rest: list[bytes] = []
        """Pieces of a line that has not ended, or of the document."""
        self._data: list[bytes] = []
        self._name = ""
        self._size = 0
        self._after_cr = False

    def push(self, piece: bytes) -> list[Event]:
        """The events that end with this piece. Raises `EventTooLongError`."""
        self._size += len(piece)
        if self._size > MAX_EVENT:
            raise EventTooLongError
        if self._document is None:
            piece = self._begin(piece)
        if self._document is not False or not piece:
            self._rest.append(piece)
            return []
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        self._after_cr = piece.endswith(b"\r")
        end = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
        if not end:
            self._rest.append(piece)
            return []
        lines = b"".join([*self._rest, piece[:end]]).splitlines()
        self._rest = [piece[end:]]
        events: list[Event] = []
        for line in lines:
            self._line(line, events)
        return events

    def end(self) -> list[Event]:
        """What was not finished when the connection ended."""
        events: list[Event] = []
        whole = b"".join(self._rest)
        self._rest = []
        if self._document:
            return [Event(whole.removeprefix(_BOM))] if whole.strip() else []
        for line in whole.splitlines():
            self._line(line, events)
        self._line(b"", events)
        return events

    def _begin(self, piece: bytes) -> bytes:
        """Tell a document from events by its first byte; the bytes from there on."""
        piece = b"".join([*self._rest, piece])
        self._rest = []
        head = piece.removeprefix(_BOM).lstrip()
        if head and not (len(piece) < len(_BOM) and _BOM.startswith(piece)):
            self._document = head[:1] in (b"{", b"[")
            return head
        return piece

    def _line(self, line: bytes, events: list[Event]) -> None:
        if not line:
            if self._data:
                events.append(Event(b"\n".join(self._data), self._name))
                self._data = []
            self._name = ""
            self._size = sum(map(len, self._rest))
        elif line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line.startswith(b"event:"):
            self._name = line[6:].strip().decode(errors="replace")
        elif not line.startswith((b":", b"id:", b"retry:")) and len(self.strange) < _SHOWN:
            self.strange = (self.strange + b" " + line).strip()[:_SHOWN]
