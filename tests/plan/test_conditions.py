"""Conditions and formulas of calls: `_if` and `_expr` in a plan (R16.2, R16.3)."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.plan import Call, Plan, Returned, simulate
from perdure.runs._output import resolve_output
from perdure.tools.tool import resolve_tools
from perdure.values.json import JsonObject
from perdure.values.state import State, Write
from perdure.values.templates import TextBudget

ANY = {"properties": {"x": {}, "n": {"type": "number"}}}
TOOLS = resolve_tools(["load", "act"], {"load": {"name": "load", **ANY}, "act": {"name": "act", **ANY}})
LOAD: JsonObject = {"_tool": "load", "_outputPath": "†state.l"}
CPU: JsonObject = {"name": "w", "cpu": [91, 97, 93]}


def plan_of(*calls: Any, result: Any = CPU, **options: Any) -> Plan:
    """The calls behind `load`, which has given its result; everything that can has run, and given its `x`."""
    plan = Plan(1, tools=TOOLS, state=State(), data={"input": {"limit": 95}}, **options)
    for raw in (LOAD, *calls):
        plan.add(raw)
    plan.close()
    while taken := plan.take_ready():
        for call in taken:
            plan.home(call).end(call, Returned(result if call.id == "1.0" else call.inputs.params.get("x")))
    return plan


def told(call: Call) -> str:
    return call.state.reason or (call.state.error.message if call.state.error else "")


def test_r16_3_a_parameter_is_computed_when_its_call_starts() -> None:
    call = {
        "_tool": "act",
        "x": {"_expr": "f'{state.l.name}: {max(state.l.cpu)} %'"},
        "n": {"_expr": "†input.limit / 2"},
    }
    plan = plan_of(call | {"_outputPath": "†state.r"})
    assert plan.calls[1].inputs.params == {"x": "w: 97 %", "n": 47.5}
    assert plan.calls[1].spec.reads == ["†state.l.name", "†state.l.cpu", "†input.limit"]
    assert plan.state.snapshot()["r"] == "w: 97 %"


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ("max(state.l.cpu) > input.limit", "done"),
        ("max(state.l.cpu) <= input.limit", "skipped"),
        ({"_expr": "†state.l.name == 'w'"}, "done"),
        ("†state.l || †input.none", "done"),
        ("[]", "skipped"),
    ],
)
def test_r16_2_a_call_whose_condition_does_not_hold_is_skipped_as_a_branch(condition: Any, status: str) -> None:
    plan = plan_of({"_tool": "act", "_if": condition, "_outputPath": "†state.r"}, {"_tool": "act", "x": "†state.r"})
    assert [call.state.status for call in plan.calls[1:]] == [status, status]
    assert all(call.state.branch for call in plan.calls[1:] if status == "skipped")
    if status == "skipped":
        assert told(plan.calls[1]).startswith("its condition does not hold: ")


def test_r16_2_two_conditions_write_one_path_and_join_again() -> None:
    high = {"_tool": "act", "x": "high", "_if": "state.l.cpu[1] > 95", "_outputPath": "†state.r"}
    low = {"_tool": "act", "x": "low", "_if": "state.l.cpu[1] <= 95", "_outputPath": "†state.r"}
    plan = plan_of(high, low, {"_tool": "act", "x": "†state.r"})
    assert [call.state.status for call in plan.calls] == ["done", "done", "skipped", "done"]
    assert plan.calls[3].inputs.params == {"x": "high"}


@pytest.mark.parametrize(
    ("condition", "read"),
    [
        ("'mail' in input", "†input.mail"),
        ("input.limit > 99 and state.l.name == 'w'", "†input.user.mail"),
        ("'mail' in state.known", "†state.known.mail"),
        ("'mail' in state.l", {"_expr": "state.known.mail + state.l.name"}),
    ],
)
def test_r16_2_a_condition_protects_a_read_of_a_key_that_the_data_lacks(condition: str, read: Any) -> None:
    """The input and the state are data: whether they have a key is what a condition asks."""
    first: JsonObject = {"_tool": "_let", "value": {"name": "w"}, "_outputPath": "†state.known"}
    call: JsonObject = {"_tool": "act", "_if": condition, "x": read}
    plan = plan_of(first, call)
    assert plan.calls[2].state.status == "skipped"
    state = State([Write(path=(), value={"known": {"name": "w"}})])
    plan = Plan(1, tools=TOOLS, state=state, data={"input": {"limit": 95}})
    plan.add(LOAD)
    plan.add(call)
    plan.close()
    plan.end(plan.take_ready()[0], Returned(CPU))
    assert (plan.calls[1].state.status, plan.settled) == ("skipped", True)


def test_r5_5_where_the_condition_holds_the_missing_key_is_an_error() -> None:
    (call,) = plan_of({"_tool": "act", "_if": "state.l.name == 'w'", "x": "†input.mail"}).calls[1:]
    assert (call.state.status, told(call)[:32]) == ("invalid", "$.x: †input.mail does not exist ")


def test_r5_5_what_no_data_and_no_call_has_is_an_error_before_the_condition_is_known() -> None:
    plan = Plan(1, tools=TOOLS, state=State(), data={"input": {"limit": 95}})
    plan.extend([LOAD, {"_tool": "act", "_if": "state.l.name == 'w'", "x": "†state.lo.name"}])
    plan.close()
    assert (plan.calls[1].state.status, plan.calls[0].state.status) == ("invalid", "ready")


def test_r16_2_what_a_call_would_be_given_need_not_exist_where_it_is_not_made() -> None:
    call = {"_tool": "act", "_if": "len(state.l.gpu) > 0", "x": {"_expr": "state.l.gpu[0]"}}
    plan = plan_of(call, result={"gpu": []})
    assert plan.calls[1].state.status == "skipped"


LEFT_OUT: JsonObject = {"_tool": "load", "_if": "state.l.name == 'v'", "_outputPath": "†state.d"}
"""A call whose branch is not taken."""


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("state.d.cpu if state.l.name == 'v' else 0", 0),
        ("state.l.name == 'v' and state.d.cpu", False),
        ("state.l.name or state.d", "w"),
        ("[state.d.cpu + n for n in state.l.cpu if n > 99]", []),
        ("[n for n in state.l.cpu if n > 99 and n in state.d.cpu]", []),
        ("f\"{state.d.name if state.l.name == 'v' else 'none'}\"", "none"),
    ],
)
def test_r16_3_a_formula_needs_only_the_values_that_it_evaluates(formula: str, value: Any) -> None:
    act: JsonObject = {"_tool": "act", "x": {"_expr": formula}}
    inside: JsonObject = {"_tool": "_for", "_each": [1], "_body": [act, {"_tool": "act", "_if": formula, "x": 0}]}
    plan = plan_of(LEFT_OUT, act | {"_outputPath": "†state.r"}, inside, act | {"_each": [1]})
    assert plan.state.snapshot()["r"] == value
    assert [call.state.status for call in plan.calls] == ["done", "skipped", "done", "done", "done"]
    assert [call.inputs.params["x"] for call in plan.every_call() if call.id in ("1.3[0].0", "1.4[0]")] == [value] * 2
    output: JsonObject = {"x": {"_expr": formula}}
    assert resolve_output(output, {"state": plan.state.snapshot(), "input": {}}, TextBudget()) == ({"x": value}, [])


def test_r16_2_a_condition_needs_only_the_values_that_it_evaluates() -> None:
    plan = plan_of(LEFT_OUT, {"_tool": "act", "_if": "state.l.name == 'w' or state.d.ok"})
    assert plan.calls[2].state.status == "done"


def test_r16_2_an_iteration_does_not_read_a_name_left_out_before_its_loop_where_its_condition_is_false() -> None:
    call: JsonObject = {"_tool": "act", "_if": "state.l.name == 'v'", "x": "†state.d.cpu"}
    plan = plan_of(LEFT_OUT, {"_tool": "_for", "_each": [1], "_body": [call]})
    assert [(call.state.status, told(call)[:9]) for call in plan.every_call()][2:] == [
        ("done", ""),
        ("skipped", "its condi"),
    ]


@pytest.mark.parametrize("result", [CPU, CPU | {"name": "x"}])
def test_r5_4_a_call_is_skipped_if_its_formula_evaluates_a_value_that_no_branch_wrote(result: Any) -> None:
    formula = "state.d.cpu if state.l.name == 'w' else 0"
    act: JsonObject = {"_tool": "act", "x": {"_expr": formula}}
    (call,) = plan_of(LEFT_OUT, act, result=result).calls[2:]
    skipped = "$.x reads †state.d from 1.1 load, which took another branch"
    assert (call.state.status, told(call)) == (("skipped", skipped) if result is CPU else ("done", ""))
    values: JsonObject = {"state": {"l": result}, "input": {}}
    problems = resolve_output({"x": {"_expr": formula}}, values, TextBudget())[1]
    assert [each[:30] for each in problems] == ["$.x: †state.d does not exist a"] * (result is CPU)


def test_r16_4_a_condition_of_a_loop_needs_only_the_values_that_it_evaluates() -> None:
    body: list[Any] = [{"_tool": "act", "x": 1, "_outputPath": "†state.n"}]
    loop: JsonObject = {"_tool": "_while", "_while": "state.n == 0 or state.d.ok", "_body": body}
    first: JsonObject = {"_tool": "_let", "value": 0, "_outputPath": "†state.n"}
    plan = plan_of(LEFT_OUT, first, loop)
    assert told(plan.calls[3]) == "the condition reads †state.d, which does not exist"  # before its second iteration
    assert plan.state.snapshot()["n"] == 0
    plan = plan_of(LEFT_OUT, first, loop | {"_while": "state.n == 0 or (state.n > 1 and state.d.ok)"})
    assert (plan.calls[3].state.status, plan.state.snapshot()["n"]) == ("done", 1)


@pytest.mark.parametrize(("before", "value"), [({}, None), ({"x": 1}, 1)])
def test_r5_1_a_let_of_the_path_that_it_reads_does_not_wait_for_a_later_writer(before: Any, value: Any) -> None:
    plan = Plan(1, tools=TOOLS, state=State([Write(path=(), value=before)]), data={})
    none: JsonObject = {"_tool": "_let", "value": None, "_outputPath": "†state.none"}
    plan.add(none)
    plan.add({"_tool": "_let", "value": "†state.x || †state.none", "_outputPath": "†state.x"})
    plan.add({"_tool": "act", "x": "†state.x", "_outputPath": "†state.x"})
    plan.close()
    assert [call.inputs.params for call in plan.take_ready()] == [{"x": value}]


def test_r16_3_a_dry_run_knows_which_values_a_condition_evaluates() -> None:
    plan = Plan(1, tools=TOOLS, state=State(), data={"input": {"limit": 95}}, dry_run=True)
    conditions = ["input.limit < 9 or state.d.ok", "input.limit > 9 or state.d.ok"]
    left_out: JsonObject = {"_tool": "load", "_if": "input.limit < 9", "_outputPath": "†state.d"}
    calls: list[JsonObject] = [{"_tool": "act", "_if": each} for each in conditions]
    found = simulate(plan, [left_out, *calls])
    assert [each.status for each in found.steps] == ["skipped", "skipped", "done"]


def test_r16_2_a_condition_waits_for_what_it_reads_and_fails_with_it() -> None:
    plan = plan_of({"_tool": "act", "_if": "state.l.gpu > 1"})
    assert plan.calls[1].state.status == "invalid"
    assert "$._if" in told(plan.calls[1])
    assert "cpu" in told(plan.calls[1])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"x": {"_expr": "1 +"}}, "$.x: line 1, column 4: the expression is not valid"),
        ({"_if": "foo(1)"}, "$._if: line 1, column 1: there is no function 'foo'"),
        ({"_if": 3}, "$._if is 3, but must be an expression"),
        ({"_if": "state.l.cpu[0] > nothing"}, "†nothing"),
        ({"x": {"_expr": "state.m"}}, "$.x: †state.m"),
        ({"x": {"_expr": "state.l.cpu[0] + state.l.name"}}, "a number + a text is not defined; write str(…)"),
        ({"n": {"_expr": "state.l.name"}}, "$.n is 'w'"),
        ({"n": {"_expr": "1" + " + 1" * 500}}, "a formula of 2,001 characters"),
    ],
)
def test_r16_3_a_mistake_is_the_calls_own(call: Any, said: str) -> None:
    plan = plan_of({"_tool": "act", **call})
    assert plan.calls[1].state.status == "invalid"
    assert said in told(plan.calls[1]).replace('"', "'")


def test_r16_2_a_dry_run_takes_conditions_to_hold() -> None:
    plan = Plan(1, tools=TOOLS, state=State(), dry_run=True)
    call: JsonObject = {"_tool": "act", "_if": "state.l.cpu[0] > 9", "x": {"_expr": "state.l.name + '!'"}}
    assert [(step.level, step.status) for step in simulate(plan, [LOAD, call]).steps] == [(1, "done"), (2, "done")]


def test_r16_3_an_output_computes() -> None:
    values: JsonObject = {"state": {"l": CPU}, "input": {}}
    output: JsonObject = {
        "total": {"_expr": "sum(x for x in state.l.cpu if x > 92) + len(state.l.cpu)"},
        "all": "†state.l.cpu",
    }
    assert resolve_output(output, values, TextBudget()) == ({"total": 193, "all": CPU["cpu"]}, [])
    assert "division by zero" in resolve_output({"x": {"_expr": "1 / 0"}}, values, TextBudget())[1][0]


def test_r18_5_formulas_count_against_their_task() -> None:
    calls: list[JsonObject] = [{"_tool": "act", "x": {"_expr": "sum(x for x in range(15_000))"}} for _ in range(40)]
    plan = Plan(1, tools=TOOLS, state=State())
    for call in calls:
        plan.add(call)
    plan.close()
    ready = len(plan.take_ready())
    assert 0 < ready < 40
    plan.checks.begin(1)
    plan.go_on()
    assert len(plan.take_ready()) > 0
