"""What names exactly what a person was shown, made once for each large value (R7.2, R18.1).

A digest is of the JSON with sorted keys, in which each part that is long stands for itself as its own digest: so what many
calls read is looked through once, and not for each of them. Both sides of a wire make the same digest of the same value.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from perdure.values.jsons import Json, dumps

_LONG: Final = 4_000
"""Characters of JSON from which on a part stands as its digest."""
_DEEP: Final = 3
_WIDE: Final = 32
"""A value is gone into so deep, through objects and arrays of so many items at most; what is beyond is one part."""


class Digests:
    """Those of large parts, by their identity: a value must not be changed while it is known here."""

    def __init__(self) -> None:
        # By identity and depth, for it is another text at each. The value is kept beside, so that its id cannot be used again.
        self._known: dict[tuple[int, int], tuple[Json, str]] = {}

    def of(self, value: Json) -> str:
        """16 hexadecimal digits."""
        return sha256(self._written(value, _DEEP).encode(errors="surrogatepass")).hexdigest()[:16]

    def clear(self) -> None:
        """Let go of all values: nobody will ask about them again soon."""
        self._known.clear()

    def _written(self, value: Json, depth: int) -> str:
        if not isinstance(value, str | dict | list):
            return dumps(value)
        known = self._known.get((id(value), depth))
        if known is not None:
            return known[1]
        text = self._spelt(value, depth)
        if len(text) <= _LONG:
            return text
        digest = f"#{sha256(text.encode(errors='surrogatepass')).hexdigest()}"  # which no JSON is
        self._known[id(value), depth] = value, digest
        return digest

    def _spelt(self, value: Json, depth: int) -> str:
        if depth == 0 or isinstance(value, str) or len(value) > _WIDE:
            return dumps(value, sort_keys=True)
        if isinstance(value, dict):
            items = (f"{dumps(key)}:{self._written(value[key], depth - 1)}" for key in sorted(value))
            return f"{{{','.join(items)}}}"
        return f"[{','.join(self._written(item, depth - 1) for item in value)}]"


def digest(shown: Json) -> str:
    """The digest of what a person is shown: the parameters of a call, or the calls of a plan."""
    return Digests().of(shown)


def approval_digest(activity: str, params: Json, known: Digests | None = None) -> str:
    """What an approval is bound to: the code that runs, and the exact parameters that it is given."""
    return (Digests() if known is None else known).of([activity, params])
