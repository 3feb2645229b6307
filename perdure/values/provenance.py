"""Provenance: the sources of each value, and the shape of values that others have written.

A source is `user`, `agent`, `model`, `tool:NAME`, `client:NAME`, or for a part of the prompt `skill:NAME` or
`file:NAME`. A `!` before it means that others wrote its values. A tool's name is followed by the names of its code
where they differ: see `tool_source`. Sets are shared, so that a write costs one pointer, and
a snapshot one small number: see `SourceTable`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeAlias

from perdure.values.json import Json, JsonObject
from perdure.values.references import MISSING, Expression, FirstOf, Missing, Path, Reference, array_index, references
from perdure.values.templates import Template

Sources: TypeAlias = frozenset[str]
Hides: TypeAlias = Callable[[Sources], bool]
"""Whether the model sees only the shape of values of these sources (R15.4)."""
Shaping: TypeAlias = Callable[[Json, tuple[str, ...]], Json]
"""A function that returns the shape of a value at a path."""
Naming: TypeAlias = Callable[[str, int], str]
"""A function that returns the shown form of a key that others may have written, from its place in its object."""

OTHERS: Final = "!"
"""The prefix of a source whose values others wrote."""
BY_OTHERS: Final = " (written by others)"
"""The text for the prefix, after the name."""
NOWHERE: Final[Sources] = frozenset()
USER: Final[Sources] = frozenset({"user"})
"""The source of the run's input, of a person's answer, and of values that a person wrote into a call or endorsed."""
AGENT: Final[Sources] = frozenset({"agent"})
MODEL: Final[Sources] = frozenset({"model"})
TRUSTED: Final = "trusted"
"""In a list of allowed sources: every source whose values no others wrote."""
TOOL: Final = "tool:"
SKILL: Final = "skill:"
FILE: Final = "file:"
"""The prefix of a bootstrap file in a prompt (R10.19)."""
_CODE: Final = "\t"
"""The separator before the name of a tool's code. It is not printable, so no tool's name contains it."""
CLIENT: Final = "client:"
"""The prefix of a client of the gateway that has sent a text in the agent's or a tool's name."""
NAME: Final = rf"^{OTHERS}?(user|agent|model|({TOOL}|{SKILL}|{FILE}|{CLIENT}).{{1,1000}})$"
"""The form of a source's name."""


@lru_cache(maxsize=4096)
def tool_source(name: str, untrusted: bool, code: tuple[str, ...] = ()) -> Sources:
    """Return the source of a tool's own result.

    `code`: the names of the tool's code, if they differ from the agent's name for it: the worker's rules apply to them.
    """
    behind = "".join(f"{_CODE}{each.replace(_CODE, ' ')}" for each in code if code != (name,))
    return frozenset({f"{OTHERS if untrusted else ''}{TOOL}{name}{behind}"})


@lru_cache(maxsize=8192)
def join(first: Sources, second: Sources) -> Sources:
    """Return the sources of a value with parts of both."""
    return first if second <= first else first | second


def join_all(many: Iterable[Sources]) -> Sources:
    found = NOWHERE
    for each in many:
        found = join(found, each)
    return found


@lru_cache(maxsize=4096)
def untrusted_sources(sources: Sources) -> Sources:
    """Return the untrusted sources: others wrote their values."""
    return frozenset(name for name in sources if name.startswith(OTHERS))


def rule_name(name: str) -> str:
    """Return the name as a rule writes it, `tool:read_mail`."""
    return without_code(name).removeprefix(OTHERS)


def without_code(name: str) -> str:
    """Return the source with the agent's name for a tool alone."""
    return name.partition(_CODE)[0]


def code_sources(name: str) -> tuple[str, ...]:
    """Return the names of a tool's code as rules write them, `tool:read_mail`.

    A source that is no tool, and a tool with the name of its code, has its own name here.
    """
    return tuple(f"{TOOL}{each}" for each in name.split(_CODE)[1:]) or (rule_name(name),)


