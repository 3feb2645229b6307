"""The run's memory: an append-only log of writes, and the value that they add up to (section 4).

The log is the truth; the value is kept beside it so that reading costs nothing. `State(writes)` of the same writes is the
same value, whatever happened in between: that is what makes a replay, and a run continued as new, give the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from perdure.values.excerpts import excerpt
from perdure.values.instances import MARK
from perdure.values.jsons import Json, JsonObject
from perdure.values.limits import MAX_RESULT
from perdure.values.limits.sizes import Sizes, preview
from perdure.values.media import first_without_media, without_media
from perdure.values.paths import UNKNOWN, get, overlaps
from perdure.values.references import MISSING, Missing, Path, Reference
from perdure.values.sources import NOWHERE, Labels, Sources, join
from perdure.values.state.trees import Tree, combine
from perdure.values.state.writes import METHODS, OutputMethod, Showing, Write, covers, is_prefix, stands_alone

__all__ = [
    "METHODS",
    "OutputMethod",
    "State",
    "Tree",
    "Write",
    "combine",
    "covers",
    "is_prefix",
    "replay",
    "sources_of",
    "stands_alone",
]


_SHOWN: Final = 2000
"""Characters of a key's value where the context was too long for the model."""


class State:
    """The log of writes and the value that it adds up to. Values given to it and taken from it are never changed."""

    def __init__(self, writes: Iterable[Write] = (), sizes: Sizes | None = None) -> None:
        self.writes: list[Write] = []
        self.sizes = sizes or Sizes()
        self.labels = Labels()
        """Where the value comes from, part by part (R15.1)."""
        self._large: dict[Path, bool] = {}
        """Where a value of more than `MAX_RESULT` bytes was written, and whether as an item of a list."""
        self._tree = Tree({})
        self._showing = Showing()
        self._looked_at = 0  # how many of the writes it knows
        for write in writes:  # which a state has written: what is to be said beside them has been said
            self._tree.apply(write)
            self._note(write)

    def append(self, write: Write) -> None:
        """Add a write. Raises `StateError`, and changes nothing, when the value there cannot take it."""
        value, containers = self._tree.preview(write)
        self._tree.put(write, value, containers)
        self._say_made(write, containers)
        self._note(write)

    def _say_made(self, write: Write, containers: list[Json | Missing]) -> None:
        """An index that is taken for a key, said so that it is one also where what made the object is forgotten."""
        for depth, (part, container) in enumerate(zip(write.path, containers, strict=False)):
            if isinstance(part, int) and isinstance(container, dict):
                self._note(Write(path=write.path[:depth], value={}, method="merge"))

    def _note(self, write: Write) -> None:
        self.writes.append(write)
        self.labels.write(write.path, write.value, write.method, write.sources)
        if write.value is not UNKNOWN and self.sizes.of(write.value) > MAX_RESULT:
            self._note_large(write.path, write.value, write.method)

    def _note_large(self, path: Path, value: Json, method: OutputMethod) -> None:
        """The state itself, and that of an instance, stay objects: each key is shown by itself."""
        if (not path or (len(path) == 1 and str(path[0]).startswith(MARK))) and isinstance(value, dict):
            for key, item in value.items():
                if self.sizes.of(item) > MAX_RESULT:
                    self._note_large((*path, key), item, method)
        else:
            self._large[path] = self._large.get(path, True) and method == "push"

    def append_all(self, writes: Sequence[Write], check: Callable[[Write, Json], None]) -> None:
        """Add the writes in their order, or none of them (R4.3).

        `check` is told each with what would stand at its path after it. Raises `StateError`, and changes nothing, when
        `check` does or when the value there cannot take one of them.
        """
        tree = self._tree if len(writes) == 1 else Tree(self.snapshot())
        looked_at: list[list[Json | Missing]] = []
        for write in writes:
            value, containers = tree.preview(write)
            check(write, value)
            tree.put(write, value, containers)
            looked_at.append(containers)
        self._tree = tree
        for write, containers in zip(writes, looked_at, strict=True):
            self._say_made(write, containers)
            self._note(write)

    def snapshot(self) -> JsonObject:
        """The whole value now; later writes do not show in it."""
        value: JsonObject = self._tree.snapshot()
        return value

    def copy(self) -> State:
        """A state of its own with the value that this one has now."""
        copied = State([Write(path=(), value=self.snapshot())])
        copied.labels = self.labels.copy()
        return copied

    def shown(self, *, tight: bool = False, shaped: Callable[[JsonObject], JsonObject] | None = None) -> JsonObject:
        """The value now as the model sees it: without media, and of a written value of more than `MAX_RESULT` characters its beginning
        (R10.18); where `tight`, of every large key. `shaped` puts the shapes of what it is not to read in their places (R15.4)."""
        tree = Tree(self.snapshot() if shaped is None else shaped(self.snapshot()))
        if tight:
            return {
                key: without_media(value)
                if self.sizes.of(value) <= _SHOWN
                else preview(first_without_media(value, _SHOWN)[0], _SHOWN)
                for key, value in tree.value.items()
            }
        for path in self._places(tree.value):
            if (found := get(tree.value, path)) is not MISSING:  # not inside one that was cut
                tree.apply(Write(path=path, value=self._excerpt(path, found)[0]))
        shown: JsonObject = without_media(tree.value)
        return shown

    @property
    def is_cut(self) -> bool:
        """Whether a model is shown only the beginning of one of its values."""
        value = self.snapshot()
        return any(self._excerpt(path, get(value, path))[1] for path in self._places(value))

    def _places(self, value: Json) -> list[Path]:
        """Where large values stand now, outer ones first."""
        found: list[Path] = []
        for path, is_item in sorted(self._large.items(), key=lambda each: len(each[0])):
            there = get(value, path)
            if isinstance(there, list) and is_item:
                found += [(*path, index) for index, item in enumerate(there) if self.sizes.of(item) > MAX_RESULT]
            elif there is not MISSING and there is not UNKNOWN and self.sizes.of(there) > MAX_RESULT:
                found.append(path)
        return found

    def _excerpt(self, path: Path, value: Json) -> tuple[Json, bool]:
        name = str(Reference("state", path))[1:]  # with its dagger a call's parameter would be the value itself
        return excerpt(value, self.sizes.of(value), name)

    def compact(self) -> None:
        """Forget the writes that a later `set` of the same path, or of a prefix of it, has hidden. Costs what is new since the last time."""
        for write in self.writes[self._looked_at :]:
            self._showing.add(write)
        self.writes = self._showing.all()
        self._looked_at = len(self.writes)


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


def sources_of(writes: Sequence[Write], path: Path, base: Labels) -> Sources:
    """The sources of what `replay` finds there, or more: those of all writes that touch the path count whole."""
    found, start = base.at(path), 0
    for index in range(len(writes) - 1, -1, -1):
        if covers(writes[index], path):
            found, start = NOWHERE, index
            break
    for write in writes[start:]:
        if overlaps(write.path, path):
            found = join(found, write.sources)
    return found
