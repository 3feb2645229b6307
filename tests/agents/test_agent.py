"""Agents in Python are agent files, both ways (R13.2)."""

from __future__ import annotations

import json
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Any, assert_type

import pytest
from pydantic import BaseModel, field_validator

from perdure import Agent, tool
from perdure.errors import AgentError, OutputError, PerdureError
from perdure.runs.agent import parse_agent
from perdure.runs.delegates import merge_upfront
from perdure.tools.tool import parse_tool
from tests.support import ROOT


class Answer(BaseModel):
    """What it costs."""

    euros: float

    @field_validator("euros")
    @classmethod
    def _no_debt(cls, euros: float) -> float:
        if euros < 0:
            raise ValueError("less than nothing")
        return euros


class Order(BaseModel):
    fruit: str


@tool(safe=True)
def price(fruit: str) -> float:
    """The price of some fruit."""
    return float(len(fruit))


@tool(name="price")
def other_price() -> float:
    return 0.0


def test_it_writes_what_an_agent_file_says_and_nothing_that_was_left_out() -> None:
    shopper = Agent(
        "shopper",
        instructions="You help with shopping.",
        tools=[price, "total", {"name": "guess", "properties": {}}],
        input=Order,
        output=Answer,
        messages=[{"type": "text", "text": "Hello."}],
        description="Shops.",
        models={"fast": "small"},
        approval={"ask": "unsafe", "timeout": 60},
        deadline=30,
    )
    assert shopper.document() == {
        "name": "shopper",
        "description": "Shops.",
        "context": [
            {"type": "system", "text": "You help with shopping."},
            {"type": "tool", "tool": "price"},
            {"type": "tool", "tool": "total"},
            {"type": "tool", "tool": {"name": "guess", "properties": {}}},
            {
                "type": "input",
                "schema": {"type": "object", "properties": {"fruit": {"type": "string"}}, "required": ["fruit"]},
            },
            {"type": "text", "text": "Hello."},
        ],
        "schema": {
            "type": "object",
            "description": "What it costs.",
            "properties": {"euros": {"type": "number"}},
            "required": ["euros"],
        },
        "config": {"models": {"fast": "small"}, "approval": {"ask": "unsafe", "timeout": 60}, "deadline": 30},
    }
    assert parse_agent(shopper.document()) == shopper.parsed
    assert [function.name for function in shopper.functions] == ["price"]
    assert Agent("plain").document() == {"name": "plain", "context": []}


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    for path in (ROOT / "examples").glob("*/agents/*.json"):
        assert Agent.read(path).document() == json.loads(path.read_text(encoding="utf-8"))
    shopper = Agent("shopper", instructions="Shop.", tools=[price], output=Answer)
    (tmp_path / "shopper.json").write_text(json.dumps(shopper.document()), encoding="utf-8")
    read = Agent.read(tmp_path / "shopper.json", output=Answer)
    assert read.document() == shopper.document()
    assert read.read_output({"euros": 2}) == Answer(euros=2)
    (tmp_path / "bare.json").write_text('[{"type": "text", "text": "Hi"}] // a context', encoding="utf-8")
    assert Agent.read(tmp_path / "bare.json").name == "bare"
    assert Agent.of({"name": "x"}, output=Answer).document()["schema"]["required"] == ["euros"]


def test_an_output_is_read_as_its_type() -> None:
    typed = Agent("typed", output=Answer)
    assert_type(typed, Agent[Answer])
    assert_type(typed.read_output({"euros": 1}), Answer)
    assert typed.read_output({"euros": 1}) == Answer(euros=1)
    with pytest.raises(OutputError, match=r"does not match the agent's output type: less than nothing at \$.euros"):
        typed.read_output({"euros": -1})
    several = Agent("several", output=list[Answer])
    assert_type(several.read_output([]), list[Answer])
    assert several.read_output([{"euros": 1}]) == [Answer(euros=1)]
    schema = Agent("schema", output={"type": "array"})
    assert schema.read_output([1]) == [1]
    assert schema.document()["schema"] == {"type": "array"}
    assert Agent("or nothing", output=Answer | None).read_output(None) is None


def test_an_agent_is_a_tool_of_another_with_its_schemas_and_all_below_it() -> None:
    deep = Agent("deep", tools=[price])
    writer = Agent("writer", input=Order, output=Answer, tools=[deep], description="Writes.")
    boss = Agent("boss", tools=[writer, deep])
    given, plain = (message["tool"] for message in boss.document()["context"])
    assert given == {"name": "writer", "description": "Writes.", "_delegate": "writer", "_resolution": "upfront"}
    merged = merge_upfront(parse_tool(given), boss.delegates()["writer"])
    assert merged.parameters["required"] == ["fruit"]
    assert merged.output is not None
    assert parse_tool(plain).parameters["required"] == ["request"]
    assert boss.delegates() == {"writer": writer.document(), "deep": deep.document()}
    assert [function.name for function in boss.functions] == ["price"]


class Unreadable:
    pass


