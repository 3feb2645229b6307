"""The state of a run: an append-only log of writes, and the value that results from it.

The log is the source of the value, which is kept so that a read costs nothing. `State(writes)` of the same writes
always has the same value. So a replay, and a run continued as new, have the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from perdure.errors import StateError
from perdure.values.json import Json, JsonObject, WireModel, dumps, shorten
from perdure.values.limits import MAX_RESULT, MAX_STATE_SHOWN
from perdure.values.media import all_without_media, beginning_as_text, excerpt, without_media
from perdure.values.provenance import NOWHERE, Labels, Sources, join
from perdure.values.references import (
    MISSING,
    UNKNOWN,
    AllOf,
    Expression,
    FirstOf,
    Missing,
    Path,
    Reference,
    UnknownValue,
    array_index,
    get,
    overlaps,
    show,
)
from perdure.values.sizes import LEAST, Sizes
from perdure.values.templates import Template, map_expressions

OutputMethod: TypeAlias = Literal["set", "merge", "assign", "push", "concat"]
METHODS: Final[tuple[OutputMethod, ...]] = get_args(OutputMethod)


class Write(BaseModel):
    """One entry of the log: the value, the path, the method, the call and the time of a write (R4.1)."""

    model_config = ConfigDict(frozen=True)

    path: tuple[str | int, ...]
    value: Json
    method: OutputMethod = "set"
    call: str = ""
    """The call's id; empty for the initial state."""
    time: str = ""
    """ISO 8601, from the workflow's clock."""
    size: int = 0
    """Bytes of the value, in a snapshot: the next execution does not measure it again. 0: not measured."""
    sources: SkipValidation[Sources] = Field(default=NOWHERE, exclude=True, repr=False)
    """The provenance of the value (R15.1). Not part of the write's JSON: a snapshot has a table of the sources."""


class WriteRecord(WireModel):
    """The path and method of a write of a call's result, or its error, without the value."""

    path: list[str | int]
    method: OutputMethod = "set"


def covers(write: Write, path: Path) -> bool:
    """Whether the write alone decides the value at the path: it sets the path or a prefix of it."""
    return stands_alone(write.method, write.path) and is_prefix(write.path, path)


def stands_alone(method: OutputMethod, path: Path) -> bool:
    """Whether a write needs no earlier value: it is a `set` without an array's index in its path."""
    if method != "set":
        return False
    for part in path:  # noqa: SIM110 (a generator takes twice as long, several times for each reference)
        if array_index(part) is not None:
            return False
    return True


def is_prefix(prefix: Path, path: Path) -> bool:
    return prefix == path or (len(prefix) <= len(path) and overlaps(prefix, path))


@dataclass(slots=True, eq=False)
class _WrittenPlace:
    """A path with writes."""

    below: dict[str, _WrittenPlace] = field(default_factory=dict)
    here: list[int] = field(default_factory=list)


class VisibleWrites:
    """The writes of a log that no later `set` of the same path, or of a prefix of it, has hidden. The cost depends on
    the added writes, not on the log's length (R18.5).
    """

    def __init__(self) -> None:
        self._writes: dict[int, Write] = {}
        self._root = _WrittenPlace()
        self._count = 0

    def add(self, write: Write) -> None:
        """Add the next write of the log."""
        place = self._root
        for part in write.path:
            place = place.below.setdefault(str(part), _WrittenPlace())
        if stands_alone(write.method, write.path):
            hidden = [place]
            while hidden:
                each = hidden.pop()
                for number in each.here:
                    del self._writes[number]
                hidden.extend(each.below.values())
            place.below, place.here = {}, []
        place.here.append(self._count)
        self._writes[self._count] = write
        self._count += 1

    def all(self) -> list[Write]:
        """Return the writes in their order."""
        return list(self._writes.values())


