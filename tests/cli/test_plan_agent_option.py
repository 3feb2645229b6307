"""`perdure plan --agent`: a plan judged as a run of this agent would judge it, in whichever dialect it was written (R5.6, R9.2)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from perdure.cli.app import app

TOOLS = '''
from perdure import tool

@tool(safe=True)
def price(fruit: str, count: int = 1) -> float:
    """The price."""
    return count

@tool(dangerous=True)
def pay(euros: float) -> str:
    """Pay."""
    return "paid"
'''
AGENT = {
    "name": "shopper",
    "context": [
        {"type": "system", "text": "Help."},
        {"type": "tool", "tool": "price"},
        {"type": "tool", "tool": "pay"},
        {"type": "input", "schema": {"type": "object", "required": ["fruit"]}},
    ],
    "schema": {"type": "object", "properties": {"euros": {"type": "number"}}, "required": ["euros"]},
}
CALLS = [
    {"_tool": "price", "fruit": "†input.fruit", "_outputPath": "†state.euros"},
    {"_tool": "pay", "euros": "†state.euros"},
]
NATIVE = [
    {"id": "a", "function": {"name": "price", "arguments": '{"fruit": "†input.fruit", "_outputPath": "†state.euros"}'}}
]
GIVEN = ("--agent", "shopper.json", "--tools", "fruit_tools", "--input", '{"fruit": "pear"}')


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "fruit_tools.py").write_text(TOOLS, encoding="utf-8")
    (tmp_path / "shopper.json").write_text(json.dumps(AGENT), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def plan(command: str, written: Any, *more: str, name: str = "plan.json") -> Result:
    Path(name).write_text(written if isinstance(written, str) else json.dumps(written), encoding="utf-8")
    return CliRunner().invoke(app, ["plan", command, name, *more])


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("written", "name", "count"),
    [
        ({"calls": CALLS, "output": {"euros": "†state.euros"}}, "plan.json", 2),
        (CALLS, "plan.json", 2),
        (NATIVE, "plan.json", 1),
        ("euros = price(fruit=input.fruit)\npay(euros=euros)\n", "plan.txt", 2),
    ],
)
def test_each_dialect_is_read(written: Any, name: str, count: int) -> None:
    found = plan("validate", written, *GIVEN, name=name)
    ended = found.stdout.splitlines()[-1]  # before it stand hints
    assert (found.exit_code, ended) == (0, f"{count} call{'s' * (count > 1)}, no problems"), found.output


@pytest.mark.usefixtures("folder")
def test_it_fails_where_the_run_would() -> None:
    wrong = [{"_tool": "prise", "fruit": "x"}, {"_tool": "pay", "euros": "much"}]
    found = plan("validate", {"calls": wrong, "output": {"euros": "much"}}, *GIVEN)
    assert found.exit_code == 1
    assert 'there is no tool "prise"; ' in found.stdout
    assert '1.1 pay: $.euros is "much", but must fit {"type": "number"}' in found.stdout
    assert 'the output: $.euros is "much"' in found.stdout
    Path("shopper.json").write_text(
        json.dumps(AGENT | {"context": [*AGENT["context"], {"type": "tool", "tool": "pey"}]})
    )
    assert "--agent: the worker has no tool 'pey'; did you mean 'pay'? it has" in plan("validate", CALLS, *GIVEN).stdout


@pytest.mark.usefixtures("folder")
def test_an_agent_that_no_run_would_start_with_is_told_as_there() -> None:
    Path("shopper.json").write_text(json.dumps(AGENT | {"config": {"approval": {"tools": {"pya": "always"}}}}))
    found = plan("validate", CALLS, *GIVEN)
    assert (found.exit_code, found.stdout) == (2, "")
    assert (
        'shopper.json:1: $.config.approval.tools.pya: "pya" is not a known tool of this agent; did you mean "pay"?'
        in found.stderr
    )
    rules = [{"rule": "only_from", "parameter": "pay.euro", "sources": ["trusted"]}]
    Path("shopper.json").write_text(json.dumps(AGENT | {"config": {"rules": rules}}))
    misnamed = plan("validate", CALLS, *GIVEN)
    assert (misnamed.exit_code, misnamed.stdout) == (2, "")
    assert '"euro" is not a known parameter of pay; did you mean "euros"?' in misnamed.stderr
    Path("shopper.json").write_text(json.dumps(AGENT))
    without = plan("validate", CALLS, *GIVEN[:4])
    assert (without.exit_code, "lacks 'fruit'; give the run's input by --input" in without.stderr) == (2, True)


@pytest.mark.usefixtures("folder")
def test_the_policy_says_who_is_asked() -> None:
    def asked(config: dict[str, Any]) -> list[bool]:
        Path("shopper.json").write_text(json.dumps(AGENT | {"config": config}))
        return [call["approval"] for call in json.loads(plan("simulate", CALLS, *GIVEN, "--json").stdout)["calls"]]

    assert asked({}) == [False, True]
    assert asked({"approval": {"tools": {"price": "always", "pay": "never"}}}) == [True, False]


@pytest.mark.usefixtures("folder")
def test_with_the_tools_named_there_are_no_others() -> None:
    calls = [{"_tool": "price", "fruit": "x"}, {"_tool": "prise", "fruit": "x"}]
    assert plan("validate", calls).exit_code == 0  # nobody knows the tools
    found = plan("validate", calls, "--tools", "fruit_tools")
    assert (found.exit_code, 'there is no tool "prise"' in found.stdout) == (1, True)


@pytest.mark.usefixtures("folder")
def test_what_it_reads_and_was_not_given_is_said_and_a_dry_run_of_what_is_invalid_fails() -> None:
    calls = [{"_tool": "price", "fruit": "†input.fruit"}]
    found = plan("simulate", calls)
    assert (found.exit_code, "is missing: give --input" in found.stderr) == (1, True)
    assert plan("simulate", calls, "--input", '{"fruit": "x"}').exit_code == 0


@pytest.mark.usefixtures("folder")
def test_where_the_item_of_a_loop_is_told_where_it_is_looked_for() -> None:
    calls = [
        {"_tool": "price", "_each": ["apple"]},
        {"_tool": "price", "_each": ["apple"], "fruit": "†input.item"},
        {"_tool": "price", "_each": ["apple"], "fruit": "†item"},
    ]
    lines = plan("validate", calls, *GIVEN).stdout.splitlines()
    assert (
        lines[0]
        == "1.0 price: $ lacks 'fruit'; what a call with _each runs for is †item, which its parameters can read"
    )
    assert lines[1].startswith(
        "1.1 price: $.fruit: there is no †input.item here: the item of a call's own _each is †item"
    )
    assert lines[2] == "3 calls, 2 problems"


WRITER = {"name": "writer", "properties": {"to": {"type": "string"}}, "_delegate": "writer"}
FIRST = [{"rule": "precedes", "first": "price", "then": "pay"}]
MISSING = "the agents folder has no 'writer'; its agents are shopper"


@pytest.mark.usefixtures("folder")
def test_a_delegate_without_an_agent_file_is_named_as_the_worker_names_it() -> None:
    Path("agents").mkdir()
    context = [*AGENT["context"], {"type": "tool", "tool": WRITER}]
    shopper = json.dumps(AGENT | {"context": context, "config": {"rules": FIRST}})
    Path("agents/shopper.json").write_text(shopper)
    given = ("--agent", "shopper", *GIVEN[2:])
    Path("shopper.json").unlink()
    calls = [*CALLS, {"_tool": "writer", "to": "ann"}]

    validated, simulated = plan("validate", calls, *given), plan("simulate", calls, *given)
    checked = CliRunner().invoke(app, ["agent", "check", "shopper"])
    for found in (validated, simulated, checked):
        assert (found.exit_code, MISSING in found.stdout.splitlines()) == (1, True), found.output
    assert "unknown: precedes(price, pay): the run below 1.2 writer may call pay" in validated.stdout
    for command, more in (("validate", given), ("simulate", given)):
        assert MISSING in plan(command, calls, *more, "--json").stdout
    assert json.loads(CliRunner().invoke(app, ["agent", "check", "shopper", "--json"]).stdout)["problems"] == [MISSING]

    Path("agents/writer.json").write_text(json.dumps({"name": "writer", "context": []}))
    validated, simulated = plan("validate", calls, *given), plan("simulate", calls, *given)
    checked = CliRunner().invoke(app, ["agent", "check", "shopper"])
    assert [found.exit_code for found in (validated, simulated, checked)] == [0, 0, 0], validated.output
    for found in (validated, simulated):
        assert "proven: precedes(price, pay)" in found.stdout.splitlines()

    pays = {"name": "writer", "context": [{"type": "tool", "tool": "pay"}]}
    Path("agents/writer.json").write_text(json.dumps(pays))
    assert "unknown: precedes(price, pay)" in plan("validate", calls, *given).stdout


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", ["validate", "simulate", "draw"])
def test_the_agents_folder_is_given_by_a_flag(command: str) -> None:
    context = [*AGENT["context"], {"type": "tool", "tool": WRITER}]
    Path("shopper.json").write_text(json.dumps(AGENT | {"context": context}))
    Path("elsewhere").mkdir()
    Path("elsewhere/writer.json").write_text(json.dumps({"name": "writer", "context": []}))
    calls = [{"_tool": "writer", "to": "ann"}]
    found = plan(command, calls, *GIVEN, "--agents", "elsewhere")
    assert (found.exit_code, "the agents folder" in found.stdout) == (0, False), found.output
    if command != "draw":
        expected = (
            "the agents folder has no 'writer'; 'agents' does not exist: "
            "give it by --agents, PERDURE_AGENTS or `agents` in perdure.toml"
        )
        assert expected in plan(command, calls, *GIVEN).stdout.splitlines()


@pytest.mark.usefixtures("folder")
def test_a_call_of_a_delegate_is_checked_against_its_agent_file() -> None:
    Path("agents").mkdir()
    tool = {"name": "writer", "_delegate": "writer", "_resolution": "upfront"}
    schema = {"type": "object", "required": ["to"], "properties": {"to": {"type": "string"}}}
    writer = {"name": "writer", "context": [{"type": "input", "schema": schema}]}
    Path("agents/writer.json").write_text(json.dumps(writer))
    Path("shopper.json").write_text(
        json.dumps(AGENT | {"context": [*AGENT["context"], {"type": "tool", "tool": tool}]})
    )
    assert "0 writer: $ lacks 'to'" in plan("validate", [{"_tool": "writer"}], *GIVEN).stdout
