"""Hostile input: each is answered with a result or a protocol error, never with another exception."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import CallError, PerdureError
from perdure.model.dialects.solution import parse_solution
from perdure.plan.calls import ENDED
from perdure.plan.outcomes import Failed, Returned
from perdure.plan.plan import Plan
from perdure.run.agents import Context, parse_agent
from perdure.tools.tool import parse_tool
from perdure.values.messages import TYPES
from perdure.values.state import State, Write
from tests.pure.strategies import json_values

TOOLS = {
    "t": parse_tool({"name": "t", "additionalProperties": True, "_activity": "t"}, activities=["t"]),
    "typed": parse_tool(
        {"name": "typed", "properties": {"n": {"type": "number", "multipleOf": 0.1}}, "_activity": "t"},
        activities=["t"],
    ),
    "latent": parse_tool({"name": "latent", "_output": {"type": "integer"}}),
}
ODD: list[Any] = [
    "†", "††", "†state", "†state.a", "{†state.a", "{†state.a}", "†state.a || ", "(" * 200 + "†a", "†state" + ".x" * 3000,
    "†state[0][1][2]", '†state["\\u0000"]', "\u0000\u001b[31m", "†state.a" + " && †state.b" * 900, 2**53 + 1, 10**4000, -0.0,
    1e308, "x" * 1_000_000, [[[[]]]], {"": {"": ""}}, None, True,
]  # fmt: skip
odd = st.sampled_from(ODD) | json_values()
keys = st.sampled_from(["_tool", "_outputPath", "_outputMethod", "_output", "_id", "_nope", "x", "n", "†", ""])
almost = st.fixed_dictionaries(
    {"_tool": st.sampled_from(["t", "typed", "latent", "nope"])},
    optional={
        "_outputPath": st.sampled_from(
            ["†state.a", "†state.a[0]", "†state.a || †state.b", "†state.a && †state.a.b", "†state", 7]
        ),
        "_outputMethod": st.sampled_from(["set", "push", "merge", "concat", "assign", "nope"]),
        "x": odd,
        "n": odd,
        "_output": odd,
    },
)
calls = almost | st.dictionaries(keys, odd, max_size=5) | odd


def play(raws: list[Any], results: list[Any]) -> Plan:
    """Run whatever a model could write, with whatever tools could return."""
    plan = Plan(1, tools=TOOLS, state=State([Write(path=(), value={"a": {"b": [1]}})]), data={"input": {"x": 1}})
    for raw in raws:
        plan.add(raw)
    plan.close()
    turn = 0
    while ready := plan.take_ready():
        for call in ready:
            result = results[turn % len(results)] if results else None
            turn += 1
            outcome = (
                Failed(CallError("boom", "x"))
                if result == "†"
                else Returned(result, "†state.b" if turn % 3 == 0 else None)
            )
            plan.end(call, outcome)
    return plan


@given(st.lists(calls, max_size=8), st.lists(odd, max_size=4))
def test_any_calls_end_with_any_results(raws: list[Any], results: list[Any]) -> None:
    plan = play(raws, results)
    assert plan.settled
    assert all(call.status in ENDED for call in plan.calls)
    for call in plan.calls:
        json.dumps(call.as_plan_entry())
        assert call.status == "done" or call.error or call.reason
        assert call.error is None or len(call.error.message) < 8000


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["type", "text", "kind", "schema", "tool", "plan", "input", "_instance", "x"]),
            st.sampled_from(TYPES) | odd,
        )
    )
)
def test_any_messages_are_read_or_refused(messages: list[Any]) -> None:
    try:
        Context(parse_agent({"name": "x", "context": messages}), {"a": 1}, has_input=True)
    except PerdureError as error:
        assert str(error)


@given(json_values())
def test_any_document_is_an_agent_or_refused(document: Any) -> None:
    try:
        assert parse_agent(document).name
    except PerdureError as error:
        assert str(error)


@given(json_values())
def test_any_definition_is_a_tool_or_refused(definition: Any) -> None:
    try:
        assert parse_tool({"name": "t", "properties": {"x": definition}}).name == "t"
    except PerdureError as error:
        assert str(error)


@given(
    st.text(max_size=200)
    | st.lists(
        st.sampled_from(
            ['{"calls":', "[", "{", '"_tool":"t"', ",", "]", "}", "null", '"output":', "1e999", "NaN", '"\\ud800"']
        ),
        max_size=20,
    ).map("".join)
)
def test_any_text_is_a_solution_or_a_problem(text: str) -> None:
    solution = parse_solution(text)
    assert solution.problem is None or (solution.problem.code and "\n" not in solution.problem.code)
    assert isinstance(solution.calls, list)


@pytest.mark.parametrize(
    "text",
    [
        '{"calls": [' + "[" * 100_000,
        '{"calls": [' + '{"_tool": "t", "x": ' * 150 + "1" + "}" * 150 + '], "output": null}',
        '{"calls": [], "output": ' + "9" * 10_000 + "}",
        '{"output": 1, "output": 2}',
        '{"calls": [{"_tool": "t", "_tool": "typed", "n": 1}], "output": null}',
        '\ufeff{"calls": [], "output": 1}',
    ],
)
def test_hostile_solutions(text: str) -> None:
    solution = parse_solution(text)
    assert play(solution.calls, [1]).settled


def test_a_plan_of_very_many_and_very_large_calls_is_answered() -> None:
    text = json.dumps({"calls": [{"_tool": "t", "x": "y" * 1000}] * 20_000, "output": None})
    plan = play(parse_solution(text).calls, ["†"])
    assert (len(plan.calls), plan.settled) == (20_000, True)
    assert [call.status for call in plan.calls[498:502]] == ["failed", "failed", "invalid", "skipped"]
