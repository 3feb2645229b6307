"""Following JSON that is being written: quotes and brackets, piece by piece, in linear time and constant memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from perdure.values.jsons import MAX_DEPTH

_OUTSIDE: Final = re.compile(r'["{}\[\],]')
_INSIDE: Final = re.compile(r'["\\]')
_LONGEST_KEY: Final = 8
"""Characters of a key that are looked at: enough to tell `calls` from others."""
_CALLS_DEPTH: Final = 2
"""Between the elements of `calls`: in the document and in the array."""


class Scanner:
    """Where strings and brackets begin and end. `depth` and `quoted` are those after the last mark."""

    __slots__ = ("_escaped", "depth", "quoted")

    def __init__(self) -> None:
        self.depth = 0
        self.quoted = False
        self._escaped = False

    def marks(self, text: str, at: int = 0) -> Iterator[tuple[int, str]]:
        """Position and character of each quote, and of each bracket and comma outside of strings, taken in one by one."""
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = (_INSIDE if self.quoted else _OUTSIDE).search(text, at)
            if found is None:
                return
            mark, at = found[0], found.end()
            if mark == "\\":
                self._escaped = True
                continue
            if mark == '"':
                self.quoted = not self.quoted
            elif mark in "{[":
                self.depth += 1
            elif mark in "}]":
                self.depth -= 1
            yield found.start(), mark


_SIGN: Final = re.compile(r'["/]')
_NEXT: Final = {"/": "//", "*": "/*"}
_END: Final = {"//": "\n", "/*": "*/"}


class CommentFilter:
    """Takes `//` and `/* */` out of JSON that is being written, a blank in the place of each; what stands in texts stays.

    Of a sign that the next piece decides, `held` is the beginning.
    """

    __slots__ = ("_state", "held")

    def __init__(self) -> None:
        self.held = ""
        self._state = ""  # or `"` in a text, `//` or `/*` in a comment

    def push(self, text: str) -> str:
        """The JSON that is known with this piece."""
        text, self.held = self.held + text, ""
        plain: list[str] = []
        at = 0
        while at < len(text):
            if self._state in _END:
                at = self._comment(text, at)
                continue
            found = (_INSIDE if self._state else _SIGN).search(text, at)
            if found is None:
                plain.append(text[at:])
                break
            begin, sign = found.start(), found[0]
            if sign != '"' and begin + 1 == len(text):
                plain.append(text[at:begin])
                self.held = sign
                break
            end = begin + (2 if sign == "\\" else 1)
            if sign == "/" and text[begin + 1] in _NEXT:
                plain.append(text[at:begin] + " ")
                self._state, at = _NEXT[text[begin + 1]], begin + 2
                continue
            if sign == '"':
                self._state = "" if self._state else '"'
            plain.append(text[at:end])
            at = end
        return "".join(plain)

    def _comment(self, text: str, at: int) -> int:
        """Where the comment ends in the piece; a line's end is not part of it."""
        sign = _END[self._state]
        end = text.find(sign, at)
        if end < 0:
            self.held = "*" if self._state == "/*" and text.endswith("*") else ""
            return len(text)
        self._state = ""
        return end + (len(sign) if sign == "*/" else 0)


class CallScanner:
    """The text of each element of `calls`, the moment it closes, of a document `{"calls": [...], "output": …}` that is being
    written, and that of its `output` as it comes.

    It only looks ahead: where the text is no such document, or is nested too deeply, it stops and gives no more.
    """

    def __init__(self) -> None:
        self._scanner = Scanner()
        self._item: list[str] = []
        """What has come since the last element or comma, of an element that is not whole yet."""
        self._closed = False
        """Whether an element has been given, and a comma has to follow."""
        self._inside = False
        self._key = ""
        self._outputs = 0
        """Members called `output` so far; only the first is read."""
        self._writing = False
        """Whether what comes is the output's."""
        self.output: list[str] = []
        """Pieces of it, with the colon before it, for whoever takes them out."""
        self.output_closed = False
        self.stopped = False

    def push(self, text: str) -> list[str]:
        """The elements that close with this piece."""
        found: list[str] = []
        start = 0  # of what belongs to the element, or to the key, in this piece
        if not self.stopped:
            for at, mark in self._scanner.marks(text):
                if self._inside:
                    start = self._element(text, start, at, mark, found)
                else:
                    start = self._outside(text, start, at, mark)
                if self.stopped:
                    break
        if not self.stopped:
            self._keep(text[start:])
        return found

    def _keep(self, text: str) -> None:
        if self._inside:
            self._item.append(text)
        elif self._writing:
            self.output.append(text)
        elif self._scanner.quoted:
            self._key = (self._key + text)[:_LONGEST_KEY]

    def _outside(self, text: str, start: int, at: int, mark: str) -> int:
        scanner = self._scanner
        if self._writing:
            if not (mark == "," and scanner.depth == 1) and scanner.depth > 0:
                self.stopped = scanner.depth > MAX_DEPTH
                return start
            self.output.append(text[start:at])
            self._writing, self.output_closed = False, True
        elif mark == '"' and scanner.depth == 1:
            self._key = "" if scanner.quoted else (self._key + text[start:at])[:_LONGEST_KEY]
            if self._key == "output" and not scanner.quoted:
                self._outputs += 1
                self._writing = self._outputs == 1
        elif mark == "[" and scanner.depth == _CALLS_DEPTH and self._key == "calls":
            self._inside, self._closed, self._item = True, False, []
        self.stopped = scanner.depth <= 0 or scanner.depth > MAX_DEPTH
        return at + 1

    def _element(self, text: str, start: int, at: int, mark: str, found: list[str]) -> int:
        depth = self._scanner.depth
        if depth > MAX_DEPTH + _CALLS_DEPTH or (self._closed and mark in '{["'):
            self.stopped = True
        elif mark in "}]" and depth == _CALLS_DEPTH:
            found.append(self._take(text[start : at + 1]))
            self._closed = True
            return at + 1
        elif (mark == "," and depth == _CALLS_DEPTH) or depth < _CALLS_DEPTH:
            rest = self._take(text[start:at]).strip()
            if rest and not self._closed:
                found.append(rest)
            # Nothing between two commas, or something behind an element, is no JSON.
            self.stopped = bool(rest) == self._closed and (mark == "," or bool(rest))
            self._inside, self._closed = mark == ",", False
            return at + 1
        return start

    def _take(self, last: str) -> str:
        self._item.append(last)
        whole = "".join(self._item)
        self._item = []
        return whole


_TEXT: Final = r'"(?:[^"\\]|\\.)*\\?(?:"|\Z)'
_BRACKETS: Final = re.compile(rf"{_TEXT}|[{{}}\[\]]", re.DOTALL)
_COMMENTED: Final = re.compile(rf"{_TEXT}|//[^\n]*|/\*.*?(?:\*/|\Z)|[{{}}\[\]]", re.DOTALL)


def end_of_object(text: str, start: int, *, comments: bool = False) -> int | None:
    """Where the object that begins at `start` ends, by its brackets alone, with `comments` by those outside of them; `None`: it never does."""
    depth = 0
    for found in (_COMMENTED if comments else _BRACKETS).finditer(text, start):
        if found[0] in ("{", "["):
            depth += 1
        elif found[0] in ("}", "]"):
            depth -= 1
            if depth <= 0:
                return found.end()
    return None
