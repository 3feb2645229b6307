"""Cycles of a plan, and how to show one (R5.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import networkx as nx

from perdure.errors import clip
from perdure.values.references import Reference

Edge = tuple[int, int, Reference | str]
"""Writer, reader, and what the reader reads, by index in the plan; of an edge of order its name."""


def has_cycle(edges: Iterable[Edge]) -> bool:
    """Whether some calls wait for themselves: found out by taking away, again and again, those that wait for nobody."""
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
    """For each call on a cycle, by index, one cycle to show; calls of one knot may share it."""
    graph: nx.DiGraph[int] = nx.DiGraph()
    for writer, reader, reference in edges:
        if not graph.has_edge(writer, reader):
            graph.add_edge(writer, reader, reference=reference)
    cycles: dict[int, list[Edge]] = {}
    for knot in nx.strongly_connected_components(graph):
        if len(knot) > 1:
            # A knot is a set of ints: sorted, so that a replay shows the same cycle.
            for member in sorted(knot):
                if member not in cycles:
                    cycle = _cycle_through(graph, member, knot)
                    for writer, _, _ in cycle:
                        cycles.setdefault(writer, cycle)
    return dict(sorted(cycles.items()))


def _cycle_through(graph: nx.DiGraph[int], start: int, knot: set[int]) -> list[Edge]:
    """A shortest cycle through `start`, by breadth-first search within its knot."""
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


def show_cycle(cycle: Sequence[Edge], start: int, names: Sequence[str], limit: int = 8) -> str:
    """`1.0 a -†state.a→ 1.1 b -†state.b→ 1.0 a`, beginning at the call `start`; a long one is cut in the middle."""
    first = next(at for at, (writer, _, _) in enumerate(cycle) if writer == start)
    cycle = [*cycle[first:], *cycle[:first]]
    steps = [f"{names[writer]} -{clip(str(reference), 100)}→ " for writer, _, reference in cycle]
    if len(steps) > limit:
        steps = [*steps[: limit - 2], f"… {len(steps) - limit + 1} more … → ", steps[-1]]
    return "".join(steps) + names[cycle[-1][1]]
