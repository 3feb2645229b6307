"""Who writes near a path: the index behind the edges of a plan (R5.1)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
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
            node = node.children.setdefault(str(part), _Node())
        return node.items

    def above(self, path: Path) -> Iterator[list[T]]:
        """The items filed under each prefix of the path and under the path itself, shortest first."""
        node: _Node[T] | None = self._root
        for part in path:
            assert node is not None
            if node.items:
                yield node.items
            node = node.children.get(str(part))
            if node is None:
                return
        if node is not None and node.items:
            yield node.items

    def below(self, path: Path) -> Iterator[list[T]]:
        """The items filed under each extension of the path, not under the path itself."""
        node: _Node[T] | None = self._root
        for part in path:
            assert node is not None
            node = node.children.get(str(part))
            if node is None:
                return
        assert node is not None
        stack = list(node.children.values())
        while stack:
            node = stack.pop()
            if node.items:
                yield node.items
            stack.extend(node.children.values())


class _Node(Generic[T]):
    __slots__ = ("children", "items")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.items: list[T] = []


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
        nearest = max(
            (items[at - 1] for items in self._setters.above(path) if (at := bisect_left(items, index))), default=-1
        )
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

    def _adding(self, path: Path) -> Iterator[list[int]]:
        yield from self._adders.above(path)
        yield from self._adders.below(path)
        yield from self._setters.below(path)
