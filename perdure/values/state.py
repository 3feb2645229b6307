"""The run's memory: an append-only log of writes, and the value that they add up to (section 4).

The log is the truth; the value is kept beside it so that reading costs nothing. `State(writes)` of the same writes is the
same value, whatever happened in between: that is what makes a replay, and a run continued as new, give the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict

from perdure.errors import StateError
from perdure.values.jsons import Json, JsonObject, shorten
from perdure.values.limits.sizes import Sizes, preview
from perdure.values.output_paths import show
from perdure.values.paths import UNKNOWN, Unknown, array_index, get, overlaps
from perdure.values.references import MISSING, Missing, Path

OutputMethod: TypeAlias = Literal["set", "merge", "assign", "push", "concat"]
METHODS: Final[tuple[OutputMethod, ...]] = get_args(OutputMethod)


class Write(BaseModel):
    """One entry of the log: what was written where, how, by which call and when (R4.1)."""

    model_config = ConfigDict(frozen=True)

    path: tuple[str | int, ...]
    value: Json
    method: OutputMethod = "set"
    call: str = ""
    """The call's id; empty for what the run started with."""
    time: str = ""
    """ISO 8601, from the workflow's clock."""


LARGE: Final = 256 * 1024
"""Bytes of JSON from which on one value is shown to the model by its beginning."""
_SHOWN: Final = 2000


class State:
    """The log of writes and the value that it adds up to. Values given to it and taken from it are never changed."""

    def __init__(self, writes: Iterable[Write] = (), sizes: Sizes | None = None) -> None:
        self.writes: list[Write] = []
        self.sizes = sizes or Sizes()
        self._large: list[tuple[Path, Json, int]] = []
        self._tree = Tree({})
        for write in writes:
            self.append(write)

    def append(self, write: Write) -> None:
        """Add a write. Raises `StateError`, and changes nothing, when the value there cannot take it."""
        self._tree.apply(write)
        self._note(write)

    def _note(self, write: Write) -> None:
        self.writes.append(write)
        if write.value is not UNKNOWN and (size := self.sizes.of(write.value)) > LARGE:
            self._large.append((write.path, write.value, size))

    def append_all(self, writes: Sequence[Write], check: Callable[[Write, Json], None]) -> None:
        """Add the writes in their order, or none of them (R4.3).

        `check` is told each with what would stand at its path after it. Raises `StateError`, and changes nothing, when
        `check` does or when the value there cannot take one of them.
        """
        tree = self._tree if len(writes) == 1 else Tree(self.snapshot())
        for write in writes:
            value, containers = tree.preview(write)
            check(write, value)
            tree.put(write, value, containers)
        self._tree = tree
        for write in writes:
            self._note(write)

    def snapshot(self) -> JsonObject:
        """The whole value now; later writes do not show in it."""
        value: JsonObject = self._tree.snapshot()
        return value

    def shown(self, *, tight: bool = False) -> JsonObject:
        """The value now as the model sees it: of a single value of more than `LARGE` bytes its beginning and size;
        where `tight`, of every large key."""
        tree = Tree(self.snapshot())
        if tight:
            return {
                key: value if self.sizes.of(value) <= _SHOWN else preview(value, _SHOWN)
                for key, value in tree.value.items()
            }
        for path, value, size in self._large:
            if path and get(tree.value, path) is value:
                tree.apply(Write(path=path, value=beginning(value, size)))
        shown: JsonObject = tree.value
        return shown

    def compact(self) -> None:
        """Forget the writes that a later `set` of the same path, or of a prefix of it, has hidden."""
        kept = _without_hidden(self.writes, depth=None)
        if not self._is_made_by(kept):
            # A hidden write had made an object on its way, which others then wrote into: below the top all are kept.
            kept = _without_hidden(self.writes, depth=1)
        self.writes = kept

    def _is_made_by(self, writes: list[Write]) -> bool:
        try:
            return bool(State(writes).snapshot() == self._tree.value)
        except StateError:
            return False