def find_disallowed(sources: Iterable[str], allowed: Collection[str]) -> str | None:
    """Return a source that is not allowed, or `None`."""
    return next(
        (
            name
            for name in sorted(sources)
            if not (TRUSTED in allowed and not name.startswith(OTHERS)) and rule_name(name) not in allowed
        ),
        None,
    )


def in_words(sources: Iterable[str]) -> str:
    """Return the sources for people: `read_mail (written by others), user`."""
    return ", ".join(
        rule_name(name).removeprefix(TOOL) + (BY_OTHERS if name.startswith(OTHERS) else "") for name in sorted(sources)
    )


class _LabelledPlace:
    """A path with a write. `own`: the sources of the value here, without the places below."""

    __slots__ = ("age", "below", "own", "whole")

    def __init__(self, own: Sources, age: int, below: dict[str, _LabelledPlace] | None = None) -> None:
        self.own, self.age = own, age
        self.below: dict[str, _LabelledPlace] = {} if below is None else below
        self.whole: Sources | None = None
        """The cached sources of the place and all places below."""

    def everything(self) -> Sources:
        if self.whole is None:
            self.whole = join(self.own, join_all(place.everything() for place in self.below.values()))
        return self.whole


class Labels:
    """The sources of a JSON value, part by part.

    A read returns at least the true sources, and may return more if writes have added to older values.
    """

    def __init__(self, own: Sources = NOWHERE) -> None:
        self._age = 0
        self._root = _LabelledPlace(own, 0)

    def snapshot(self) -> Labels:
        """Return the present labels; later writes do not show in them. Costs nothing."""
        taken = Labels()
        taken._root = self._root
        self._age += 1
        taken._age = -1  # nothing is written to it
        return taken

    def copy(self) -> Labels:
        """Return a copy that can be written to on its own."""
        taken = self.snapshot()
        taken._age = self._age  # no place in it has this version
        return taken

    @property
    def whole(self) -> Sources:
        return self._root.everything()

    def at(self, path: Path) -> Sources:
        """Return the sources of the value at the path."""
        place = self._root
        for part in path:
            if _odd(part):
                return place.everything()
            below = place.below.get(str(part))
            if below is None:
                return place.own
            place = below
        return place.everything()

    def of_absent(self, path: Path) -> Sources:
        """Return the sources of the absence of a value at the path: those of a write to exactly that path."""
        place: _LabelledPlace | None = self._root
        for part in path:
            place = None if place is None else place.below.get(str(part))
        return NOWHERE if place is None else place.own

    def parts(self) -> Iterator[tuple[tuple[str, ...], Sources]]:
        """Yield each path with a write, from above, with the sources of its value without the parts below."""
        left: list[tuple[tuple[str, ...], _LabelledPlace]] = [((), self._root)]
        while left:
            path, place = left.pop()
            yield path, place.own
            left.extend(((*path, key), below) for key, below in place.below.items())

    def shaped(self, value: Json, hides: Hides, shape: Shaping, named: Naming) -> Any:  # of an object an object
        """Return the value with each hidden part replaced by its shape; the same object if none is hidden."""

        def walk(value: Json, place: _LabelledPlace, path: tuple[str, ...]) -> Json:
            if not untrusted_sources(place.everything()):
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
            rest = shape({key: item for key, item in value.items() if key not in place.below}, path) if hidden else {}
            shown: JsonObject = rest if isinstance(rest, dict) else {}
            for number, (key, item) in enumerate(value.items()):
                below = place.below.get(key)
                if below is not None:  # a merge has written it, by keys of others
                    name = named(key, number) if hides(below.everything()) else key
                    shown[name] = walk(item, below, (*path, key))
                elif not hidden:
                    shown[key] = item
            return shown

        return walk(value, self._root, ())

    def write(self, path: Path, value: Json, method: str, sources: Sources) -> None:
        """Record a write of `value` (R4.1)."""
        place = self._root = self._mine(self._root)
        for depth, part in enumerate(path):
            if _odd(part):  # the index 0 of an array, or the key "00" of an object: undecidable here
                self._add(place, sources)
                return
            last = depth == len(path) - 1
            below = place.below.get(str(part))
            if last and method == "set":
                below = _LabelledPlace(sources, self._age)
            else:
                below = _LabelledPlace(place.own, self._age) if below is None else self._mine(below)
            place.below[str(part)] = below
            place = below
        if method == "set":
            place.own, place.below = sources, {}
        elif isinstance(value, dict) and method in ("merge", "assign"):
            for key in value:
                self._put(place, str(key), sources, merged=method == "merge")
        else:
            place.own = join(place.own, sources)

    def add(self, path: Path, sources: Sources) -> None:
        """Add sources to the value at the path and to all of its parts."""
        place = self._root = self._mine(self._root)
        for part in path:
            if _odd(part):
                break
            below = place.below.get(str(part))
            below = _LabelledPlace(place.own, self._age) if below is None else self._mine(below)
            place.below[str(part)] = place = below
        self._add(place, sources)

    def _put(self, place: _LabelledPlace, key: str, sources: Sources, *, merged: bool) -> None:
        """Record a key of an object that is merged or assigned into the value at the place."""
        if not merged:
            place.below[key] = _LabelledPlace(sources, self._age)
        elif key not in place.below:
            place.below[key] = _LabelledPlace(join(place.own, sources), self._age)
        else:
            place.below[key] = self._mine(place.below[key])
            self._add(place.below[key], sources)

    def _add(self, place: _LabelledPlace, sources: Sources) -> None:
        """Add sources to the place and to all below."""
        place.own, place.whole = join(place.own, sources), None
        for key in place.below:
            place.below[key] = self._mine(place.below[key])
            self._add(place.below[key], sources)

    def _mine(self, place: _LabelledPlace) -> _LabelledPlace:
        """Return the place for a change: a copy if a snapshot holds it."""
        if place.age != self._age:
            return _LabelledPlace(place.own, self._age, dict(place.below))
        place.whole = None
        return place


