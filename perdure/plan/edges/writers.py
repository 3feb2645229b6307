"""Who writes near a path: the index behind the edges of a plan (R5.1)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Generic, TypeVar

from perdure.values.references import Path

T = TypeVar("T")


class PathIndex(Generic[T]):
    """Items filed under paths. Finds those on a path's way down and those below it, without looking at any other."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, path: Path, item: T) -> None:
        self.at(path).append(item)

    def at(self, path: Path) -> list[T]:
        """The items filed under exactly this path; a change to the list is kept."""
        node = self._root
        for part in path:
            if node.children is None:
                node.children = {}
            key = str(part)
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = _Node()
            node = child
        if node.items is None:
            node.items = []
        return node.items

    def above(self, path: Path) -> list[list[T]]:
        """The items filed under each prefix of the path and under the path itself, shortest first."""
        found: list[list[T]] = []
        node = self._root
        for part in path:
            if node.items:
                found.append(node.items)
            child = None if node.children is None else node.children.get(str(part))
            if child is None:
                return found
            node = child
        if node.items:
            found.append(node.items)
        return found

    def below(self, path: Path) -> list[list[T]]:
        """The items filed under each extension of the path, not under the path itself."""
        found: list[list[T]] = []
        node = self._root
        for part in path:
            child = None if node.children is None else node.children.get(str(part))
            if child is None:
                return found
            node = child
        if node.children is None:
            return found
        stack = list(node.children.values())
        while stack:
            node = stack.pop()
            if node.items:
                found.append(node.items)
            if node.children is not None:
                stack.extend(node.children.values())
        return found


class _Node(Generic[T]):
    # Most paths have one writer and nothing below: what is empty is not made.
    __slots__ = ("children", "items")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] | None = None
        self.items: list[T] | None = None


class Writers:
    """The writers of a plan by path, in the order of its list; a writer is known by its index there.

    A writer *covers* a path when it sets it, or a prefix of it: nothing that was there before can be seen. Other writers
    (of an extension, or by `merge`, `push`, …) only add to it.
    """

    def __init__(self) -> None:
        self._setters: PathIndex[int] = PathIndex()
        self._adders: PathIndex[int] = PathIndex()

    def add(self, path: Path, index: int, *, sets: bool) -> None:
        """File a writer. Indexes must come in rising order."""
        (self._setters if sets else self._adders).add(path, index)

    def move(self, index: int, old: Iterable[tuple[Path, bool]], new: Iterable[tuple[Path, bool]]) -> None:
        """A writer writes elsewhere from now on: pairs of a path and whether it is set."""
        for path, sets in old:
            (self._setters if sets else self._adders).at(path).remove(index)
        for path, sets in new:
            insort((self._setters if sets else self._adders).at(path), index)

    def before(self, path: Path, index: int) -> tuple[list[int], bool]:
        """The writers that a reader at `index` binds to: back to the nearest that covers the path (R5.1).

        Returns their indexes, rising, and whether the first of them covers.
        """
        nearest = -1
        for items in self._setters.above(path):
            if (at := bisect_left(items, index)) and items[at - 1] > nearest:
                nearest = items[at - 1]
        found = {
            item
            for items in self._adding(path)
            for item in items[bisect_left(items, nearest + 1) : bisect_left(items, index)]
        }
        if nearest >= 0:
            found.add(nearest)
        return sorted(found), nearest >= 0

    def after(self, path: Path, index: int) -> tuple[list[int], bool]:
        """The mirror of `before`: forward to the nearest later writer that covers; the last of them is it."""
        nearest = min(
            (items[at] for items in self._setters.above(path) if (at := bisect_left(items, index + 1)) < len(items)),
            default=-1,
        )
        found = {
            item
            for items in self._adding(path)
            for item in items[bisect_left(items, index + 1) : bisect_left(items, nearest) if nearest >= 0 else None]
        }
        if nearest >= 0:
            found.add(nearest)
        return sorted(found), nearest >= 0

    def _adding(self, path: Path) -> list[list[int]]:
        return [*self._adders.above(path), *self._adders.below(path), *self._setters.below(path)]
