"""The dependency graph of a plan: readers and writers of each path, order without data, and cycles."""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeAlias, TypeVar

from perdure.errors import StateError, clip
from perdure.plan._calls import NO_ORDER, Call, CallOrder
from perdure.plan._loop_spec import LET
from perdure.values.json import Json, shorten
from perdure.values.limits import MAX_EDGES, CheckBudget
from perdure.values.provenance import NOWHERE, Labels, Sources, join, join_all
from perdure.values.references import MISSING, Missing, Path, Reference, get, overlaps
from perdure.values.state import Write, covers, is_prefix, replay, sources_of, stands_alone
from perdure.values.templates import Template, is_expression, parse_template

if TYPE_CHECKING:
    import networkx as nx

T = TypeVar("T")

PARTS_DECIDED: Final = "parts-decided"
"""A condition that skips a call is a source of each value that the call would have changed in part, or added to (R15.1).

It is also a source of a value that a later call wrote, if it kept an earlier call from writing the value.
"""
LETS_LOOK_BACK: Final = "lets-look-back"
"""Patch: in runs of 0.2.0 a `_let` that reads and writes one path waits for a later writer if the path has no value."""


class PathIndex(Generic[T]):
    """Items by path. It finds the items above and below a path without a search through the others."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, path: Path, item: T) -> None:
        self.at(path).append(item)

    def at(self, path: Path) -> list[T]:
        """Return the items of exactly this path; a change to the list is kept."""
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

    def near(self, path: Path) -> tuple[list[list[T]], list[list[T]]]:
        """Return the items of each prefix of the path and of the path itself, shortest first; and those of each
        extension of it.
        """
        above: list[list[T]] = []
        below: list[list[T]] = []
        node = self._root
        for part in path:
            if node.items:
                above.append(node.items)
            child = None if node.children is None else node.children.get(str(part))
            if child is None:
                return above, below
            node = child
        if node.items:
            above.append(node.items)
        if node.children is not None:
            stack = list(node.children.values())
            while stack:
                node = stack.pop()
                if node.items:
                    below.append(node.items)
                if node.children is not None:
                    stack.extend(node.children.values())
        return above, below


class _Node(Generic[T]):
    # Most paths have one writer and no paths below: empty containers are not created.
    __slots__ = ("children", "items")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] | None = None
        self.items: list[T] | None = None


class WriterIndex:
    """The writers of a plan by path, in the order of its list. A writer's key is its index in that list.

    A writer *covers* a path when it sets it, or a prefix of it: no earlier value is visible behind it. Other writers
    (of an extension, or by `merge`, `push`, …) only add to it.
    """

    def __init__(self) -> None:
        self._setters: PathIndex[int] = PathIndex()
        self._adders: PathIndex[int] = PathIndex()
        self._adds = False
        """Whether there was ever an adder."""

    def add(self, path: Path, index: int, *, sets: bool) -> None:
        """Add a writer. Indexes must be in rising order."""
        self._adds = self._adds or not sets
        (self._setters if sets else self._adders).add(path, index)

    def move(self, index: int, old: Iterable[tuple[Path, bool]], new: Iterable[tuple[Path, bool]]) -> None:
        """Move a writer to its new paths: `old` and `new` are pairs of a path and whether it is set."""
        for path, sets in old:
            (self._setters if sets else self._adders).at(path).remove(index)
        for path, sets in new:
            self._adds = self._adds or not sets
            insort((self._setters if sets else self._adders).at(path), index)

    def before(self, path: Path, index: int) -> tuple[list[int], bool]:
        """Return the writers that a reader at `index` binds to: back to the nearest that covers the path (R5.1).

        The result is their indexes in rising order, and whether the first of them covers the path.
        """
        nearest = -1
        setting, adding = self._near(path)
        for items in setting:
            if (at := bisect_left(items, index)) and items[at - 1] > nearest:
                nearest = items[at - 1]
        found = [nearest] if nearest >= 0 else []
        if adding:
            between = (items[bisect_left(items, nearest + 1) : bisect_left(items, index)] for items in adding)
            found = sorted({*found, *chain.from_iterable(between)})
        return found, nearest >= 0

    def after(self, path: Path, index: int) -> tuple[list[int], bool]:
        """Return the writers in the other direction: forward to the nearest later writer that covers the path, which is
        the last.
        """
        nearest = -1
        setting, adding = self._near(path)
        for items in setting:
            if (at := bisect_left(items, index + 1)) < len(items) and (nearest < 0 or items[at] < nearest):
                nearest = items[at]
        found = [nearest] if nearest >= 0 else []
        if adding:
            between = (
                items[bisect_left(items, index + 1) : bisect_left(items, nearest) if nearest >= 0 else None]
                for items in adding
            )
            found = sorted({*found, *chain.from_iterable(between)})
        return found, nearest >= 0

    def _near(self, path: Path) -> tuple[list[list[int]], list[list[int]]]:
        """Return the writers that cover the path, and those that add to it."""
        setting, adding = self._setters.near(path)
        if self._adds:
            above, below = self._adders.near(path)
            adding += above + below
        return setting, adding


# A reader binds backward: to the nearest writer before it that covers its path, and to the writers in between that add
# to it. If there is no writer before it and no value, it binds forward, by the same rule in the other direction. A
# reader passes over a `set` that took another branch, and continues to the next writers in the same direction. So two
# exclusive branches can write one path and join again.

Found: TypeAlias = Literal["value", "branch", "broken", "nowhere"]


@dataclass(slots=True)
class Binding:
    reference: Reference
    reader: int
    """Index of the reading call in the plan."""
    base: Json | Missing = MISSING
    """The whole value of the reference's kind when the plan was made."""
    writers: Sequence[int] = ()
    covered: bool = False
    """Whether one of the writers sets the path, so that the search ended there."""
    forward: bool = False
    """Whether it is bound to later writers, because no writer before it offered a value."""
    order: bool = False
    """Whether only the end of the writers matters, not their values: a value from before the plan lets no call start
    (R5.11)."""
    any_end: bool = False
    """Whether, for `order`, any end of the writers is enough."""
    back: bool = False
    """Whether only writers before the reader count: it writes the path itself."""
    exhausted: bool = False
    """Whether no further writers are left to replace those that took another branch."""
    open: bool = False
    """Whether the writers are not all known: a later call may yet arrive."""
    first: Sequence[int] = ()
    """The writers by the list alone, before any was passed over. Cycles are those of the list, also if a call ended
    early.
    """
    passed: int | None = None
    """The last `set` that was passed over because it took another branch. A writer beyond it has to have written: the
    reader never falls back to a value from before the plan."""

    turned: Set[int] = frozenset()
    """All writers that were passed over because they took another branch."""
    alone: tuple[Sequence[int], Write] | None = None
    """The single write that decides the value, once it is known, and the writers for which it does."""
    reach: int = -1
    """The index that the search for writers has reached: the reader's own, then the indexes of the covering writers
    found."""

    def bind(self, writers: WriterIndex) -> None:
        """Bind to the writers that are known when the reader arrives."""
        self.reach = self.reader
        if self.reference.kind != "state":
            return
        self.bind_backward(writers)
        if not self.back and not self.writers and (self.order or get(self.base, self.reference.path) is MISSING):
            self.forward = self.open = True

    def bind_anew(self, writers: WriterIndex) -> None:
        """Search again from the reader, in both directions: the writers have changed, and none was found so far."""
        self.first, self.passed = (), None
        self.forward = self.open = False
        self.bind(writers)
        if self.open:
            self.bind_forward(writers, final=False)

    def lose(self, gone: Set[int], writers: WriterIndex, calls: Sequence[Call], *, keeps_others: bool = True) -> None:
        """Replace writers that will never write by others; those that have ended stay.

        If one of the lost writers would have set the path, no value from before it may be read. If they would only have
        added to what others write, the reader keeps those (`keeps_others`).
        """
        lost, left = max(gone & {*self.writers}), [each for each in self.writers if each not in gone]
        if self.covered and self.writers[-1 if self.forward else 0] in gone:
            self.base = MISSING
        elif left and keeps_others:
            self.writers, self.first = left, [each for each in self.first if each not in gone]
            return
        ended = [index for index in self.writers if index not in gone and calls[index].state.ended]
        self.writers, self.covered = (), False
        self.bind_anew(writers)
        self.writers = sorted({*ended, *self.writers})
        if self.any_end and keeps_others:
            self.passed = lost  # a dropped call has ended, and that is enough

    def bind_forward(self, writers: WriterIndex, *, final: bool) -> None:
        """Search for later writers: settled once one covers the path, or when no further call can arrive (`final`)."""
        found, covered = writers.after(self.reference.path, self.reach)
        if covered or final:
            self.open = False
            self.writers, self.covered = [*self.writers, *found] if self.writers else found, covered
            if found:
                self.reach = max(found)
            self.first = self.first or found

    def bind_backward(self, writers: WriterIndex) -> None:
        found, self.covered = writers.before(self.reference.path, self.reach)
        self.writers = [*found, *self.writers] if self.writers else found
        if found:
            self.reach = min(found)
        self.first = self.first or found

    def deciding_write(self, calls: Sequence[Call]) -> Write | None:
        """Return the write that alone decides the value: the only one of the only writer, which sets the path. `None`:
        there is none, or more to consider."""
        if self.alone is not None and self.alone[0] is self.writers:
            return self.alone[1]
        if not self.covered or len(self.writers) != 1 or self.passed is not None:
            return None
        call = calls[self.writers[0]]
        writes = call.state.writes
        if len(writes) != 1 or not covers(writes[0], self.reference.path) or _broken(call):
            return None
        self.alone = self.writers, writes[0]
        return writes[0]

    def looks_on(self, calls: Sequence[Call]) -> bool:
        """Whether the covering writer, which has ended like all others, took another branch: the nearer writers may
        need a value from beyond it."""
        broken = not self.any_end and any(_broken(calls[index]) for index in self.writers)
        if not self.covered or self.exhausted or broken:
            return False
        return not self._reached_by(calls[self.writers[-1 if self.forward else 0]])

    def move_on(self, writers: WriterIndex, calls: Sequence[Call], *, final: bool) -> bool:
        """Move past a `set` that took another branch to the next writers in the same direction. Return whether there
        are, or may be, any."""
        if not self.covered:
            return False
        for index in self.writers:
            if self._sets(calls[index]) and not self._reached_by(calls[index]):
                self._pass(index)
        # Writers that have written nothing here are done with; the one to blame is remembered as `passed`.
        self.writers = [index for index in self.writers if self._written_by(calls[index])]
        kept = len(self.writers)
        if self.forward:
            self.open = True
            self.bind_forward(writers, final=final)
        else:
            self.bind_backward(writers)
        return self.open or len(self.writers) > kept

    @property
    def decides(self) -> bool:
        """Whether only its writers count, and no value from before them. Writers that come later in the plan decide only
        for `_after`: for a value, the reader may take an earlier one."""
        return (bool(self.writers) or self.passed is not None) and (self.order or not self.forward)

    @property
    def possible(self) -> bool:
        """Whether any value can ever stand at the path, or could have (R5.5)."""
        offered = self.open or bool(self.writers) or self.passed is not None
        return offered or get(self.base, self.reference.path) is not MISSING

    @property
    def reads_data(self) -> bool:
        """Whether it reads a part of existing data, which may lack the part: the input, an item, a value of the state."""
        name = self.reference.path[:1] if self.reference.kind == "state" else ()
        return get(self.base, name) is not MISSING

    def find(self, calls: Sequence[Call], order: Mapping[int, int]) -> tuple[Found, Json | Missing]:
        """Return the value at the path, now that every bound writer has ended.

        `order` gives each call's place in the order of completion. Raises `StateError` when the bound writes do not fit
        the value that existed when the plan was made.
        """
        alone = self.deciding_write(calls)
        if alone is not None and not self.order:
            deeper = self.reference.path[len(alone.path) :]
            value = get(alone.value, deeper) if deeper else alone.value
            return ("nowhere" if value is MISSING else "value"), value
        if any(_broken(calls[index]) for index in self.writers):
            return "broken", MISSING
        if self._passes_over(calls):
            return "branch", MISSING
        if self.order and self.writers:
            return ("value" if self._writes(calls, order) else "branch"), MISSING
        writes = self._writes(calls, order)
        value = replay(writes, self.reference.path, self.base)
        if value is MISSING:
            return ("branch" if self.writers and not writes else "nowhere"), value
        return "value", value

    def sources(self, calls: Sequence[Call], order: Mapping[int, int], base: Labels) -> Sources:
        """Return the provenance of the value that `find` returns; `base` is the provenance of the kind's value when the
        plan was made (R15.1)."""
        alone = self.deciding_write(calls)
        if alone is not None:
            return alone.sources
        return sources_of(self._writes(calls, order), self.reference.path, base)

    def nearest(self, calls: Sequence[Call], order: Mapping[int, int]) -> tuple[Path, Json]:
        """Return the longest beginning of the path that has a value, and that value, if the path itself has none
        (R5.5)."""
        writes = self._writes(calls, order)
        for length in reversed(range(len(self.reference.path))):
            start = self.reference.path[:length]
            with suppress(StateError):
                value = replay(writes, start, self.base)
                if value is not MISSING:
                    return start, value
        return (), {}

    def _passes_over(self, calls: Sequence[Call]) -> bool:
        """Whether the nearest `set` and all bound writers beyond it took another branch."""
        # A `set` through an index needs the earlier array, so it does not cover the path; but it counts as a `set`.
        setters = [index for index in self.writers if self._sets(calls[index])]
        for index in setters if self.forward else reversed(setters):
            if self._reached_by(calls[index]):
                return False
            self._pass(index)
        if self.passed is None:
            return False
        beyond = [index for index in self.writers if (index > self.passed) == self.forward and index != self.passed]
        return not any(self._written_by(calls[index]) for index in beyond)

    def decided(self, calls: Sequence[Call], checks: CheckBudget) -> Sources:
        """Return the provenance of the conditions that have kept other writers from writing here (R15.1)."""
        parts = checks.is_patched(PARTS_DECIDED)
        unwritten = [
            index
            for index in self.writers
            if _broken(calls[index]) or (parts and calls[index].state.ended and not self._written_by(calls[index]))
        ]
        if not (self.turned or unwritten):
            return NOWHERE
        return join_all(calls[index].inputs.decided for index in (*self.turned, *unwritten))

    def _pass(self, index: int) -> None:
        self.turned |= {index}
        if self.passed is None or (index > self.passed) == self.forward:
            self.passed = index

    def _reached_by(self, call: Call) -> bool:
        """Whether the call wrote the path itself, or a value that contains it."""
        return any(is_prefix(write.path, self.reference.path) for write in call.state.writes)

    def _sets(self, call: Call) -> bool:
        return call.spec.method == "set" and any(
            is_prefix(path, self.reference.path) for paths in call.spec.paths for path in paths
        )

    def _written_by(self, call: Call) -> list[Write]:
        return [write for write in call.state.writes if overlaps(write.path, self.reference.path)]

    def _writes(self, calls: Sequence[Call], order: Mapping[int, int]) -> list[Write]:
        """Return the bound writers' writes here, in the order of their ends."""
        return [
            write for index in sorted(self.writers, key=order.__getitem__) for write in self._written_by(calls[index])
        ]


