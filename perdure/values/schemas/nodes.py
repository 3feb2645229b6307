"""What a schema is turned into to say fast whether a value fits: nodes, one for a schema, made of parts, one for a keyword."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from perdure.values.jsons import Json, JsonObject
from perdure.values.limits.steps import COSTLY, MOST_STEPS, Steps, TooMuchError

Part: TypeAlias = Callable[[Any, Steps], bool]
"""One keyword's verdict on a value of a type that it speaks of."""
ALL: Final = (dict, list, str, int, float, bool, type(None))
"""The types of JSON."""


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
    """A schema as functions."""

    __slots__ = ("parts", "plain")

    def __init__(self, parts: dict[type, tuple[Part, ...]]) -> None:
        self.parts = parts
        self.plain = frozenset(kind for kind, of_kind in parts.items() if not of_kind)
        """The types of which any value fits."""

    def fits(self, value: Json, steps: Steps) -> bool:
        parts = self.parts.get(type(value))
        if parts is None:
            return False
        if not parts:
            return True
        steps.left -= 1
        if steps.left < 0:
            steps.take(0)
        known = steps.checks.verdicts.get(id(value))
        if known is not None and id(self) in known:
            return self._known(known[id(self)][2])
        before = steps.left
        verdict = True
        try:
            for part in parts:
                if not part(value, steps):
                    verdict = False
                    break
        except TooMuchError:
            if before > MOST_STEPS // 2:
                self._remember(value, steps, None)
            raise
        if before - steps.left > COSTLY:
            self._remember(value, steps, verdict)
        return verdict

    def _known(self, verdict: bool | None) -> bool:
        if verdict is None:
            raise TooMuchError
        return verdict

    def _remember(self, value: Json, steps: Steps, verdict: bool | None) -> None:
        steps.checks.verdicts.setdefault(id(value), {})[id(self)] = self, value, verdict


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