def _odd(part: str | int) -> bool:
    """Whether the text is an index in another notation than that of indexes."""
    if isinstance(part, int):
        return False
    index = array_index(part)
    return index is not None and str(index) != part


class SourceTable:
    """A table of sets by small numbers, for data with many of them: each set is written once."""

    def __init__(self, sets: Iterable[Iterable[str]] = ()) -> None:
        self.sets: list[Sources] = [frozenset(each) for each in sets]
        self._numbers = {each: number for number, each in enumerate(self.sets)}

    def number(self, sources: Sources) -> int:
        """Return the number of a set; a new set is added to the table."""
        number = self._numbers.get(sources)
        if number is None:
            number = self._numbers[sources] = len(self.sets)
            self.sets.append(sources)
        return number

    def of(self, number: int) -> Sources:
        """Return the set of a number; an empty one for an unknown number."""
        return self.sets[number] if 0 <= number < len(self.sets) else NOWHERE

    def as_json(self) -> list[list[str]]:
        return [sorted(each) for each in self.sets]


EACH: Final = "_each"
_ITEM: Final = ("item", "index")
"""Kinds of an iteration's own values: of `_each`."""


@dataclass(frozen=True, slots=True)
class Origins:
    """The provenance of one call. It is unknown while `written` is empty."""

    written: Sources = NOWHERE
    """The author of the call and its text, with the sources that the author had read."""
    params: Mapping[str, Sources] = field(default_factory=dict)
    """The sources of each parameter; those of `_each`'s items under that name."""
    read: bool = False
    """Whether the sources of its references are known."""

    @property
    def all(self) -> Sources:
        """The sources of all parameters together, which are also sources of the result."""
        return join_all(self.params.values())

    @property
    def tainted(self) -> bool:
        """Whether others may have written a part of it (R15.3)."""
        return bool(untrusted_sources(self.written)) or any(map(untrusted_sources, self.params.values()))

    @property
    def by_others(self) -> Sources:
        """The sources in it that others wrote, as far as they are known."""
        return join(untrusted_sources(self.written), untrusted_sources(self.all))

    def vouched(self, names: set[str] | None = None) -> Origins:
        """Return the origins after a person endorsed these parameters, or the whole call (R15.6)."""
        named = set(self.params) if names is None else names
        params = {name: USER if name in named else sources for name, sources in self.params.items()}
        return Origins(USER if names is None else self.written, params, self.read)