class Objects(Enum):
    ONE = object()


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (lambda: Agent("a", deadline="soon"), "agent 'a': \\$.config.deadline: must be a number, not \"soon\""),  # type: ignore[call-overload]
        (lambda: Agent("a", tempo=1), "agent 'a': .*tempo"),  # type: ignore[call-overload]
        (lambda: Agent("a", tool=[price]), 'agent \'a\': "tool" is not a known key; did you mean "tools"'),  # type: ignore[call-overload]
        (lambda: Agent("a", inputs=int), 'agent \'a\': "inputs" is not a known key; did you mean "input"'),  # type: ignore[call-overload]
        (lambda: Agent("a", hooks=[price]), "agent 'a': an agent has no hooks; a worker has"),  # type: ignore[call-overload]
        (lambda: Agent("a", models={"slow": "x"}), "agent 'a': \\$.config.models.slow: "),  # type: ignore[call-overload]
        (lambda: Agent("a", tools=[5]), "agent 'a': 5 is not a tool: give a function, or the name of a tool"),
        (lambda: Agent("a", tools=[price, other_price]), "agent 'a' has two tools called 'price': rename one of them"),
        (
            lambda: Agent("a", tools=[Agent("b"), Agent("b", output=int)]),
            "delegates to two agents called 'b': rename one of them",
        ),
        (
            lambda: Agent("a", tools=[Agent("price"), price]),
            "agent 'a' has a tool and an agent called 'price': rename one of them",
        ),
        (lambda: Agent("a", tools=[Agent("../b")]), "'../b' is not a delegate's name"),
        (lambda: Agent("a", output=Unreadable), "agent 'a': output is not a JSON Schema or a type"),
        (lambda: Agent("a", output=Objects), "agent 'a': output is not a JSON Schema or a type"),
        (lambda: Agent("a", output="a text"), "agent 'a': output is not a JSON Schema or a type"),
        (lambda: Agent("a", output="Fruit"), "agent 'a': output is not a JSON Schema or a type"),
        (lambda: Agent("a", output={"type": "thing"}), "agent 'a': \\$.schema: is not a JSON Schema"),
        (lambda: Agent("a", input={"type": "thing"}), "agent 'a': the schema of the input is not a JSON Schema"),
        (lambda: Agent("a", context=str), "agent 'a': context must be the type of an object, such as a TypedDict"),
        (lambda: Agent("a", messages=5), "agent 'a': messages must be a list, not 5"),  # type: ignore[call-overload]
        (lambda: Agent("a", tools=[{"name": "x", "_dangeros": True}]), "_dangeros"),
        (lambda: Agent("a", tools=[{"nme": "x"}]), "agent 'a': a tool's definition needs a 'name'"),
        (lambda: Agent("a", tools=[""]), "agent 'a': '' is not a tool"),
        (lambda: Agent("a").with_candidate(Agent("b"), tenants="acme"), "tenants must be a list of names, not 'acme'"),
        (lambda: Agent("a").with_candidate(None), "candidate must be an Agent, not None"),  # type: ignore[arg-type]
        (lambda: Agent("a", messages=[{"type": "text"}]), r"agent 'a': \$.context\[0\]\.text: is missing"),
        (lambda: Agent("a", messages=[{"type": "text", "text": len}]), "agent 'a' cannot be written as JSON"),
        (lambda: Agent(""), r"agent '': \$\.name: must not be empty"),
        (
            lambda: Agent.read("nowhere"),
            r"no agent 'nowhere': there is no file nowhere, and no agents/nowhere\.json; name an agent in Python as MODULE:NAME$",
        ),
        (lambda: Agent.read("nowhere.py"), "nowhere.py is not an agent file; .* as MODULE:NAME: nowhere:NAME$"),
        (lambda: Agent.read("nowhere.json"), r"no agent 'nowhere.json': there is no file nowhere\.json$"),
        (
            lambda: Agent.read(Agent("a")),  # type: ignore[call-overload]
            "Agent.read takes a file's path or an agent's name, not Agent; Agent.of takes",
        ),
        (lambda: Agent.read({"name": "a"}), "Agent.read takes a file's path or an agent's name, not dict; Agent.of"),  # type: ignore[call-overload]
        (lambda: Agent("a", deadline=None), "deadline: must be a number, not null; leave it out for its default"),  # type: ignore[call-overload]
        (lambda: Agent("a", priority="1"), "agent 'a': \\$.config.priority: must be a whole number, not \"1\""),  # type: ignore[call-overload]
        (lambda: Agent("a", priority=True), "agent 'a': \\$.config.priority: must be a whole number, not true"),
        (lambda: Agent("a", tools=5), "agent 'a': tools must be a list, not 5"),  # type: ignore[call-overload]
        (lambda: Agent("a", tools="price"), "agent 'a': tools must be a list, not 'price'"),
        (
            lambda: Agent("a", output=5),
            "agent 'a': output is not .*: Unable to generate pydantic-core schema for 5$",
        ),
        (lambda: Agent.of([1]), "the agent must be a JSON object"),
    ],
)
def test_what_is_wrong_is_one_line_when_it_is_written(wrong: Any, line: str) -> None:
    with pytest.raises(PerdureError, match=line) as raised:
        wrong()
    assert "\n" not in str(raised.value)
    assert isinstance(raised.value, AgentError) or "nowhere" in str(raised.value)


def test_a_module_of_tools_and_a_plan_stay_cheap_to_look_at() -> None:
    code = (
        "import sys; from perdure import tool; assert 'temporalio' not in sys.modules and 'openai' not in sys.modules;"
        "from perdure import Agent; import typer.main; from perdure.cli.app import app;"
        "assert dict(typer.main.get_group(app).commands) and 'temporalio' not in sys.modules; import perdure;"
        "assert [n for n in perdure.__all__ if not hasattr(perdure, n)] == []"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
