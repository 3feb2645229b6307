"""What writes add up to: a JSON value that is changed without changing what others hold of it (R4.1)."""

from __future__ import annotations

from perdure.errors import StateError
from perdure.values.jsons import Json, shorten
from perdure.values.output_paths import show
from perdure.values.paths import UNKNOWN, Unknown, array_index
from perdure.values.references import MISSING, Missing, Path
from perdure.values.state.writes import Write


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