UNKNOWN_ORIGINS: Final = Origins()


def foreign_words(tool: str, origins: Origins, allowed: Collection[str]) -> str | None:
    """Return a text about a value that is not from the allowed sources or the agent file, or `None`."""
    if not origins.read or not origins.written:
        return f"nobody knows where the values of {tool} come from"
    for name, sources in {**origins.params, "": origins.written}.items():
        if (found := find_disallowed(sources, {*allowed, "agent"})) is not None:
            return f"{tool}{f'.{name}' if name else ''} comes from {in_words([found])}"
    return None


@dataclass(frozen=True, slots=True)
class KnownSources:
    """The known provenance when a plan is made."""

    base: Mapping[str, Labels] = field(default_factory=dict)
    """The labels of the values that references can name, by kind; `state` too."""
    written: Callable[[Json], Sources] = field(default=lambda _: MODEL)
    """The function that returns the author of a call's text, with the sources that the author had read."""
    vouched: Callable[[Reference, Json], bool] = field(default=lambda *_: False)
    """Whether a person endorses this value of this reference (R15.6)."""
    decided: Sources = NOWHERE
    """The sources of the conditions under which these calls are made: of the loop around them."""

    def now(self, reference: Reference, state: Labels) -> Sources:
        """Return the sources of the value that a reference finds now, not when the plan was made."""
        return (state if reference.kind == "state" else self.of_kind(reference.kind)).at(reference.path)

    def of_kind(self, kind: str) -> Labels:
        return self.base.get(kind, _NOTHING)


_NOTHING: Final = Labels()


def nothing_absent(_: Reference) -> Sources:
    return NOWHERE


def origins_of(
    template: Template,
    written: Sources,
    found: Callable[[Reference], Json | Missing],
    sources: Callable[[Reference], Sources],
    absent: Callable[[Reference], Sources] = nothing_absent,
) -> Origins:
    """Return the origins of a call whose parameters are `template`.

    For `a || b` only the taken reference counts, for `a && b` the last. For a formula, or a text with several
    references, all count. `absent` returns the sources of the absence of a reference's value.
    """
    params: dict[str, Sources] = dict.fromkeys(template.written_out(), written)

    def of(reference: Reference) -> Sources:
        return params[EACH] if EACH in params and reference.kind in _ITEM else sources(reference)

    loops = [site for site in template.sites if site.path[0] == EACH]
    rest = [site for site in template.sites if site.path[0] != EACH] if loops else template.sites
    for site in (*loops, *rest):
        taken = taken_by(site.expression, found, of if EACH in params or loops else sources, absent)
        name = str(site.path[0])
        params[name] = join(params[name], taken) if name in params else taken
    return Origins(written, params, read=True)


def taken_by(
    expression: Expression,
    found: Callable[[Reference], Json | Missing],
    sources: Callable[[Reference], Sources],
    absent: Callable[[Reference], Sources] = nothing_absent,
) -> Sources:
    """Return the sources of an expression's value; without a value, those of all its references. The absence of a
    reference's value has chosen another one, so its sources, `absent`, count too.
    """
    if isinstance(expression, Reference):
        own = sources(expression)
        return join(own, absent(expression)) if found(expression) is MISSING else own
    taken = _taken(expression, found, sources)
    named = [*references(expression)]
    missed = join_all(absent(each) for each in named if found(each) is MISSING)
    return join(join_all(map(sources, named)) if taken is None else taken, missed)


