"""Where the calls of a drawing stand: in layers from writers to readers, with few edges that cross."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Final, NamedTuple, TypeAlias

import networkx

SWEEPS: Final = 8
"""Times that the layers are put in order, to and fro; more change little."""


Place: TypeAlias = tuple[int, float]
"""A layer, and a place in it."""


class Layout(NamedTuple):
    places: list[Place]
    """Of each node."""
    routes: dict[tuple[int, int], list[Place]]
    """Where an edge passes the layers between its ends, by these; one that closes a cycle is not among them."""


def layered(count: int, edges: Iterable[tuple[int, int]]) -> list[Place]:
    """Layer and place in it of each node, both from 0, places at least 1 apart."""
    return laid_out(count, edges).places


def laid_out(count: int, edges: Iterable[tuple[int, int]]) -> Layout:
    """Where nodes stand, places at least 1 apart, and edges pass.

    A reader stands in a later layer than all that it reads; of a cycle an edge is left out of account. An edge over several
    layers has a place in each between them, so that nothing is drawn over it.
    """
    graph = _acyclic(count, edges)
    layers = [list(layer) for layer in networkx.topological_generations(graph)]
    layer_of = {node: number for number, layer in enumerate(layers) for node in layer}
    before: dict[int, list[int]] = {node: [] for node in layer_of}
    for writer in range(count):
        _lead(writer, sorted(graph.successors(writer)), layer_of, layers, before)
    after: dict[int, list[int]] = {node: [] for node in before}
    for reader, writers in before.items():
        for writer in writers:
            after[writer].append(reader)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for one, other in _neighbours(layers, down=down):
            _order(one, other, before if down else after)
    places: dict[int, float] = {}
    for layer in layers:
        places |= _spread(layer, before, places)
    lowest = min(places.values(), default=0.0)
    at = {node: (layer_of[node], place - lowest) for node, place in places.items()}
    routes = {edge: [at[node] for node in _between(*edge, before, count)] for edge in graph.edges}
    return Layout([at[node] for node in range(count)], routes)


def _between(writer: int, reader: int, before: Mapping[int, list[int]], count: int) -> list[int]:
    """The places that were kept for an edge, in its direction."""
    for last in before[reader]:
        passed = []
        while last >= count:  # what comes after the nodes are places alone, each with one before it
            passed.append(last)
            last = before[last][0]
        if last == writer:
            return passed[::-1]
    return []


def _acyclic(count: int, edges: Iterable[tuple[int, int]]) -> networkx.DiGraph[int]:
    graph: networkx.DiGraph[int] = networkx.DiGraph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(edges)
    if networkx.is_directed_acyclic_graph(graph):
        return graph
    kept: networkx.DiGraph[int] = networkx.DiGraph()
    kept.add_nodes_from(range(count))
    for writer, reader in graph.edges:
        if not networkx.has_path(kept, reader, writer):
            kept.add_edge(writer, reader)
    return kept


def _lead(
    writer: int, readers: Sequence[int], layer_of: dict[int, int], layers: list[list[int]], before: dict[int, list[int]]
) -> None:
    """Keep a place for the writer's edges in every layer on their way, one for all of them."""
    last, at = writer, layer_of[writer]
    for reader in sorted(readers, key=lambda reader: layer_of[reader]):
        while at < layer_of[reader] - 1:
            at += 1
            place = len(layer_of)
            layer_of[place] = at
            layers[at].append(place)
            before[place] = [last]
            last = place
        before[reader].append(last)


def _neighbours(layers: list[list[int]], *, down: bool) -> Iterable[tuple[list[int], list[int]]]:
    """Each layer with the one that it is put in order by."""
    if down:
        return zip(layers[1:], layers, strict=False)
    return zip(reversed(layers[:-1]), reversed(layers), strict=False)


def _order(layer: list[int], by: list[int], neighbours: Mapping[int, list[int]]) -> None:
    """Each node where its neighbours are in the middle; one without any stays where it is."""
    place = {node: float(number) for number, node in enumerate(by)}
    wanted = {
        node: fmean([place[other] for other in neighbours[node]]) if neighbours[node] else float(number)
        for number, node in enumerate(layer)
    }
    layer.sort(key=lambda node: wanted[node])


def _spread(layer: list[int], before: Mapping[int, list[int]], places: Mapping[int, float]) -> dict[int, float]:
    """Places for an ordered layer: beside what is read where there is room, at least 1 apart."""
    wanted = [fmean([places[n] for n in before[node]]) if before[node] else None for node in layer]
    found: list[float] = []
    for number, place in enumerate(wanted):
        least = found[-1] + 1 if found else -float("inf")
        found.append(max(least, place if place is not None else (least if number else 0.0)))
    off = [place - at for place, at in zip(wanted, found, strict=True) if place is not None]
    shift = fmean(off) if off else 0.0
    return {node: at + shift for node, at in zip(layer, found, strict=True)}
