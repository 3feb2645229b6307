"""Messages, agent files and the run's input (section 2)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from perdure.errors import AgentError, InputError, JsonError
from perdure.models.dialects._solution import parse_solution
from perdure.runs.agent import Context, parse_agent
from perdure.values.json import MAX_DEPTH, loads
from perdure.values.messages import merge_data, parse_messages
from tests.strategies import json_values


def context_of(*messages: dict[str, Any], **more: Any) -> Context:
    return Context(parse_agent({"name": "x", "context": list(messages)}), **more)


@pytest.mark.parametrize(
    ("message", "kind", "data"),
    [
        ({"type": "input", "request": "r", "n": 1}, "input", {"request": "r", "n": 1}),
        ({"type": "input", "input": {"request": "r"}}, "input", {"request": "r"}),
        ({"type": "data", "kind": "user", "data": {"a": 1}}, "user", {"a": 1}),
        ({"type": "data", "kind": "user", "a": 1, "_instance": "i"}, "user", {"a": 1}),
        ({"type": "state", "state": {"kind": "k"}}, "state", {"kind": "k"}),
        ({"type": "data", "data": [1, 2]}, "data", [1, 2]),
    ],
)
def test_r2_2_both_spellings(message: dict[str, Any], kind: str, data: Any) -> None:
    parsed: Any = parse_messages([message])[0]
    assert (parsed.kind, parsed.data, parsed.given) == (kind, data, True)
    assert parse_messages([parsed.as_json()]) == [parsed]


@pytest.mark.parametrize(
    ("context", "words"),
    [
        ([{"type": "inptu"}], '$.context[0].type: "inptu" is not a known type of message; did you mean "input"?'),
        ([{"type": "system", "text": "x"}, 7], "$.context[1]: is not a message"),
        ([{"type": "system"}], "$.context[0].text: is missing"),
        ([{"type": "input", "input": {}, "more": 1}], "either under 'input' or beside 'type'"),
        ([{"type": "input", "kind": "other"}], "$.context[0].kind: must be 'input', not \"other\""),
    ],
)
def test_r2_1_a_bad_message_names_its_index_and_type(context: list[Any], words: str) -> None:
    with pytest.raises(AgentError) as caught:
        parse_agent({"name": "x", "context": context})
    assert words in str(caught.value)


def test_r2_6_one_kind_and_instance_is_one_object() -> None:
    messages: Any = parse_messages(
        [
            {"type": "data", "kind": "u", "a": {"x": 1}, "schema": {"type": "object"}},
            {"type": "data", "kind": "u", "a": {"y": 2}, "b": 1},
            {"type": "data", "kind": "u", "_instance": "i", "a": 3},
        ]
    )
    merged = [(m.kind, m.instance, m.value, m.data_schema) for m in merge_data(messages)]
    assert merged == [("u", None, {"a": {"x": 1, "y": 2}, "b": 1}, {"type": "object"}), ("u", "i", {"a": 3}, None)]


def test_r2_3_input_against_its_schema() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    message = {"type": "input", "schema": schema}
    assert context_of(message, run_input={"n": 1}, has_input=True).values() == {"input": {"n": 1}}
    for run_input, words in (({"n": "x"}, '$.n is "x"'), ({}, "$ lacks 'n'"), (None, "$ is null")):
        with pytest.raises(InputError) as caught:
            context_of(message, run_input=run_input, has_input=True)
        assert words in str(caught.value)
    with pytest.raises(InputError, match="lacks 'n'"):
        context_of(message)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "NaN",
        '{"a": Infinity}',
        "1e999",
        '"\\ud800"',
        "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        "[" * 200_000,
        "9" * 5000,
        "9" * 4100,
    ],
)
def test_what_is_no_json_is_one_line(text: str) -> None:
    with pytest.raises(JsonError) as caught:
        loads(text)
    assert "\n" not in str(caught.value)


@given(json_values())
def test_json_comes_back_as_it_was(value: Any) -> None:
    assert loads(json.dumps(value)) == value


@given(json_values())
def test_any_json_is_a_solution_or_a_problem(value: Any) -> None:
    solution = parse_solution(json.dumps(value))
    assert (solution.problem is None) == (
        isinstance(value, dict)
        and bool(value.keys() & {"calls", "output"})
        and value.keys() <= {"calls", "output"}
        and (value.get("calls") is None or isinstance(value["calls"], list))
    )