def _taken(
    expression: Expression, found: Callable[[Reference], Json | Missing], sources: Callable[[Reference], Sources]
) -> Sources | None:
    if isinstance(expression, Reference):
        return None if found(expression) is MISSING else sources(expression)
    each = (_taken(item, found, sources) for item in expression.items)
    if isinstance(expression, FirstOf):
        return next((taken for taken in each if taken is not None), None)
    taken = NOWHERE
    for one in each:
        if one is None:
            return None
        taken = one
    return taken


MAX_ITEMS: Final = 20
"""Maximum of items of an array, and keys of an object, that are shown; the others are counted."""
_KEY: Final = re.compile(r"[A-Za-z_][\w-]{0,39}", re.ASCII)
"""A key that is a name. Any other may be a sentence."""
_LONGEST_NUMBER: Final = 9
"""Digits. A longer number may be an account's: a reference passes it, and it is not shown."""
_DEEP: Final = 30


def shape_of(value: Json, schema: JsonObject | bool | None = None) -> Json:
    """Return the shape of a value written by others; the values that its `schema` enumerates, and the keys that it
    names, are shown."""
    root = schema if isinstance(schema, dict) else {}
    return _shape(value, root, root, 0)


def shown_key(key: str, number: int) -> str:
    """Return a key that is a name, or the length of one that may be a sentence, with its number in its object."""
    return key if _KEY.fullmatch(key) else f"‹key {number}, {len(key):,} characters›"


def _shape(value: Json, schema: JsonObject, root: JsonObject, depth: int) -> Json:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value if len(str(value).lstrip("-").replace(".", "")) <= _LONGEST_NUMBER else "‹number›"
    if isinstance(value, str):
        chosen = any(value in each["enum"] or value == each.get("const") for each in _enumerations(schema, root))
        return value if chosen else f"‹text, {len(value):,} characters›"
    if depth >= _DEEP:
        return f"‹{'object' if isinstance(value, dict) else 'array'} of {len(value):,}›"
    if isinstance(value, dict):
        shown: JsonObject = {}
        for number, (key, item) in enumerate(value.items()):
            if number == MAX_ITEMS:
                shown[f"‹{len(value) - MAX_ITEMS:,} more keys›"] = "…"
                break
            declared = [each["properties"][key] for each in _alternatives(schema, root) if key in each["properties"]]
            shown[key if declared else shown_key(key, number)] = _shape(item, _as_schema(declared), root, depth + 1)
        return shown
    if not isinstance(value, list):
        return "‹unknown›"
    items = _as_schema([each["items"] for each in _alternatives(schema, root) if "items" in each])
    shown_items = [_shape(item, items, root, depth + 1) for item in value[:MAX_ITEMS]]
    more = len(value) - MAX_ITEMS
    return [*shown_items, f"‹{more:,} more items›"] if more > 0 else shown_items


def _as_schema(many: list[Json]) -> JsonObject:
    known = [each for each in many if isinstance(each, dict)]
    return known[0] if len(known) == 1 else {"anyOf": known} if known else {}


def _enumerations(schema: JsonObject, root: JsonObject) -> Iterator[JsonObject]:
    for each in _alternatives(schema, root):
        if isinstance(each.get("enum"), list) or "const" in each:
            yield {**each, "enum": each["enum"] if isinstance(each.get("enum"), list) else []}


def _alternatives(schema: JsonObject, root: JsonObject) -> Iterator[JsonObject]:
    """Yield the schema with its references and alternatives; each has `properties`."""
    left, seen = [schema], 0
    while left and seen < 50:
        each, seen = left.pop(), seen + 1
        name = each.get("$ref")
        if isinstance(name, str):
            found: Json = root
            for part in name.removeprefix("#").strip("/").split("/"):
                found = found.get(part) if isinstance(found, dict) else None
            left.extend([found] if isinstance(found, dict) else [])
        for key in ("anyOf", "oneOf", "allOf"):
            if isinstance(each.get(key), list):
                left.extend(one for one in each[key] if isinstance(one, dict))
        properties = each.get("properties")
        yield {**each, "properties": properties if isinstance(properties, dict) else {}}