def _without_hidden(writes: Sequence[Write], depth: int | None) -> list[Write]:
    """The writes that no later `set` hides, of those that reach at most `depth` deep."""
    kept: list[Write] = []
    covered: set[tuple[str, ...]] = set()
    for write in reversed(writes):
        steps = tuple(map(str, write.path))
        if any(steps[:length] in covered for length in range(len(steps) + 1)):
            continue
        kept.append(write)
        if stands_alone(write.method, write.path) and (depth is None or len(steps) <= depth):
            covered.add(steps)
    return kept[::-1]


def beginning(value: Json, size: int) -> Json:
    """What the model is shown of a value of so many bytes: itself, or of a large one the beginning and the size."""
    if size <= LARGE:
        return value
    return f"{preview(value, _SHOWN)} [cut: the whole value has {size:,} bytes; refer to it, and it is passed on whole]"


def replay(writes: Sequence[Write], path: Path, base: Json | Missing = MISSING) -> Json | Missing:
    """The value at a path after the writes, in their order; `base` is the whole value before them (R4.1).

    Walks back to the newest `set` that covers the path and replays forward from there what touches the path. Raises
    `StateError` where that needs an array that only a write beside the path had made; items beside the path that others
    had written are not there, so an index counts without them.
    """
    start = 0
    for index in range(len(writes) - 1, -1, -1):
        if covers(writes[index], path):
            start, base = index, MISSING
            break
    tree = Tree({} if base is MISSING else base)
    for write in writes[start:]:
        if overlaps(write.path, path):
            tree.apply(write)
    return get(tree.value, path)


def covers(write: Write, path: Path) -> bool:
    """Whether the write alone decides the value at the path: a `set` of it or of its prefix."""
    return stands_alone(write.method, write.path) and is_prefix(write.path, path)


def stands_alone(method: OutputMethod, path: Path) -> bool:
    """Whether a write needs nothing of what was there before: it sets, and not through the index of an array."""
    return method == "set" and not [part for part in path if array_index(part) is not None]


def is_prefix(prefix: Path, path: Path) -> bool:
    return len(prefix) <= len(path) and overlaps(prefix, path)


class Tree:
    """A JSON value that is changed without changing what others hold of it.

    Containers made since the last snapshot belong to nobody else and are changed in place; all others are copied on the
    way down. So a thousand writes into one object copy it once, not a thousand times.
    """

    def __init__(self, value: Json) -> None:
        self.value = value
        # The object is kept beside its id, so that the id cannot be used again while it counts.
        self._owned: dict[int, Json] = {}

    def snapshot(self) -> Json:
        self._owned.clear()
        return self.value

    def preview(self, write: Write) -> tuple[Json, list[Json | Missing]]:
        """What would stand at the path after the write, and the containers on the way there.

        Raises `StateError` when a value on the way cannot take the write; changes nothing.
        """
        containers: list[Json | Missing] = []
        target: Json | Missing = self.value
        for depth in range(len(write.path)):
            if target is UNKNOWN:
                return UNKNOWN, []
            containers.append(target)
            target = _child(target, write.path, depth)
        value = combine(target, write)
        if not write.path and not isinstance(value, dict | Unknown):
            raise StateError(f"†state itself must stay an object, not {shorten(value, 40)}")
        return value, containers

    def apply(self, write: Write) -> None:
        """Raises `StateError`, and changes nothing, when a value on the way cannot take the write."""
        self.put(write, *self.preview(write))

    def put(self, write: Write, value: Json, containers: list[Json | Missing]) -> None:
        """Apply a write that was looked at: `value` and `containers` are what `preview` said of it."""
        if len(containers) < len(write.path):
            return  # it lies inside an unknown value
        for depth in range(len(containers) - 1, -1, -1):
            value = self._with(containers[depth], write.path[depth], value)
        self.value = value

    def _with(self, container: Json | Missing, part: str | int, value: Json) -> Json:
        own: Json = container
        if id(container) not in self._owned:
            own = ([] if isinstance(part, int) else {}) if isinstance(container, Missing) else container.copy()
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
    """What stands at the write's path after it, given what stood there before (R4.1)."""
    value, method = write.value, write.method
    if method == "set" or (target is MISSING and method in ("merge", "assign")):
        return value
    if target is UNKNOWN or value is UNKNOWN:
        return UNKNOWN
    if method == "merge":
        return _merge(target, value)
    if method == "assign":
        return {**target, **value} if isinstance(target, dict) and isinstance(value, dict) else value
    before = [] if target is MISSING else target
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
