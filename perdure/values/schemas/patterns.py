"""Patterns of JSON Schema on an engine that takes linear time (R18.6).

JSON Schema's patterns are those of ECMA-262. What RE2 writes in another way is translated; what no linear engine can do
(look-around, back-references) is refused when a schema is read, in one line.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

import re2

_SPACES: Final = r"\s\x{0b}\x{a0}\x{feff}\p{Z}"
_CATEGORIES: Final = {
    "Letter": "L",
    "Lowercase_Letter": "Ll",
    "Uppercase_Letter": "Lu",
    "Mark": "M",
    "Number": "N",
    "Decimal_Number": "Nd",
    "digit": "Nd",
    "Punctuation": "P",
    "punct": "P",
    "Symbol": "S",
    "Separator": "Z",
    "Other": "C",
}
_REPEATED: Final = re.compile(r"\{(\d+)(,?)(\d*)\}\??")
_PROPERTY: Final = re.compile(r"([pP])\{(?:(?:Script|sc|General_Category|gc)=)?(\w+)\}")
_CODE: Final = re.compile(
    r"u\{([0-9a-fA-F]+)\}|u([0-9a-fA-F]{4})(?:\\u([dD][c-fC-F][0-9a-fA-F]{2}))?|x([0-9a-fA-F]{2})"
)
_MOST_COPIES: Final = 1000
"""What RE2 takes in one repetition; more is written as several."""
_MOST_REPEATED: Final = 10_000
_UNIT: Final = 100
"""Of RE2's instructions times characters, in one step of checking: the worst case of its slow way, measured as 7 ns each."""

_OPTIONS: Final[Any] = re2.Options()
_OPTIONS.log_errors = False


class PatternError(ValueError):
    """A pattern that cannot be used; `str()` is the reason, in one line."""


class Pattern:
    """A compiled pattern. Immutable."""

    __slots__ = ("_compiled", "_size")

    def __init__(self, text: str) -> None:
        if len(text) > 10_000:
            raise PatternError("it is longer than 10,000 characters")
        try:
            self._compiled: Any = re2.compile(_translated(text), _OPTIONS)
        except (re2.error, UnicodeEncodeError) as error:
            raise PatternError(_reason(text, error)) from None
        self._size: int = self._compiled.programsize

    def cost(self, text: str) -> int:
        """How many steps of checking a search in the text counts for."""
        return 1 + len(text) * self._size // _UNIT

    def found(self, text: str) -> bool:
        """Whether the pattern is anywhere in the text."""
        return self._compiled.search(text) is not None


@lru_cache(maxsize=1000)
def compile_pattern(text: str) -> Pattern:
    """The pattern, compiled once per process. Raises `PatternError`."""
    return Pattern(text)


def pattern_problem(text: str) -> str | None:
    """Why the pattern cannot be used, or `None`."""
    try:
        compile_pattern(text)
    except PatternError as error:
        return str(error)
    return None


def _reason(text: str, error: Exception) -> str:
    if re.search(r"\(\?<?[=!]", text):
        return "looking ahead or behind cannot be checked in linear time"
    if re.search(r"\\[1-9]|\\k<", text):
        return "a reference to an earlier group cannot be checked in linear time"
    if isinstance(error, UnicodeEncodeError):
        return "it has an unpaired surrogate, which is no character"
    words = error.args[0] if error.args else ""
    return words.decode(errors="replace") if isinstance(words, bytes) else str(words)


def _translated(text: str) -> str:
    """The pattern as RE2 writes it."""
    done: list[str] = []
    groups: list[int] = []  # where the open groups began in `done`
    place, last = 0, -1  # `last`: where what a repetition repeats began
    while place < len(text):
        character = text[place]
        if character == "\\":
            token, place = _escape(text, place + 1, inside=False)
            last = len(done)
        elif character == "[":
            token, place = _class(text, place)
            last = len(done)
        elif character == "(":
            groups.append(len(done))
            token, place = character, place + 1
        elif character == ")":
            last = groups.pop() if groups else len(done)
            token, place = character, place + 1
        elif character == "{" and last >= 0 and (found := _REPEATED.match(text, place)):
            token, place = _repetition("".join(done[last:]), found), found.end()
            if token != found.group():
                del done[last:]
            last = -1
        else:
            last = len(done)
            token, place = character, place + 1
        done.append(token)
    return "".join(done)


def _repetition(what: str, found: re.Match[str]) -> str:
    """More copies than RE2 takes at once, written as several times fewer."""
    least, comma = int(found[1]), bool(found[2])
    most = int(found[3]) if found[3] else None if comma else least
    if max(least, most or 0) <= _MOST_COPIES:
        return found.group()
    if max(least, most or 0) > _MOST_REPEATED:
        raise PatternError(f"it repeats something more than {_MOST_REPEATED:,} times")
    parts = [f"{what}{{{count}}}" for count in _pieces(least)]
    if most is None:
        parts.append(f"(?:{what})*")
    else:
        parts += [f"(?:{what}){{0,{count}}}" for count in _pieces(most - least)]
    return f"(?:{''.join(parts)})"


def _pieces(count: int) -> list[int]:
    whole, rest = divmod(count, _MOST_COPIES)
    return [_MOST_COPIES] * whole + ([rest] if rest else [])


def _class(text: str, place: int) -> tuple[str, int]:
    """A bracketed class from its `[` on, and where it ends."""
    place += 1
    negated = text.startswith("^", place)
    place += negated
    if text.startswith("]", place):  # `[]` is nothing, `[^]` is anything
        return (r"[\x{0}-\x{10ffff}]" if negated else r"[^\x{0}-\x{10ffff}]"), place + 1
    inner: list[str] = []
    while place < len(text) and text[place] != "]":
        if text[place] == "\\":
            token, place = _escape(text, place + 1, inside=True)
        else:
            token, place = ("\\[" if text[place] == "[" else text[place]), place + 1
        inner.append(token)
    if place >= len(text):
        raise PatternError("a '[' is not closed")
    return f"[{'^' if negated else ''}{''.join(inner)}]", place + 1


def _escape(text: str, place: int, *, inside: bool) -> tuple[str, int]:
    """What follows a backslash, and where it ends."""
    if place >= len(text):
        raise PatternError("it ends with a backslash")
    character = text[place]
    if found := _CODE.match(text, place):
        code = int(found[1] or found[2] or found[4], 16)
        if found[3] and 0xD800 <= code < 0xDC00:
            code = 0x10000 + ((code - 0xD800) << 10) + int(found[3], 16) - 0xDC00
            return f"\\x{{{code:x}}}", found.end()
        return f"\\x{{{code:x}}}", found.end() - (6 if found[3] else 0)
    if found := _PROPERTY.match(text, place):
        return f"\\{found[1]}{{{_CATEGORIES.get(found[2], found[2])}}}", found.end()
    if character == "c" and text[place + 1 : place + 2].isalpha():
        return f"\\x{{{ord(text[place + 1]) % 32:x}}}", place + 2
    if character == "s":
        return (_SPACES if inside else f"[{_SPACES}]"), place + 1
    if character == "S" and not inside:
        return f"[^{_SPACES}]", place + 1
    if character == "0" and not text[place + 1 : place + 2].isdigit():
        return r"\x{0}", place + 1
    if character == "b" and inside:
        return r"\x{8}", place + 1
    if character in "AaCQEzGhHKNRUXyYZ":  # RE2's own; in ECMA-262 they are letters, or nothing
        return character, place + 1
    return f"\\{character}", place + 1
