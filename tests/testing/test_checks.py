"""What the testing kit decides without a server (R14.1, R14.5)."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from pydantic import BaseModel

from perdure import Agent, tool
from perdure.errors import AgentError, InputError, ProtocolError
from perdure.rules import at_most, count_at_most, needs, precedes
from perdure.testing import CannotMakeError, check, plans
from perdure.testing._people import seconds
from perdure.testing._schema_values import Seeded, make
from perdure.testing.toolbox import Execution, unlike_once
from perdure.values.schemas import Schema


@tool(safe=True, duration=0.5)
def price(fruit: str) -> float:
    """The price of a fruit."""
    return len(fruit)


@tool(dangerous=True, approval={"when": {"properties": {"amount": {"minimum": 100}}}})
def pay(amount: float) -> str:
    """Pay."""
    return f"{amount}"


SCHEMA = {"type": "object", "properties": {"total": {"type": "number"}}, "required": ["total"]}
shop = Agent("shop", tools=[price, pay], input={"type": "object", "required": ["fruit"]}, output=SCHEMA)
CALLS: list[dict[str, Any]] = [
    {"_tool": "price", "fruit": "†input.fruit", "_outputPath": "†state.one"},
    {"_tool": "pay", "amount": "†state.one"},
]
NATIVE = [{"id": "a", "type": "function", "function": {"name": "price", "arguments": '{"fruit": "†input.fruit", "_outputPath": "†state.one"}'}},
          {"id": "b", "type": "function", "function": {"name": "pay", "arguments": {"amount": "†state.one"}}}]  # fmt: skip


@pytest.mark.parametrize(
    "plan",
    [
        CALLS,
        {"calls": CALLS, "output": None},
        '{"calls": [{"_tool": "price", "fruit": "†input.fruit", "_outputPath": "†state.one"}, {"_tool": "pay", "amount": "†state.one"}]}',
        '[{"_tool": "price", "fruit": "†input.fruit", "_outputPath": "†state.one"}, {"_tool": "pay", "amount": "†state.one"}]',
        "one = price(fruit=input.fruit)\nreceipt = pay(amount=one)\n",
        NATIVE,
        {"tool_calls": NATIVE},
        {"role": "assistant", "content": None, "tool_calls": NATIVE},
        json.dumps({"tool_calls": NATIVE}),
        json.dumps(NATIVE),
        '// first the price\n{"calls": [{"_tool": "price", "fruit": "†input.fruit", "_outputPath": "†state.one"}, /* then */ {"_tool": "pay", "amount": "†state.one"}]}',
    ],
    ids=[
        *("calls", "solution", "its text", "a list's text", "script", "native"),
        *("a message's calls", "a message", "a message's text", "a list of native calls as text", "comments"),
    ],
)
def test_r14_1_a_plan_is_checked_in_any_dialect(plan: Any) -> None:
    checked = check(shop, plan, input={"fruit": "fig"})
    assert checked.ok, checked.problems
    assert checked.levels == [["1.0"], ["1.1"]]
    assert checked.asks == ["pay"]
    assert list(checked.approvals) == ["1.1"]
    assert checked.approvals["1.1"] == "it is not known whether amount is 100 or more"
    assert checked.makespan == 1.5
    assert "1.0 price" in checked.mermaid()
    assert str(checked).splitlines()[0] == "level 1: 1.0"


def test_r14_1_conditions_are_judged_where_parameters_are_known() -> None:
    calls = [{"_tool": "pay", "amount": 99}, {"_tool": "pay", "amount": 101}]
    assert list(check(shop, calls, input={"fruit": "fig"}).approvals) == ["1.1"]


def test_r14_1_everything_that_is_wrong_is_told() -> None:
    plan = {
        "calls": [*CALLS, {"_tool": "eat"}, {"_tool": "price"}, {"_tool": "pay", "amount": "†state.two"}],
        "output": {},
    }
    checked = check(shop, plan, input={"fruit": "fig"})
    found = " | ".join(checked.problems)
    for words in (
        "1.2 eat: there is no tool",
        "1.3 price: $ lacks 'fruit'",
        "1.4 pay: ",
        "the output: $ lacks 'total'",
    ):
        assert words in found, found
    no_plans: list[Any] = [{"calls": 3}, 5, None]
    for wrong in no_plans:
        with pytest.raises(ProtocolError, match=r"is not a valid plan|plan must be str, a dict or a list"):
            check(shop, wrong, input={"fruit": "fig"})
    with pytest.raises(AgentError, match=r'the plan: "ouput" is not a known key; did you mean "output"[?]'):
        check(shop, {"calls": [], "ouput": 3}, input={"fruit": "fig"})
    with pytest.raises(InputError, match="fruit"):
        check(shop, CALLS, input={})
    assert "†state.two" in " ".join(check(shop, plan, input={"fruit": "fig"}, state={"three": 1}).problems)
    assert check(shop, CALLS[1:], input={"fruit": "fig"}, state={"one": 3}).ok


def test_r6_8_a_plan_with_more_calls_than_its_agent_allows_is_not_valid() -> None:
    calls = [{"_tool": "price", "fruit": str(n)} for n in range(3)]
    assert check(Agent("shop", tools=[price], max_calls=3), calls).problems == []
    (problem,) = check(Agent("shop", tools=[price], max_calls=2), calls).problems
    assert problem.startswith("1.2 price: a Solution may have 2 calls at most, and this one has 3")


def test_r14_5_durations_are_said_in_words() -> None:
    assert [seconds(each) for each in (3, "90 s", "30 min", "2h", "2 days", "1 week", timedelta(hours=1))] == [
        *(3, 90, 1800, 7200, 172_800, 604_800, 3600)
    ]
    with pytest.raises(ValueError, match="is not a duration"):
        seconds("soon")


def test_r14_5_an_effect_is_made_once_or_not() -> None:
    def ran(call: str, attempt: int = 1, *, knows: bool = True, ended: bool = True, amount: int = 1) -> Execution:
        return Execution("pay", {"amount": amount}, "r", call, attempt, f"r/{call}:d", knows, ended)

    assert unlike_once("pay", [ran("1.0")], {}) is None
    assert unlike_once("pay", [ran("1.0"), ran("1.0", 2)], {}) is None
    assert unlike_once("pay", [ran("1.0", ended=False), ran("1.0", 2)], {}) is None
    assert unlike_once("pay", [ran("1.0"), ran("1.1", amount=2)], {"amount": 2}) is None
    for executions, words in (
        ([], "pay never ran"),
        ([ran("1.0"), ran("1.1")], "ran for 2 effects"),
        ([ran("1.0", knows=False), ran("1.0", 2, knows=False)], "ran 2 times for one call, and has no ToolContext"),
        # It failed, and nobody knows how far it had come.
        ([ran("1.0", knows=False, ended=False), ran("1.0", 2, knows=False)], "ran 2 times for one call, and has no"),
    ):
        assert words in str(unlike_once("pay", executions, {}))


SCHEMAS: list[Any] = [
    True,
    {"type": "string", "pattern": "^[A-Z]{2}\\d{4,6}(-x|_y)?$"},
    {"type": "integer", "minimum": 3, "exclusiveMaximum": 5},
    {"type": "number", "multipleOf": 0.25, "minimum": 0.1, "maximum": 0.3},
    {"type": ["integer", "null"]},
    {"enum": ["a", 3, None]},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "uniqueItems": True},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string", "format": "date"}], "items": False},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"],
     "$defs": {"a": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"next": {"$ref": "#/$defs/a"}}}]}}},
    {"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"required": ["b"]}]},
    {"type": "string", "minLength": 20, "maxLength": 30},
    {"type": "object", "minProperties": 3, "additionalProperties": {"type": "integer"}},
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS)
def test_r14_4_values_are_made_that_fit_their_schemas(schema: Any) -> None:
    for seed in range(20):
        value = make(schema, Seeded(seed))
        assert Schema({} if schema is True else schema).errors(value) == []
        assert value == make(schema, Seeded(seed))


def test_r14_4_a_schema_without_values_is_told_of() -> None:
    with pytest.raises(CannotMakeError, match=r"no value was found for x .*: add one to the schema's `examples`"):
        make({"type": "string", "not": {"type": "string"}}, Seeded(), what="x")


@tool
def ship(to: str, items: list[str], express: bool = False) -> int:
    """Ship."""
    return len(items) if express else len(to)


wide = Agent("wide", tools=[price, pay, ship, {"name": "think", "_output": {"type": "string"}}])


@settings(max_examples=50)
@given(plans(wide, most=5))
def test_r14_4_plans_of_an_agent_are_valid(plan: list[dict[str, Any]]) -> None:
    assert check(wide, plan).problems == []
    assert plan


def test_r14_4_an_agent_without_tools_has_no_plans() -> None:
    with pytest.raises(AgentError, match="has no tools"):
        plans(Agent("bare"))


def test_r23_1_a_violated_rule_is_a_problem_of_the_plan() -> None:
    careful = Agent("careful", tools=[price, pay], rules=[precedes("price", "pay"), needs("finance", "pay")])
    first = {"_tool": "price", "fruit": "pear", "_outputPath": "†state.one"}
    assert check(careful, [first, {"_tool": "pay", "amount": "†state.one"}]).ok
    [problem] = check(careful, [first, {"_tool": "pay", "amount": 5}]).problems
    assert "precedes(price, pay)" in problem
    assert "1.1 pay can begin although no call of price is done" in problem


def test_a_rule_that_asks_and_a_whole_plan_need_approvals() -> None:
    """Neither is a problem of the plan: the run asks a person, and then makes the calls."""
    rules = [at_most("pay.amount", 50, otherwise="ask")]
    ruled = Agent("ruled", tools=[price, pay], approval={"ask": "never"}, rules=rules)
    few, many = ([{"_tool": "pay", "amount": amount}] for amount in (50, 51))
    assert (check(ruled, few).ok, check(ruled, few).asks) == (True, [])
    asked = check(ruled, many)
    assert (asked.ok, asked.asks) == (True, ["pay"])
    assert "pay.amount would be 51" in asked.approvals["1.0"]
    assert [*check(ruled, [*few, *few]).approvals] == ["1.1"]
    whole = Agent("whole", tools=[price, pay], approval={"scope": "plan"}, rules=rules)
    shown = check(whole, [{"_tool": "price", "fruit": "pear"}])
    assert (shown.approvals, shown.asks) == ({"1": "the whole plan needs an approval before its calls run"}, ["price"])
    assert check(whole, many).approvals.keys() == {"1", "1.0"}
    assert check(whole, []).approvals == {}


few = Agent("few", tools=[price, pay], rules=[count_at_most("price", 2), at_most("pay.amount", 50)])


@given(plans(few))
@settings(max_examples=20)
def test_r14_5_generated_plans_violate_no_rule(plan: list[dict[str, Any]]) -> None:
    assert check(few, plan).ok


def test_a_delegates_input_schema_holds_as_in_a_run() -> None:
    class Member(BaseModel):
        member: str

    boss = Agent("boss", tools=[Agent("reader", instructions="Read.", input=Member)])
    assert check(boss, [{"_tool": "reader", "member": "ann"}]).ok
    for wrong in ({}, {"membr": "ann"}):
        assert check(boss, [{"_tool": "reader", **wrong}]).problems == ["1.0 reader: $ lacks 'member'"]
    script = check(boss, "x = reader('ann')\n")
    assert script.ok, script
