"""Drawings: who stands where."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from perdure.run.views.layers import layered


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    count = draw(st.integers(1, 12))
    node = st.integers(0, count - 1)
    edges = st.tuples(node, node).filter(lambda edge: edge[0] != edge[1])
    return count, draw(st.lists(edges, max_size=20, unique=True))


@given(graphs())
def test_readers_stand_after_what_they_read_and_nobody_over_another(graph: tuple[int, list[tuple[int, int]]]) -> None:
    count, edges = graph
    places = layered(count, edges)
    assert len(places) == count
    for (layer, at), (other, there) in itertools.combinations(places, 2):
        assert layer != other or abs(at - there) > 0.999
    assert all(at >= 0 for _, at in places)
    if all(writer < reader for writer, reader in edges):  # no cycle
        assert all(places[writer][0] < places[reader][0] for writer, reader in edges)


def test_edges_do_not_cross_where_they_need_not() -> None:
    places = layered(6, [(0, 5), (1, 4), (2, 3)])
    order = [sorted(range(3), key=lambda n: places[n][1]), sorted(range(3, 6), key=lambda n: places[n][1])]
    assert [5 - node for node in order[1]] == order[0]


def test_a_chain_is_straight_and_a_long_edge_goes_around_it() -> None:
    places = layered(4, [(0, 1), (1, 2), (2, 3), (0, 3)])
    assert [layer for layer, _ in places] == [0, 1, 2, 3]
    assert places[1][1] == places[2][1]
    assert layered(0, []) == []