def _broken(call: Call) -> bool:
    """Whether the call ended without its promised result: it failed without an error branch, was refused, or never ran
    because of such a call.
    """
    if call.state.status == "failed":
        return not call.state.writes
    return call.state.status in ("invalid", "rejected", "deferred") or (
        call.state.status == "skipped" and not call.state.branch
    )


# An item is a call's id, `R.N`, or output paths: `†state.x`, or several joined as in a parameter. A path names the
# calls that a reader of it would bind to (R5.1), as if there was no value before the plan: the nearest writer before
# the call and the adders after it, else the nearest later one. If the plan has no writer, an existing value is enough;
# without one, the call is invalid. The call starts when all of them have ended. It is skipped if a call named by its id
# was not carried out, or a path was not written. A path that another branch left out counts as a branch not taken. With
# `ended ` before it, an item only requires that they have ended, in any way: `ended 1.0`, `ended †state.x`.

AFTER: Final = "_after"
AFTER_ID: Final = "after"
"""The name of an edge of order to a call named by its id; see `edge_name`."""
_ID: Final = re.compile(r"(0|[1-9]\d*)[.\d\[\]]*\.(0|[1-9]\d*)")
_BESIDE: Final = re.compile(r"\.(0|[1-9]\d*)")
"""A call of the same body, in the same iteration: `.0` (R16.5)."""


