"""Data is never code: a text that came from inputs, results, answers, edits or feedback is never read for references, anywhere."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from perdure.approvals.decisions import parse_decision
from perdure.approvals.policy import Policy
from perdure.models.dialects.common import ToolDelta
from perdure.models.dialects.registry import DIALECTS
from perdure.models.requests import RequestResult
from perdure.models.usage import RunUsage
from perdure.plan import Call, Outcome, Plan, Rejected, Returned
from perdure.runs.agent import Context, Models, auto, parse_agent
from perdure.runs.delegates import child_document
from perdure.runs.loops import LoopInput, LoopState
from perdure.runs.run import RunState
from perdure.runs.wire import PreparedWorker
from perdure.testing.scripted_model import write_answer
from perdure.tools.engine import ENGINE_TOOLS
from perdure.tools.tool import Tool, resolve_tools
from perdure.values.json import JsonObject, dumps
from perdure.values.state import State, Write
from tests.values.test_marks import BAIT, SECRET, VALUES, decide, offered

ANY: dict[str, Any] = {"properties": {"x": {}, "y": {}, "z": {}}}
TOOLS: dict[str, Tool] = resolve_tools(
    [
        *("send", "fetch", "ask_person"),
        {"name": "help", "description": "Help.", **ANY, "_delegate": "anonymous", "_scopes": ["state.old", "profile"]},
    ],
    {**ENGINE_TOOLS, **{name: {"name": name, **ANY} for name in ("send", "fetch")}},
)
CALLS: list[dict[str, Any]] = [
    {"_tool": "fetch", "_outputPath": "†state.page"},
    {
        "_tool": "send",
        "x": "†state.page",
        "y": "so {†input.text}",
        "z": ["†profile.word"],
        "_outputPath": "†state.sent",
    },
    {"_tool": "ask_person", "question": "{†state.page}", "_outputPath": "†state.answer"},
    {"_tool": "help", "x": "†state.answer", "y": {"k": "†state.sent"}, "_outputPath": "†state.helped"},
    {"_tool": "send", "x": "†state.helped || †state.page", "_outputPath": "†state.log", "_outputMethod": "push"},
]
OUTPUT = {"all": "†state.log", "part": "so {†state.answer}", "in": ["†input.text", "†profile.word"]}


def text(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)


def written(dialect: str, solution: dict[str, Any]) -> RequestResult:
    """The Solution as a model writes it in the dialect, read back."""
    answer = write_answer(solution, dialect, ["input", "profile"])
    reader = DIALECTS[dialect].reader(DIALECTS[dialect].vocabulary(TOOLS, ["input", "profile"]))
    reader.push(answer.text)
    for index, (name, arguments) in enumerate(answer.tool_calls):
        reader.push_tool(ToolDelta(index, f"id{index}", name, arguments))
    read = reader.close("stop")
    return RequestResult(calls=read.calls, output=read.output, text=answer.text if read.output is None else "")


def child_reads(child: Context, path: str) -> Any:
    """What a call of a delegate's run reads there."""
    plan = Plan(1, tools=TOOLS, state=State([Write(path=(), value=child.initial_state)]), data=child.values())
    call = plan.add({"_tool": "send", "x": path})
    plan.close()
    plan.take_ready()
    return call.inputs.params["x"]


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
@settings(max_examples=25)
@given(given_text=VALUES, word=VALUES, page=VALUES, answer=BAIT)
def test_in_every_dialect_through_results_answers_delegates_and_outputs(
    dialect: str, given_text: Any, word: Any, page: Any, answer: str
) -> None:
    document: JsonObject = {
        "name": "a",
        "config": {"dialect": dialect},
        "context": [
            {"type": "input"},
            {"type": "state", "state": {"secret": SECRET, "old": [page]}},
            {"type": "data", "kind": "profile", "data": {"word": word}},
        ],
        "schema": True,
    }
    agent = parse_agent(document)
    context = Context(agent, {"text": given_text}, has_input=True)
    run = RunState(agent, context, PreparedWorker(tools=list(TOOLS.values()), models=Models()))
    run.begin_request(auto(run.situation()))
    plan = run.open_plan(1)
    sent = {"x": page, "y": f"so {text(given_text)}", "z": [word]}

    def play(call: Call) -> Outcome:
        if call.spec.tool_name == "fetch":
            return Returned(page)
        if call.spec.tool_name == "send":
            return Returned(call.inputs.params)
        if call.spec.tool_name == "ask_person":
            assert call.inputs.params == {"question": text(page)}
            run.approval_queue.add_question(plan, call, "2026-01-01T00:00:00Z")
            decision = parse_decision({"call": call.id, "decision": "answer", "answer": answer})
            outcome = run.approval_queue.apply(run.approval_queue.judge(decision)).outcome
            assert outcome is not None
            return outcome
        assert call.inputs.params == {"x": answer, "y": {"k": sent}}
        given_on = child_document(call, {}, {}, base=plan.values(call), tools=TOOLS, policy=Policy())
        assert isinstance(given_on, dict)
        child = Context(parse_agent(given_on), call.inputs.params, has_input=True)
        assert child_reads(child, "†input.x") == answer
        assert child_reads(child, "†state.old") == [page]
        assert child_reads(child, "{†profile.word}") == text(word)
        return Returned(call.inputs.params)

    result = written(dialect, {"calls": CALLS, "output": OUTPUT})
    for raw in result.calls:
        plan.add(raw)
    plan.close()
    while ready := plan.take_ready():
        for call in ready:
            plan.end(call, play(call))
    assert [call.state.status for call in plan.calls] == ["done"] * len(CALLS)
    assert run.close_request(plan, result), run.progress.errors
    assert run.output.value == {
        "all": [{"x": {"x": answer, "y": {"k": sent}}}],
        "part": f"so {answer}",
        "in": [given_text, word],
    }


