"""Where in the text of a document something stands."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

from perdure.values.jsons import PathPart, without_comments

_BLANKS: Final = re.compile(r"[\s,:]*")
_DECODER: Final = json.JSONDecoder()


def line_of(text: str, place: Sequence[PathPart]) -> int:
    """The line, from 1, on which the value at the place begins, a key's with its name; of one that is not there that of what it would
    be in. `text` is JSON, with comments or without."""
    plain = without_comments(text)
    at = found = _blanks(plain, 0)
    for step in place:
        inside = _step(plain, at, step)
        if inside is None:
            break
        found, at = inside
    return plain.count("\n", 0, found) + 1


def _step(text: str, at: int, step: PathPart) -> tuple[int, int] | None:
    """Where a member of the object or list at `at` begins, and where its value does."""
    if text[at : at + 1] not in ("{", "["):
        return None
    keyed = text[at] == "{"
    at, index = _blanks(text, at + 1), 0
    found = None
    while text[at] not in "}]":
        begin, name = at, index
        if keyed:
            name, at = _DECODER.raw_decode(text, at)
            at = _blanks(text, at)
        if name == step:
            found = begin, at  # of a key that is written twice the last counts
        _, at = _DECODER.raw_decode(text, at)
        at, index = _blanks(text, at), index + 1
    return found


def _blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return at if found is None else found.end()
