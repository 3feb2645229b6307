"""What each part of a prompt costs (R10.19): `perdure show ID --prompt`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from perdure.model.wire import PartView
from perdure.values.jsons import JsonObject, dumps

TOKEN: Final = 4
"""Characters that are thought to be a token."""


def characters(message: JsonObject) -> int:
    """Of a chat message: its text and its native calls."""
    calls = message.get("tool_calls")
    return len(str(message.get("content") or "")) + (len(dumps(calls)) if calls else 0)


def summed(parts: Iterable[tuple[str, int]]) -> list[PartView]:
    """One for each name, in the order in which they come first; without those that are empty."""
    sums: dict[str, int] = {}
    for name, count in parts:
        sums[name] = sums.get(name, 0) + count
    return [PartView(part=name, characters=count) for name, count in sums.items() if count]


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one prompt."""

    tokens: list[int]
    """Of each part, in their order."""
    total: int
    counted: bool
    """Whether the total is what the server has counted, and the parts are their share of it by characters; else all are thought, at `TOKEN`
    characters each."""


def costs(parts: Sequence[PartView], counted: int) -> Costs:
    """Of a prompt's parts; `counted`: what the server said, 0: nothing."""
    each = [part.characters for part in parts]
    whole = sum(each)
    if not counted or not whole:
        tokens = [-(-count // TOKEN) for count in each]
        return Costs(tokens, sum(tokens), counted=False)
    return Costs([round(count * counted / whole) for count in each], counted, counted=True)


def alike(first: Sequence[JsonObject], second: Sequence[JsonObject]) -> int:
    """Characters of the messages that two prompts begin with alike: what a server may have in its cache."""
    found = 0
    for one, other in zip(first, second, strict=False):
        if one == other:
            found += characters(one)
            continue
        pairs = zip(str(one.get("content") or ""), str(other.get("content") or ""), strict=False)
        return found + next((n for n, (a, b) in enumerate(pairs) if a != b), 0) * (one.get("role") == other.get("role"))
    return found