_ENDED: Final = re.compile(r"\s*ended\s+(?=[†(.\d])(.*)", re.DOTALL)
"""An item that only requires an end, of any kind."""


def parse_after(value: Json, call_id: str, joined: Container[str] = ()) -> tuple[CallOrder, CallOrder, list[str]]:
    """Return the calls that have to be done, those that only have to end, and the problems of `_after`. One item needs
    no list.

        `joined`: the calls of earlier Requests that are in the plan.
    """
    written = value if isinstance(value, list) else [value]
    ended = [match[1] for item in written if isinstance(item, str) and (match := _ENDED.fullmatch(item))]
    well = [item for item in written if not (isinstance(item, str) and _ENDED.fullmatch(item))]
    first, problems = _parse_items(well, value, call_id, joined)
    second, more = _parse_items(ended, value, call_id, joined)
    return (CallOrder(), CallOrder(), problems + more) if problems or more else (first, second, [])


def _parse_items(
    written: Sequence[Json], value: Json, call_id: str, joined: Container[str]
) -> tuple[CallOrder, list[str]]:
    items: list[Json] = [f"{call_id.rpartition('.')[0]}{item}" if _in_body(item, call_id) else item for item in written]
    ids = [item for item in items if isinstance(item, str) and _ID.fullmatch(item)]
    paths = [item for item in items if not (isinstance(item, str) and _ID.fullmatch(item))]
    template, malformed = parse_template(paths)
    problems = [f"$._after: {problem.error}" for problem in malformed]
    whole = all(isinstance(item, str) and is_expression(item) for item in paths)
    if not whole or any(reference.kind != "state" for reference in template.references()):
        problems.append(
            f'$._after is {shorten(value, 80)}, but must be a list of output paths such as "†state.name", or ids of calls, each perhaps with "ended " before it'
        )
    for item in ids:
        if item == call_id:
            problems.append(f"$._after: {item} is the call itself")
        elif item.rpartition(".")[0] != call_id.rpartition(".")[0] and item not in joined:
            calls = ".0, .1, …" if "[" in call_id else f"{call_id.rpartition('.')[0]}.0, …"
            problems.append(
                f"$._after: {item} is not a call of this {'body' if '[' in call_id else 'plan'}; its calls are {calls}"
            )
    return CallOrder(template, ids), problems


