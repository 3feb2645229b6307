"""Drawings: who stands where, what goes around whom, and whether it can be read."""

from __future__ import annotations

import itertools
import re

from hypothesis import given
from hypothesis import strategies as st

from perdure.runs.diagrams import (
    COLOURS,
    HEIGHT,
    Drawing,
    DrawnNode,
    draw_run,
    laid_out,
    place_drawing,
    to_svg,
    turned_picture,
)
from perdure.runs.wire import CallView, RunView


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    count = draw(st.integers(1, 12))
    node = st.integers(0, count - 1)
    edges = st.tuples(node, node).filter(lambda edge: edge[0] != edge[1])
    return count, draw(st.lists(edges, max_size=20, unique=True))


def drawing_of(count: int, edges: list[tuple[int, int]]) -> Drawing:
    nodes = [DrawnNode(f"1.{n}", "tool" * (n % 3 + 1), "done") for n in range(count)]
    return Drawing(nodes, [(f"1.{a}", f"1.{b}", f"†state.x{a % 2}{b % 3}") for a, b in edges])


@given(graphs())
def test_readers_stand_after_what_they_read_and_nobody_over_another(graph: tuple[int, list[tuple[int, int]]]) -> None:
    count, edges = graph
    places = laid_out(count, edges).places
    assert len(places) == count
    for (layer, at), (other, there) in itertools.combinations(places, 2):
        assert layer != other or abs(at - there) > 0.999
    assert all(at >= 0 for _, at in places)
    if all(writer < reader for writer, reader in edges):  # no cycle
        assert all(places[writer][0] < places[reader][0] for writer, reader in edges)


def test_edges_do_not_cross_where_they_need_not() -> None:
    places = laid_out(6, [(0, 5), (1, 4), (2, 3)]).places
    order = [sorted(range(3), key=lambda n: places[n][1]), sorted(range(3, 6), key=lambda n: places[n][1])]
    assert [5 - node for node in order[1]] == order[0]


def test_a_chain_is_straight_and_a_long_edge_goes_around_it() -> None:
    places = laid_out(4, [(0, 1), (1, 2), (2, 3), (0, 3)]).places
    assert [layer for layer, _ in places] == [0, 1, 2, 3]
    assert places[1][1] == places[2][1]
    assert laid_out(0, []).places == []


@given(graphs())
def test_no_edge_passes_behind_a_box(graph: tuple[int, list[tuple[int, int]]]) -> None:
    count, edges = graph
    drawn = place_drawing(drawing_of(count, edges))
    assert len(drawn.lines) == len(edges)
    for line in drawn.lines if all(writer < reader for writer, reader in edges) else ():
        for (x, y), (to_x, to_y) in itertools.pairwise(line.points):
            assert x <= to_x
            for left, top, width in drawn.boxes:
                over = x < left + width - 1 and to_x > left + 1
                assert not over or max(y, to_y) <= top or min(y, to_y) >= top + HEIGHT, (line, left, top)
    assert all(x + width <= drawn.size[0] and y + HEIGHT <= drawn.size[1] for x, y, width in drawn.boxes)


def test_what_flows_is_said_once_beside_where_it_begins() -> None:
    edges = [
        ("1.0", "1.1", "†state.a"),
        ("1.0", "1.2", "†state.a"),
        ("1.0", "1.3", "†state.b"),
        ("1.1", "1.3", "after 1.1"),
    ]
    svg = to_svg(Drawing([DrawnNode(f"1.{n}", "t", "done") for n in range(4)], edges))
    assert re.findall(r'class="flows"[^>]*>([^<]*)<', svg) == ["†state.a", "†state.b", "after 1.1"]
    assert svg.count("stroke-dasharray") == 1


def test_words_are_read_on_their_colours() -> None:
    def light(colour: str) -> float:
        parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    pairs = [*COLOURS.values(), *((fill, "#222222") for fill, _ in COLOURS.values()), ("#ffffff", "#555555")]
    poor = [pair for pair in pairs if (light(pair[0]) + 0.05) / (light(pair[1]) + 0.05) < 4.5]
    assert poor == []


