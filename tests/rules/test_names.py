"""The names of tools and parameters in rules, compared with those of an agent (R23.1)."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, tool
from perdure.approvals.policy import parse_policy, policy_parameter_problems, policy_problems
from perdure.errors import AgentError
from perdure.rules import (
    Rule,
    at_most,
    count_at_most,
    followed_by,
    never_after,
    only_from,
    parameter_problems,
    precedes,
    unknown_tools,
)
from perdure.testing import check
from perdure.tools.tool import Tool, parse_tool


def closed(name: str, code: str = "", **properties: Any) -> Tool:
    definition = {"name": name, "properties": properties, "additionalProperties": False, "_activity": code or name}
    return parse_tool(definition, activities=[code or name])


ADDRESS = {"type": "object", "properties": {"city": {}}, "additionalProperties": False}
TOOLS = [
    closed("find", member={}),
    closed("charge", member={}, euros={}, address=ADDRESS, more={"type": "object"}),
    closed("bank.pay", euros={}),
    closed("now"),
    parse_tool({"name": "open", "properties": {"member": {}}, "_activity": "open"}, activities=["open"]),
    closed("send_a", code="send", text={}),
    closed("send_b", code="send", body={}),
]


def problems(rule: Rule) -> list[str]:
    return [each.words for each in parameter_problems([(0, rule)], TOOLS)]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (only_from("charge.membr", "agent"), '"membr" is not a known parameter of charge; did you mean "member"?'),
        (at_most("charge.euro", 5), '"euro" is not a known parameter of charge; did you mean "euros"?'),
        (at_most("bank.pay.euro", 5), '"euro" is not a known parameter of bank.pay; did you mean "euros"?'),
        (at_most("charge.address.cty", 5), '"cty" is not a known key of charge.address; did you mean "city"?'),
        (precedes("find", "charge", same={"membr": "member"}), '"membr" is not a known parameter of find; did'),
        (precedes(["find", "now"], "charge", same="member"), '"member" is not a known parameter of now'),
        (followed_by("find", "charge", same={"member": "membr"}), '"membr" is not a known parameter of charge; did'),
        (never_after("charge", "find", same={"member": "membr"}), '"membr" is not a known parameter of charge; did'),
        (count_at_most("charge", 0, when={"required": ["eurs"]}), '"eurs" is not a known parameter of charge; did'),
        (
            count_at_most("charge", 0, when={"not": {"properties": {"address": {"properties": {"cty": {}}}}}}),
            '"cty" is not a known key of charge.address; did you mean "city"?',
        ),
        (at_most("send.txt", 5), '"txt" is not a known parameter of send; did you mean "text"?'),
    ],
)
def test_r23_1_a_rule_names_parameters_that_its_tool_has(rule: Rule, words: str) -> None:
    (found,) = problems(rule)
    assert found.startswith(words)


@pytest.mark.parametrize(
    "rule",
    [
        at_most("charge.euros", 5),
        at_most("charge.address.city", 5),
        at_most("charge.more.any", 5),
        at_most("bank.pay.euros", 5),
        at_most("send.body", 5),
        only_from("open.membr", "agent"),
        only_from("elsewhere.member", "agent"),
        precedes("find", "charge", same="member", when={"properties": {"euros": {"minimum": 1}}}),
    ],
)
def test_a_parameter_that_a_tool_may_have_is_no_problem(rule: Rule) -> None:
    assert problems(rule) == []


@pytest.mark.parametrize(
    ("path", "unknown"),
    [("bank.pay.euros", []), ("charge.address.city", []), ("bank.pya.euros", ["bank.pya"]), ("chrge.a.b", ["chrge"])],
)
def test_r23_1_the_tool_of_a_path_may_have_a_dot_in_its_name(path: str, unknown: list[str]) -> None:
    assert list(unknown_tools(at_most(path, 5), [each.name for each in TOOLS])) == unknown


@tool(safe=True)
def find_fine(member: str) -> float:
    """Find a fine."""
    return float(len(member))


@tool(dangerous=True)
def charge_fine(member: str, euros: float) -> str:
    """Charge a fine."""
    return f"{member} {euros}"


def test_an_agent_with_such_a_rule_is_refused_as_a_run_refuses_it() -> None:
    agent = Agent("a", tools=[find_fine, charge_fine], rules=[only_from("charge_fine.membr", "agent")])
    line = (
        r'^agent \'a\': \$.config.rules\[0\]: "membr" is not a known parameter of charge_fine; did you mean "member"\?$'
    )
    with pytest.raises(AgentError, match=line):
        agent.check_policy()
    with pytest.raises(AgentError, match=line):
        check(agent, [{"_tool": "charge_fine", "member": "x", "euros": 1}])
    named = {"config": {"rules": [{"rule": "count_at_most", "of": "charge_fin", "count": 0}]}}
    with pytest.raises(AgentError, match='"charge_fin" is not a known tool of this agent; did you mean "charge_fine"'):
        check({**named, "context": [{"type": "tool", "tool": "charge_fine"}]}, [], tools=[charge_fine])


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (
            {"flows": [{"from": "untrusted", "to": "charge.membr", "do": "refuse"}]},
            '$.config.approval.flows[0].to: "membr"',
        ),
        (
            {"flows": [{"from": "*", "to": "charge.address.city", "do": "ask"}]},
            '$.config.approval.flows[0].to: "address.city"',
        ),
        (
            {"tools": {"charge": {"when": {"required": ["eurs"]}}}},
            '$.config.approval.tools.charge.when: "eurs" is not a known parameter of charge; did you mean "euros"?',
        ),
        (
            {"tools": {"bank.pay": {"by": 2, "when": {"properties": {"euro": {"minimum": 100}}}}}},
            '$.config.approval.tools["bank.pay"].when: "euro" is not a known parameter of bank.pay; did you mean "euros"?',
        ),
    ],
)
def test_r7_1_an_approval_policy_names_parameters_that_its_tools_have(policy: dict[str, Any], words: str) -> None:
    document: Any = {"context": [{"tool": each.definition()} for each in TOOLS], "config": {"approval": policy}}
    (found,) = policy_problems(document, TOOLS)
    assert str(found).startswith(words)


def test_r7_1_a_tools_own_condition_names_parameters_that_the_tool_has() -> None:
    def pays(**condition: Any) -> Any:
        found = closed("pay", euros={}).definition() | {"_approval": {"when": condition}}
        return policy_problems(
            {"context": [{"type": "text", "text": "Pay."}, {"tool": found}]}, [parse_tool(found, activities=["pay"])]
        )

    (found,) = pays(properties={"euro": {"minimum": 100}})
    assert str(found) == '$.context[1].tool: "euro" is not a known parameter of pay; did you mean "euros"?'
    assert pays(properties={"euros": {"minimum": 100}}) == []


def test_a_policy_about_a_parameter_that_a_tool_may_have_is_no_problem() -> None:
    ends = ["*", "charge", "charge.euros", "charge._each", "bank.pay", "bank.pay.euros", "open.any", "elsewhere.x"]
    flows: Any = [{"from": "user", "to": to, "do": "ask"} for to in ends]
    when: Any = {"not": {"properties": {"address": {"required": ["city"]}}}}
    policy = parse_policy({"flows": flows, "tools": {"charge": {"when": when}, "open": {"when": {"required": ["x"]}}}})
    assert policy_parameter_problems(policy, TOOLS) == []