class ValueTree:
    """A JSON value that can be changed without changing values that share parts with it.

    Containers made since the last snapshot are not shared and are changed in place; others are copied on the way down.
    So a thousand writes into one object copy it once.
    """

    def __init__(self, value: Json) -> None:
        self.value: Any = value  # an object stays an object: `preview` refuses another value in its place
        # The object is kept beside its id, so that the id cannot be used again while it counts.
        self._owned: dict[int, dict[str, Json] | list[Json]] = {}

    def snapshot(self) -> Any:  # of an object an object
        """Return the present value."""
        self._owned.clear()
        return self.value

    def preview(self, write: Write) -> tuple[Json, list[Json | Missing]]:
        """Return the value at the path after the write, and the containers on the way there.

        Raises `StateError` if a value on the way cannot accept the write. Changes nothing.
        """
        containers: list[Json | Missing] = []
        target: Json | Missing = self.value
        for depth in range(len(write.path)):
            if isinstance(target, UnknownValue):
                return UNKNOWN, []
            containers.append(target)
            target = _child(target, write.path, depth)
        value = combine(target, write)
        if not write.path and not isinstance(value, dict | UnknownValue):
            raise StateError(f"†state itself must stay an object, not {shorten(value, 40)}")
        return value, containers

    def apply(self, write: Write) -> None:
        """Apply a write. Raises `StateError`, without a change, if a value on the way cannot accept the write."""
        self.put(write, *self.preview(write))

    def put(self, write: Write, value: Json, containers: list[Json | Missing]) -> None:
        """Apply a write after `preview`, which returned `value` and `containers`."""
        if len(containers) < len(write.path):
            return  # it lies inside an unknown value
        for depth in range(len(containers) - 1, -1, -1):
            value = self._with(containers[depth], write.path[depth], value)
        self.value = value

    def _with(self, container: Json | Missing, part: str | int, value: Json) -> Json:
        own = self._owned.get(id(container))
        if own is None:
            own = container.copy() if isinstance(container, dict | list) else [] if isinstance(part, int) else {}
            self._owned[id(own)] = own
        if isinstance(own, dict):
            own[str(part)] = value
        elif (index := int(part)) == len(own):
            own.append(value)
        else:
            own[index] = value
        return own


def _child(container: Json | Missing, path: Path, depth: int) -> Json | Missing:
    part = path[depth]
    if isinstance(container, dict):
        return container.get(str(part), MISSING)
    array = [] if container is MISSING and isinstance(part, int) else container
    if isinstance(array, list):
        index = array_index(part)
        length = len(array)
        if index is None or index > length:
            raise StateError(
                f"{show(path[:depth])} is an array of {length}, so {show(path)} cannot be written: use an index from 0 to {length}"
            )
        return array[index] if index < length else MISSING
    if container is MISSING:
        return MISSING
    raise StateError(f"{show(path[:depth])} is {shorten(container, 40)}, so {show(path)} cannot be written into it")


