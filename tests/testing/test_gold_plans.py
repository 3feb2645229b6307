"""Gold sequences of public datasets as plans: samples of our own, in the datasets' forms (NESTFUL, NesTools, Seal-Tools)."""

from __future__ import annotations

from typing import Any, Literal, get_args

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import Agent
from perdure.testing import check, gold_plan, run_locally

Dialect = Literal["solution", "tools", "script"]

TRIP: list[Any] = [
    {"name": "find_airport", "arguments": {"city": "Oslo"}, "label": "var1"},
    {"name": "find_airport", "arguments": {"city": "Rome"}, "label": "var2"},
    {
        "name": "find_flight",
        "arguments": {"start": "$var1.code$", "end": "$var2.code$", "note": "from $var1.names[0]$, 5 † fee"},
        "label": "var3",
    },
    {"name": "var_result", "arguments": {"flight": "$var3.Flight Number$", "all": "$var3$"}},
]
SUMS: list[Any] = [
    {"name": "add", "arguments": {"a": 1, "b": 2}, "label": "$var_1"},
    {"name": "add", "arguments": {"a": "$var_1.result$", "b": 4}, "label": "$var_2"},
]
CARE: list[Any] = [
    {"api_name": "check_vitals", "parameters": {"rate": 80}, "responses": ["API_call_0", "API_call_1"]},
    {
        "api_name": "treat",
        "parameters": {"condition": "API_call_0", "tests": ["API_call_1"]},
        "responses": ["API_call_2"],
    },
]
CARE_TOOLS: list[Any] = [
    {"api_name": "check_vitals", "responses": {"health": {"type": "str"}, "more_tests": {"type": "bool"}}},
    {"api_name": "treat", "responses": {"status": {"type": "str"}}},
]
SEALED: list[Any] = [
    {"api": "translate", "parameters": {"text": "hello"}, "responses": ["API_call_0"]},
    {"api": "shout", "parameters": {"text": "say API_call_0!"}, "responses": ["API_call_1"]},
]


def find_airport(city: str) -> dict[str, Any]:
    return {"code": city[:1], "names": [city]}


def find_flight(start: str, end: str, note: str) -> dict[str, Any]:
    return {"Flight Number": f"{start}{end}1", "note": note}


def add(a: int, b: int) -> int:
    return a + b


def check_vitals(rate: int) -> dict[str, Any]:
    return {"health": f"fine at {rate}", "more_tests": False}


def treat(condition: str, tests: list[bool]) -> dict[str, Any]:
    return {"status": f"{condition}, {tests}"}


def translate(text: str) -> str:
    return f"hallo ({text})"


def shout(text: str) -> str:
    return text.upper()


SAMPLES: list[Any] = [
    pytest.param(
        TRIP,
        [],
        [find_airport, find_flight],
        {"flight": "OR1", "all": {"Flight Number": "OR1", "note": "from Oslo, 5 † fee"}},
        id="nestful",
    ),
    pytest.param(SUMS, [], [add], 7, id="nestful-results"),
    pytest.param(CARE, CARE_TOOLS, [check_vitals, treat], {"status": "fine at 80, [False]"}, id="nestools"),
    pytest.param(SEALED, [], [translate, shout], "SAY HALLO (HELLO)!", id="seal-tools"),
]


@pytest.mark.parametrize("dialect", get_args(Dialect))
@pytest.mark.parametrize(("calls", "definitions", "tools", "output"), SAMPLES)
@pytest.mark.asyncio(loop_scope="session")
async def test_a_gold_sequence_is_played_in_every_dialect(
    dialect: Dialect, calls: Any, definitions: Any, tools: Any, output: Any, dev_server: WorkflowEnvironment
) -> None:
    plan = gold_plan(calls, tools=definitions)
    agent = Agent("gold", instructions="Do it.", tools=tools, dialect=dialect)
    assert check(agent, plan).ok, check(agent, plan)
    async with run_locally(agent, model=[plan], server=dev_server) as local:
        view = await local.run({"request": "Do it."})
    assert view.output == output
    assert [call.status for call in view.calls] == ["done"] * len(plan["calls"])


def test_calls_that_read_nothing_of_each_other_are_on_one_level() -> None:
    agent = Agent("gold", instructions="Do it.", tools=[find_airport, find_flight])
    assert gold_plan(TRIP)["calls"][2]["start"] == "†state.var1.code"
    assert check(agent, gold_plan(TRIP)).levels == [["1.0", "1.1"], ["1.2"]]


def test_a_parameter_with_the_name_of_a_meta_property_is_written_as_its_tool_takes_it() -> None:
    """Of the Berkeley Function Calling Leaderboard: `_from` and `_class` are parameters there."""
    names = {"_from": "Rome", "_class": "first", "to": "Oslo"}
    properties = {name: {"type": "string"} for name in names}
    agent = Agent("gold", tools=[{"name": "book", "inputSchema": {"type": "object", "properties": properties}}])
    plan = gold_plan([{"name": "book", "arguments": names}])
    assert plan["calls"][0] == {
        "_tool": "book",
        "from_": "Rome",
        "class_": "first",
        "to": "Oslo",
        "_outputPath": "†state.call_0",
    }
    assert check(agent, plan).ok, check(agent, plan)


@pytest.mark.parametrize(
    ("calls", "line"),
    [
        ([{"arguments": {}}], "call 0: it has no name: expected 'name', 'api_name' or 'api'"),
        ([{"name": "a", "arguments": {"x": "$var9.y$"}}], r"call 0 \(a\): no earlier call returns \$var9.y\$"),
        ([CARE[0]], r"call 0 \(check_vitals\) has 2 responses: give tools= with the fields of its result"),
    ],
)
def test_a_sequence_that_is_no_plan_is_one_line(calls: Any, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        gold_plan(calls)