def index_of(id: str) -> int:
    """Return the place of a call in its Request's list, or in its body."""
    return int(id.rpartition(".")[2])


def _in_body(item: Json, call_id: str) -> bool:
    return "[" in call_id and isinstance(item, str) and _BESIDE.fullmatch(item) is not None


def request_of(id: str) -> int:
    """Return the number of a call's Request."""
    return int(id.split(".")[0])


def is_order(edge: str) -> bool:
    """Whether an edge carries order only, and no data."""
    return all(each.startswith(AFTER_ID) for each in edge.split(", ")) if edge else False


def edge_name(reference: Reference) -> str:
    """Return the name of an edge of order; an edge of data has its reference instead."""
    return f"after {reference}"


Edge = tuple[int, int, Reference | str]
"""Writer, reader, and the reference between them, by index in the plan; an edge of order has a name in place of the
reference."""


def has_cycle(edges: Iterable[Edge]) -> bool:
    """Whether some calls wait for themselves. The search repeatedly removes calls that wait for none."""
    waits_for: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    for writer, reader, _ in edges:
        readers.setdefault(writer, []).append(reader)
        waits_for[reader] = waits_for.get(reader, 0) + 1
    free = [writer for writer in readers if writer not in waits_for]
    while free:
        for reader in readers.get(free.pop(), ()):
            waits_for[reader] -= 1
            if not waits_for[reader]:
                del waits_for[reader]
                free.append(reader)
    return bool(waits_for)


