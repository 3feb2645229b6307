"""The text of an output that is being written as JSON: see `text_of`."""

from __future__ import annotations

import json
import re
from typing import Final

from perdure.errors import JsonError
from perdure.model.dialects.saying.plain import Plain
from perdure.model.wire import Said
from perdure.values.jsons import MAX_DEPTH, dumps, loads
from perdure.values.templates import EXPR

_CHARACTERS: Final = re.compile(
    r'(?:[^"\\\x00-\x1f]+|\\(?:["\\/bfnrt]|u(?:[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
    r"|(?![dD][89a-fA-F])[0-9a-fA-F]{4})))*"
)
"""Of a string, as far as whole characters have come: one beyond the 16-bit plane may be written as two escapes."""
_LONGEST_ESCAPE: Final = len(r"\ud83d\ude00")
_TOKEN: Final = re.compile(r"[ \t\r\n]*(?:([\"{}\[\],:])|([-+.\w]+))")


class OutputText:
    """Pushed the JSON of one member of an object in pieces, from the colon on, gives its value's text. Gives no more where it is no
    JSON, or where something stands that is replaced: a reference, a formula.

    Of an object that may yet turn out to be one text nothing is given before that is known.
    """

    def __init__(self, said: Said) -> None:
        self.stopped = False
        """Whether nothing more will be given."""
        self._expected = said
        self._rest = ""
        """A token that has not ended."""
        self._begun = False
        """Whether the colon has come."""
        self._out: list[str] = []
        self._shape = "json"
        """Or, of an object, `open`: its first member is read; `text`: that is its only one."""
        self._waiting: list[str] = []
        """What it says as JSON, and as its only text, while that is open."""
        self._only: list[str] = []
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
        at = 0
        while at < len(text) and not self.stopped:
            before = at
            at = self._characters(text, at) if self._string else self._token(text, at, closed)
            if at == before:
                break
        if not self.stopped:
            self._rest = text[at:]
        known, self._out = "".join(self._out), []
        return known

    def _put(self, json: str) -> None:
        if self._shape == "json":
            self._out.append(json)
        elif self._shape == "open":
            self._waiting.append(json)

    def _decide(self, shape: str) -> None:
        """What the object is, is known: what waited is given."""
        if self._shape == "open":
            self._out += self._waiting if shape == "json" else self._only
            self._shape = shape

    def _characters(self, text: str, at: int) -> int:
        """Read on in a string; where it goes on."""
        found = _CHARACTERS.match(text, at)
        assert found is not None
        end = found.end()
        closed = text[end : end + 1] == '"'
        piece = json.loads(f'"{found[0]}"') if found[0] else ""
        if self._string == "key":
            self._key.append(piece)
            if closed:
                self._end_key()
        else:
            self._say(self._plain.push(piece, closed=closed), closed)
        if closed:
            self.stopped |= self._string == "text"
            self._string = ""
            return end + 1
        if end < len(text) and (text[end] != "\\" or len(text) - end >= _LONGEST_ESCAPE):
            self.stopped = True  # no JSON
        return end

    def _say(self, piece: str, closed: bool) -> None:
        reference = self._plain.stopped
        if self._string == "text" or self._shape == "text":
            self._out.append(piece)
        else:
            if not self._quoted and (piece or (closed and not reference)):
                self._quoted = True
                self._put('"')
            self._put(dumps(piece)[1:-1])
            self._only.append(piece if self._shape == "open" else "")
            if closed and not reference:
                self._put('"')
        self.stopped |= reference

    def _end_key(self) -> None:
        key = "".join(self._key)
        if self._held and key == EXPR:
            self.stopped = True
            return
        self._put(f"{self._held}{dumps(key)}")
        if self._held and self._shape == "open" and key == self._expected.member:
            self._decide("text")
        self._held = ""

    def _token(self, text: str, at: int, closed: bool) -> int:
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
            self._scalar(scalar)
        elif mark == '"':
            self._string = "key" if self._key_next else "value" if self._open else "text"
            self._plain, self._key, self._quoted, self._key_next = Plain(), [], False, False
        elif mark in "{[":
            self._begin(mark)
        else:
            self._end(mark)
        return found.end()

    def _begin(self, mark: str) -> None:
        if self._open:
            self._decide("json")
        elif mark == "{" and not self._expected.several:
            self._shape = "open"
        self._put(self._held)
        self._open.append(mark)
        self._key_next = mark == "{"
        self._held = mark if mark == "{" else ""
        if mark == "[":
            self._put(mark)
        self.stopped |= len(self._open) > MAX_DEPTH

    def _end(self, mark: str) -> None:
        """A mark that begins nothing."""
        last = len(self._open) <= 1
        if mark != ":" and last:
            self._decide("text" if mark == "}" and not self._held else "json")
            self.stopped |= mark == "," and self._shape == "text"  # a member too many
        self._put(self._held + mark)
        self._held = ""
        if mark in "}]":
            self.stopped |= last
            self._open = self._open[:-1]
        self._key_next = mark == "," and self._open[-1:] == ["{"]

    def _scalar(self, scalar: str) -> None:
        try:
            value = loads(scalar)
        except JsonError:
            self.stopped = True
            return
        self._decide("json")
        if self._open or value is not None:
            self._put(dumps(value))
        self.stopped |= not self._open
