"""Quorums of approvals: how many people, with which roles, and who not (R24.6)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.approvals.decisions import parse_decision
from perdure.approvals.policy import Guard, Policy, parse_policy
from perdure.approvals.queue import ApprovalQueue
from perdure.approvals.requests import ApprovalRequest
from perdure.errors import DecisionError
from perdure.plan import Plan, take_changed
from perdure.tools.quorum import Approver, Quorum
from perdure.tools.tool import Tool, resolve_tools
from perdure.values.json import JsonObject
from perdure.values.state import State

TOOLS = resolve_tools(
    ["refund", "note"],
    {
        "refund": {"name": "refund", "_dangerous": True, "properties": {"euros": {"type": "number"}}},
        "note": {"name": "note", "_dangerous": True, "properties": {"text": {"type": "string"}}},
    },
)
TWO = {"by": 2, "roles": ["finance"], "not": "requester"}
BEGIN = "2026-11-24T09:00:00+00:00"


def waiting(
    rule: Any, call: dict[str, Any] | None = None, requester: str = "ann", **policy: Any
) -> tuple[ApprovalQueue, ApprovalRequest]:
    plan, tools = Plan(1, tools=TOOLS, state=State()), {} if rule is None else {"refund": rule}
    queue = ApprovalQueue(Guard(Policy(tools=tools, **policy)), requesters=[requester])
    added = plan.add(call or {"_tool": "refund", "euros": 50})
    plan.close()
    plan.take_ready()
    request = queue.add_call(plan, added, BEGIN)
    assert request is not None
    return queue, request


def decide(
    queue: ApprovalQueue, by: str, *roles: str, waited: float = 0.0, decision: str = "approve", **more: Any
) -> bool:
    """Whether the request is decided now."""
    sent = {
        "call": "1.0",
        "decision": decision,
        "by": by,
        "roles": [*roles],
        **{key.rstrip("_"): value for key, value in more.items()},
    }
    return not queue.apply(queue.judge(parse_decision(sent), BEGIN, waited)).waits


def test_a_call_runs_once_two_people_with_the_role_have_approved_it() -> None:
    queue, request = waiting(TWO)
    assert request.full_reason.endswith(
        "refund is always asked about; needs 2 approvals with the role finance, not by ann"
    )
    assert not decide(queue, "bob", "finance")
    assert request.full_reason.endswith("approved by bob; needs 1 more approval with the role finance, not by ann")
    assert "1.0" in queue.waiting
    assert decide(queue, "cleo", "finance")
    assert (request.approval.decision, request.approval.by) == ("approve", "bob and cleo")
    assert request.call is not None
    assert not queue.waiting


@pytest.mark.parametrize(
    ("by", "roles", "words"),
    [
        ("", ["finance"], "give the deciding person as 'by'"),
        ("Ann ", ["finance"], "requested the call, so another person must approve it"),
        ("dan", [], "an approval needs the role finance, which dan does not have"),
        ("BOB", ["finance"], "BOB has already approved it"),
    ],
)
def test_an_approval_that_does_not_count_is_refused(by: str, roles: list[str], words: str) -> None:
    queue, request = waiting(TWO)
    decide(queue, "bob", "finance")
    with pytest.raises(DecisionError, match=words):
        decide(queue, by, *roles)
    assert [each.by for each in request.approval.approvers] == ["bob"]


def test_anybody_may_reject() -> None:
    queue, request = waiting(TWO)
    decide(queue, "bob", "finance")
    assert decide(queue, "ann", decision="reject")
    assert (request.approval.decision, request.approval.by) == ("reject", "ann")


def test_an_edit_is_the_first_approval_of_what_it_makes() -> None:
    queue, request = waiting({"by": 2})
    before = request.digest
    assert not decide(queue, "bob")
    assert not decide(queue, "cleo", decision="edit", params={"euros": 20})
    assert request.call is not None
    assert request.call.inputs.params == {"euros": 20}
    assert request.digest != before
    with pytest.raises(DecisionError, match="has changed since it was shown"):
        decide(queue, "bob", digest=before)
    assert decide(queue, "bob", digest=request.digest)
    assert (request.approval.decision, request.approval.by) == ("edit", "cleo and bob")
    assert [(each["decision"], each["by"]) for each in queue.feedback] == [("edit", "cleo")]


def test_no_edit_or_replacement_goes_round_a_quorum() -> None:
    large = TWO | {"when": {"properties": {"euros": {"minimum": 100}}, "required": ["euros"]}}
    queue, request = waiting(large, {"_tool": "note", "text": "hello"})
    assert not request.quorums
    with pytest.raises(DecisionError, match="which bob does not have"):
        decide(queue, "bob", decision="replace", with_={"_tool": "refund", "euros": 100})
    assert not decide(queue, "bob", "finance", decision="replace", with_={"_tool": "refund", "euros": 100})
    assert request.missing == "1 more approval with the role finance, not by ann"
    assert decide(queue, "cleo", "finance")
    small, _ = waiting({"when": large["when"], "by": 2} | {"when": True}, {"_tool": "refund", "euros": 5})
    with pytest.raises(DecisionError, match="'remember' of one person is not possible with it"):
        decide(small, "bob", remember=True)


def test_other_roles_count_after_a_while() -> None:
    queue, request = waiting({"roles": ["finance"], "escalate": {"after": 3600, "roles": ["cfo"]}})
    assert request.missing == "1 approval with the role finance (after 3600 s also with the role cfo)"
    with pytest.raises(DecisionError, match="needs the role finance, which zoe does not have"):
        decide(queue, "zoe", "cfo", waited=3599.0)
    assert decide(queue, "zoe", "cfo", waited=3600.0)


def test_a_plan_needs_the_quorums_of_its_calls() -> None:
    plan = Plan(1, tools=TOOLS, state=State())
    queue = ApprovalQueue(Guard(Policy(scope="plan", tools={"refund": {"by": 2}})))
    plan.add({"_tool": "note", "text": "a"})
    plan.add({"_tool": "refund", "euros": 3})
    plan.close()
    request = queue.add_plan(plan, BEGIN, lambda: Plan(1, tools=TOOLS, state=State()))
    assert request is not None
    sent: JsonObject = {"call": "1", "decision": "approve", "by": "bob"}
    assert queue.apply(queue.judge(parse_decision(sent))).waits
    edit: JsonObject = {"call": "1", "decision": "edit", "by": "cleo", "calls": [{"_tool": "note", "text": "b"}]}
    with pytest.raises(DecisionError, match="approve it unchanged, or reject it"):
        queue.judge(parse_decision(edit))
    assert not queue.apply(queue.judge(parse_decision(sent | {"by": "cleo"}))).waits


def test_neither_a_program_nor_the_timeout_nor_a_change_of_the_policy_replaces_a_quorum() -> None:
    queue, request = waiting({"by": 2}, on_timeout="approve", approver="rules:decide")
    assert queue.judge_program(request, "approve", "rules:decide") is None
    change = parse_policy({"tools": {"refund": "never"}})
    assert queue.guard.find_loosened_quorums(change, TOOLS) == ["refund"]
    queue.change_policy(change)
    assert queue.release() == []
    assert queue.time_out(request, 5).outcome is not None
    assert request.approval.decision == "timeout"


@pytest.mark.parametrize("approved", [[], ["bob"]])
def test_r7_7_a_change_that_requires_more_people_counts_for_a_request_that_waits(approved: list[str]) -> None:
    queue, request = waiting(None, on_timeout="approve", approver="rules:decide")
    if approved:
        queue.change_policy(parse_policy({"tools": {"refund": {"by": 2}}}))
    for name in approved:
        assert not decide(queue, name)
    assert queue.change_policy(parse_policy({"tools": {"refund": {"by": 3}}})) == [request]
    assert queue.release() == []
    assert request.missing == ("2 more approvals" if approved else "3 approvals")
    assert queue.judge_program(request, "approve", "rules:decide") is None
    assert not decide(queue, "cleo")
    assert queue.time_out(request, 5).outcome is not None


def test_r7_7_requests_of_a_run_of_0_2_0_keep_their_quorums() -> None:
    queue, request = waiting(None)
    queue.judges_anew = False
    assert queue.change_policy(parse_policy({"tools": {"refund": {"by": 3}}})) == []
    assert request.missing == ""


def test_r7_7_a_change_that_requires_fewer_people_approves_a_request_with_enough() -> None:
    queue, request = waiting(None)
    queue.change_policy(parse_policy({"tools": {"refund": {"by": 3}}}))
    decide(queue, "bob")
    decide(queue, "cleo")
    queue.change_policy(parse_policy({"tools": {"refund": {"by": 2}}}))
    assert queue.release() == [request]
    assert (request.approval.decision, request.approval.by) == ("approve", "bob and cleo")
    assert queue.waiting == {}


def test_r7_7_a_stricter_policy_judges_each_call_of_an_approved_plan() -> None:
    plan = Plan(1, tools=TOOLS, state=State())
    queue = ApprovalQueue(Guard(Policy(scope="plan", ask="never")))
    call = plan.add({"_tool": "refund", "euros": 3})
    plan.close()
    assert queue.add_plan(plan, BEGIN, lambda: Plan(1, tools=TOOLS, state=State())) is not None
    queue.apply(queue.judge(parse_decision({"call": "1", "decision": "approve", "by": "bob"})))
    queue.change_policy(parse_policy({"tools": {"refund": {"by": 2}}}))
    plan.take_ready()
    request = queue.add_call(plan, call, BEGIN)
    assert request is not None
    assert request.missing == "2 approvals"


@pytest.mark.parametrize("change", [{}, {"tools": {"note": "never"}}, {"tools": {"note": "always"}}])
def test_r24_6_a_change_of_the_policy_releases_no_edit_of_a_call_in_an_approved_plan(change: Any) -> None:
    plan = Plan(1, tools=TOOLS, state=State())
    queue = ApprovalQueue(Guard(Policy(scope="plan", tools={"refund": {"by": 2}})))
    call = plan.add({"_tool": "refund", "euros": 3})
    plan.close()
    assert queue.add_plan(plan, BEGIN, lambda: Plan(1, tools=TOOLS, state=State())) is not None
    for by in ("bob", "cleo"):
        queue.apply(queue.judge(parse_decision({"call": "1", "decision": "approve", "by": by})))
    plan.take_ready()
    take_changed(call, {"euros": 4})  # by a hook, so the call is shown again
    request = queue.add_call(plan, call, BEGIN)
    assert request is not None
    assert not decide(queue, "eve", decision="edit", params={"euros": 1_000_000})
    queue.change_policy(parse_policy(change))
    assert queue.release() == []
    assert request.missing == "1 more approval"
    assert decide(queue, "bob")


LARGE: dict[str, Any] = {"by": 2, "when": {"properties": {"euros": {"minimum": 1000}}, "required": ["euros"]}}


@pytest.mark.parametrize("kept", [LARGE, {"by": 2}], ids=["large", "all"])
@pytest.mark.parametrize("rule", ["never", "always", {"by": 1}, {"by": 3}, {"when": LARGE["when"]}], ids=str)
def test_r24_6_a_change_loosens_no_quorum_and_may_add_to_one(kept: Any, rule: Any) -> None:
    guard = Guard(Policy(tools={"refund": kept}))
    loosens = rule == "never" or (rule == {"by": 1} and kept == {"by": 2})
    assert guard.find_loosened_quorums(parse_policy({"tools": {"refund": rule}}), TOOLS) == (
        ["refund"] if loosens else []
    )


def test_r24_6_a_change_is_added_to_a_quorum() -> None:
    guard = Guard(Policy(tools={"refund": LARGE}))
    guard.loosen_or_tighten(parse_policy({"tools": {"refund": "always"}}))
    assert guard.why(TOOLS["refund"], {"euros": 20}) == "refund is always asked about"
    assert guard.quorums(TOOLS["refund"], {"euros": 20}) == []
    assert [each.by for each in guard.quorums(TOOLS["refund"], {"euros": 1000})] == [2]


def test_r24_6_in_a_run_of_0_2_0_a_change_adds_nothing_to_a_quorum() -> None:
    guard = Guard(Policy(tools={"refund": LARGE}), change=Policy(tools={"refund": "always"}), adds_to_quorums=False)
    assert guard.why(TOOLS["refund"], {"euros": 20}) is None


def test_r15_5_no_change_of_a_quorum_allows_values_that_a_flow_rule_refuses() -> None:
    queue, _ = waiting(None)
    queue.change_policy(parse_policy({"tools": {"refund": {"by": 2}}}))
    decide(queue, "bob")
    flows: Any = [{"from": "*", "to": "refund", "do": "refuse"}]
    queue.change_policy(parse_policy({"flows": flows, "tools": {"refund": "always"}}))
    assert queue.release() == []


def test_r15_5_a_change_with_too_many_flow_rules_is_left_out_and_no_earlier_rule_is_lost() -> None:
    queue, _ = waiting(None)
    refuses: Any = [{"from": "*", "to": "refund", "do": "refuse"}]
    many: Any = [{"from": f"tool:t{number}", "to": "refund", "do": "allow"} for number in range(200)]
    queue.change_policy(parse_policy({"flows": refuses}))
    counted, problem = queue.judge_change(parse_policy({"flows": many, "ask": "always"}), TOOLS)
    assert problem == "the changes of a run have at most 200 flow rules: leave out 1"
    queue.change_policy(counted)
    assert [flow.do for flow in queue.guard.policy.flows] == ["refuse"]
    assert queue.guard.policy.ask == "always"


def test_r15_5_a_flow_rule_replaces_the_one_for_the_same_source_and_parameter() -> None:
    queue, _ = waiting(None)
    for do in ("allow", "refuse", "ask") * 100:
        change = parse_policy({"flows": [{"from": "user", "to": "refund", "do": do}]})
        assert queue.judge_change(change, TOOLS)[1] == ""
        queue.change_policy(change)
    assert [flow.do for flow in queue.guard.policy.flows] == ["ask"]


def test_r24_6_no_change_loosens_the_quorum_of_a_tool_itself() -> None:
    tool = Tool(name="pay", parameters={}, approval={"by": 2})
    change = parse_policy({"tools": {"pay": "never"}})
    assert Guard().find_loosened_quorums(change, {"pay": tool}) == ["pay"]
    assert Guard(Policy(tools={"pay": "always"})).find_loosened_quorums(change, {"pay": tool}) == []


def test_the_approvals_of_before_a_reset_do_not_count() -> None:
    queue, request = waiting({"by": 2})
    decide(queue, "bob")
    queue.renew("2026-11-24T10:00:00+00:00")
    assert not decide(queue, "bob")
    assert decide(queue, "cleo")
    assert request.approval.by == "bob and cleo"


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({}, "is not a rule"),
        ({"by": 0}, "by"),
        ({"by": True}, "by"),
        ({"by": 2, "not": "ann"}, "not"),
        ({"by": 2, "role": ["x"]}, "role"),
        ({"by": 2, "escalate": {"after": 60, "roles": ["cfo"]}}, "needs 'roles'"),
        ({"by": 2, "when": {"type": 3}}, "not a JSON Schema"),
    ],
)
def test_a_wrong_quorum_is_refused_in_one_line(rule: Any, words: str) -> None:
    with pytest.raises(DecisionError) as refused:
        parse_policy({"tools": {"refund": rule}})
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


PEOPLE = st.sampled_from(["ann", "Ann", "bob", "cleo", "dan", "eve"])
ROLES = st.lists(st.sampled_from(["finance", "legal", "cfo"]), unique=True)


@given(
    rules=st.lists(
        st.fixed_dictionaries({"by": st.integers(1, 3)}, optional={"roles": ROLES, "not": st.just("requester")}),
        min_size=1,
        max_size=2,
    ),
    votes=st.lists(st.tuples(PEOPLE, ROLES), max_size=12),
)
def test_a_call_runs_exactly_when_every_quorum_has_its_different_people(
    rules: list[dict[str, Any]], votes: list[tuple[str, list[str]]]
) -> None:
    queue, request = waiting(rules[0])
    request.quorums = [Quorum.model_validate(rule) for rule in rules]
    counted: list[Approver] = []
    decided = False
    for by, roles in votes:
        try:
            decided = decide(queue, by, *roles)
        except DecisionError:
            continue
        counted.append(Approver(by=by, roles=roles, at=BEGIN))
        if decided:
            break

    def enough(rule: dict[str, Any]) -> bool:
        names = {
            each.by.casefold()
            for each in counted
            if not (rule.get("not") and each.by.casefold() == "ann")
            and (not rule.get("roles") or {*rule["roles"]} & {*each.roles})
        }
        return len(names) >= int(rule["by"])

    assert decided == all(enough(rule) for rule in rules)
    assert len({each.by.casefold() for each in counted}) == len(counted)