def find_cycles(edges: Iterable[Edge]) -> dict[int, list[Edge]]:
    """Return one cycle to show for each call on a cycle, by index; calls of one component may share it."""
    import networkx as nx  # a sixth of a command's start time; a worker loads it before its first task

    graph: nx.DiGraph[int] = nx.DiGraph()
    for writer, reader, reference in edges:
        if not graph.has_edge(writer, reader):
            graph.add_edge(writer, reader, reference=reference)
    cycles: dict[int, list[Edge]] = {}
    for knot in nx.strongly_connected_components(graph):
        if len(knot) > 1:
            # A component is a set of ints: sorted, so that a replay shows the same cycle.
            for member in sorted(knot):
                if member not in cycles:
                    cycle = _cycle_through(graph, member, knot)
                    for writer, _, _ in cycle:
                        cycles.setdefault(writer, cycle)
    return dict(sorted(cycles.items()))


def _cycle_through(graph: nx.DiGraph[int], start: int, knot: set[int]) -> list[Edge]:
    """Return a shortest cycle through `start`, by breadth-first search within its component."""
    came_from: dict[int, int] = {}
    frontier = [start]
    while frontier:
        following: list[int] = []
        for node in frontier:
            for successor in graph.successors(node):
                if successor == start:
                    back = [start]
                    while node != start:
                        back.append(node)
                        node = came_from[node]
                    ring = [start, *reversed(back)] if back[-1] != start else [start, *reversed(back[1:]), start]
                    return [(a, b, graph.edges[a, b]["reference"]) for a, b in pairwise(ring)]
                if successor in knot and successor not in came_from:
                    came_from[successor] = node
                    following.append(successor)
        frontier = following
    raise AssertionError("a member of a strongly connected component lies on a cycle")


_SHOWN_EDGES: Final = 8
"""Edges of a cycle that an error shows."""


def show_cycle(cycle: Sequence[Edge], start: int, names: Sequence[str]) -> str:
    """Return the cycle as text from the call `start` on, `1.0 a -†state.a→ 1.1 b -†state.b→ 1.0 a`; a long one is cut
    in the middle."""
    first = next(at for at, (writer, _, _) in enumerate(cycle) if writer == start)
    cycle = [*cycle[first:], *cycle[:first]]
    steps = [f"{names[writer]} -{clip(str(reference), 100)}→ " for writer, _, reference in cycle]
    if len(steps) > _SHOWN_EDGES:
        steps = [*steps[: _SHOWN_EDGES - 2], f"… {len(steps) - _SHOWN_EDGES + 1} more … → ", steps[-1]]
    return "".join(steps) + names[cycle[-1][1]]


