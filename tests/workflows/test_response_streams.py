"""Whole runs on what servers stream: odd answers, what stands beside a call, answers that break off again and again (R9.1)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from perdure.testing.scripted_model import ChatRequest, Fault, Turn
from tests.support import DONE, agent, harness

pytestmark = pytest.mark.asyncio(loop_scope="session")

SOLUTION = '{"calls":[{"_tool":"add","a":1,"b":2,"_outputPath":"†state.x"}],"output":{"ok":true}}'


@tool
def add(a: int, b: int) -> int:
    return a + b


def chunk(finish: str | None = None, **delta: Any) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return f"data: {json.dumps({'id': 'x', 'model': 'm', 'choices': [choice]}, ensure_ascii=False)}\n\n"


COMPLETION = json.dumps({"id": "x", "model": "m", "choices": [{"index": 0, "message": {"content": SOLUTION}}]})
ANSWERS: dict[str, list[str | bytes]] = {
    "a stream that says how to come back, and [DONE] without a reason": [
        "\ufeffretry: 3000\n\n",
        chunk(content=SOLUTION),
        "data: [DONE]\n\n",
    ],
    "a whole completion in place of a stream": [COMPLETION],
    "the same as an event": [f"data: {COMPLETION}\n\n"],
    "content in parts": [chunk("stop", content=[{"type": "text", "text": SOLUTION}])],
}


@pytest.mark.parametrize("raw", ANSWERS.values(), ids=ANSWERS)
async def test_an_answer_is_read_however_it_is_sent(raw: list[str | bytes], dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [add], [Turn(raw=raw)]) as it:
        view = await it.run(agent("add"))
    assert (view.status, view.output, view.state, view.errors) == ("completed", {"ok": True}, {"x": 3}, [])


async def test_b6_what_stands_beside_a_call_goes_back_with_it_but_where_it_is_refused(
    dev_server: WorkflowEnvironment,
) -> None:
    signed = {"google": {"thought_signature": "abc"}}
    call = {"index": 0, "id": "one", "function": {"name": "add", "arguments": '{"a":1,"b":2}'}, "extra_content": signed}
    sent: list[tuple[Any, Any]] = []

    def answer(request: ChatRequest) -> Turn:
        said = [message for message in request.messages if message["role"] == "assistant"]
        if not said:
            return Turn(
                raw=[
                    chunk(reasoning_content="I will "),
                    chunk("tool_calls", reasoning_content="add.", tool_calls=[call]),
                ]
            )
        sent.append((said[0].get("reasoning_content"), said[0]["tool_calls"][0].get("extra_content")))
        if "reasoning_content" in said[0]:
            return Turn("'messages.1' : for 'role:assistant' property 'reasoning_content' is unsupported", status=400)
        return Turn("All added.")

    async with harness(dev_server.client, [add], answer) as it:
        views = [await it.run(agent("add", config={"dialect": "tools"})) for _ in range(2)]
    assert [(view.status, view.output) for view in views] == [("completed", "All added.")] * 2
    # Refused once, it is not sent to that server again; what it did not refuse still is.
    assert sent == [("I will add.", signed), (None, signed), (None, signed)]


@pytest.mark.parametrize(("dialect", "after"), [("solution", 45), ("tools", 20)])
async def test_answers_that_break_off_after_the_same_calls_are_stuck(
    dialect: str, after: int, dev_server: WorkflowEnvironment
) -> None:
    calls = [{"_tool": "add", "a": 1, "b": 2}, {"_tool": "add", "a": 1, "b": 3}]

    def answer(request: ChatRequest) -> Turn | dict[str, Any]:
        broken = Turn({"calls": calls, "output": None}, fault=Fault("cut", after))
        return broken if request.number <= 4 else Turn("Enough.") if dialect == "tools" else DONE

    async with harness(dev_server.client, [add], answer, chunk=after) as it:
        it.model.dialect = dialect
        view = await it.run(agent("add", config={"dialect": dialect}))
    assert [error["error"]["code"] for error in view.errors] == ["interrupted"] * 4, "after three it is told so once"
    assert (view.status, view.stop_reason, view.requests) == ("completed", "stuck", 5)
