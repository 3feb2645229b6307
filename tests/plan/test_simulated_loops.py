"""A dry run of loops and conditions: what is known, what is assumed, and how long it takes (R5.6, R16.5)."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from perdure.plan import Call, Plan, Simulation, simulate
from perdure.runs.diagrams import HEIGHT, draw_plan, draw_run, place_drawing, to_mermaid, to_svg
from perdure.runs.records import call_view
from perdure.runs.wire import RunView
from perdure.values.provenance import SourceTable
from perdure.values.sizes import Sizes
from perdure.values.state import State, Write
from tests.plan.test_loops import TOOLS, Ran

CHECK = {"_tool": "check", "host": "†item", "_outputPath": "†state.got"}
HOSTS = {"_tool": "hosts", "_outputPath": "†state.hosts"}
SECONDS = dict.fromkeys(TOOLS, 2.0)


def dry(calls: list[Any], assume: dict[str, str] | None = None, **more: Any) -> Simulation:
    state = State([Write(path=(), value=more.pop("state"))] if "state" in more else [])
    plan = Plan(1, tools=TOOLS, state=state, data={"input": {"n": 3}}, dry_run=True, **more)
    return simulate(plan, calls, durations=SECONDS, assume=assume, asks=lambda call: call.spec.tool_name == "fix")


@pytest.mark.parametrize(
    ("calls", "assume", "state", "makespan", "total"),
    [
        ([CHECK | {"_each": ["a"] * 20}], {}, {}, 6.0, 40.0),
        ([CHECK | {"_each": ["a"] * 20, "_parallel": 5}], {}, {}, 8.0, 40.0),
        ([CHECK | {"_each": "†state.hosts"}], {}, {"hosts": ["a", "b"]}, 2.0, 4.0),
        ([CHECK | {"_each": {"_expr": "state.hosts[:3]"}}], {}, {"hosts": ["a"] * 9}, 2.0, 6.0),
        ([HOSTS, CHECK | {"_each": "†state.hosts"}], {"len(†state.hosts)": "12"}, {}, 6.0, 26.0),
        (
            [HOSTS, CHECK | {"_each": {"_expr": "[h for h in state.hosts if h.on]"}}],
            {"len(†state.hosts)": "12"},
            {},
            6.0,
            26.0,
        ),
        ([HOSTS, CHECK | {"_each": "†state.hosts"}], {"1.1": "9"}, {}, 6.0, 20.0),
        ([CHECK | {"_tool": "alone", "_each": ["a"] * 3}], {}, {}, 6.0, 6.0),
        ([{"_tool": "check", "_until": "†output.done"}], {"1.0": "4"}, {}, 8.0, 8.0),
        (
            [HOSTS, CHECK | {"_each": "†state.hosts"}, CHECK | {"_each": "†state.got"}],
            {"len(†state.hosts)": "16"},
            {},
            10.0,
            66.0,
        ),
    ],
)
def test_how_long_a_loop_takes(
    calls: list[Any], assume: dict[str, str], state: dict[str, Any], makespan: float, total: float
) -> None:
    found = dry(calls, assume, state=state)
    assert (found.makespan, found.total) == (makespan, total)


def test_so_many_at_once_bound_a_loop() -> None:
    assert dry([CHECK | {"_each": ["a"] * 8}], parallel=2).makespan == 8.0


@pytest.mark.parametrize(
    ("condition", "assume", "status"),
    [
        ("len(state.known) > 1", {}, "done"),
        ("len(state.known) > 2", {}, "skipped"),
        ("state.hosts", {}, "done"),  # nobody knows
        ("state.hosts", {"1.1": "false"}, "skipped"),
        ("len(state.hosts) > 10 and input.n == 3", {"len(†state.hosts)": "12"}, "done"),
        ("len(†state.hosts) > 10", {"len(†state.hosts)": "9"}, "skipped"),
        ("len(state.hosts) > 10 and state.hosts[0] == 1", {"len(†state.hosts)": "9"}, "done"),
        ("1 / len(state.none) > 1", {}, "invalid"),
    ],
)
def test_a_condition_goes_by_what_is_known_or_assumed(condition: str, assume: dict[str, str], status: str) -> None:
    call = {"_tool": "check", "_if": condition}
    found = dry([HOSTS, call], assume, state={"known": ["a", "b"], "none": []})
    assert found.steps[1].status == status


def test_a_dry_run_computes_no_formula_once_the_formulas_have_taken_their_steps() -> None:
    plan = Plan(1, tools={}, state=State(), dry_run=True)
    simulate(plan, [{"_tool": "_let", "value": 1, "_if": "len([0 for i in range(9000)]) < 0"}] * 60)
    statuses = [call.state.status for call in plan.calls]
    assert 1 < statuses.count("skipped") < 10
    assert statuses == sorted(statuses, reverse=True)  # the first ones are computed


def test_a_body_is_played_once_and_counts_as_often_as_it_goes_round() -> None:
    body = [
        {"_tool": "check", "host": "†item", "_outputPath": "†state.load"},
        {"_tool": "fix", "host": "†state.load", "_if": "index > 2", "_outputPath": "†state.up"},
        {"_tool": "_for", "_each": "†state.load.disks", "_as": "disk", "_body": [{"_tool": "report", "x": "†disk"}]},
    ]
    calls = [HOSTS, {"_tool": "_for", "_each": "†state.hosts", "_body": body}, {"_tool": "report", "x": "†state.up"}]
    found = dry(calls, {"len(†state.hosts)": "16", "len(†state.load.disks)": "4"})
    loop = found.steps[1]
    assert (loop.times, loop.guessed, loop.asks, loop.level) == (16, False, True, 2)
    assert loop.inside is not None
    assert [step.call.id for step in loop.inside.steps] == ["1.1[0].0", "1.1[0].1", "1.1[0].2"]
    assert loop.inside.makespan == 4.0
    assert found.makespan == 2.0 + 2 * 4.0 + 2.0
    assert found.total == 2.0 + 16 * (2.0 + 2.0 + 4 * 2.0) + 2.0
    assert all(call.state.error is None for call in (step.call for step in found.steps))


def test_an_assumed_outcome_inside_of_a_loop() -> None:
    body = [{"_tool": "check", "_outputPath": "†state.a"}, {"_tool": "fix", "host": "†state.a"}]
    found = dry([{"_tool": "_for", "_each": [1], "_body": body}], {"1.0[0].0": "failed"})
    assert found.steps[0].inside is not None
    assert [step.status for step in found.steps[0].inside.steps] == ["failed", "skipped"]


BODY: list[dict[str, Any]] = [
    {"_tool": "check", "host": "†h.name", "_outputPath": "†state.load"},
    {"_tool": "fix", "host": "†state.load.name", "_if": "state.load.cpu > 90", "_outputPath": "†state.up"},
    {"_tool": "_for", "_each": "†state.load.disks", "_as": "disk", "_body": [{"_tool": "report", "x": "†disk"}]},
]
DRAWN: list[dict[str, Any]] = [
    HOSTS,
    {"_tool": "_for", "_each": {"_expr": "[h for h in state.hosts if h.on]"}, "_as": "h", "_body": BODY},
    {"_tool": "report", "x": "†state.up", "_if": "len(state.hosts) > 3"},
]


def test_a_loop_is_a_box_with_its_body_inside_and_a_condition_an_edge_with_its_text() -> None:
    plan = Plan(1, tools=TOOLS, state=State(), dry_run=True)
    plan.extend(DRAWN)
    plan.close()
    drawing = draw_plan(plan)
    loop = drawing.nodes[1]
    assert loop.label == "1.1 for h in [h for h in state.hosts if h.on]"
    assert loop.body is not None
    assert [node.label for node in loop.body.nodes] == [
        "1.1[].0 check",
        "1.1[].1 fix",
        "1.1[].2 for disk in †state.load.disks",
    ]
    assert loop.body.edges[0] == ("1.1[].0", "1.1[].1", "if state.load.cpu > 90, †state.load.name")
    assert ("1.0", "1.2", "if len(state.hosts) > 3") in drawing.edges
    mermaid = to_mermaid(drawing)
    assert 'subgraph c1_1["1.1 for h in [h for h in state.hosts if h.on]"]' in mermaid
    assert "class c1_1 pending" in mermaid
    drawn = place_drawing(drawing)
    (x, y, width), high, inner = drawn.boxes[1], drawn.heights[1], drawn.inner[1]
    assert inner is not None
    assert (width, high) >= inner.size
    assert not any(
        left < x + width and x < left + wide and top < y + high and y < top + HEIGHT
        for n, (left, top, wide) in enumerate(drawn.boxes)
        if n != 1
    )
    ElementTree.fromstring(to_svg(drawing, lit=["1.1[7].1"]))
    assert 'stroke-width="4"' in to_svg(drawing, lit=["1.1[7].1"])


def test_a_run_draws_what_a_loop_made_once() -> None:
    ran = Ran([DRAWN[0], CHECK | {"host": "{†index}", "_each": "†state.hosts"}, {**DRAWN[1], "_body": BODY[:2]}], found)
    calls = [call_view(call, Sizes(), SourceTable()) for call in ran.plan.every_call()]
    drawing = draw_run(RunView(run_id="r", calls=calls, edges=ran.plan.named_edges()))
    assert [(node.label, node.status) for node in drawing.nodes] == [
        ("1.0 hosts", "done"),
        ("1.1 check ×3", "done"),
        ("1.2 _for", "done"),
    ]
    body = drawing.nodes[2].body
    assert body is not None
    assert [(node.label, node.status) for node in body.nodes] == [
        ("1.2[].0 check ×3", "done"),
        ("1.2[].1 fix ×3", "failed"),
    ]
    assert body.edges == [("1.2[].0", "1.2[].1", "†state.load.cpu, †state.load.name")]


def found(call: Call) -> Any:
    if call.spec.tool_name == "hosts":
        return [{"on": True, "name": f"h{n}"} for n in range(3)]
    if call.spec.tool_name == "fix":
        return RuntimeError("broke")
    return {"name": "x", "cpu": 99}