@given(graphs())
def test_a_turned_drawing_leads_down_and_passes_no_edge_behind_a_box(graph: tuple[int, list[tuple[int, int]]]) -> None:
    count, edges = graph
    drawn = turned_picture(drawing_of(count, edges))
    assert len(drawn.lines) == len(edges)
    for line in drawn.lines if all(writer < reader for writer, reader in edges) else ():
        for (x, y), (to_x, to_y) in itertools.pairwise(line.points):
            assert y <= to_y
            for left, top, width in drawn.boxes:
                over = y < top + HEIGHT - 1 and to_y > top + 1
                assert not over or max(x, to_x) <= left or min(x, to_x) >= left + width, (line, left, top)
    assert all(x >= 0 and x + width <= drawn.size[0] and y + HEIGHT <= drawn.size[1] for x, y, width in drawn.boxes)


def test_a_wide_drawing_is_turned_where_that_is_narrower() -> None:
    nodes = [DrawnNode(f"1.{n}", "tool", "done") for n in range(6)]
    chain = Drawing(nodes, [(f"1.{n}", f"1.{n + 1}", "") for n in range(5)])
    beside = Drawing(nodes, [])
    across, down = place_drawing(chain).size[0], turned_picture(chain).size[0]
    assert down < 200 < across
    assert f'width="{down:.0f}"' in to_svg(chain, most=200)
    assert f'width="{across:.0f}"' in to_svg(chain, most=across)
    assert f'width="{across:.0f}"' in to_svg(chain)
    assert f'width="{place_drawing(beside).size[0]:.0f}"' in to_svg(beside, most=50)


def ended(id: str, status: str = "done", at: int = 0) -> CallView:
    return CallView(id=id, tool="t", params={}, status=status, ended_at=f"2026-11-26T10:00:{at:02}+00:00")


def test_a_value_of_an_earlier_request_has_an_edge() -> None:
    writes = {
        "1.0": "†state.before",
        "1.1": "†state.large",
        "1.2": "†state.dump",
        "1.3": "†state.kept || †state.failed",
        "2.0": "†state.dump",
        "2.1": "†state.large[0].size",
    }
    reads = {
        "2.0": ["†state.large[0].path", "†input.folder"],
        "2.2": ["†state.dump", "†state.before", "†state.kept", "†state.failed.code"],
        "3.0": ["†state.large", "†state.dump"],
        "4.0": ["†state.none"],
    }
    calls = [ended("1.0"), ended("1.1"), ended("1.2", "failed"), ended("1.3", "failed"), ended("2.0"), ended("2.1")]
    view = RunView(
        run_id="r",
        calls=[*calls, ended("2.2"), ended("3.0"), ended("4.0", "pending")],
        reads=reads,
        writes=writes,
        edges=[("2.0", "2.2", "†state.dump")],
    )
    assert sorted(draw_run(view).edges) == [
        ("1.0", "2.2", "†state.before"),
        ("1.1", "2.0", "†state.large[0].path"),
        ("1.1", "3.0", "†state.large"),
        ("1.3", "2.2", "†state.failed.code"),
        ("2.0", "2.2", "†state.dump"),
        ("2.0", "3.0", "†state.dump"),
        ("2.1", "3.0", "†state.large"),
    ]


def test_the_newest_call_that_sets_a_path_is_its_writer() -> None:
    calls = [ended("1.0", at=2), ended("1.1", at=1), ended("2.0", at=3)]
    writes = {"1.0": "†state.x", "1.1": "†state.x", "2.0": "†state.x"}
    view = RunView(run_id="r", calls=calls, reads={"2.0": ["†state.x"]}, writes=writes)
    assert draw_run(view).edges == [("1.0", "2.0", "†state.x")]
