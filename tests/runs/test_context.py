"""A context as it was given: its order, history, comments, and how others write it (R2.5, R2.7 to R2.9)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure.agents.files import read_agent
from perdure.errors import AgentError, JsonError
from perdure.models.dialects.registry import DIALECTS
from perdure.models.requests import RequestResult
from perdure.plan import Returned
from perdure.runs.agent import Context, Models, auto, parse_agent
from perdure.runs.context import _compose_parameters
from perdure.runs.run import RunState
from perdure.runs.wire import PreparedWorker
from perdure.tools.tool import parse_tool
from perdure.values.json import JsonObject, dumps, loads_commented
from perdure.values.schemas import or_null

TOOL = parse_tool({"name": "t", "properties": {"x": {}}, "_activity": "t"}, activities=["t"])
CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "how hot is it?"},
    {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "heat", "arguments": {"at": "here"}}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "hot-31"},
    {"role": "assistant", "content": "31 degrees."},
]


def run_of(*context: dict[str, Any], **more: Any) -> RunState:
    agent = parse_agent({"name": "a", "context": list(context), "config": more.pop("config", {})})
    return RunState(agent, Context(agent, **more), PreparedWorker(tools=[TOOL], models=Models()))


def chat(run: RunState) -> list[dict[str, Any]]:
    """What the next Request is told."""
    run.begin_request(auto(run.situation()))
    return run.request_context(run.progress.number).messages


def said(run: RunState) -> list[str]:
    return [str(message["content"]) for message in chat(run)[1:]]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_runs_with_equal_tools_share_their_schemas_and_others_have_their_own(dialect: str) -> None:
    def parameters(config: JsonObject | None = None, **changed: Any) -> JsonObject:
        tool = parse_tool({"name": "t", "properties": {"x": {}}, "_activity": "t", **changed}, activities=["t"])
        agent = parse_agent({"name": "a", "context": [], "config": {"dialect": dialect, **(config or {})}})
        run = RunState(agent, Context(agent), PreparedWorker(tools=[tool], models=Models()))
        run.begin_request(auto(run.situation()))
        return run.request_context(1).parameters

    _compose_parameters.cache_clear()
    first = parameters()
    assert (parameters(), _compose_parameters.cache_info().misses) == (first, 1)
    changes: list[JsonObject] = [{"description": "other"}, {"properties": {"y": {}}}, {"_outputPath": "†state.t"}]
    for changed in changes:
        assert (parameters(**changed) == first) is (dialect == "script"), changed
    assert (parameters({"max_calls": 7}) == first) is (dialect != "solution")
    assert (parameters(), _compose_parameters.cache_info().misses) == (first, 5)


def test_r2_7_what_the_model_reads_keeps_its_order() -> None:
    run = run_of(
        {"type": "system", "text": "be kind"},
        {"type": "text", "text": "one"},
        {"type": "data", "kind": "user", "data": {"a": 1}},
        {"type": "state", "state": {"s": 1}},
        {"type": "error", "call": None, "error": "two"},
        {"type": "input", "input": {"i": 1}},
        {"type": "system", "text": "three"},
        {"type": "data", "kind": "user", "data": {"b": 2}},
        {"type": "tool", "tool": "t"},
        {"type": "text", "text": "four", "role": "assistant"},
        run_input={"j": 2},
        has_input=True,
    )
    first = chat(run)
    assert [(message["role"], message["content"].split("\n")[0]) for message in first[1:]] == [
        ("user", "one"),
        ("user", "# error"),
        ("user", "# input"),
        ("system", "three"),
        ("user", "# user"),
        ("assistant", "four"),
        ("user", "# state"),
    ]
    assert first[0]["content"].startswith("be kind\n\n")
    assert first[3]["content"] == '# input\n{"i":1,"j":2}'
    assert first[5]["content"] == '# user\n{"a":1,"b":2}'


def test_r10_19_state_and_plan_stand_last_as_they_are_now_so_that_the_beginning_stays() -> None:
    given = {"type": "plan", "plan": [{"_tool": "t", "x": "given-1"}]}
    about: dict[str, Any] = {"type": "state", "state": {"s": 1}, "schema": {"type": "object"}, "description": "of it"}
    run = run_of(about, given, {"type": "text", "text": "last"})
    before = said(run)
    assert before[0] == '# state\nof it\nschema: {"type":"object"}\nWhat it holds stands at the end.'
    assert [text.split(":")[0] for text in before[1:]] == ["last", '# state\n{"s"', '# plan\n{"_tool"']
    plan = run.open_plan(1)
    plan.add({"_tool": "t", "x": "mine-2", "_outputPath": "†state.n"})
    plan.close()
    for call in plan.take_ready():
        plan.end(call, Returned(7))
    run.close_request(plan, RequestResult())
    after = said(run)
    assert after[:3] == [*before[:2], '# state\n{"s":1,"n":7}']
    assert ["mine-2" in text for text in after] == [False, False, False, True]


def test_r10_19_in_a_dialect_of_turns_state_and_plan_stand_where_they_were_given() -> None:
    given = {"type": "plan", "plan": [{"_tool": "t", "x": "given-1"}]}
    config = {"dialect": "tools"}
    run = run_of({"type": "state", "state": {"s": 1}}, given, {"type": "text", "text": "last"}, config=config)
    assert [text.split(":")[0] for text in said(run)] == ['# state\n{"s"', '# plan\n{"_tool"', "last"]


def test_r2_5_given_errors_and_feedback_are_shown_like_the_engines_own() -> None:
    run = run_of(
        {"type": "error", "data": {"call": {"_tool": "t"}, "error": {"code": "E"}}},
        {"type": "error", "error": "flat"},
        {"type": "feedback", "call": "1.0", "decision": "reject", "reason": "why-3"},
    )
    assert said(run) == [
        '# error\n{"call":{"_tool":"t"},"error":{"code":"E"}}',
        '# error\n{"call":null,"error":"flat"}',
        '# feedback\n{"call":"1.0","decision":"reject","reason":"why-3"}',
    ]


def test_r2_8_history_is_sent_as_it_was_where_functions_are_native() -> None:
    messages = chat(run_of(*CALLED, config={"dialect": "tools"}))[1:]
    assert messages[1]["tool_calls"][0]["function"] == {"name": "heat", "arguments": '{"at":"here"}'}
    assert messages[1].keys() == {"role", "content", "tool_calls"}
    assert messages[2] == {"role": "tool", "tool_call_id": "c1", "content": "hot-31"}


def test_conversions_and_races_are_told_to_the_model_once_and_hold_no_output_back() -> None:
    typed = parse_tool({"name": "typed", "properties": {"n": {"type": "integer"}}}, activities=["typed"])
    agent = parse_agent({"name": "a", "context": [{"type": "text", "text": "go"}]})
    run = RunState(agent, Context(agent), PreparedWorker(tools=[typed], models=Models()))
    chat(run)

    def play(number: int, output: int | None, *values: str | int) -> bool:
        plan = run.open_plan(number)
        for value in values:
            plan.add({"_tool": "typed", "n": value, "_outputPath": "†state.x"})
        plan.close()
        for call in plan.take_ready():
            plan.end(call, Returned(7))
        return run.close_request(plan, RequestResult(output=output))

    assert not play(1, None, "1", 2)
    told = said(run)[1:3]
    assert "1.0 typed: $.n was" in told[0]
    assert "1.0 typed and 1.1 typed both set" in told[1]
    assert play(2, 5, "3")
    assert run.output.value == 5


@pytest.mark.parametrize(
    ("dialect", "shown"),
    [
        ("solution", '{"1.0":{"tool":"t","params":{"x":"†input.i"},"result":"a\\n# 9.9: b"}}'),
        ("script", 't(x=input.i)  # 1.0: "a\\n# 9.9: b"'),
    ],
)
def test_r4_4_a_result_without_a_path_is_shown_as_the_dialect_writes_calls(dialect: str, shown: str) -> None:
    run = run_of({"type": "input", "input": {"i": 1}}, config={"dialect": dialect})
    chat(run)
    plan = run.open_plan(1)
    plan.add({"_tool": "t", "x": "†input.i"})
    plan.close()
    for call in plan.take_ready():
        plan.end(call, Returned("a\n# 9.9: b"))
    run.close_request(plan, RequestResult(output=None))
    assert f"# results\n{shown}" in said(run)


@pytest.mark.parametrize("dialect", ["solution", "script"])
def test_r2_8_elsewhere_its_calls_are_told_in_words(dialect: str) -> None:
    messages = chat(run_of(*CALLED, config={"dialect": dialect}))[1:]
    assert all(message.keys() == {"role", "content"} for message in messages)
    assert [message["content"] for message in messages] == [
        "how hot is it?",
        '# called heat as c1\n{"at":"here"}',
        "# result of c1\nhot-31",
        "31 degrees.",
    ]


def test_r2_8_an_id_of_the_history_is_not_given_again() -> None:
    run = run_of(*CALLED, config={"dialect": "tools"})
    chat(run)
    plan = run.open_plan(1)
    plan.add({"_tool": "t", "_id": "c1"})
    plan.close()
    plan.end(plan.take_ready()[0], Returned(1))
    run.close_request(plan, RequestResult())
    ids = [call["id"] for message in chat(run) for call in message.get("tool_calls", ())]
    assert ids == ["c1", "call_1_0"]


@pytest.mark.parametrize(
    ("context", "words"),
    [
        (CALLED[:2], "$.context[1]: has a call without its result: 'c1'"),
        ([*CALLED[:2], CALLED[0], CALLED[2]], "$.context[1]: has a call without its result: 'c1'"),
        ([CALLED[0], CALLED[2]], "$.context[1]: is the result of 'c1', a call that was not made before it"),
        ([*CALLED, CALLED[2]], "$.context[4]: is the result of 'c1'"),
        ([{"role": "robot", "content": "x"}], "$.context[0].role: must be "),
        (
            [{"role": "assistant", "tool_calls": [{"function": {}}]}],
            "$.context[0].tool_calls[0].id: is missing; $.context[0].tool_calls[0].function.name: is missing",
        ),
        ([{"content": "x"}], "$.context[0]: is not a message"),
        ([{"type": "plan", "plan": ["x"]}], '$.context[0].plan[0]: must be an object, not "x"'),
    ],
)
def test_r2_8_a_broken_history_names_its_index(context: list[Any], words: str) -> None:
    with pytest.raises(AgentError) as caught:
        parse_agent({"name": "a", "context": context})
    assert words in str(caught.value)


AGENT = """// what it is for
{
  "context": [ /* first */ {"type": "text", "text": "http://x // no comment, ] }"}, ],
  "schema": {"type": "object",},
}
"""


def test_r2_9_an_agent_file_may_hold_comments_and_is_called_like_its_file(tmp_path: Path) -> None:
    path = tmp_path / "helper.json"
    path.write_text(AGENT, encoding="utf-8")
    agent, document = read_agent(str(path))
    assert (agent.name, document["name"]) == ("helper", "helper")
    assert document["context"][0]["text"] == "http://x // no comment, ] }"
    assert agent.context == document["context"]
    path.write_text('[{"type": "text", "text": "x"}, {"role": "user", "content": "y"}]', encoding="utf-8")
    assert len(read_agent(str(path))[0].messages()) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{\n// one\n"a": nope}', "line 3, column 6"),
        ('{"a": /* no end', "line 1"),
        ('{"a": 1,,}', "line 1, column"),
        ('{"a": [,]}', "line 1, column 8"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_r2_9_what_is_wrong_has_its_place_with_comments_too(text: str | bytes, words: str) -> None:
    with pytest.raises(JsonError) as caught:
        loads_commented(text)
    assert words in str(caught.value)


def test_r2_9_a_solutions_schema_is_that_of_its_output() -> None:
    output = {"type": "object", "nullable": True, "properties": {"id": {"$ref": "#/$defs/id"}}}
    solution: JsonObject = {
        "type": "object",
        "properties": {"calls": {"type": "array"}, "output": output},
        "$defs": {"id": {"type": "string", "nullable": True}},
    }
    agent = parse_agent({"name": "a", "schema": solution})
    assert agent.output_schema == {
        "$defs": {"id": {"type": ["string", "null"]}},
        "type": "object",
        "properties": {"id": {"$ref": "#/$defs/id"}},
    }
    other: dict[str, Any] = {"properties": {"calls": {}, "output": {}, "more": {}}}
    assert parse_agent({"name": "a", "schema": other}).output_schema == other


@pytest.mark.parametrize(
    ("schema", "meant"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "nullable": False}, {"type": "string"}),
        ({"enum": ["a"], "type": "string", "nullable": True}, {"enum": ["a", None], "type": ["string", "null"]}),
        ({"$ref": "#/x", "nullable": True}, {"anyOf": [{"$ref": "#/x"}, {"type": "null"}]}),
        ({"properties": {"nullable": {"type": "boolean"}}}, {"properties": {"nullable": {"type": "boolean"}}}),
        ({"items": [{"nullable": True}], "enum": [{"nullable": True}]}, {"items": [{}], "enum": [{"nullable": True}]}),
    ],
)
def test_r2_9_nullable_means_or_null(schema: dict[str, Any], meant: dict[str, Any]) -> None:
    assert or_null(schema) == meant


def test_r2_9_nullable_in_a_tool_and_in_data() -> None:
    tool = parse_tool({"name": "t", "properties": {"x": {"type": "string", "nullable": True}}})
    assert tool.parameters_schema.errors({"x": None}) == []
    schema = {"type": "object", "properties": {"x": {"type": "string", "nullable": True}}}
    run_of({"type": "input", "schema": schema, "input": {"x": None}})


@pytest.mark.parametrize(
    "definition",
    [
        {"function": {"name": "t", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}},
        {"type": "function", "name": "t", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}},
    ],
)
def test_r2_9_openai_tools_without_type_or_without_function(definition: dict[str, Any]) -> None:
    tool = parse_tool(definition)
    assert (tool.name, tool.parameters["type"], list(tool.parameters["properties"])) == ("t", "object", ["x"])


TEXT: dict[str, Any] = {"type": "string"}
LIST: dict[str, Any] = {"type": "array", "items": TEXT}
TYPED: dict[str, Any] = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("returns", "given", "output", "taught"),
    [
        (TEXT, {"a": {"b": 1}}, TEXT, False),
        (TYPED, {"a": 1}, TYPED, False),
        ({"anyOf": [TEXT, {"type": "null"}]}, {}, TEXT, False),
        (TEXT, {"a": {"b": [1]}}, TEXT, True),
        (LIST, {}, TEXT, True),
        ({"type": "object", "properties": {"rows": LIST}}, {}, TEXT, True),
        ({"type": ["array", "null"]}, {}, TEXT, True),
        ({"type": "object"}, {}, TEXT, True),
        ({"type": "object", "properties": {"ok": TEXT}, "additionalProperties": True}, {}, TEXT, True),
        ({"properties": {"x": {}}}, {}, TEXT, True),
        (None, {}, TEXT, True),
        (TEXT, {}, LIST, True),
        (TEXT, {}, {}, True),
    ],
)
def test_r16_4_control_auto_teaches_loops_where_a_list_can_occur(
    returns: Any, given: Any, output: Any, taught: bool
) -> None:
    definition = {"name": "look", "_safe": True} | ({} if returns is None else {"_output": returns})
    tool = parse_tool(definition, activities=["look"])
    for dialect, control in (
        ("script", None),
        ("script", "auto"),
        ("tools", "auto"),
        ("script", False),
        ("tools", None),
    ):
        config = {"dialect": dialect, **({} if control is None else {"control": control})}
        context = [{"type": "tool", "tool": "look"}, {"type": "input", "input": given}]
        document: Any = {"name": "a", "context": context, "config": config, "schema": output}
        agent = parse_agent(document)
        run = RunState(agent, Context(agent), PreparedWorker(tools=[tool], models=Models()))
        first = chat(run)[0]["content"]
        auto_taught = control == "auto" or (control is None and dialect == "script")
        assert (DIALECTS[dialect].control in first) is (taught and auto_taught)
        assert ("work as in Python" in first) is (dialect == "script" and auto_taught and not taught)


RULE: dict[str, Any] = {"rule": "count_at_most", "of": "look", "count": 2}


@pytest.mark.parametrize(
    ("definition", "more", "untaught"),
    [
        ({}, {}, {"_after", "_outputMethod"}),
        ({"_output": {"anyOf": [TEXT, {"type": ["number", "null"]}]}}, {}, {"_after", "_outputMethod"}),
        ({"_safe": False}, {}, {"_outputMethod"}),
        ({}, {"config": {"rules": [RULE]}}, {"_outputMethod"}),
        ({"_output": LIST}, {}, {"_after"}),
        ({"_output": TYPED}, {}, {"_after"}),
        ({"_output": {}}, {}, {"_after"}),
        ({}, {"schema": {}}, {"_after"}),
        ({}, {"context": [{"type": "state", "state": {"log": ""}}]}, {"_after"}),
        ({}, {"context": [{"type": "state", "schema": {"type": "object"}}]}, {"_after"}),
        ({}, {"context": [{"type": "plan", "plan": [{"_tool": "look", "_outputPath": "†state.a"}]}]}, set()),
    ],
)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_r9_2_prompt_and_schema_have_the_meta_properties_for_which_the_run_has_a_use(
    definition: Any, more: Any, untaught: set[str], dialect: str
) -> None:
    tool = parse_tool({"name": "look", "_safe": True, "_output": TEXT} | definition, activities=["look"])
    document: Any = {"name": "a", "schema": TEXT, **more, "config": {**more.get("config", {}), "dialect": dialect}}
    document["context"] = [{"type": "tool", "tool": "look"}, *more.get("context", [])]
    agent = parse_agent(document)
    run = RunState(agent, Context(agent), PreparedWorker(tools=[tool], models=Models()))
    first = chat(run)[0]["content"]
    beside = dumps(run.request_context(run.progress.number).parameters)
    for name in ("_after", "_outputMethod"):
        assert (name in first) is (name not in untaught)
        assert (name in beside) is (name not in untaught and dialect != "script")
    assert "_outputPath" in beside or dialect == "script"
