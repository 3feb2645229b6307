"""The text of an output that is being written as JSON: of a string its characters, of anything else compact JSON."""

from __future__ import annotations

import json
import re
from typing import Final

from perdure.errors import JsonError
from perdure.model.dialects.saying.plain import Plain
from perdure.values.jsons import MAX_DEPTH, dumps, loads
from perdure.values.templates import EXPR

_CHARACTERS: Final = re.compile(
    r'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u(?:[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
    r"|(?![dD][89a-fA-F])[0-9a-fA-F]{4})))*+"
)
"""Of a string, as far as whole characters have come: one beyond the 16-bit plane may be written as two escapes."""
_LONGEST_ESCAPE: Final = len(r"\ud83d\ude00")
_TOKEN: Final = re.compile(r"[ \t\r\n]*(?:([\"{}\[\],:])|([-+.\w]+))")


class OutputText:
    """Pushed the JSON of one member of an object in pieces, from the colon on, gives its value's text: see `text_of`. Gives no more where it is no JSON, or where
    something stands that is replaced: a reference, a formula."""

    def __init__(self) -> None:
        self.stopped = False
        """Whether nothing more will be given."""
        self._rest = ""
        """A token that has not ended."""
        self._begun = False
        """Whether the colon has come."""
        self._open: list[str] = []
        """Brackets."""
        self._key_next = False
        self._held = ""
        """A brace: behind it a formula may stand."""
        self._string: str = ""  # "", or what the string is that is being read: "text", "value", "key"
        self._plain = Plain()
        self._key: list[str] = []
        self._quoted = False
        """Whether the quote was given that opens a value."""

    def push(self, raw: str, *, closed: bool = False) -> str:
        """What is known of its text now; `closed`: the value is whole."""
        text, self._rest = self._rest + raw, ""
        told: list[str] = []
        at = 0
        while at < len(text) and not self.stopped:
            before = at
            at = self._characters(text, at, told) if self._string else self._token(text, at, told, closed)
            if at == before:
                break
        if not self.stopped:
            self._rest = text[at:]
        return "".join(told)

    def _characters(self, text: str, at: int, told: list[str]) -> int:
        """Read on in a string; where it goes on."""
        found = _CHARACTERS.match(text, at)
        assert found is not None
        end = found.end()
        closed = text[end : end + 1] == '"'
        piece = json.loads(f'"{found[0]}"') if found[0] else ""
        if self._string == "key":
            self._key.append(piece)
            if closed:
                self._end_key(told)
        else:
            self._say(self._plain.push(piece, closed=closed), told, closed)
        if closed:
            self.stopped |= self._string == "text"
            self._string = ""
            return end + 1
        if end < len(text) and (text[end] != "\\" or len(text) - end >= _LONGEST_ESCAPE):
            self.stopped = True  # no JSON
        return end

    def _say(self, piece: str, told: list[str], closed: bool) -> None:
        if self._string == "text":
            told.append(piece)
        else:
            reference = self._plain.stopped
            if not self._quoted and (piece or (closed and not reference)):
                self._quoted = True
                told.append('"')
            told.append(dumps(piece)[1:-1])
            if closed and not reference:
                told.append('"')
        self.stopped |= self._plain.stopped

    def _end_key(self, told: list[str]) -> None:
        key = "".join(self._key)
        if self._held and key == EXPR:
            self.stopped = True
            return
        told.append(f"{self._held}{dumps(key)}")
        self._held = ""

    def _token(self, text: str, at: int, told: list[str], closed: bool) -> int:
        """Read one token; where it goes on."""
        found = _TOKEN.match(text, at)
        if found is None:
            self.stopped = bool(text[at:].strip())
            return at
        mark, scalar = found[1], found[2]
        if not self._begun:
            self._begun, self.stopped = True, mark != ":"
        elif scalar:
            if found.end() == len(text) and not closed:
                return at
            self._scalar(scalar, told)
        elif mark == '"':
            self._begin_string()
        elif mark in "{[":
            told.append(self._held)
            self._open.append(mark)
            self._key_next = mark == "{"
            self._held = mark if mark == "{" else ""
            if mark == "[":
                told.append(mark)
            self.stopped |= len(self._open) > MAX_DEPTH
        else:
            told.append(self._held + mark)
            self._held = ""
            if mark in "}]":
                self.stopped |= not self._open or len(self._open) == 1
                self._open = self._open[:-1]
            self._key_next = mark == "," and self._open[-1:] == ["{"]
        return found.end()

    def _begin_string(self) -> None:
        self._string = "key" if self._key_next else "value" if self._open else "text"
        self._plain, self._key, self._quoted, self._key_next = Plain(), [], False, False

    def _scalar(self, scalar: str, told: list[str]) -> None:
        try:
            value = loads(scalar)
        except JsonError:
            self.stopped = True
            return
        if self._open or value is not None:
            told.append(dumps(value))
        self.stopped |= not self._open
