"""Where values come from: a set of names for each value, and what stands where of them (R15.1, R15.2).

A name is `user`, `agent`, `model`, `tool:NAME`, `client:NAME`, or of what a prompt holds `skill:NAME` or `file:NAME`; a `!` before it says that others wrote what came from there. Sets are shared, so
that a write costs one pointer, and a snapshot one small number: see `Table`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Final, TypeAlias

from perdure.values.jsons import Json
from perdure.values.paths import array_index
from perdure.values.references import Path

Sources: TypeAlias = frozenset[str]
Hides: TypeAlias = Callable[[Sources], bool]
"""Whether values of these sources are shown to the model by their shape alone (R15.4)."""
Shaping: TypeAlias = Callable[[Json, tuple[str, ...]], Json]
"""The shape of a value that stands at a path."""
Naming: TypeAlias = Callable[[str, int], str]
"""What is shown of a key that others may have written, the so many-th of its object."""

OTHERS: Final = "!"
"""Before a name: what came from there was written by others."""
BY_OTHERS: Final = " (written by others)"
"""The same in words, after it."""
NOWHERE: Final[Sources] = frozenset()
USER: Final[Sources] = frozenset({"user"})
"""The run's input, a person's answer, what a person wrote into a call or vouched for."""
AGENT: Final[Sources] = frozenset({"agent"})
MODEL: Final[Sources] = frozenset({"model"})
TOOL: Final = "tool:"
SKILL: Final = "skill:"
FILE: Final = "file:"
"""Before the name of a skill, and of a bootstrap file, that a prompt holds (R10.19)."""
CLIENT: Final = "client:"
"""Before the name of a client of the gateway that has sent a text in the agent's or a tool's name."""
NAME: Final = rf"^{OTHERS}?(user|agent|model|({TOOL}|{SKILL}|{FILE}|{CLIENT}).{{1,200}})$"
"""What a name looks like."""


@lru_cache(maxsize=4096)
def tool_source(name: str, untrusted: bool) -> Sources:
    """What a tool's result has of its own."""
    return frozenset({f"{OTHERS if untrusted else ''}{TOOL}{name}"})


@lru_cache(maxsize=8192)
def join(first: Sources, second: Sources) -> Sources:
    """Those of a value that is made of both."""
    return first if second <= first else first | second


def join_all(many: Iterable[Sources]) -> Sources:
    found = NOWHERE
    for each in many:
        found = join(found, each)
    return found


@lru_cache(maxsize=4096)
def untrusted(sources: Sources) -> Sources:
    """Those of them that others wrote."""
    return frozenset(name for name in sources if name.startswith(OTHERS))


def plain(name: str) -> str:
    """The name as a rule says it, `tool:read_mail`."""
    return name.removeprefix(OTHERS)


def in_words(sources: Iterable[str]) -> str:
    """For people: `read_mail (written by others), user`."""
    return ", ".join(
        plain(name).removeprefix(TOOL) + (BY_OTHERS if name.startswith(OTHERS) else "") for name in sorted(sources)
    )


class _Place:
    """A path at which something was written. `own`: the sources of what stands here and has no place of its own below."""

    __slots__ = ("age", "below", "own", "whole")

    def __init__(self, own: Sources, age: int, below: dict[str, _Place] | None = None) -> None:
        self.own, self.age = own, age
        self.below: dict[str, _Place] = {} if below is None else below
        self.whole: Sources | None = None
        """With all below, once it was asked for."""

    def everything(self) -> Sources:
        if self.whole is None:
            self.whole = join(self.own, join_all(place.everything() for place in self.below.values()))
        return self.whole


