"""The approval queue of a run (R7.2)."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.approvals.decisions import Decision, parse_decision
from perdure.approvals.policy import Guard, Policy, parse_policy
from perdure.approvals.queue import ApprovalQueue
from perdure.approvals.requests import RESET, ApprovalRequest
from perdure.errors import DecisionError
from perdure.plan import Call, Plan, Returned
from perdure.rules import RuleBook, at_most
from perdure.tools.tool import resolve_tools
from perdure.values.json import JsonObject
from perdure.values.state import State

TEXT = {"text": {"type": "string"}}
TOOLS = resolve_tools(
    ["send", "read", "mail"],
    {
        "send": {"name": "send", "_dangerous": True, "properties": {}},
        "read": {"name": "read", "_safe": True, "_untrusted": True, "properties": {}},
        "mail": {"name": "mail", "properties": TEXT},
    },
)
TIME = "2026-11-28T09:00:00+00:00"


def test_r7_2_requests_from_the_first_task_after_a_reset_are_asked_again() -> None:
    """The task that follows a reset repeats one of before it: it may add a request before or behind the reset."""
    plan, queue = Plan(1, tools=TOOLS, state=State()), ApprovalQueue(Guard(Policy()))
    calls = [plan.add({"_tool": "send"}) for _ in range(3)]
    plan.close()
    plan.take_ready()
    before = queue.add_call(plan, calls[0], "09:00")
    assert queue.renew("10:00") == [before]
    repeated, later = queue.add_call(plan, calls[1], "10:00"), queue.add_call(plan, calls[2], "10:01")
    assert before is not None
    assert repeated is not None
    assert later is not None
    assert [each.approval.requested_at for each in (before, repeated, later)] == ["10:00", "10:00", "10:01"]
    assert [each.reason.endswith(RESET) for each in (before, repeated, later)] == [True, True, False]


def approved_plan(*calls: Any, standing: bool) -> tuple[Plan, ApprovalQueue, list[Call]]:
    """A plan that a person, or a standing approval for trusted values, has approved as a whole."""
    plan, queue = Plan(0, tools=TOOLS, state=State()), ApprovalQueue(Guard(Policy(scope="plan")))
    added = [plan.add(call) for call in calls]
    plan.close()
    assert queue.add_plan(plan, TIME, lambda: Plan(0, tools=TOOLS, state=State())) is not None
    decision = Decision(call="0", decision="approve", by="ann")
    if standing:
        queue.apply_standing(decision, ["trusted"])
    else:
        queue.apply(queue.judge(decision))
    plan.take_ready()
    return plan, queue, added


@pytest.mark.parametrize("change", [{"timeout": 60}, {"tools": {"send": "always"}}, {"tools": {"send": "never"}}])
@pytest.mark.parametrize("first", ["request", "change"])
def test_r23_3_no_change_of_the_policy_allows_values_that_a_standing_approval_does_not(change: Any, first: str) -> None:
    calls = [{"_tool": "read", "_outputPath": "†state.r"}, {"_tool": "mail", "text": "†state.r"}]
    plan, queue, (read, mail) = approved_plan(*calls, standing=True)
    assert queue.add_call(plan, read, TIME) is None
    plan.end(read, Returned("x"), TIME)
    plan.take_ready()
    if first == "change":
        queue.change_policy(parse_policy(change))
    request = queue.add_call(plan, mail, TIME)
    assert request is not None
    if first == "request":
        queue.change_policy(parse_policy(change))
    assert queue.release() == []


def test_r7_6_no_change_of_the_policy_allows_a_call_that_a_hook_has_changed() -> None:
    plan, queue, (mail,) = approved_plan({"_tool": "mail", "text": "a"}, standing=False)
    mail.inputs.changed = ["text"]
    request = queue.add_call(plan, mail, TIME)
    assert request is not None
    queue.change_policy(parse_policy({"tools": {"send": "always"}}))
    assert queue.release() == []


def broken(*, quorum: bool = False) -> tuple[ApprovalQueue, ApprovalRequest]:
    """A request that breaks a rule since another call has begun."""
    tools = resolve_tools(["pay"], {"pay": {"name": "pay", "properties": {"euros": {"type": "number"}}}})
    plan = Plan(1, tools=tools, state=State())
    rule = at_most("pay.euros", 100, otherwise="ask")
    queue = ApprovalQueue(Guard(Policy(tools={"pay": {"by": 2} if quorum else "always"})), RuleBook([rule]))
    first, second = (plan.add({"_tool": "pay", "euros": euros}) for euros in (60, 61))
    plan.close()
    plan.take_ready()
    assert queue.add_call(plan, first, TIME) is not None
    request = queue.add_call(plan, second, TIME)
    assert request is not None
    queue.rules.begin(first)
    return queue, request


def approves(queue: ApprovalQueue, request: ApprovalRequest, by: str, **more: Any) -> bool:
    """Whether the call may begin now."""
    decision: Any = {"call": request.id, "decision": "approve", "digest": request.digest, "by": by, **more}
    waits = queue.decide(queue.judge(parse_decision(decision))).waits
    assert request.call is not None
    return not waits and queue.rules.begin(request.call) is None


def test_r23_2_a_decision_from_before_a_rule_was_named_does_not_allow_it() -> None:
    queue, request = broken()
    seen = request.digest
    with pytest.raises(DecisionError, match=r"now also breaks a rule: .* would be 121; the limit is 100"):
        approves(queue, request, "ann")
    with pytest.raises(DecisionError, match="has changed since it was shown"):
        approves(queue, request, "bob", digest=seen)
    assert approves(queue, request, "bob")


def test_r23_2_approvals_from_before_a_rule_was_named_do_not_count() -> None:
    queue, request = broken(quorum=True)
    queue.apply(queue.judge(parse_decision({"call": request.id, "decision": "approve", "by": "ann"})))
    with pytest.raises(DecisionError, match="now also breaks a rule"):
        approves(queue, request, "bob")
    assert not approves(queue, request, "ann")
    assert approves(queue, request, "bob")


def test_r23_2_an_edit_that_breaks_a_rule_is_shown_and_sent_again() -> None:
    queue, request = broken()
    rule = at_most("pay.euros", 100, otherwise="ask")
    queue.rules = RuleBook([rule])
    edit, seen = {"decision": "edit", "params": {"euros": 500}}, request.digest
    with pytest.raises(DecisionError, match=r"would break a rule: .* would be 500; the limit is 100"):
        approves(queue, request, "ann", **edit)
    assert "a person has tried to edit it; the rule at_most(pay.euros" in request.reason
    assert (request.floor, request.breaches) == (False, frozenset())
    with pytest.raises(DecisionError, match="has changed since it was shown"):
        approves(queue, request, "bob", **edit, digest=seen)
    assert approves(queue, request, "ann", **edit)
    assert queue.rules.used(rule) == 500


def test_r23_2_a_change_that_completes_a_quorum_names_the_rules_that_are_broken_now() -> None:
    queue, request = broken()
    queue.change_policy(parse_policy({"tools": {"pay": {"by": 2}}}))
    queue.apply(queue.judge(parse_decision({"call": request.id, "decision": "approve", "by": "ann"})))
    queue.change_policy(parse_policy({"tools": {"pay": "always"}}))
    assert queue.release() == []
    assert "would be 121; the limit is 100" in request.reason
    assert approves(queue, request, "ann")


def test_r18_6_an_endorsement_of_too_many_names_is_refused_unread() -> None:
    decision: JsonObject = {"call": "1.0", "decision": "approve", "endorse": ["path"] * 150_000}
    with pytest.raises(DecisionError, match=r"'endorse' has 150,000 names; the limit is 1,000\. .* write true"):
        parse_decision(decision)
    assert parse_decision({**decision, "endorse": ["path"] * 1_000}).endorse == ["path"] * 1_000
