"""Measuring: how many bytes a value has as JSON, found out once (R18.1)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from json.encoder import encode_basestring  # the one that `json.dumps` uses, in C
from typing import Final

from perdure.values.jsons import Json, dumps

_KEPT: Final = 512
"""Bytes from which on a size is remembered: below that measuring again is as fast."""
_SCALARS: Final = {int, float, bool, type(None)}
_PLAIN: Final = {*_SCALARS, str, list, dict}
_MANY: Final = 100
"""Items from which on a list is looked at as a whole: one by one they take ten times as long."""
_FEW: Final = 16
"""Items of each of its parts at most, and of theirs."""
_MOST_WRITTEN: Final = 2_000_000
"""Parts and characters of texts at most: a value as large as Temporal carries has no more, and a shared part counts wherever it is."""


class TooManyBytesError(Exception):
    """A value has more bytes than it may have."""


class Sizes:
    """Bytes of values as compact JSON. A value is known by its identity: it must not be changed once it was measured.

    What `base` knows is known here too, and what is measured here stays here: a query leaves nothing behind.
    """

    def __init__(self, base: Sizes | None = None) -> None:
        self._base = base
        # The value is kept beside its size, so that its id cannot be used again while it counts.
        self._known: dict[int, tuple[Json, int]] = {}

    def note(self, value: Json, size: int) -> None:
        """Take over a size that was found where the value was made."""
        if size >= _KEPT:
            self._known[id(value)] = value, size

    def of(self, value: Json) -> int:
        """Bytes of JSON; what stands inside and was measured before is not looked into again."""
        if isinstance(value, str):
            if len(value) < _KEPT:
                return text_size(value)
        elif not isinstance(value, dict | list):
            return _scalar_size(value) if type(value) in _SCALARS else 1
        size = self._remembered(value)
        if size is None:
            size = self._measure(value)
            self.note(value, size)
        return size

    def of_made(self, value: Json, given: Collection[int], most: int) -> tuple[int, int, int]:
        """Bytes of a value that was made of others, how many of them are new, and how many parts were looked at.

        A part may stand in many places: it is measured once. Not new is the first place of a part that was measured before, or whose
        identity is `given`. Raises `TooManyBytesError` as soon as more than `most` bytes are found.
        """
        seen: dict[int, int] = {}
        looked_at = 0

        def part(item: Json) -> tuple[int, int]:
            nonlocal looked_at
            if not isinstance(item, dict | list | str) or (isinstance(item, str) and len(item) < _KEPT):
                size = self.of(item)
                return size, size
            if (again := seen.get(id(item))) is not None:
                return again, again
            if id(item) in given or self.knows(item):
                size = seen[id(item)] = self.of(item)
                return size, 0
            if isinstance(item, str):
                size = new = self.of(item)
            elif isinstance(item, list) and set(map(type, item)) <= _SCALARS:
                size = new = len(dumps(item))
            else:
                looked_at += len(item)
                size = new = _frame(item)
                for child in item.values() if isinstance(item, dict) else item:
                    more, fresh = part(child)
                    size += more
                    new += fresh
                    if size > most:
                        raise TooManyBytesError
            seen[id(item)] = size
            self.note(item, size)
            return size, new

        size, new = part(value)
        if size > most:
            raise TooManyBytesError
        return size, new, looked_at

    def knows(self, value: Json) -> bool:
        """Whether the value was measured, and is large enough to be remembered."""
        return self._remembered(value) is not None

    def _remembered(self, value: Json) -> int | None:
        known = self._known.get(id(value))
        if known is None:
            return None if self._base is None else self._base._remembered(value)
        return known[1]

    def _measure(self, value: Json) -> int:
        if isinstance(value, str):
            return text_size(value)
        if isinstance(value, dict):
            return _frame(value) + sum(map(self.of, value.values()))
        if len(value) > _MANY and (size := _size_of_many(value)) is not None:
            return size
        return _frame(value) + sum(map(self.of, value))

    def retain(self, values: Iterable[Json]) -> None:
        """Let go of all values but these: others that are still there are measured once more when it matters."""
        known = self._known
        self._known = {id(value): known[id(value)] for value in values if id(value) in known}


def _size_of_many(value: list[Json]) -> int | None:
    """Return the bytes of a list of many small parts, at the pace of the encoder; `None` for any other.

    A part may stand in many places, and is written in each: what is written is bounded by what was counted.
    """
    level: list[Json] = value
    count = 0
    while level:
        count += len(level)
        kinds = set(map(type, level))
        if count > _MOST_WRITTEN or not kinds <= _PLAIN:
            return None
        if kinds <= _SCALARS:
            break
        lists = [each for each in level if type(each) is list]
        objects = [each for each in level if type(each) is dict]
        texts = chain((each for each in level if type(each) is str), chain.from_iterable(objects))
        lengths = [*map(len, texts)]
        count += sum(lengths)
        if max(map(len, chain(lists, objects)), default=0) > _FEW or max(lengths, default=0) >= _KEPT:
            return None
        level = [*chain.from_iterable(lists), *chain.from_iterable(map(dict.values, objects))]
    return len(dumps(value).encode(errors="surrogatepass"))


def _frame(value: Json) -> int:
    """Bytes of a list or an object beside its items: brackets, commas, keys."""
    if isinstance(value, dict):
        return max(2, 1 + len(value) + sum([text_size(key) + 1 for key in value]))
    return max(2, 1 + len(value))


def _scalar_size(value: Json) -> int:
    if value is None or value is True:
        return 4
    # As `json` writes them, at a fraction of its price: a list of lists has a million.
    return 5 if value is False else len(repr(value)) if isinstance(value, int) else len(dumps(value))


def text_size(text: str) -> int:
    """Bytes of a string as JSON, with its quotes; of what cannot be written too."""
    return len(encode_basestring(text).encode(errors="surrogatepass"))


def preview(value: Json, limit: int) -> str:
    """The beginning of a value as JSON, at most `limit` characters. Costs what it shows, however large the value is."""
    found: list[str] = []
    left = limit
    for piece in _pieces(value, limit + 1):
        found.append(piece)
        left -= len(piece)
        if left < 0:
            break
    text = "".join(found)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _pieces(value: Json, limit: int) -> Iterator[str]:
    if isinstance(value, str):
        yield encode_basestring(value[:limit])
    elif isinstance(value, dict):
        yield "{"
        for number, (key, child) in enumerate(value.items()):
            yield f"{', ' if number else ''}{encode_basestring(key[:limit])}: "
            yield from _pieces(child, limit)
        yield "}"
    elif isinstance(value, list):
        yield "["
        for number, child in enumerate(value):
            if number:
                yield ", "
            yield from _pieces(child, limit)
        yield "]"
    else:
        yield dumps(value) if type(value) in _SCALARS else "…"