def combine(target: Json | Missing, write: Write) -> Json:
    """Return the value at the write's path after it, from the value before it (R4.1)."""
    value, method = write.value, write.method
    if method == "set" or (target is MISSING and method in ("merge", "assign")):
        return value
    before = [] if target is MISSING else target
    if before is UNKNOWN or value is UNKNOWN:
        return UNKNOWN
    if method == "merge":
        return _merge(before, value)
    if method == "assign":
        return {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    if method == "concat" and isinstance(before, str) and isinstance(value, str):
        return before + value
    if not isinstance(before, list):
        raise StateError(f"{method} needs an array at {show(write.path)}, which holds {shorten(before, 40)}")
    if method == "push":
        return [*before, value]
    if not isinstance(value, list):
        raise StateError(
            f"concat needs an array to add to {show(write.path)}, not {shorten(value, 40)}; push adds one item"
        )
    return before + value


def _merge(target: Json, value: Json) -> Json:
    if not (isinstance(target, dict) and isinstance(value, dict)):
        return value
    merged = dict(target)
    for key, item in value.items():
        merged[key] = _merge(merged[key], item) if key in merged else item
    return merged


# An instance's state is in the run's state under its own key, `@name`, and its other data under its own kind,
# `input@name`. A call of the instance writes there, and reads there first: `†state.x` becomes `†state.@name.x ||
# †state.x`, so that all instances see shared values. Dependencies, waiting and branching are the same as without
# instances.

MARK: Final = "@"


def state_key(instance: str) -> str:
    """Return the key of the instance's state in the run's state."""
    return MARK + instance


def kind_of(kind: str, instance: str) -> str:
    return f"{kind}{MARK}{instance}"


def scope_template(template: Template, instance: str, kinds: Collection[str]) -> Template:
    """Return the template for reads of the instance: its own values first, then shared ones. `kinds` are all kinds with
    data.
    """

    def scope(expression: Expression) -> Expression:
        if isinstance(expression, FirstOf):
            return FirstOf(tuple(map(scope, expression.items)))
        if isinstance(expression, AllOf):
            return AllOf(tuple(map(scope, expression.items)))
        own = own_reference(expression, instance, kinds)
        return expression if own is None else FirstOf((own, expression)) if expression.path else own

    return map_expressions(template, scope)


def own_reference(reference: Reference, instance: str, kinds: Collection[str]) -> Reference | None:
    """Return the reference in the instance's own data; `None` if it has none of the kind."""
    if reference.kind == "state":
        return Reference("state", (state_key(instance), *reference.path))
    own = kind_of(reference.kind, instance)
    return Reference(own, reference.path) if own in kinds else None


def scope_path(path: Path, instance: str) -> Path:
    """Return the path that the instance writes to."""
    return (state_key(instance), *path)


def foreign_problems(reads: Iterable[Reference], paths: Iterable[Iterable[Path]], *, shared: bool) -> list[str]:
    """Return the references and paths that would reach into an instance by its name, or, for a `shared` call, into all
    instances at once."""
    problems = []
    read = [(str(reference), reference.kind, reference.path) for reference in reads]
    written = [(str(Reference("state", path)), "state", path) for alternative in paths for path in alternative]
    for text, kind, path in [*read, *written]:
        if MARK in kind or (kind == "state" and path and str(path[0]).startswith(MARK)):
            problems.append(f"{text} names an instance: write it without, and give the call its '_instance'")
        elif shared and kind == "state" and not path:
            problems.append(f"{text} is the state of all instances together: name what you need of it")
    return list(dict.fromkeys(problems))


def without_instance(path: Path) -> Path:
    """Return the path in the state's schema."""
    return path[1:] if path and str(path[0]).startswith(MARK) else path


def split_state(state: JsonObject, instances: Iterable[str]) -> tuple[JsonObject, dict[str, JsonObject]]:
    """Return the shared state, and each instance's own."""
    own = {name: state[state_key(name)] for name in instances if state_key(name) in state}
    keys = {state_key(name) for name in own}
    return {key: value for key, value in state.items() if key not in keys}, own


def values_for(base: Mapping[str, Json], instance: str | None) -> Mapping[str, Json]:
    """Return the data by kind that a call of the instance sees, for values that are not read by reference (R8.2)."""
    if instance is None:
        return base
    own = {kind.removesuffix(MARK + instance): value for kind, value in base.items() if kind.endswith(MARK + instance)}
    shared = {kind: value for kind, value in base.items() if MARK not in kind}
    state = base.get("state")
    if isinstance(state, dict):
        own_state = state.get(state_key(instance), {})
        rest = {key: value for key, value in state.items() if not key.startswith(MARK)}
        shared["state"] = rest | own_state if isinstance(own_state, dict) else rest
    return shared | own


_SHOWN: Final = 2000
"""Characters of a key's value after the context was too long for the model."""


class State:
    """The log of writes and its resulting value. It never changes values that it receives or returns."""

    def __init__(self, writes: Iterable[Write] = (), sizes: Sizes | None = None) -> None:
        self.writes: list[Write] = []
        self.sizes = sizes or Sizes()
        self.labels = Labels()
        """The provenance of the value, part by part (R15.1)."""
        self._large: dict[Path, bool] = {}
        """The paths of values of more than `MAX_RESULT` characters, and whether each was an item of a list."""
        self._excerpts: dict[Path, tuple[Json, tuple[Json, bool]]] = {}
        """By path a large value, and its excerpt: each Request shows it again."""
        self._tree = ValueTree({})
        self._showing = VisibleWrites()
        self._looked_at = 0  # the number of known writes
        for write in writes:  # written by a state, which has already added notes to them
            self._tree.apply(write)
            self._note(write)

    def append(self, write: Write) -> None:
        """Add a write. Raises `StateError`, without a change, if the value there cannot accept it."""
        value, containers = self._tree.preview(write)
        self._tree.put(write, value, containers)
        self._note_created(write, containers)
        self._note(write)

    def _note_created(self, write: Write, containers: list[Json | Missing]) -> None:
        """Mark an index that is a key of an object, so that it stays a key after the object's creation is dropped from
        the log.
        """
        for depth, (part, container) in enumerate(zip(write.path, containers, strict=False)):
            if isinstance(part, int) and isinstance(container, dict):
                self._note(Write(path=write.path[:depth], value={}, method="merge"))

    def _note(self, write: Write) -> None:
        self.writes.append(write)
        self.labels.write(write.path, write.value, write.method, write.sources)
        if write.value is not UNKNOWN and self.sizes.of(write.value) > MAX_RESULT:
            self._note_large(write.path, write.value, write.method)

    def _note_large(self, path: Path, value: Json, method: OutputMethod) -> None:
        """Record the path of a large value. The state, and that of an instance, stay objects: each key is shown by
        itself.
        """
        if (not path or (len(path) == 1 and str(path[0]).startswith(MARK))) and isinstance(value, dict):
            for key, item in value.items():
                if self.sizes.of(item) > MAX_RESULT:
                    self._note_large((*path, key), item, method)
        else:
            self._large[path] = self._large.get(path, True) and method == "push"

    def append_all(self, writes: Sequence[Write], check: Callable[[Write, Json], None]) -> None:
        """Add the writes in their order, or none of them (R4.3).

        `check` gets each write with the resulting value at its path. Raises `StateError`, without a change, if `check`
        raises it or the value there cannot accept a write.
        """
        tree = self._tree if len(writes) == 1 else ValueTree(self.snapshot())
        looked_at: list[list[Json | Missing]] = []
        for write in writes:
            value, containers = tree.preview(write)
            check(write, value)
            tree.put(write, value, containers)
            looked_at.append(containers)
        self._tree = tree
        for write, containers in zip(writes, looked_at, strict=True):
            self._note_created(write, containers)
            self._note(write)

    def snapshot(self) -> JsonObject:
        """Return the whole present value; later writes do not show in it."""
        value: JsonObject = self._tree.snapshot()
        return value

    def copy(self) -> State:
        """Return a separate state with the present value of this one."""
        copied = State([Write(path=(), value=self.snapshot())])
        copied.labels = self.labels.copy()
        return copied

    def shown(
        self, *, most: int = MAX_STATE_SHOWN, shaped: Callable[[JsonObject], JsonObject] | None = None
    ) -> JsonObject | None:
        """Return the present value for the model: without media, and with only the beginnings of written values of more
        than `MAX_RESULT` characters (R10.18). `shaped` replaces hidden parts by their shapes (R15.4).

        Return `None` if that has more than `most` characters. The cost depends on `most`, not on the values' sizes.
        """
        tree, left = ValueTree(self.snapshot() if shaped is None else shaped(self.snapshot())), most
        for path in self._places(tree.value):
            if (found := get(tree.value, path)) is not MISSING:  # not inside one that was cut
                part = self._excerpt(path, found)[0]
                left -= len(part if isinstance(part, str) else dumps(part))
                if left < 0:
                    return None
                tree.apply(Write(path=path, value=part))
        return all_without_media(tree.value, most)

    def beginnings(
        self, *, most: int = MAX_STATE_SHOWN, shaped: Callable[[JsonObject], JsonObject] | None = None
    ) -> JsonObject:
        """Return the present value for the model, with the value of every large key cut to its beginning."""
        value = self.snapshot() if shaped is None else shaped(self.snapshot())
        room = max(LEAST, min(_SHOWN, most // max(1, len(value))))
        return {
            key: without_media(item) if self.sizes.of(item) <= room else beginning_as_text(item, room)
            for key, item in value.items()
        }

    @property
    def is_cut(self) -> bool:
        """Whether a model sees only the beginning of one of its values."""
        value = self.snapshot()
        places = self._places(value)
        return any(self._excerpt(path, part)[1] for path in places if (part := get(value, path)) is not MISSING)

    def _places(self, value: Json) -> list[Path]:
        """Return the present paths of large values, outer ones first."""
        found: list[Path] = []
        for path, is_item in sorted(self._large.items(), key=lambda each: len(each[0])):
            there = get(value, path)
            if isinstance(there, list) and is_item:
                found += [(*path, index) for index, item in enumerate(there) if self.sizes.of(item) > MAX_RESULT]
            elif there is not MISSING and there is not UNKNOWN and self.sizes.of(there) > MAX_RESULT:
                found.append(path)
        return found

    def _excerpt(self, path: Path, value: Json) -> tuple[Json, bool]:
        known = self._excerpts.get(path)
        if known is None or known[0] is not value:
            name = str(Reference("state", path))[1:]  # with its dagger a call's parameter would be the value itself
            known = self._excerpts[path] = value, excerpt(value, self.sizes.of(value), name)
        return known[1]

    def compact(self) -> None:
        """Drop the writes that a later `set` of the same path, or of a prefix of it, has hidden. The cost depends on
        the writes since the last time.
        """
        for write in self.writes[self._looked_at :]:
            self._showing.add(write)
        self.writes = self._showing.all()
        self._looked_at = len(self.writes)


def replay(writes: Sequence[Write], path: Path, base: Json | Missing = MISSING) -> Json | Missing:
    """Return the value at a path after the writes, in their order; `base` is the whole value before them (R4.1).

    It replays the writes that touch the path, from the newest `set` that covers it. Raises `StateError` if that needs
    an array that only a write beside the path had made. Items beside the path that others had written are missing, so
    an index counts without them.
    """
    start = 0
    for index in range(len(writes) - 1, -1, -1):
        if covers(writes[index], path):
            start, base = index, MISSING
            break
    tree = ValueTree({} if base is MISSING else base)
    for write in writes[start:]:
        if overlaps(write.path, path):
            tree.apply(write)
    return get(tree.value, path)


def sources_of(writes: Sequence[Write], path: Path, base: Labels) -> Sources:
    """Return the sources of the value that `replay` returns, or more: all sources of each write that touches the path
    count.
    """
    found, start = base.at(path), 0
    for index in range(len(writes) - 1, -1, -1):
        if covers(writes[index], path):
            found, start = NOWHERE, index
            break
    for write in writes[start:]:
        if overlaps(write.path, path):
            found = join(found, write.sources)
    return found
