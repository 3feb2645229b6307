"""Everything that is wrong with an agent file, at once: line, path, words, and the name that was meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError, field_validator
from typer.testing import CliRunner

from perdure import Agent
from perdure.cli.app import app
from perdure.errors import AgentError, InputError
from perdure.values.json import shorten
from perdure.values.problems import first_problem, line_of

WRONG = """{
  // tried by somebody new
  "name": "a",
  "config": {"dialct": "tools", "deadline": "x",
             "dialect": "tols", "models": {"fst": "m"},
             "approval": {"tools": {"pirce": "always", "now": "always"}}},
  "context": [
    {"type": "inptu"},
    {"type": "system", "txt": "x"},
    {"type": "tool", "tool": {"name": "price", "_aproval": "always"}},
    {"type": "tool", "tool": 5}, {"type": "tool", "tool": "now"},
    {"role": "usr", "content": "x"}
  ],
  "schema": {"type": "nonsense"},
}
"""


def problems(text: str, folder: Path) -> list[str]:
    path = folder / "wrong.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(AgentError) as raised:
        Agent.read_to_run(path)
    return [str(each).removeprefix(f"{folder}/") for each in raised.value.problems]


def test_all_that_is_wrong_is_told_at_once_with_line_path_and_what_was_meant(tmp_path: Path) -> None:
    found = problems(WRONG, tmp_path)
    assert found[:5] == [
        'wrong.json:4: $.config.deadline: must be a number, not "x"',
        'wrong.json:4: $.config.dialct: "dialct" is not a known key; did you mean "dialect"?',
        'wrong.json:5: $.config.models.fst: "fst" is not a known key; did you mean "fast"?',
        "wrong.json:5: $.config.dialect: must be 'solution', 'tools' or 'script', not \"tols\"; did you mean 'tools'?",
        'wrong.json:6: $.config.approval.tools.pirce: "pirce" is not a known tool of this agent; did you mean "price"?',
    ]
    assert found[5:9] == [
        'wrong.json:8: $.context[0].type: "inptu" is not a known type of message; did you mean "input"?',
        'wrong.json:9: $.context[1].txt: "txt" is not a known key; did you mean "text"?',
        'wrong.json:10: $.context[2].tool: tool \'price\': "_aproval" is not a known key; did you mean "_approval"? at $._aproval',
        "wrong.json:11: $.context[3].tool: must be text or must be an object, not 5",
    ]
    assert found[9].startswith("wrong.json:12: $.context[5].role: must be 'system', 'developer'")
    assert found[10].startswith("wrong.json:14: $.schema: is not a JSON Schema")
    assert len(found) == 11


def test_a_rule_is_told_by_its_own_keys_and_its_accepted_forms(tmp_path: Path) -> None:
    rules = [
        {"rule": "only_from", "parametr": "a.b", "sources": ["trusted"]},
        {"rule": "at_most", "of": "a", "sm": 4},
        {"of": "a.b", "sum": 4},
    ]
    config = {"rules": rules, "models": {"policy": "best"}, "approval": {"approver": "mine"}}
    found = [each.partition(": ")[2] for each in problems(json.dumps({"config": config}), tmp_path)]
    assert sorted(found) == sorted(
        [
            '$.config.rules[0].parametr: "parametr" is not a known key; did you mean "parameter"?',
            '$.config.rules[1].of: must be TOOL.PARAMETER, such as refund.euros, not "a"',
            '$.config.rules[1].sm: "sm" is not a known key; did you mean "sum"?',
            "$.config.rules[2]: lacks 'rule': give one of precedes, followed_by, never_after, at_most, count_at_most, only_from, needs",
            '$.config.models.policy: must be auto, fast, smart or MODULE:FUNCTION, not "best"',
            '$.config.approval.approver: must be MODULE:FUNCTION, not "mine"',
        ]
    )


def test_a_bare_list_of_messages_has_lines_too(tmp_path: Path) -> None:
    assert problems('[\n{"type": "text", "text": "x"},\n{"type": "text"}]', tmp_path) == [
        "wrong.json:3: $.context[1].text: is missing"
    ]


def test_from_python_all_of_it_is_one_line() -> None:
    with pytest.raises(AgentError) as raised:
        Agent.of({"name": "a", "config": {"max_request": 3, "paralel": 1}}, source="a.json")
    first = '$.config.max_request: "max_request" is not a known key; did you mean "max_requests"?'
    assert (
        str(raised.value)
        == f'a.json: {first}; $.config.paralel: "paralel" is not a known key; did you mean "parallel"?'
    )


def test_a_delegate_may_say_what_is_asked_about_a_tool_that_it_is_given(tmp_path: Path) -> None:
    path = tmp_path / "writer.json"
    path.write_text(json.dumps({"config": {"approval": {"tools": {"given": "always"}}}}))
    assert Agent.read(path).name == "writer"
    with pytest.raises(AgentError, match="not a known tool of this agent"):
        Agent.read_to_run(path)


def test_a_rule_about_flows_names_tools_that_there_are(tmp_path: Path) -> None:
    tools: list[dict[str, Any]] = [{"type": "tool", "tool": name} for name in ("read_mail", "send_money", "bank.pay")]
    good = [("tool:read_mail", "send_money.iban"), ("untrusted", "*"), ("user", "bank.pay"), ("model", "bank.pay.iban")]
    flows = [{"from": source, "to": to, "do": "ask"} for source, to in [*good, ("tool:read_mial", "send_mony.iban")]]
    agent = {"config": {"approval": {"flows": flows}}, "context": tools}
    assert problems(json.dumps(agent), tmp_path) == [
        'wrong.json:1: $.config.approval.flows[4].from: "read_mial" is not a known tool of this agent; did you mean "read_mail"?',
        'wrong.json:1: $.config.approval.flows[4].to: "send_mony" is not a known tool of this agent; did you mean "send_money"?',
    ]
    tools.append({"type": "tool", "tool": {"name": "ask_clerk", "_delegate": "clerk"}})  # whose tools are its own
    assert [each.split(": ")[1] for each in problems(json.dumps(agent), tmp_path)] == ["$.config.approval.flows[4].to"]


def test_an_agents_check_finds_parameters_that_the_workers_tools_cannot_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    code = 'from perdure import tool\n\n@tool\ndef pay(euros: float) -> None:\n    """Pay."""\n'
    (tmp_path / "till_of_the_check.py").write_text(code)
    rules = [{"rule": "at_most", "of": "pay.euro", "sum": 1}]
    required = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}
    context = [*({"type": "tool", "tool": name} for name in ("unknown", "pay")), {"type": "input", "schema": required}]
    (file := tmp_path / "a.json").write_text(json.dumps({"config": {"rules": rules}, "context": context}))
    found = CliRunner().invoke(app, ["agent", "check", str(file), "--tools", "till_of_the_check"])
    assert found.exit_code == 1
    unknown = f'{file}:1: $.config.rules[0]: "euro" is not a known parameter of pay; did you mean "euros"?'
    assert unknown in found.stdout.splitlines()
    (planned := tmp_path / "plan.json").write_text('[{"_tool": "pay", "euros": 1}]')
    validate = ["plan", "validate", str(planned), "--agent", str(file), "--input", '{"order": "x"}']
    found = CliRunner().invoke(app, [*validate, "--tools", "till_of_the_check"])
    assert (found.exit_code, unknown in found.stderr) == (2, True), found.output
    file.write_text(json.dumps({"config": {"rules": rules, "paralel": 1}, "context": context}))
    for command in (["agent", "check", str(file)], validate):
        found = CliRunner().invoke(app, [*command, "--tools", "till_of_the_check"])
        assert (found.exit_code, unknown in found.stderr, "paralel" in found.stderr) == (2, True, True), found.output


def test_r23_1_a_rule_of_runs_names_tools_that_there_are(tmp_path: Path) -> None:
    defined = {"name": "pay", "_activity": "charge"}
    tools: list[dict[str, Any]] = [{"type": "tool", "tool": tool} for tool in ("fraud_check", "refund", defined)]
    good: list[dict[str, Any]] = [
        {"rule": "precedes", "first": "fraud_check", "then": "refund"},
        {"rule": "count_at_most", "of": "charge", "count": 1},
    ]
    wrong = [
        {"rule": "never_after", "call": "refnd", "after": "pay"},
        {"rule": "at_most", "of": "fefund.euros", "sum": 1},
    ]
    agent = {"config": {"rules": [*good, *wrong]}, "context": tools}
    assert problems(json.dumps(agent), tmp_path) == [
        'wrong.json:1: $.config.rules[2]: "refnd" is not a known tool of this agent; did you mean "refund"?',
        'wrong.json:1: $.config.rules[3]: "fefund" is not a known tool of this agent; did you mean "refund"?',
    ]
    file = tmp_path / "a.json"
    file.write_text(json.dumps(agent))
    (planned := tmp_path / "plan.json").write_text('[{"_tool": "refund"}]')
    for command in (["agent", "check", str(file)], ["plan", "validate", str(planned), "--agent", str(file)]):
        found = CliRunner().invoke(app, command)
        assert found.exit_code == 2
        assert '"refnd" is not a known tool of this agent' in found.stderr
    tools.append({"type": "tool", "tool": {"name": "ask_clerk", "_delegate": "clerk"}})  # whose tools are its own
    file.write_text(json.dumps(agent))
    assert Agent.read_to_run(file).name == "a"
    assert "delegates: clerk\n" in CliRunner().invoke(app, ["agent", "check", str(file)]).stdout


def test_from_python_a_policy_names_no_tool_but_the_agents_own() -> None:
    def agent(name: str) -> Agent[Any]:
        return Agent("a", instructions="x", tools=["price"], approval={"tools": {name: "always"}})

    agent("price").check_policy()
    with pytest.raises(AgentError, match=r"^agent 'a': .* is not a known tool of this agent; did you mean"):
        agent("pirce").check_policy()


@pytest.mark.parametrize("more", [{"context": [{"type": "tool", "tool": "price"}]}, {"schema": {"type": "number"}}])
def test_a_command_starts_no_paid_run_of_tools_or_a_schema_alone(more: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(more))
    found = CliRunner().invoke(app, ["run", str(tmp_path / "a.json")])
    assert found.exit_code == 2, found.output
    assert "the run has no task: give the agent 'a' a message" in found.stderr
    assert Agent.of(more).check_input(1, explicit=True) == 1


@pytest.mark.parametrize("more", [{}, {"description": "x"}, {"schema": True}, {"context": [{"type": "input"}]}])
def test_a_run_without_anything_to_do_is_refused(more: dict[str, Any]) -> None:
    agent = Agent.of({"name": "a"} | more)
    with pytest.raises(InputError, match="the run has no task: give the agent 'a' a message"):
        agent.check_input()
    assert agent.check_input({"request": "x"}) == {"request": "x"}
    assert Agent("a", instructions="Go.").check_input() is not None


@pytest.mark.parametrize(
    ("place", "line"),
    [((), 1), (("a",), 2), (("b",), 3), (("b", 1), 4), (("b", 1, "c"), 5), (("b", 9), 3), (("x",), 1), (("a", "x"), 2)],
)
def test_where_in_a_text_something_stands(place: tuple[Any, ...], line: int) -> None:
    text = '{\n"a": "{\\"b\\": 1}",\n"b": [1, // one\n  {\n   "c": 2},]}'
    assert line_of(text, place) == line


class Named(BaseModel):
    model_config = {"extra": "forbid"}
    name: Any = ""
    size: int = 0

    @field_validator("name")
    @classmethod
    def check_name(cls, name: Any) -> Any:
        raise ValueError(f"{shorten(name)} is not a name")


@pytest.mark.parametrize("given", [{"size": "\ud800"}, {"name": {"\ud800": 1}}, {"\ud800": 1}])
def test_a_problem_with_an_unpaired_surrogate_can_be_printed(given: Any) -> None:
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(Named).validate_python(given)
    assert "\\ud800" in first_problem(raised.value, given, model=Named).encode().decode()