@dataclass(slots=True, eq=False)
class CallNode:
    """A call with its dependencies and its readers."""

    call: Call
    bindings: dict[Reference, Binding] = field(default_factory=dict)
    order: dict[Reference, Binding] = field(default_factory=dict)
    """The paths that `_after` names (R5.11)."""
    ends: dict[Reference, Binding] = field(default_factory=dict)
    """The paths of `_after` whose writers only have to end, in any way."""
    after: Sequence[int] = ()
    """The indexes of the calls that `_after` names by id."""
    any_end: Set[int] = frozenset()
    """The calls of `after` that only have to end, in any way."""
    absent: Set[int] = frozenset()
    """The calls of `after` that have not arrived."""
    closed: bool = False
    """Whether no further call can arrive."""
    waiting: set[int] = field(default_factory=set)
    """Indexes of the bound writers that have not ended. Used for membership and emptiness only, never for its order."""
    readers: list[int] = field(default_factory=list)
    edges: int = 0
    """The number of edges that lead to it."""
    refused: bool = False
    """Whether the call was invalid before it ran, so that it never writes."""
    crowded: bool = False
    """Whether its edges exceeded the plan's limit: then it has none."""
    filed: list[tuple[Path, bool]] = field(default_factory=list)
    """The paths of its entries in `indexes`, and whether it sets each."""
    indexes: list[WriterIndex] = field(default_factory=list)
    """The indexes that have its writes: first that of its own Request, in which it searches backward."""

    @property
    def open(self) -> bool:
        """Whether a call that has not arrived may yet write a value that it reads or waits for."""
        if self.absent and not self.closed:
            return True
        for binding in self.bindings.values():  # loops: this runs each time that a call ends
            if binding.open:
                return True
        return bool(self.order or self.ends) and any(binding.open for binding in self.all_bindings())

    def decided(self, calls: Sequence[Call], checks: CheckBudget) -> Sources:
        """Return the provenance of the conditions that have kept calls that it depends on from writing (R15.1)."""
        bindings = [each for each in (*self.bindings.values(), *self.order.values()) if each.writers or each.turned]
        if not (bindings or self.after):
            return NOWHERE
        named = (calls[index] for index in self.after if index < len(calls) and index not in self.any_end)
        unmade = join_all(call.inputs.decided for call in named if call.state.status != "done")
        return join(unmade, join_all(each.decided(calls, checks) for each in bindings))

    @property
    def wired(self) -> bool:
        """Whether it reads, or waits for, a value that a call of the same plan writes or may write."""
        return bool(self.after) or any(binding.writers or binding.open for binding in self.all_bindings())

    def writers_of(self, reference: Reference) -> tuple[int, ...] | None:
        """Return the writers of a reference, or `None` while they are not all known."""
        binding = self.bindings.get(reference)
        return None if binding is None or binding.open or binding.forward else tuple(binding.writers)

    def all_bindings(self) -> Collection[Binding]:
        """Return the bindings of data, and those of order."""
        if not (self.order or self.ends):
            return self.bindings.values()
        return [*self.bindings.values(), *self.order.values(), *self.ends.values()]


