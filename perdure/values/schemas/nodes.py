"""What a schema is turned into to say fast whether a value fits: nodes, one for a schema, made of parts, one for a keyword."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from perdure.values.jsons import Json, JsonObject
from perdure.values.schemas.steps import Steps

Part: TypeAlias = Callable[[Any, Steps], bool]
"""One keyword's verdict on a value of a type that it speaks of."""
ALL: Final = (dict, list, str, int, float, bool, type(None))
"""The types of JSON."""
_COSTLY: Final = 2_000
"""Steps. What took more is remembered by identity: many calls may read one large value (R18.2)."""
_REMEMBERED: Final = 4


class UncoveredError(Exception):
    """The schema uses what these nodes do not cover."""


class Draft(NamedTuple):
    """What differs between the drafts of JSON Schema."""

    number: int
    """4, 6, 7, 2019 or 2020."""

    @property
    def lone_reference(self) -> bool:
        """Whether a `$ref` silences what stands beside it."""
        return self.number <= 7


class Node:
    """A schema as functions. `remembered` values are those found to fit; callers never change a value that was checked."""

    __slots__ = ("parts", "plain", "remembered")

    def __init__(self, parts: dict[type, tuple[Part, ...]]) -> None:
        self.parts = parts
        self.plain = frozenset(kind for kind, of_kind in parts.items() if not of_kind)
        """The types of which any value fits."""
        self.remembered: list[Any] = []

    def fits(self, value: Json, steps: Steps) -> bool:
        parts = self.parts.get(type(value))
        if parts is None:
            return False
        if not parts:
            return True
        steps.left -= 1
        if steps.left < 0:
            steps.take(0)
        for known in self.remembered:
            if known is value:
                return True
        before = steps.left
        for part in parts:
            if not part(value, steps):
                return False
        if before - steps.left > _COSTLY:
            self.remembered = [*self.remembered[1 - _REMEMBERED :], value]
        return True


ANYTHING: Final = Node(dict.fromkeys(ALL, ()))
NOTHING: Final = Node({})


class Maker(Protocol):
    """Makes the nodes of one document."""

    draft: Draft

    def node(self, schema: Any) -> Node:
        """The node of a schema that is part of the document."""

    def target(self, reference: Any) -> Any:
        """What a reference points at. Raises `UncoveredError` where that takes more than following a pointer."""


def uncovered(maker: Maker, schema: JsonObject) -> Part:
    def part(value: Any, steps: Steps) -> bool:
        raise UncoveredError

    return part
