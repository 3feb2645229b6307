"""What a person changes of a plan while it runs, and what the other calls read then (R7.2)."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.approvals.decisions import parse_decision
from perdure.approvals.policy import Guard, Policy
from perdure.approvals.queue import ApprovalQueue
from perdure.errors import CallError, DecisionError
from perdure.plan import Failed, Outcome, Plan, Returned
from perdure.values.json import JsonObject
from tests.plan.test_plan import new_plan, statuses

WAITS = {"_tool": "b"}


def held(calls: list[dict[str, Any]], at: int, **ends: Outcome) -> Plan:
    """A plan whose answer still streams: the call `at` waits for a person, the others ended where `ends` says so, else well."""
    plan = new_plan()
    for raw in calls:
        plan.add(raw)
    while ready := plan.take_ready():
        for call in ready:
            if call.index == at:
                plan.hold(call)
            else:
                plan.end(call, ends.get(f"c{call.index}", Returned({"k": 1})))
    return plan


def replace(plan: Plan, at: int, raw: dict[str, Any]) -> None:
    plan.adopt(plan.calls[at], plan.revised(plan.calls[at], raw))


def finish(plan: Plan, at: int) -> list[str]:
    """Run what waits, and all that is left."""
    plan.close()
    plan.resume(plan.calls[at])
    plan.end(plan.calls[at], Returned("new"))
    while ready := plan.take_ready():
        for call in ready:
            plan.end(call, Returned(call.inputs.params.get("p")))
    assert plan.settled, statuses(plan)
    return statuses(plan)


BRANCH = {"_tool": "a", "_outputPath": "†state.y || †state"}


def test_r7_2_a_reader_that_looked_past_itself_is_bound_to_another_call_than_itself() -> None:
    reader = {"_tool": "read", "p": "†state.z", "_outputPath": "†state.z"}
    plan = held([reader, BRANCH, WAITS], at=2)
    replace(plan, 2, WAITS | {"_outputPath": "†state.z"})
    assert finish(plan, 2) == ["done"] * 3
    assert plan.calls[0].inputs.params == {"p": "new"}


@pytest.mark.parametrize("method", ["set", "merge", "push"])
def test_r7_2_a_replacement_before_a_branch_not_taken_is_read_as_if_it_had_stood_there(method: str) -> None:
    reader, other = (
        {"_tool": "read", "p": "†state.z"},
        {**WAITS, "p": 1, "_outputPath": "†state.z", "_outputMethod": method},
    )
    plan, fresh = held([reader, WAITS, BRANCH], at=1), held([reader, other, BRANCH], at=1)
    replace(plan, 1, other)
    assert finish(plan, 1) == finish(fresh, 1)
    assert plan.calls[0].inputs.params == fresh.calls[0].inputs.params


def test_r7_2_a_reader_is_bound_to_a_replacement_while_the_answer_streams() -> None:
    plan = held([{"_tool": "read", "p": "†state.z"}, WAITS], at=1)
    replace(plan, 1, WAITS | {"_outputPath": "†state.z"})
    plan.resume(plan.calls[1])
    plan.end(plan.calls[1], Returned(7))
    assert [call.inputs.params for call in plan.take_ready()] == [{"p": 7}]


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("out", [Returned({"k": 1}), Failed(CallError("no", "no"))])
def test_r5_4_nothing_is_left_pending_wherever_the_replacement_stands(at: int, out: Outcome) -> None:
    readers = [
        {"_tool": "read", "p": "†state.z || †state.q", "_outputPath": "†state.z"},
        {"_tool": "read", "p": "†state.z", "_outputPath": "†state.q && †state.z"},
    ]
    calls = [*readers, BRANCH]
    calls.insert(at, WAITS)
    plan = held(calls, at, c2=out, c3=out)
    replace(plan, at, WAITS | {"_outputPath": "†state.z"})
    finish(plan, at)


def test_r7_2_a_replacement_that_others_read_writes_as_they_read_it() -> None:
    plan = held([{"_tool": "read", "p": "†state.y"}, WAITS | {"_outputPath": "†state.x || †state.y"}], at=1)
    with pytest.raises(
        DecisionError, match=r"must set †state.x \|\| †state.y, because other calls read only its value"
    ):
        replace(plan, 1, WAITS | {"p": 2, "_outputMethod": "merge"})
    replace(plan, 1, WAITS | {"p": 2})
    assert finish(plan, 1) == ["skipped", "done"]


@pytest.mark.parametrize("decision", ["approve", "edit"])
@pytest.mark.parametrize("drain", [True, False])
def test_r6_4_an_edited_plan_beside_an_output_runs_to_its_end(decision: str, drain: bool) -> None:
    calls: list[Any] = [{"_tool": "a", "_outputPath": "†state.a"}, {"_tool": "read", "p": {"_ref": "†state.a"}}]
    desk = ApprovalQueue(Guard(Policy(scope="plan")))
    plan = new_plan(execution="step")
    reads: JsonObject = {"_tool": "read", "p": "†state.a"}
    for raw in (calls[0], reads):
        plan.add(raw)
    plan.close(drain=drain)
    assert desk.add_plan(plan, "", lambda: new_plan(execution="step")) is not None
    sent: JsonObject = {"call": "1", "decision": decision} | ({"calls": calls} if decision == "edit" else {})
    plan = desk.apply(desk.judge(parse_decision(sent))).plan or plan
    for _ in calls:
        for call in plan.take_ready():
            plan.end(call, Returned(1))
    assert statuses(plan) == ["done", "done" if drain else "deferred"]


def test_r6_8_an_edit_of_a_plan_to_too_many_calls_is_refused_at_once() -> None:
    def limited() -> Plan:
        return new_plan(max_calls=3)

    desk, plan = ApprovalQueue(Guard(Policy(scope="plan"))), limited()
    plan.add({"_tool": "a"})
    plan.close()
    assert desk.add_plan(plan, "", limited) is not None
    with pytest.raises(DecisionError, match=r"Request 1 would not be valid: .* 3 calls at most, and this one has 4"):
        desk.judge(parse_decision({"call": "1", "decision": "edit", "calls": [{}] * 4}))
    with pytest.raises(DecisionError, match=r"the edit has 300,000 calls; the limit is 10,000"):
        parse_decision({"call": "1", "decision": "edit", "calls": [{}] * 300_000})
    assert list(desk.waiting) == ["1"]