class Labels:
    """The sources of a JSON value, part by part. What is read is never less than what it is made of, and may be more where writes add
    to what was there."""

    def __init__(self, own: Sources = NOWHERE) -> None:
        self._age = 0
        self._root = _Place(own, 0)

    def snapshot(self) -> Labels:
        """As they are now; later writes do not show in it. Costs nothing."""
        taken = Labels()
        taken._root = self._root
        self._age += 1
        taken._age = -1  # nothing is written to it
        return taken

    def copy(self) -> Labels:
        """The same, to be written to on its own."""
        taken = self.snapshot()
        taken._age = self._age  # which nothing in it has
        return taken

    @property
    def whole(self) -> Sources:
        return self._root.everything()

    def at(self, path: Path) -> Sources:
        """The sources of what stands at the path."""
        place = self._root
        for part in path:
            if _odd(part):
                return place.everything()
            below = place.below.get(str(part))
            if below is None:
                return place.own
            place = below
        return place.everything()

    def parts(self) -> Iterator[tuple[tuple[str, ...], Sources]]:
        """Each path at which something was written, with the sources of what stands there beside what is below; from above."""
        left: list[tuple[tuple[str, ...], _Place]] = [((), self._root)]
        while left:
            path, place = left.pop()
            yield path, place.own
            left.extend(((*path, key), below) for key, below in place.below.items())

    def shaped(self, value: Json, hides: Hides, shape: Shaping, named: Naming) -> Json:
        """The value with the shape of each part in its place that is hidden, and the very same where none is."""

        def walk(value: Json, place: _Place, path: tuple[str, ...]) -> Json:
            if not untrusted(place.everything()):
                return value
            hidden = hides(place.own)
            if not place.below or not isinstance(value, dict | list):
                return shape(value, path) if hides(place.everything()) else value
            if isinstance(value, list):
                return [
                    walk(item, below, (*path, str(index)))
                    if (below := place.below.get(str(index))) is not None
                    else shape(item, (*path, str(index)))
                    if hidden
                    else item
                    for index, item in enumerate(value)
                ]
            shown = shape({key: item for key, item in value.items() if key not in place.below}, path) if hidden else {}
            for number, (key, item) in enumerate(value.items()):
                below = place.below.get(key)
                if below is not None:  # which a merge has put there, by the keys of what others wrote
                    name = named(key, number) if hides(below.everything()) else key
                    shown[name] = walk(item, below, (*path, key))
                elif not hidden:
                    shown[key] = item
            return shown

        return walk(value, self._root, ())

    def write(self, path: Path, value: Json, method: str, sources: Sources) -> None:
        """What a write of `value` does to them (R4.1)."""
        place = self._root = self._mine(self._root)
        for depth, part in enumerate(path):
            if _odd(part):  # the index 0 of an array, or the key "00" of an object: nobody can tell here
                self._add(place, sources)
                return
            last = depth == len(path) - 1
            below = place.below.get(str(part))
            if last and method == "set":
                below = _Place(sources, self._age)
            else:
                below = _Place(place.own, self._age) if below is None else self._mine(below)
            place.below[str(part)] = below
            place = below
        if method == "set":
            place.own, place.below = sources, {}
        elif isinstance(value, dict) and method in ("merge", "assign"):
            for key in value:
                self._put(place, str(key), sources, merged=method == "merge")
        else:
            place.own = join(place.own, sources)

    def _put(self, place: _Place, key: str, sources: Sources, *, merged: bool) -> None:
        """A key of an object that is merged, or assigned, into what stands at the place."""
        if not merged:
            place.below[key] = _Place(sources, self._age)
        elif key not in place.below:
            place.below[key] = _Place(join(place.own, sources), self._age)
        else:
            place.below[key] = self._mine(place.below[key])
            self._add(place.below[key], sources)

    def _add(self, place: _Place, sources: Sources) -> None:
        """To what stands there and to all below."""
        place.own, place.whole = join(place.own, sources), None
        for key in place.below:
            place.below[key] = self._mine(place.below[key])
            self._add(place.below[key], sources)

    def _mine(self, place: _Place) -> _Place:
        """The place to be changed: a copy where a snapshot holds it."""
        if place.age != self._age:
            return _Place(place.own, self._age, dict(place.below))
        place.whole = None
        return place


def _odd(part: str | int) -> bool:
    """A text that is an index too, but is not how the index is written."""
    if isinstance(part, int):
        return False
    index = array_index(part)
    return index is not None and str(index) != part


class Table:
    """Sets by small numbers, for whatever carries many of them: each set is written down once."""

    def __init__(self, sets: Iterable[Iterable[str]] = ()) -> None:
        self.sets: list[Sources] = [frozenset(each) for each in sets]
        self._numbers = {each: number for number, each in enumerate(self.sets)}

    def number(self, sources: Sources) -> int:
        """Of a set, which is one of the table's from then on."""
        number = self._numbers.get(sources)
        if number is None:
            number = self._numbers[sources] = len(self.sets)
            self.sets.append(sources)
        return number

    def of(self, number: int) -> Sources:
        """The set of a number; none of a number that the table does not have."""
        return self.sets[number] if 0 <= number < len(self.sets) else NOWHERE

    def as_json(self) -> list[list[str]]:
        return [sorted(each) for each in self.sets]
