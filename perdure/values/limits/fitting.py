"""Making anything fit: a value, or a whole document of named parts, in a number of bytes (R18.3).

Total: whatever is given, what comes back is small enough. What is cut stands there by its beginning and its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from perdure.values.jsons import Json
from perdure.values.limits.sizes import Sizes, text_size

LEAST: Final = 120
"""Bytes that a part is cut to at least; what does not even find that much room is left out and counted."""


_LOOKED_AT: Final = 5_000
"""Parts of one value, its first ones, that are looked at to cut it: a list of numbers may have 400,000 (R18.5)."""


def cut_to(value: Json, room: int, sizes: Sizes | None = None) -> Json:
    """The value, if its JSON has at most `room` bytes; else with its largest parts cut until it has (`room` ≥ `LEAST`)."""
    sizes = sizes or Sizes()
    room = max(room, LEAST)
    if sizes.of(value) <= room:
        return value
    if isinstance(value, str):
        return _cut_text(value, room, sizes.of(value))
    if isinstance(value, dict):
        first = dict(islice(value.items(), _LOOKED_AT))
        own = [text_size(key) + 2 for key in first]
        shares = _shares([own[n] + sizes.of(child) for n, child in enumerate(first.values())], room - 40, own)
        kept = {
            key: cut_to(child, share - own[n], sizes)
            for n, ((key, child), share) in enumerate(zip(first.items(), shares, strict=True))
            if share
        }
        left_out = len(value) - len(kept)
        return kept | ({"…": f"{left_out} more"} if left_out else {})
    if isinstance(value, list):
        head = value[:_LOOKED_AT]
        shares = _shares([1 + sizes.of(child) for child in head], room - 40, [1] * len(head))
        items = [cut_to(child, share - 1, sizes) for child, share in zip(head, shares, strict=True) if share]
        return [*items, *([f"… {len(value) - len(items)} more"] if len(items) < len(value) else [])]
    return "…"  # a number of more digits than there is room


def clipped(text: str, room: int) -> str:
    """As much of the beginning of a text as has `room` bytes as JSON, with its quotes; nothing is said of the rest."""
    while (size := text_size(text)) > room and text:
        text = text[: min(len(text) - 1, len(text) * room // size)]
    return text


def _cut_text(text: str, room: int, size: int) -> str:
    note = f"… [cut: {size:,} bytes]"
    length = room
    while text_size(text[:length] + note) > room:
        # A character has one byte to six: what is over shows how many are too many.
        length = min(length - 1, length * (room - text_size(note)) // text_size(text[:length]))
    return text[: max(length, 0)] + note


def _shares(sizes: Sequence[int], room: int, own: Sequence[int]) -> list[int]:
    """How much room each of several parts gets: small ones all that they need, the others equally much; 0: it is left out.

    `own` is what a part needs beside its value. Where not even `LEAST` is left for each, the first ones are kept.
    """
    shares = [0] * len(sizes)
    least = [min(size, mine + LEAST) for size, mine in zip(sizes, own, strict=True)]
    kept: list[int] = []
    for index, needed in enumerate(least):
        if needed <= room:
            room -= needed
            shares[index] = needed
            kept.append(index)
    for place, index in enumerate(sorted(kept, key=lambda index: sizes[index] - shares[index])):
        more = min(sizes[index] - shares[index], room // (len(kept) - place))
        shares[index] += more
        room -= more
    return shares


def allot(sizes: Sequence[int], room: int) -> list[int]:
    """Room for the parts of a document, the most important first: each gets a sixteenth, and then what it needs."""
    shares = [min(size, room // (2 * len(sizes) + 1)) for size in sizes]
    room -= sum(shares)
    for index, size in enumerate(sizes):
        more = min(size - shares[index], room)
        shares[index] += more
        room -= more
    return shares
