"""Hostile input: each is answered with a result or a protocol error, never with another exception."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from perdure.approvals.decisions import KINDS, parse_decision
from perdure.approvals.policy import ASKS, Guard, parse_policy
from perdure.approvals.queue import ApprovalQueue
from perdure.errors import MAX_ERROR_TEXT, MAX_PROBLEM, CallError, DecisionError, PerdureError
from perdure.models.dialects._solution import parse_solution
from perdure.models.dialects.common import DialectRequest, ToolDelta
from perdure.models.dialects.registry import DIALECTS
from perdure.models.requests import CallDelivery
from perdure.models.response_stream import Intake
from perdure.plan import ENDED, Failed, Plan, Returned
from perdure.runs._output import Outputs
from perdure.runs.agent import Context, parse_agent
from perdure.testing.scripted_model import write_answer
from perdure.tools.tool import Tool, parse_tool
from perdure.values.messages import TYPES
from perdure.values.state import State, Write
from tests.soak import times
from tests.strategies import json_values

TOOLS = {
    "t": parse_tool({"name": "t", "additionalProperties": True, "_activity": "t"}, activities=["t"]),
    "typed": parse_tool(
        {"name": "typed", "properties": {"n": {"type": "number", "multipleOf": 0.1}}, "_activity": "t"},
        activities=["t"],
    ),
    "latent": parse_tool({"name": "latent", "_output": {"type": "integer"}}),
}
ODD: list[Any] = [
    "†", "††", "†state", "†state.a", "{†state.a", "{†state.a}", "†state.a || ", "(" * 200 + "†a", "†state" + ".x" * 3000,
    "†state[0][1][2]", '†state["\\u0000"]', "\u0000\u001b[31m", "†state.a" + " && †state.b" * 900, 2**53 + 1, 10**4000, -0.0,
    1e308, "x" * 1_000_000, [[[[]]]], {"": {"": ""}}, None, True,
]  # fmt: skip
odd = st.sampled_from(ODD) | json_values()
keys = st.sampled_from(["_tool", "_outputPath", "_outputMethod", "_output", "_id", "_nope", "x", "n", "†", ""])
almost = st.fixed_dictionaries(
    {"_tool": st.sampled_from(["t", "typed", "latent", "nope"])},
    optional={
        "_outputPath": st.sampled_from(
            ["†state.a", "†state.a[0]", "†state.a || †state.b", "†state.a && †state.a.b", "†state", 7]
        ),
        "_outputMethod": st.sampled_from(["set", "push", "merge", "concat", "assign", "nope"]),
        "x": odd,
        "n": odd,
        "_output": odd,
    },
)
calls = almost | st.dictionaries(keys, odd, max_size=5) | odd


def play(raws: list[Any], results: list[Any], tools: dict[str, Tool] = TOOLS) -> Plan:
    """Run whatever a model could write, with whatever tools could return."""
    plan = Plan(1, tools=tools, state=State([Write(path=(), value={"a": {"b": [1]}})]), data={"input": {"x": 1}})
    for raw in raws:
        plan.add(raw)
    plan.close()
    turn = 0
    while ready := plan.take_ready():
        for call in ready:
            result = results[turn % len(results)] if results else None
            turn += 1
            outcome = (
                Failed(CallError("boom", "x"))
                if result == "†"
                else Returned(result, "†state.b" if turn % 3 == 0 else None)
            )
            plan.end(call, outcome)
    return plan


@given(st.lists(calls, max_size=8), st.lists(odd, max_size=4))
def test_any_calls_end_with_any_results(raws: list[Any], results: list[Any]) -> None:
    plan = play(raws, results)
    assert plan.settled
    assert all(call.state.status in ENDED for call in plan.calls)
    for call in plan.calls:
        json.dumps(call.as_plan_entry())
        assert call.state.status == "done" or call.state.error or call.state.reason
        assert call.state.error is None or len(call.state.error.message) < 8000
        assert len(call.state.reason) < MAX_PROBLEM


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["type", "text", "kind", "schema", "tool", "plan", "input", "_instance", "x"]),
            st.sampled_from(TYPES) | odd,
        )
    )
)
def test_any_messages_are_read_or_refused(messages: list[Any]) -> None:
    try:
        Context(parse_agent({"name": "x", "context": messages}), {"a": 1}, has_input=True)
    except PerdureError as error:
        assert str(error)


@given(json_values())
def test_any_document_is_an_agent_or_refused(document: Any) -> None:
    try:
        assert parse_agent(document).name
    except PerdureError as error:
        assert str(error)


@given(json_values())
def test_any_definition_is_a_tool_or_refused(definition: Any) -> None:
    try:
        assert parse_tool({"name": "t", "properties": {"x": definition}}).name == "t"
    except PerdureError as error:
        assert str(error)


@given(
    st.text(max_size=200)
    | st.lists(
        st.sampled_from(
            ['{"calls":', "[", "{", '"_tool":"t"', ",", "]", "}", "null", '"output":', "1e999", "NaN", '"\\ud800"']
        ),
        max_size=20,
    ).map("".join)
)
def test_any_text_is_a_solution_or_a_problem(text: str) -> None:
    solution = parse_solution(text)
    assert solution.problem is None or (solution.problem.code and "\n" not in solution.problem.code)
    assert isinstance(solution.calls, list)


@pytest.mark.parametrize(
    "text",
    [
        '{"calls": [' + "[" * 100_000,
        '{"calls": [' + '{"_tool": "t", "x": ' * 150 + "1" + "}" * 150 + '], "output": null}',
        '{"calls": [], "output": ' + "9" * 10_000 + "}",
        '{"output": 1, "output": 2}',
        '{"calls": [{"_tool": "t", "_tool": "typed", "n": 1}], "output": null}',
        '\ufeff{"calls": [], "output": 1}',
    ],
)
def test_hostile_solutions(text: str) -> None:
    solution = parse_solution(text)
    assert play(solution.calls, [1]).settled


def test_a_plan_of_very_many_and_very_large_calls_is_answered() -> None:
    text = json.dumps({"calls": [{"_tool": "t", "x": "y" * 1000}] * 20_000, "output": None})
    plan = play(parse_solution(text).calls, ["†"])
    assert (len(plan.calls), plan.settled) == (20_000, True)
    assert [call.state.status for call in plan.calls[498:502]] == ["failed", "failed", "invalid", "skipped"]


# What follows runs some hundred times with the suite, and 13,000 times with `make soak`: answers, schemas and signals.
SLOW = list(HealthCheck)
FRAGMENTS = [
    '{"calls": [', '{"_tool": "t"', ', "x": ', "[", "{", "}", "]", ",", ":", "null", '"output": ', "1e999", '"\\ud800"', '"', "\\",
    "```json\n", "\n```", "<think>", "</think>", "state.a = t(x=1)\n", "t(", ")", "=", "\n", "output(", "†state.a", "f'{state.a}'",
    "if state.a:", "    ", "lambda: 0", "__import__('os')", "#", "\x00", "\ufeff", "9" * 5000, "(" * 300, "[" * 5000, "'''",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=20), max_size=12)
DELTAS = st.builds(
    ToolDelta,
    index=st.none() | st.integers(-1, 3),
    id=st.none() | st.text(max_size=3),
    name=st.none() | st.sampled_from(["t", "typed", "latent", "output", "nope", ""]),
    arguments=st.none() | st.sampled_from(FRAGMENTS) | st.text(max_size=20),
)
WELL_MEANT = st.lists(almost, max_size=3).map(lambda made: {"calls": made, "output": None})


def check_answer(
    dialect: str, meant: dict[str, Any], noise: list[str], deltas: list[ToolDelta], results: list[Any], reason: str
) -> None:
    """A Solution as the dialect writes it, with noise in its middle, in pieces; and native calls of any shape."""
    how = DIALECTS[dialect]
    reader = how.reader(how.vocabulary(TOOLS, ["input"]))
    pieces = list(noise)
    with contextlib.suppress(TypeError, ValueError, AttributeError):  # of the test's own writer: it writes no nonsense
        text = write_answer(meant, dialect, ["input"]).text
        half = len(text) // 2
        pieces = [text[:half], *noise, text[half:]]
    early = [call for piece in pieces for call in reader.push(piece)]
    early += [call for delta in deltas for call in reader.push_tool(delta)]
    solution = reader.close(reason)
    assert solution.calls[: len(early)] == early
    plan = play(solution.calls[:50], results)
    assert plan.settled
    assert all(call.state.status in ENDED for call in plan.calls)
    for schema in (True, False, {"type": "object"}):
        assert Outputs(schema).read_text("".join(noise), beside_calls=bool(early)).kind in ("json", "text", "prose")


KEYWORDS = st.sampled_from(
    ["type", "properties", "required", "items", "$ref", "$defs", "anyOf", "allOf", "oneOf", "not", "enum", "const", "pattern",
     "patternProperties", "additionalProperties", "minimum", "multipleOf", "maxLength", "uniqueItems", "format", "$schema", "$id",
     "if", "then", "default", "nullable", "unevaluatedProperties", "dependentSchemas", "propertyNames", "contains", "x"]
)  # fmt: skip
SCALARS: st.SearchStrategy[Any] = st.sampled_from(
    ["object", "string", "array", "#", "#/$defs/a", "#/properties/x", "http://nowhere.example/s", "(a+)+$", "(?=x)", "[", "a{1,99999}",
     "http://json-schema.org/draft-04/schema#", "†state.a", "__proto__", 0, -1, 1e308, 10**400, 0.1, True, False, None, [], {}]
)  # fmt: skip
SCHEMAS = st.recursive(
    SCALARS,
    lambda inner: (
        st.dictionaries(KEYWORDS, inner, max_size=4)
        | st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("ax"), inner)
    ),
    max_leaves=12,
)
META = st.dictionaries(
    st.sampled_from(["_safe", "_dangerous", "_approval", "_output", "_outputPath", "_activity", "_delegate", "_retries", "_timeout",
                     "_taskQueue", "_fallback", "_scopes", "_each", "description", "required"]),
    SCHEMAS,
    max_size=3,
)  # fmt: skip


def check_schema(schema: Any, meta: dict[str, Any], values: list[Any]) -> None:
    """A tool and an output of any schema are refused with a reason, or can be shown, called and answered."""
    with contextlib.suppress(PerdureError):
        outputs = Outputs(parse_agent({"name": "x", "context": [], "schema": schema}).output_schema)
        for value in values:
            assert all(isinstance(line, str) and line for line in outputs.problems(value))
    try:
        tool = parse_tool({"_activity": "t", **meta, "name": "t", "properties": {"x": schema}}, activities=["t"])
    except PerdureError as error:
        assert str(error)
        return
    asked = DialectRequest({"t": tool}, kinds=["input"])
    for how in DIALECTS.values():
        assert isinstance(how.tools_text(asked), str)
        json.dumps(how.parameters(asked))
        how.vocabulary({"t": tool}, ["input"])
    assert play([{"_tool": "t", "x": value} for value in values], values, {"t": tool}).settled


MESSAGES = odd | st.fixed_dictionaries(
    {},
    optional={
        "call": st.sampled_from(["1", "1.0", "1.1", "1.2", "9.9", ""]) | odd,
        "decision": st.sampled_from(KINDS) | odd,
        "params": odd | st.dictionaries(keys, odd, max_size=3),
        "with": odd | calls,
        "calls": odd | st.lists(calls, max_size=3),
        "answer": odd,
        "remember": st.booleans() | odd,
    }
    | dict.fromkeys(("digest", "by", "reason"), odd),
)
POLICIES = odd | st.fixed_dictionaries(
    {},
    optional={
        "ask": st.sampled_from(ASKS) | odd,
        "scope": st.sampled_from(["calls", "plan"]) | odd,
        "tools": odd | st.dictionaries(keys, st.sampled_from(["never", "always"]) | odd, max_size=2),
        "timeout": st.sampled_from([0, -1, 1e300, 60]) | odd,
    },
)
DELIVERIES = odd | st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("number", "attempt", "first"), st.integers(-1, 3) | odd) | {"calls": odd | st.lists(calls)},
)
SIGNALS = st.lists(
    st.tuples(st.sampled_from(["decide", *KINDS]), MESSAGES)
    | st.tuples(st.just("policy"), POLICIES)
    | st.tuples(st.just("calls"), DELIVERIES),
    max_size=8,
)


def check_signals(offered: list[Any], signals: list[tuple[str, Any]], scope: str) -> None:
    """Calls that wait, and whatever anybody sends: it is followed, or refused and nothing has changed; all of it can end."""

    def new_plan() -> Plan:
        return Plan(1, tools=TOOLS, state=State([Write(path=("a",), value={"b": 1})]), data={"input": {"x": 1}})

    plan, intake, time = new_plan(), Intake(1), "2026-01-01T00:00:00Z"
    desk = ApprovalQueue(Guard(parse_policy({"ask": "always", "scope": scope})))
    for call in offered:
        plan.add(call)
    plan.close()
    offers = [desk.add_plan(plan, time, new_plan), *(desk.add_call(plan, call, time) for call in plan.take_ready())]
    for name, said in signals:
        before = set(desk.waiting)
        try:
            if name == "policy":
                desk.change_policy(parse_policy(said))
                desk.release()
            elif name == "calls":
                with contextlib.suppress(ValidationError):  # `read_one` takes it for nothing
                    intake.deliver(CallDelivery.model_validate(said))
            else:
                desk.apply(desk.judge(parse_decision(said, KIND_OF.get(name))))
        except DecisionError as error:
            assert str(error)
            assert set(desk.waiting) == before
            desk.refuse(said, str(error), time)
    json.dumps([desk.refusals, desk.feedback])
    for offer in [one for one in offers if one is not None and one.id in desk.waiting]:
        desk.time_out(offer, 1)
        desk.withdraw([offer])
    assert not desk.waiting


KIND_OF: dict[str, Any] = {kind: kind for kind in KINDS}
ANSWERS = (
    st.sampled_from(sorted(DIALECTS)),
    WELL_MEANT,
    TEXTS,
    st.lists(DELTAS, max_size=5),
    st.lists(odd, max_size=3),
    st.sampled_from(["stop", "length", "tool_calls", "content_filter", ""]),
)
OFFERED = st.lists(almost, min_size=1, max_size=3)


@given(st.tuples(*ANSWERS))
def test_any_answer_is_read(answer: tuple[Any, ...]) -> None:
    check_answer(*answer)


@example({"properties": [[]]}, {}, [1])
@example({"properties": ["calls", "output"]}, {}, [1])
@example({"properties": 5}, {}, [1])
@given(SCHEMAS, META, st.lists(odd, max_size=3))
def test_any_schema_is_used_or_refused(schema: Any, meta: dict[str, Any], values: list[Any]) -> None:
    check_schema(schema, meta, values)


@given(OFFERED, SIGNALS, st.sampled_from(["calls", "plan"]))
def test_any_signal_is_followed_or_refused(offered: list[Any], signals: Any, scope: str) -> None:
    check_signals(offered, signals, scope)


@pytest.mark.soak
@settings(max_examples=times(4000), suppress_health_check=SLOW)
@given(st.tuples(*ANSWERS))
def test_4000_answers(answer: tuple[Any, ...]) -> None:
    check_answer(*answer)


@pytest.mark.soak
@settings(max_examples=times(6000), suppress_health_check=SLOW)
@given(SCHEMAS, META, st.lists(odd, max_size=3))
def test_6000_schemas(schema: Any, meta: dict[str, Any], values: list[Any]) -> None:
    check_schema(schema, meta, values)


@pytest.mark.soak
@settings(max_examples=times(3000), suppress_health_check=SLOW)
@given(OFFERED, SIGNALS, st.sampled_from(["calls", "plan"]))
def test_3000_signals(offered: list[Any], signals: Any, scope: str) -> None:
    check_signals(offered, signals, scope)


@pytest.mark.parametrize(
    "written",
    [
        {"x": "†state" + ".x" * 3000},
        {"x": {"k" * 30_000: "†state.x"}},
        {"x": "†" + "k" * 9_000},
        {"x": '†state["' + "k" * 9_000 + '"]' + " && †state.x" * 5},
        {"x": "†state.done" + ".x" * 3000},
        {"x": "†state.lost" + ".x" * 3000},
        {"x": "†state.self" + ".x" * 3000, "_outputPath": "†state.other"},
        {"_outputPath": "†state.done" + ".x" * 3000},
        {"_outputPath": "†state" + ".x" * 9_000 + " && †state.done.z"},
        {"_outputPath": "†input" + ".x" * 3000},
        {"_outputMethod": "x" * 100_000},
        {"_after": ["†state" + ".x" * 3000]},
        {"_after": ["†state.lost" + ".x" * 3000]},
        {"_after": ["1.1"], "_outputPath": "†state.other" + ".x" * 3000},
        {"_tool": "t" * 100_000},
        {"_tool": "t" * 100_000, "_outputPath": "†state.late"},
        {"_" + "k" * 100_000: 1},
        {"_tool": "typed", "n": "x" * 100_000},
        {"_tool": "typed", "n" * 100_000: 1},
    ],
    ids=lambda written: "-".join(key[:12] for key in written) + "-" + str(next(iter(written.values())))[:12],
)
def test_what_is_said_of_a_call_is_bounded_however_long_what_it_names(written: dict[str, Any]) -> None:
    plan = play(
        [
            {"_tool": "t", "x": "†state.late", "_outputPath": "†state.self"},
            {"_tool": "t", "x": "†state.other" + ".x" * 3000, "_outputPath": "†state.self" + ".x" * 3000},
            {"_tool": "t", "_outputPath": "†state.done"},
            {"_tool": "nope", "_outputPath": "†state.lost"},
            {"_tool": "t", **written},
        ],
        [{"k" * 5_000 + str(n): 1 for n in range(9)}],
    )
    said = [call.state.error.message for call in plan.calls if call.state.error] + [
        call.state.reason for call in plan.calls
    ]
    assert max(map(len, said)) <= 1_000
    assert all(call.state.status == "done" or call.state.error or call.state.reason for call in plan.calls)


def test_a_tools_own_words_are_bounded_too() -> None:
    error = CallError("boom", "a" * 100_000 + "end")
    assert (len(error.message) <= MAX_ERROR_TEXT, error.message[-3:]) == (True, "end")
    assert "(100,003 characters)" in error.message
