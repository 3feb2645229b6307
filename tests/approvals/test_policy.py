"""Policies: what is asked, and that nothing gets below the worker's floor (R7.1)."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.approvals.decisions import digest, parse_decision
from perdure.approvals.policy import ASKS, Guard, Policy, parse_policy
from perdure.approvals.queue import ApprovalQueue
from perdure.errors import AgentError, DecisionError, ToolDefinitionError
from perdure.plan import Call, Plan, Rejected, Returned
from perdure.runs.agent import parse_agent
from perdure.tools.tool import Tool, parse_tool, resolve_tools
from perdure.values.json import Json, JsonObject
from perdure.values.state import State

CODE: dict[str, dict[str, Any]] = {
    "wipe": {"name": "wipe", "properties": {"x": {}}, "_dangerous": True},
    "plain": {"name": "plain", "properties": {"x": {}}},
    "calm": {"name": "calm", "properties": {"x": {}}, "_safe": True},
}
RULES = st.sampled_from(["never", "always", {"when": False}, {"when": {"required": ["x"]}}])
NAMES = st.sampled_from(["t", "wipe", "plain", "calm", "other"])
POLICIES = st.fixed_dictionaries(
    {},
    optional={
        "ask": st.sampled_from(ASKS),
        "tools": st.dictionaries(NAMES, RULES, max_size=3),
        "timeout": st.just(5),
        "on_timeout": st.sampled_from(["reject", "approve", "fail"]),
        "scope": st.sampled_from(["calls", "plan"]),
    },
)
META = st.fixed_dictionaries(
    {}, optional={"_safe": st.booleans(), "_dangerous": st.booleans(), "_approval": RULES}
).filter(lambda meta: not (meta.get("_safe") and meta.get("_dangerous")))


def disguised(activity: str, meta: dict[str, Any], name: str = "t") -> Tool:
    """An agent file's own definition over the worker's code."""
    definition = {"name": name, "properties": {"x": {}}, "_activity": activity, **meta}
    return resolve_tools([definition], CODE)[name]


def strict(floor: str, activity: str) -> bool:
    declared = CODE[activity]
    if floor == "dangerous":
        return "_dangerous" in declared
    return floor == "always" or (floor == "unsafe" and "_safe" not in declared)


@given(
    floor=st.sampled_from(ASKS),
    activity=st.sampled_from(sorted(CODE)),
    meta=META,
    policy=POLICIES,
    change=POLICIES,
    later=st.lists(POLICIES, max_size=3),
    remembered=st.lists(NAMES, max_size=2),
    decision=st.sampled_from(["none", "edit", "replace"]),
)
def test_r7_1_nothing_gets_below_the_floor(
    floor: Any,
    activity: str,
    meta: dict[str, Any],
    policy: dict[str, Any],
    change: dict[str, Any],
    later: list[dict[str, Any]],
    remembered: list[str],
    decision: str,
) -> None:
    guard = Guard(
        parse_policy(policy | {"scope": "calls"}), floor=floor, change=parse_policy(change), remembered=remembered
    )
    tools = {"t": disguised(activity, meta), "u": disguised(activity, {"_approval": "never"}, "u")}
    desk = ApprovalQueue(guard)
    plan = Plan(1, tools=tools, state=State())
    call = plan.add({"_tool": "t", "x": 1})
    plan.close()
    plan.take_ready()
    offer = desk.add_call(plan, call, "2026-01-01T00:00:00Z")
    if strict(floor, activity):
        assert offer is not None
    if offer is None:
        return
    for each in later:
        desk.change_policy(parse_policy(each))
    released = desk.release()
    if not strict(floor, activity):
        return
    # No policy lets it go, and neither does a timeout; only a person does, whatever they make of the call.
    assert released == []
    if decision == "none":
        assert desk.time_out(offer, 5).outcome is not None
    else:
        more: JsonObject = {"params": {"x": 2}} if decision == "edit" else {"with": {"_tool": "u", "x": 2}}
        judged = desk.judge(parse_decision({"call": "1.0", "decision": decision, **more}))
        assert desk.apply(judged).outcome is None
        assert call.approval is not None
        assert call.approval.decision == decision


MAIL: dict[str, dict[str, Any]] = {
    "read_mail": {"name": "read_mail", "properties": {}, "_untrusted": True},
    "send_money": {"name": "send_money", "properties": {"iban": {"type": "string"}}, "_dangerous": True},
}


def sent_from_mail(reader: str, sender: str) -> Call:
    """Return a call that sends a mail's text, by two tools with these names over the worker's code."""
    named = {reader: MAIL["read_mail"], sender: MAIL["send_money"]}
    definitions: list[str | JsonObject] = [
        {"name": name, "properties": code["properties"], "_activity": code["name"]} for name, code in named.items()
    ]
    plan = Plan(1, tools=resolve_tools(definitions, MAIL), state=State())
    read = plan.add({"_tool": reader, "_outputPath": "†state.iban"})
    sent = plan.add({"_tool": sender, "iban": "†state.iban"})
    plan.close()
    plan.take_ready()
    plan.end(read, Returned("DE1"))
    plan.take_ready()
    return sent


def floor_of(level: str, source: str, to: str, do: str) -> Guard:
    flows = parse_policy({"flows": [{"from": source, "to": to, "do": do}]}).flows
    return Guard(parse_policy({"ask": "never"}), floor=cast(Any, level), floor_flows=flows)


@pytest.mark.parametrize("source", ["untrusted", "tool:read_mail"])
@pytest.mark.parametrize("to", ["send_money.iban", "send_money"])
@pytest.mark.parametrize("names", [("read_mail", "send_money"), ("reader", "create_ticket")])
def test_r15_5_no_agent_file_evades_a_flow_rule_of_the_floor_by_another_name(
    names: tuple[str, str], to: str, source: str
) -> None:
    call = sent_from_mail(*names)
    assert floor_of("never", source, to, "refuse").refuses(call) is not None
    assert floor_of("never", source, to, "ask").floor_asks(call.spec.known_tool, call.inputs.origins)
    assert floor_of("never", source, to, "ask").floor_asks(call.spec.known_tool)
    assert not floor_of("untrusted", source, to, "allow").floor_asks(call.spec.known_tool, call.inputs.origins)


def test_r15_5_no_agent_file_borrows_a_permission_of_the_floor_by_a_name() -> None:
    call = sent_from_mail("read_wiki", "create_ticket")
    for source, to in (("untrusted", "create_ticket"), ("tool:read_wiki", "*")):
        assert floor_of("untrusted", source, to, "allow").floor_asks(call.spec.known_tool, call.inputs.origins)


def test_r15_5_the_rules_of_an_agent_file_go_by_its_own_names() -> None:
    call = sent_from_mail("reader", "create_ticket")
    refused = {
        (source, to): Guard(parse_policy({"flows": [{"from": source, "to": to, "do": "refuse"}]})).refuses(call)
        for source in ("tool:reader", "tool:read_mail")
        for to in ("create_ticket.iban", "send_money.iban")
    }
    assert {ends: why for ends, why in refused.items() if why is not None} == {
        (
            "tool:reader",
            "create_ticket.iban",
        ): "create_ticket.iban comes from reader (written by others), which the policy refuses"
    }


def test_r7_1_the_levels_and_the_exceptions() -> None:
    asked = {
        ask: [name for name in CODE if Guard(Policy(ask=ask)).why(resolve_tools([name], CODE)[name], {})]
        for ask in ASKS
    }
    assert asked == {
        "never": [],
        "untrusted": ["wipe"],
        "dangerous": ["wipe"],
        "unsafe": ["wipe", "plain"],
        "always": ["wipe", "plain", "calm"],
    }
    rule = {"when": {"properties": {"x": {"minimum": 100}}, "required": ["x"]}}
    guard = Guard(Policy(tools={"wipe": rule}))
    wipe = resolve_tools(["wipe"], CODE)["wipe"]
    assert guard.why(wipe, {"x": 99}) is None
    assert guard.why(wipe, {"x": 100}) == "x is 100 or more"
    assert guard.why(wipe, None) == "it is not known whether x is 100 or more"
    (wide,) = resolve_tools(["wipe"], {"wipe": CODE["wipe"] | {"properties": {"x": {"default": 200}}}}).values()
    assert guard.why(wide, {}) == "x is 100 or more"
    assert guard.why(wide, {"x": 99}) is None
    assert Guard(Policy(tools={"wipe": rule}), knows_defaults=False).why(wide, {}) is None


@pytest.mark.parametrize("rule", ["sometimes", {"if": {}}, {"when": {"type": 7}}, 3])
def test_a_rule_that_is_none_is_one_clear_line(rule: Any) -> None:
    with pytest.raises(ToolDefinitionError, match=r"tool 't': _approval: .*"):
        parse_tool({"name": "t", "_approval": rule})
    with pytest.raises(AgentError, match=r"config\.approval\.tools|approval"):
        parse_agent({"name": "a", "config": {"approval": {"tools": {"t": rule}}}})


def test_a_policy_may_be_its_scope_alone() -> None:
    assert parse_agent({"name": "a", "config": {"approval": "plan"}}).config.approval.scope == "plan"
    with pytest.raises(
        DecisionError, match="must be 'never', 'untrusted', 'dangerous', 'unsafe' or 'always', not \"maybe\" at"
    ):
        parse_policy({"ask": "maybe"})
    with pytest.raises(AgentError, match=r"""approval: must be .* not "always": give \{"ask": "always"\}$"""):
        parse_agent({"name": "a", "config": {"approval": "always"}})


@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda s: st.dictionaries(st.text(max_size=6), s)))
def test_r7_3_any_json_is_a_decision_or_one_clear_line(raw: Any) -> None:
    desk = ApprovalQueue()
    try:
        desk.judge(parse_decision(raw))
    except DecisionError as error:
        assert "\n" not in str(error)
    else:
        raise AssertionError("nothing waits, so nothing can be decided")


def test_r7_2_the_digest_names_the_parameters_whatever_their_order() -> None:
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1}) != digest({"a": 1, "b": [3]})


def test_a_replacement_must_write_what_others_read() -> None:
    tools = {name: resolve_tools([name], CODE)[name] for name in CODE}
    desk = ApprovalQueue(Guard(Policy(ask="dangerous")))
    plan = Plan(1, tools=tools, state=State())
    first = plan.add({"_tool": "wipe", "x": 1, "_outputPath": "†state.a"})
    plan.add({"_tool": "plain", "x": "†state.a"})
    plan.close()
    assert plan.take_ready() == [first]
    assert desk.add_call(plan, first, "now") is not None
    other: JsonObject = {"_tool": "calm", "x": 1}
    with pytest.raises(DecisionError, match=r"must write †state\.a, which other calls read"):
        desk.judge(parse_decision({"call": "1.0", "decision": "replace", "with": {**other, "_outputPath": "†state.b"}}))
    desk.apply(desk.judge(parse_decision({"call": "1.0", "decision": "replace", "with": other})))
    plan.end(first, Returned("new"))
    assert [call.inputs.params for call in plan.take_ready()] == [{"x": "new"}]


def test_a_rejected_call_takes_what_reads_it_along_but_not_its_siblings() -> None:
    tools = {name: resolve_tools([name], CODE)[name] for name in CODE}
    plan = Plan(1, tools=tools, state=State())
    calls: list[Json] = [
        {"_tool": "wipe", "x": 1, "_outputPath": "†state.a || †state.e"},
        {"_tool": "plain", "x": "†state.a"},
        {"_tool": "plain", "x": 1},
    ]
    for raw in calls:
        plan.add(raw)
    plan.close()
    wipe, sibling = plan.take_ready()
    plan.end(wipe, Rejected("rejected: no"))
    plan.end(sibling, Returned(1))
    assert plan.settled
    assert [call.state.status for call in plan.calls] == ["rejected", "skipped", "done"]


def test_r7_1_a_condition_that_cannot_be_decided_asks() -> None:
    endless = {"when": {"$ref": "#"}}
    large = {"when": {"properties": {"x": {"pattern": "(a|b)*a(a|b){900}c"}}}}
    for rule in (endless, large):
        guard = Guard(Policy(tools={"plain": rule}))
        tool = resolve_tools(["plain"], CODE)["plain"]
        assert str(guard.why(tool, {"x": "ab" * 900_000})).startswith("it is not known whether ")
