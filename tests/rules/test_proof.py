"""The static judge (R23.1), by example, and compared with an interpreter that plays every outcome."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from perdure.plan import Plan
from perdure.rules import Rule, RuleBook, count_at_most, followed_by, judge_plan, never_after, precedes
from perdure.tools.tool import parse_tool
from perdure.values.state import State, Write
from tests.rules.outcomes import STATE, TOOLS, Outcomes, new_plan, seeds
from tests.soak import times


def compare(first: int, count: int) -> Counter[str]:
    """Compare the judge with the interpreter over these seeds; return how many verdicts of each kind it gave."""
    given: Counter[str] = Counter()
    for seed, calls, rules in seeds(first, count):
        outcomes = Outcomes(calls, rules)
        for rule, verdict in zip(rules, judge_plan(new_plan(calls), RuleBook(rules)), strict=True):
            given[verdict.status] += 1
            broken = rule.key in outcomes.broken
            if verdict.status == "proven":
                assert not broken, (seed, calls, verdict.line)
            elif verdict.status == "violated" and outcomes.complete:
                assert broken, (seed, calls, verdict.line)
            given[f"{verdict.status}, {'broken' if broken else 'kept'}"] += 1
    return given


def test_r23_1_the_judge_agrees_with_an_interpreter_that_plays_every_outcome() -> None:
    given = compare(0, 40)
    assert given["proven"] > 130
    assert given["violated"] > 20


@pytest.mark.soak
@pytest.mark.parametrize("part", range(20))
def test_r23_1_the_judge_agrees_over_thousands_of_seeds(part: int) -> None:
    given = compare(1000 + 500 * part, times(500))
    assert given["proven"] > 0
    assert given["violated"] > 0


def verdict(calls: list[dict[str, Any]], rule: Rule) -> str:
    """Return the status of the verdict on one rule over these calls."""
    return judge_plan(new_plan(calls), RuleBook([rule]))[0].status


def test_r23_1_one_of_several_tools_before_another_is_enough() -> None:
    rule = precedes(["a", "c"], "b")
    assert rule.words == "precedes([a, c], b)"
    one: dict[str, Any] = {"_tool": "a", "_outputPath": "†state.r0"}
    for tool in "ac":
        assert verdict([one | {"_tool": tool}, {"_tool": "b", "_after": ["1.0"]}], rule) == "proven"
    assert verdict([one, {"_tool": "b"}], rule) == "violated"
    either = [one, one | {"_tool": "c", "_outputPath": "†state.r1"}, {"_tool": "b", "r": "†state.r0 || †state.r1"}]
    assert verdict(either, rule) == "proven"


def test_r23_1_never_after_with_the_same_value_lets_other_values_pass() -> None:
    rule = never_after("b", "a", event="done", same={"id": "p"})
    assert rule.words == 'never_after(b, a done, same={"id": "p"})'
    first: dict[str, Any] = {"_tool": "a", "id": 7, "_outputPath": "†state.r0"}
    then: dict[str, Any] = {"_tool": "b", "_after": ["1.0"]}
    assert verdict([first, then | {"p": 8}], rule) == "proven"
    assert verdict([first, then | {"p": 7}], rule) == "violated"
    assert verdict([first, then | {"p": "†state.v"}], rule) == "unknown"
    assert verdict([first, then], rule) == "proven"


def test_r23_1_a_call_that_has_to_follow_is_proven_if_it_waits_and_needs_no_other_call() -> None:
    rule = followed_by("a", ["b", "d"], same={"id": "p"})
    assert rule.words == 'followed_by(a, [b, d], same={"id": "p"})'
    first: dict[str, Any] = {"_tool": "a", "id": 7, "_outputPath": "†state.r0"}
    between: dict[str, Any] = {"_tool": "c", "x": "†state.r0", "_outputPath": "†state.r1"}
    then: dict[str, Any] = {"_tool": "b", "p": 7}
    assert verdict([first, between, then | {"_after": ["ended 1.0", "ended 1.1"]}], rule) == "proven"
    assert verdict([first, between, then | {"x": "†state.r0"}], rule) == "proven"
    assert verdict([first, between, then | {"x": "†state.r1"}], rule) == "violated"  # 1.1 may fail
    assert verdict([first, then], rule) == "violated"  # it may begin earlier
    assert verdict([first], rule) == "violated"
    assert verdict([first, then | {"p": 8, "x": "†state.r0"}], rule) == "violated"
    assert verdict([first, then | {"p": "†state.v", "x": "†state.r0"}], rule) == "unknown"
    assert verdict([first, then | {"x": "†state.r0", "_if": "state.yes"}], rule) == "unknown"
    assert verdict([between], rule) == "proven"
    both = {
        "_tool": "_for",
        "_each": [7, 8],
        "_body": [first | {"id": "†item"}, then | {"p": "†item", "x": "†state.r0"}],
    }
    assert verdict([both], rule) == "proven"
    assert verdict([both | {"_body": both["_body"][:1]}], rule) == "violated"


def test_r23_1_a_call_that_reads_a_call_and_its_reader_begins() -> None:
    calls = [
        {"_tool": "a", "_outputPath": "†state.r0"},
        {"_tool": "a", "r": "†state.r0", "_outputPath": "†state.r1"},
        {"_tool": "b", "r": "†state.r0", "q": "†state.r1"},
    ]
    assert verdict(calls, precedes("c", "b")) == "violated"


@pytest.mark.parametrize(("other", "status"), [("north", "proven"), ("south", "violated")])
def test_r23_1_values_of_the_input_are_compared(other: str, status: str) -> None:
    calls: list[dict[str, Any]] = [
        {"_tool": "a", "p": "†input.x", "_outputPath": "†state.r0"},
        {"_tool": "b", "p": "†input.y", "_after": ["ended 1.0"]},
    ]
    plan = new_plan(calls, {"input": {"x": "north", "y": other}})
    [found] = judge_plan(plan, RuleBook([followed_by("a", "b", same="p")]))
    assert found.status == status


def plan_with_delegate(calls: list[dict[str, Any]]) -> Plan:
    """Return a plan whose tools have the delegate `work`."""
    work = parse_tool({"name": "work", "additionalProperties": True, "_delegate": "worker"})
    plan = Plan(1, tools=TOOLS | {"work": work}, state=State([Write(path=(), value=STATE | {"list": [1]})]))
    for raw in calls:
        plan.add(raw)
    plan.close()
    return plan


@pytest.mark.parametrize(("items", "counts"), [([1, 2], True), ([], False), ("†state.list", False)])
@pytest.mark.parametrize("counts_each", [True, False])
def test_r23_1_a_delegate_of_items_certainly_runs_only_for_a_literal_item(
    items: Any, counts: bool, counts_each: bool
) -> None:
    loop = {"_tool": "work", "x": 1, "_each": items, "_outputPath": "†state.r0"}
    other = {"_tool": "b", "_after": ["1.0"]}
    follows = [{"_tool": "b"}, loop | {"_after": ["1.0"]}]

    def status(calls: list[dict[str, Any]], rule: Rule) -> str:
        plan = plan_with_delegate(calls)
        return judge_plan(plan, RuleBook([rule], counts_each=counts_each), lambda _: frozenset())[0].status

    certain = counts or not counts_each
    assert (status([loop, other], precedes("work", "b")) == "proven") is certain
    assert (status(follows, followed_by("b", "work")) == "proven") is certain
    assert (status([loop, other], never_after("b", "work", event="done")) == "violated") is certain
    body = {"_tool": "_for", "_each": [1], "_body": [loop, {"_tool": "b", "r": "†state.r0"}]}
    assert (status([body], precedes("work", "b")) == "proven") is certain
    assert status([loop], count_at_most("work", 1)) == (
        "proven" if items == [] or not counts_each else "violated" if counts else "unknown"
    )


@pytest.mark.parametrize(
    ("tool", "calls"),
    [
        ("work", [{"_each": [1, 2]}, {"_tool": "b", "_after": ["1.0"]}]),
        ("work", [{"_each": [1, 2], "_outputPath": "†state.r0"}, {"_tool": "b", "r": "†state.r0"}]),
        ("a", [{}, {"_tool": "b", "_after": ["1.0"]}]),
    ],
)
def test_r23_1_a_call_that_may_be_done_and_have_failed_proves_no_never_after(
    tool: str, calls: list[dict[str, Any]]
) -> None:
    plan = plan_with_delegate([{"_tool": tool, "x": 1} | calls[0], calls[1]])
    rule = never_after("b", tool, event="failed")
    assert judge_plan(plan, RuleBook([rule]), lambda _: frozenset())[0].status == "unknown"


def test_r23_1_a_loop_over_a_delegate_without_items_breaks_no_rule() -> None:
    plan = plan_with_delegate([{"_tool": "work", "x": 1, "_each": []}])
    [call] = plan.take_ready("2026-01-01T00:00:00Z")
    assert RuleBook([precedes("a", "work")]).refusal(call) is None
