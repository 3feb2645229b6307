"""Instances: one plan over many independent contexts (R8.8)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import CallError
from perdure.plan import Failed, Plan, Returned
from perdure.runs.agent import Context, parse_agent
from perdure.tools.tool import parse_tool
from perdure.values.state import State, Write

TOOL = parse_tool({"name": "t", "additionalProperties": True, "_activity": "t"}, activities=["t"])
KEYS = ("x", "y", "z")


def run(calls: list[dict[str, Any]], state: dict[str, Any], instances: list[str]) -> tuple[Plan, dict[str, Any]]:
    """Play the calls; a call returns its own number and what it read."""
    initial = State([Write(path=(), value=state)])
    plan = Plan(1, tools={"t": TOOL}, state=initial, instances=instances, data={"note": {"x": "shared"}})
    for raw in calls:
        plan.add(raw)
    plan.close()
    while ready := plan.take_ready():
        for call in ready:
            plan.end(call, Returned([call.inputs.params.get("n"), call.inputs.params.get("read")]))
    return plan, initial.snapshot()


@st.composite
def plans(draw: st.DrawFn) -> list[tuple[str, dict[str, Any]]]:
    """Calls of two instances, mixed."""
    calls = []
    for n in range(draw(st.integers(1, 10))):
        call: dict[str, Any] = {"_tool": "t", "n": n}
        if draw(st.booleans()):
            call["read"] = f"†state.{draw(st.sampled_from(KEYS))}"
        if draw(st.booleans()):
            call["_outputPath"] = f"†state.{draw(st.sampled_from(KEYS))}"
        if draw(st.booleans()):
            call["_outputMethod"] = draw(st.sampled_from(["set", "push"]))
        calls.append((draw(st.sampled_from(["a", "b"])), call))
    return calls


@given(plans(), st.dictionaries(st.sampled_from(KEYS), st.lists(st.integers(), max_size=2), max_size=3))
def test_r8_8_an_instance_runs_as_if_it_were_alone(
    mixed: list[tuple[str, dict[str, Any]]], own: dict[str, Any]
) -> None:
    together, state = run(
        [{**call, "_instance": name} for name, call in mixed], {"@a": own, "@b": {"x": ["other"]}}, ["a", "b"]
    )
    of_a = [index for index, (name, _) in enumerate(mixed) if name == "a"]
    alone, state_alone = run([{**mixed[index][1], "_instance": "a"} for index in of_a], {"@a": own}, ["a"])
    assert [together.calls[index].state.status for index in of_a] == [call.state.status for call in alone.calls]
    assert [together.calls[index].inputs.params for index in of_a] == [call.inputs.params for call in alone.calls]
    assert state["@a"] == state_alone["@a"]


def test_r8_8_one_solution_over_a_hundred_instances() -> None:
    names = [f"host{n}" for n in range(100)]
    state = {"common": "all", **{f"@{name}": {"id": name} for name in names}}
    calls = [
        call
        for name in names
        for call in (
            {"_tool": "t", "n": "†state.id", "read": "†state.common", "_outputPath": "†state.out", "_instance": name},
            {"_tool": "t", "n": "†state.out[0]", "read": "†note.x", "_outputPath": "†state.last", "_instance": name},
        )
    ]
    plan, after = run(calls, state, names)
    assert {call.state.status for call in plan.calls} == {"done"}
    assert after["@host7"] == {"id": "host7", "out": ["host7", "all"], "last": ["host7", "shared"]}
    assert set(after) == set(state)
    assert len(plan.edges()) == 100


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"_instance": "c"}, "there is no instance"),
        ({"read": "†state.@b.x"}, "names an instance"),
        ({"read": "†state.@b.x", "_instance": "a"}, "names an instance"),
        ({"_outputPath": "†state.@b.x"}, "names an instance"),
        ({"read": "†state"}, "of all instances together"),
        ({"_outputPath": "†state"}, "of all instances together"),
    ],
)
def test_r8_8_no_call_reaches_into_another_instance(call: dict[str, Any], words: str) -> None:
    plan, _ = run([{"_tool": "t", **call}], {"@a": {}, "@b": {"x": "secret"}}, ["a", "b"])
    assert plan.calls[0].state.error is not None
    assert words in plan.calls[0].state.error.message


def test_r8_8_messages_make_the_instances() -> None:
    context = Context(
        parse_agent(
            {
                "name": "x",
                "context": [
                    {"type": "state", "state": {"common": 1}},
                    {"type": "state", "_instance": "a", "state": {"own": 2}},
                    {"type": "data", "kind": "user", "_instance": "b", "data": {"name": "Bo"}},
                ],
            }
        )
    )
    assert context.instances == ["a", "b"]
    assert context.initial_state == {"common": 1, "@a": {"own": 2}, "@b": {}}
    assert context.values() == {"user@b": {"name": "Bo"}}


@pytest.mark.parametrize("instance", [{}, {"_instance": "a"}], ids=["shared", "instance"])
@pytest.mark.parametrize("end", ["failed", "branch", "refused"])
@pytest.mark.parametrize("method", ["set", "push"])
def test_r8_8_a_shared_value_does_not_replace_what_the_own_writer_did_not_write(
    instance: dict[str, str], end: str, method: str
) -> None:
    """A reader ends as it does without instances."""
    writer: dict[str, Any] = {
        "_tool": "nope" if end == "refused" else "t",
        "_outputPath": "†state.x",
        "_outputMethod": method,
    }
    if end == "branch":
        writer["_if"] = "state.n == 0"
    calls: list[dict[str, Any]] = [
        writer,
        {"_tool": "t", "read": "†state.x"},
        {"_tool": "t", "_after": ["†state.x"]},
        {"_tool": "t"},
    ]
    plan = Plan(
        1,
        tools={"t": TOOL},
        state=State([Write(path=(), value={"x": [1], "n": 1})]),
        instances=["a"] if instance else [],
    )
    for call in calls:
        plan.add(call | instance)
    plan.close()
    while ready := plan.take_ready():
        for each in ready:
            plan.end(each, Returned(1) if each.index else Failed(CallError("bad", "it failed")))
    first = {"failed": "failed", "branch": "skipped", "refused": "invalid"}[end]
    adds = end == "branch" and method == "push"
    assert [call.state.status for call in plan.calls] == [first, "done" if adds else "skipped", "skipped", "done"]