@settings(max_examples=25)
@given(item=VALUES, previous=VALUES)
def test_in_loops(item: Any, previous: Any) -> None:
    agent = {"name": "a", "context": [{"type": "input"}], "schema": True}
    each = LoopInput(kind="each", agent=agent, params={"x": item}, items=[item])
    child_agent, child_input = each.iteration(0)
    child = Context(parse_agent(child_agent), child_input, has_input=True)
    assert (child_reads(child, "†input.item"), child_reads(child, "†input.x")) == (item, item)
    state = LoopState(results=[previous], next=1, usage=RunUsage())
    until = LoopInput(kind="until", agent=agent, params={"x": item}, until="†output.done", state=state)
    child_agent, child_input = until.iteration(1)
    child = Context(parse_agent(child_agent), child_input, has_input=True)
    assert (child_reads(child, "†state.previous"), child_reads(child, "†input.x")) == (previous, item)


@settings(max_examples=25)
@given(page=VALUES)
def test_in_instances(page: Any) -> None:
    state = State([Write(path=(), value={"secret": SECRET, "@one": {"page": page}})])
    plan = Plan(1, tools=TOOLS, state=state, instances=["one"])
    raw = {"_instance": "one", "_tool": "send", "x": "†state.page", "y": "so {†state.page}"}
    call = plan.add({**raw, "_outputPath": "†state.sent"})
    again = plan.add({**raw, "x": "†state.sent"})
    plan.close()
    plan.take_ready()
    plan.end(call, Returned(call.inputs.params))
    plan.take_ready()
    assert call.inputs.params == {"x": page, "y": f"so {text(page)}"}
    assert again.inputs.params == {"x": call.inputs.params, "y": f"so {text(page)}"}


@settings(max_examples=25)
@given(page=VALUES, typed=BAIT)
def test_in_a_later_request_that_writes_an_edited_call_once_more(page: Any, typed: str) -> None:
    desk, plan, call = offered(page)
    decide(desk, {"decision": "edit", "params": {"y": typed}})
    later = Plan(2, tools={**TOOLS, call.spec.tool_name: call.spec.tool} if call.spec.tool else TOOLS, state=plan.state)
    again = later.add(call.as_plan_entry())
    later.close()
    later.take_ready()
    assert again.inputs.params == call.inputs.params == {"x": page, "y": typed, "z": SECRET}


@settings(max_examples=25)
@given(reason=BAIT)
def test_in_what_people_say_to_the_model(reason: str) -> None:
    def prompt(said: str) -> str:
        agent = parse_agent({"name": "a", "context": [{"type": "state", "state": {"secret": SECRET}}], "schema": True})
        run = RunState(agent, Context(agent), PreparedWorker(tools=list(TOOLS.values()), models=Models()))
        run.begin_request(auto(run.situation()))
        plan = run.open_plan(1)
        call = plan.add({"_tool": "send", "x": 1})
        plan.close()
        plan.take_ready()
        run.approval_queue.guard.change = Policy(ask="always")
        run.approval_queue.change_policy(Policy(ask="always"))
        run.approval_queue.add_call(plan, call, "2026-01-01T00:00:00Z")
        verdict = run.approval_queue.apply(
            run.approval_queue.judge(parse_decision({"call": call.id, "decision": "reject", "reason": said}))
        )
        assert isinstance(verdict.outcome, Rejected)
        plan.end(call, verdict.outcome)
        run.close_request(plan, RequestResult())
        run.begin_request(auto(run.situation()))
        return dumps(run.request_context(2).messages)

    assert dumps(dumps(reason)[1:-1])[1:-1] in prompt(reason)
    assert prompt(reason).count(SECRET) == prompt("no").count(SECRET)