class DependencyGraph:
    """The nodes and edges of one plan; `base` is the value of each kind when the plan was made, or its last Request
    began."""

    def __init__(self, base: Mapping[str, Json], request: int, checks: CheckBudget) -> None:
        self._checks = checks
        self.nodes: list[CallNode] = []
        self.base = base
        self._writers = WriterIndex()
        self._open: PathIndex[tuple[CallNode, Binding]] = PathIndex()
        self._awaited: dict[int, list[CallNode]] = {}
        """The nodes that wait, by `_after`, for a call that has not arrived, by its index."""
        self._final = False
        self._edges = 0
        self._begins = {request: 0}
        """Request → the index of its first call."""

    def begin(self, request: int, base: Mapping[str, Json]) -> None:
        """Begin the list of the next Request. Its calls see `base`, and the earlier calls that run or were kept
        (R10.5)."""
        self._begins[request] = len(self.nodes)
        self.base, self._final, self._writers = base, False, WriterIndex()
        self._awaited.clear()  # calls beyond the end of the last list are not among these
        live = [node for node in self.nodes if not node.call.state.ended]
        self._edges = sum(node.edges for node in live)
        for node in live:
            if not node.call.hold.held:
                self._file(node)

    def _file(self, node: CallNode) -> None:
        """Add the call's writes, so that calls of the running Request can read them."""
        if self._writers not in node.indexes:
            self._writers.move(node.call.index, (), node.filed)
            node.indexes.append(self._writers)

    def keep(self, call: Call) -> list[CallNode]:
        """Keep a held call under the running Request. Return the nodes without a writer that are now bound to it."""
        node = self.nodes[call.index]
        self._file(node)
        return self._bind_open(node)

    def forget(self, gone: Set[int], *, keeps_others: bool = True) -> None:
        """Drop these calls. A reader of a dropped call searches for another writer, unless it is dropped itself.

        `keeps_others`: see `Binding.lose`.
        """
        for node in self.nodes:
            if node.call.state.ended or node.call.index in gone:
                continue
            for binding in node.all_bindings():
                if not gone.isdisjoint(binding.writers):
                    binding.lose(gone, self._writers, [each.call for each in self.nodes], keeps_others=keeps_others)
                    self._note_open(node, binding)
                    self._wait_for(node, binding.writers)
            node.waiting -= set(gone).difference(node.after)

    def id_of(self, node: CallNode, index: int) -> str:
        """Return the id of a call in the list of the node's own Request, even beyond the list's end."""
        request = request_of(node.call.id)
        return f"{request}.{index - self._begins[request]}"

    def place_of(self, id: str) -> int:
        """Return the index of a call, also of one that has not arrived."""
        return self._begins[request_of(id)] + index_of(id)

    def add(self, call: Call) -> CallNode:
        """Add the next call of the list, bound to the calls before it."""
        node = CallNode(call)
        self.nodes.append(node)
        node.filed = _writes(call)
        node.indexes.append(self._writers)
        for path, sets in node.filed:
            self._writers.add(path, call.index, sets=sets)
        spec = call.spec
        for template in (spec.condition, spec.template, spec.soft):
            if template.sites and not self._bind(node, template, node.bindings):
                return node
        if (spec.after is not NO_ORDER or spec.after_end is not NO_ORDER) and not (
            self._bind(node, spec.after.paths, node.order, order=True)
            and self._bind(node, spec.after_end.paths, node.ends, order=True, any_end=True)
            and self._bind_ids(node, spec.after.ids, spec.after_end.ids)
        ):
            return node
        self._wait_for_all(node)
        return node

    def _bind(
        self,
        node: CallNode,
        template: Template,
        bindings: dict[Reference, Binding],
        *,
        order: bool = False,
        any_end: bool = False,
    ) -> bool:
        """Bind the references of a template. Return whether there is room for their edges."""
        call = node.call
        for reference in template.references():
            if reference not in bindings:
                base = self.base.get(reference.kind, MISSING)
                binding = Binding(reference, call.index, base, order=order, any_end=any_end)
                keeps = template is call.spec.soft or (
                    call.spec.tool is LET and self._checks.is_patched(LETS_LOOK_BACK)
                )
                binding.back = keeps and _writes_at(node, reference)
                binding.bind(self._writers)
                bindings[reference] = binding
                self._note_open(node, binding)
                if binding.writers and not self._count(node, len(binding.writers)):
                    return False
        return True

    def _bind_ids(self, node: CallNode, succeeded: Sequence[str], ended: Sequence[str]) -> bool:
        """Bind the node to the calls that `_after` names by id, as `succeeded` or only `ended`. Return whether their edges have
        room.
        """
        ids = [*succeeded, *ended]
        if not self._count(node, len(ids)):
            return False
        node.any_end = {*map(self.place_of, ended)}.difference(map(self.place_of, succeeded))
        node.after = list(dict.fromkeys(map(self.place_of, ids)))
        node.absent = {index for index in node.after if index >= len(self.nodes)}
        for index in node.after:
            if index in node.absent:
                self._awaited.setdefault(index, []).append(node)
        return True

    def _count(self, node: CallNode, more: int) -> bool:
        """Add the edges of a node to the sum, if there is room. Otherwise the node loses its edges (R18.5)."""
        if self._edges + more <= MAX_EDGES:
            self._edges, node.edges = self._edges + more, node.edges + more
            return True
        self._edges -= node.edges
        for binding in node.all_bindings():
            binding.open = False
        for bindings in (node.bindings, node.order, node.ends):
            bindings.clear()
        node.after, node.absent = (), frozenset()
        node.waiting.clear()
        node.edges, node.crowded = 0, True
        return False

    def refile(self, call: Call) -> list[CallNode]:
        """Replace the call's writes after a person changed them. Return the nodes without a writer that are now bound
        to it.
        """
        node = self.nodes[call.index]
        before, node.filed = node.filed, _writes(call)
        for writers in node.indexes:
            writers.move(call.index, before, node.filed)
        return self._bind_open(node) if self._writers in node.indexes else []

    def _bind_open(self, node: CallNode) -> list[CallNode]:
        bound: list[CallNode] = []
        for path, _ in node.filed:
            for reader, binding in [each for at in self._open_near(path) for each in at]:
                if binding.open and not binding.writers and reader is not node:
                    binding.bind_anew(self._writers)
                    if not binding.open:
                        self._wait_for(reader, binding.writers)
                        bound.append(reader)
        return bound

    def _open_near(self, path: Path) -> list[list[tuple[CallNode, Binding]]]:
        above, below = self._open.near(path)
        return above + below

    def rebind_open(self, writer: Call) -> list[CallNode]:
        """Bind earlier readers that wait for a later writer to the new call. Return the bound readers."""
        bound = self._awaited.pop(writer.index, [])
        for node in bound:
            node.absent -= {writer.index}
            self._wait_for(node, [writer.index])
        if writer.spec.method != "set":
            return bound
        for path, _ in self.nodes[writer.index].filed:
            for waiting in self._open_near(path):
                for node, binding in waiting:
                    if binding.open and node.call is not writer:
                        before = len(binding.writers)
                        binding.bind_forward(self._writers, final=False)
                        if not binding.open:
                            if self._count(node, len(binding.writers) - before):
                                self._wait_for(node, binding.writers)
                            bound.append(node)
                waiting[:] = [(node, binding) for node, binding in waiting if binding.open]
        return bound

    def close(self) -> list[CallNode]:
        """Close the list: no further call arrives. Return the nodes that were still open, now bound to the existing
        writers.
        """
        self._final = True
        still_open = [node for node in self.nodes if node.open]
        for node in still_open:
            node.closed = True
            for binding in [binding for binding in node.all_bindings() if binding.open]:
                before = len(binding.writers)
                binding.bind_forward(self._writers, final=True)
                if not self._count(node, len(binding.writers) - before):
                    break
            self._wait_for_all(node)
        return still_open

    def end(self, call: Call) -> list[CallNode]:
        """Record that a call has ended. Return the readers that no longer wait."""
        free: list[CallNode] = []
        for index in self.nodes[call.index].readers:
            node = self.nodes[index]
            node.waiting.discard(call.index)
            if not (node.waiting or node.open):
                free.append(node)
        return free

    def move_on(self, node: CallNode, binding: Binding) -> bool:
        """Bind to the next writers after one that took another branch. Return whether there are or may be any."""
        # Earlier writers belong to its own list; later ones belong to the running Request.
        writers = self._writers if binding.forward else node.indexes[0]
        moved = binding.move_on(writers, [node.call for node in self.nodes], final=self._final)
        self._note_open(node, binding)
        self._wait_for(node, binding.writers)
        return moved

    def binding_at_end(self, reference: Reference, calls: Sequence[Call]) -> Binding:
        """Return the binding of a call at the end of the list, once all calls have ended (R6.4)."""
        binding = self._bound_at_end(reference)
        while binding.looks_on(calls):
            binding.exhausted = not binding.move_on(self._writers, calls, final=True)
        return binding

    def final_binding(self, reference: Reference, calls: Sequence[Call]) -> Binding | None:
        """Return what `binding_at_end` returns; `None` while it depends on a call that has not ended.

        The list must be closed.
        """
        binding = self._bound_at_end(reference)
        while all(calls[index].state.ended for index in binding.writers):
            if not binding.looks_on(calls):
                return binding
            binding.exhausted = not binding.move_on(self._writers, calls, final=True)
        return None

    def _bound_at_end(self, reference: Reference) -> Binding:
        end = len(self.nodes)
        binding = Binding(reference, end, self.base.get(reference.kind, MISSING), reach=end)
        if reference.kind == "state":
            binding.bind_backward(self._writers)
        return binding

    def edges(self, *, first: bool = False) -> Iterator[Edge]:
        """Yield writer, reader and the reference between them, or the name of the order, in the order of the readers;
        with `first`, the edges before any writer was passed over.
        """
        for node in self.nodes:
            for reference, binding in node.bindings.items():
                for writer in binding.first if first else binding.writers:
                    yield writer, node.call.index, reference
            for reference, binding in (*node.order.items(), *node.ends.items()):
                past = first and binding.any_end
                for writer in (
                    self._past_refused(node, binding) if past else binding.first if first else binding.writers
                ):
                    yield writer, node.call.index, edge_name(reference)
            for index in node.after:
                if index not in node.absent:
                    yield index, node.call.index, AFTER_ID

    def _past_refused(self, node: CallNode, binding: Binding) -> list[int]:
        """Return the writers that have to end, according to the list; refused writers have ended, so those beyond them
        count too.
        """
        found, path = list(binding.first), binding.reference.path
        covered = bool(found)
        while covered and all(self.nodes[index].refused for index in found):
            if binding.forward:
                more, covered = self._writers.after(path, max(found))
            else:
                more, covered = node.indexes[0].before(path, min(found))
            found += more
        return found

    def writers_for(self, node: CallNode) -> WriterIndex:
        """Return the writers among which the call finds those that it reads."""
        return node.indexes[0]

    def _note_open(self, node: CallNode, binding: Binding) -> None:
        if binding.open:
            self._open.add(binding.reference.path, (node, binding))

    def _wait_for_all(self, node: CallNode) -> None:
        for binding in node.all_bindings():
            if binding.writers:
                self._wait_for(node, binding.writers)
        if node.after:
            self._wait_for(node, [index for index in node.after if index not in node.absent])

    def _wait_for(self, node: CallNode, writers: Iterable[int]) -> None:
        for writer in writers:
            if writer not in node.waiting and not self.nodes[writer].call.state.ended:
                node.waiting.add(writer)
                self.nodes[writer].readers.append(node.call.index)


def _writes_at(node: CallNode, reference: Reference) -> bool:
    return reference.kind == "state" and any(overlaps(path, reference.path) for path, _ in node.filed)


def _writes(call: Call) -> list[tuple[Path, bool]]:
    """Return the paths that the call may write, each once, and whether it sets each."""
    paths = chain(chain.from_iterable(call.spec.paths), () if call.spec.loop is None else call.spec.loop.tallies)
    return [(path, stands_alone(call.spec.method, path)) for path in dict.fromkeys(paths)]
