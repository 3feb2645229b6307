"""Measuring: how many bytes a value has as JSON, found out once (R18.1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from json.encoder import encode_basestring  # the one that `json.dumps` uses, in C
from typing import Final

from perdure.values.jsons import Json, dumps

_KEPT: Final = 512
"""Bytes from which on a size is remembered: below that measuring again is as fast."""
_SCALARS: Final = {int, float, bool, type(None)}


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
            return max(2, 1 + len(value) + sum(text_size(key) + 1 + self.of(child) for key, child in value.items()))
        if len(value) > 100 and set(map(type, value)) <= _SCALARS:
            return len(dumps(value))
        return max(2, 1 + len(value) + sum(map(self.of, value)))

    def retain(self, values: Iterable[Json]) -> None:
        """Let go of all values but these: others that are still there are measured once more when it matters."""
        known = self._known
        self._known = {id(value): known[id(value)] for value in values if id(value) in known}


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
