"""Servers as they are: what stands between the protocol as it is written and what OpenAI-compatible servers send (R9.1)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from perdure.testing.turns import ChatRequest, Turn
from tests.support import agent, harness

pytestmark = pytest.mark.asyncio(loop_scope="session")

SOLUTION = '{"calls":[{"_tool":"add","a":1,"b":2,"_outputPath":"†state.x"}],"output":{"ok":true}}'
NATIVE = {"a": 1, "b": 2, "_outputPath": "†state.x"}


@tool
def add(a: int, b: int) -> int:
    return a + b


def chunk(delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> str:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    frame = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": choices, **more}
    return f"data: {json.dumps(frame, ensure_ascii=False)}\n\n"


def text(*parts: str) -> list[str]:
    return [chunk({"content": part}) for part in parts]


END = [chunk({}, "stop"), "data: [DONE]\n\n"]
ANSWERS: dict[str, list[str | bytes]] = {
    "chunks split anywhere, also inside a character": [
        piece.to_bytes() for part in [*text(SOLUTION), *END] for piece in part.encode()
    ],
    "usage in a last chunk without choices": [
        *text(SOLUTION),
        chunk({}, "stop"),
        chunk(None, usage={"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}),
        "data: [DONE]\n\n",
    ],
    "no usage at all, and no [DONE]": [*text(SOLUTION), chunk({}, "stop")],
    "keep-alive comments": [": keep-alive\n\n", *text(SOLUTION[:20]), ": keep-alive\n\n", *text(SOLUTION[20:]), *END],
    "reasoning deltas": [
        chunk({"role": "assistant", "content": None, "reasoning_content": "{hm"}),
        chunk({"reasoning": "{}"}),
        *text(SOLUTION),
        *END,
    ],
    "thoughts in the text": [*text("<thi", "nk>{not this}</think>", SOLUTION), *END],
    "content: null": [chunk({"role": "assistant", "content": None}), *text(SOLUTION), chunk({"content": None}, "stop")],
    "an empty delta, and none": [chunk({}), chunk({"content": ""}), *text(SOLUTION), *END],
    "a code fence": [*text("``", "`json\n", SOLUTION, "\n```"), *END],
    "a sentence before it": [*text("Here is the plan:\n", SOLUTION), *END],
    "a leading byte order mark": [*text("\ufeff", SOLUTION), *END],
    "a first chunk without choices": [chunk(None, prompt_filter_results=[]), *text(SOLUTION), *END],
    "lines that end in CR LF": [part.replace("\n", "\r\n") for part in [*text(SOLUTION), *END]],
}


@pytest.mark.parametrize("raw", ANSWERS.values(), ids=ANSWERS)
async def test_a_solution_is_read_whatever_is_around_it(
    raw: list[str | bytes], dev_server: WorkflowEnvironment
) -> None:
    async with harness(dev_server.client, [add], [Turn(raw=raw)]) as it:
        view = await it.run(agent("add"))
    assert (view.status, view.output, view.state, view.errors) == ("completed", {"ok": True}, {"x": 3}, [])
    usage = 12 if "usage" in "".join(str(piece) for piece in raw) else 0
    assert view.usage.prompt_tokens + view.usage.completion_tokens == usage


def native(*calls: dict[str, Any]) -> str:
    return chunk({"tool_calls": list(calls)})


def function(name: str | None, arguments: str | None) -> dict[str, Any]:
    said = {"name": name, "arguments": arguments}
    return {"function": {key: value for key, value in said.items() if value is not None}}


ARGUMENTS = json.dumps(NATIVE, ensure_ascii=False)
SECOND = json.dumps({"a": "†state.x", "b": 1, "_outputPath": "†state.y"}, ensure_ascii=False)
DELTAS: dict[str, list[str]] = {
    "as OpenAI sends them": [
        native({"index": 0, "id": "one", "type": "function", **function("add", "")}),
        native({"index": 0, **function(None, ARGUMENTS[:9])}),
        native({"index": 0, **function(None, ARGUMENTS[9:])}),
        native({"index": 1, "id": "two", "type": "function", **function("add", "")}),
        native({"index": 1, **function(None, SECOND)}),
    ],
    "without index": [
        native({"id": "one", **function("add", ARGUMENTS[:9])}),
        native(function(None, ARGUMENTS[9:])),
        native({"id": "two", **function("add", SECOND)}),
    ],
    "without id": [
        native({"index": 0, **function("add", ARGUMENTS)}),
        native({"index": 1, **function("add", SECOND)}),
    ],
    "whole, and all with index 0": [
        native({"index": 0, "id": "one", **function("add", ARGUMENTS)}),
        native({"index": 0, "id": "two", **function("add", SECOND)}),
    ],
    "whole, both at once": [
        native(
            {"index": 0, "id": "one", **function("add", ARGUMENTS)},
            {"index": 1, "id": "two", **function("add", SECOND)},
        )
    ],
    "with neither index nor id": [native(function("add", ARGUMENTS)), native(function("add", SECOND))],
    "with a new id on every piece": [
        native({"index": 0, "id": "a", **function("add", ARGUMENTS[:9])}),
        native({"index": 0, "id": "b", **function(None, ARGUMENTS[9:])}),
        native({"index": 1, "id": "c", **function("add", SECOND)}),
    ],
    "with the name on every piece": [
        native({"index": 0, "id": "a", **function("add", ARGUMENTS[:9])}),
        native({"index": 0, "id": "a", **function("add", ARGUMENTS[9:])}),
        native({"index": 1, "id": "c", **function("add", SECOND)}),
    ],
    "encoded twice": [
        native({"index": 0, "id": "one", **function("add", json.dumps(ARGUMENTS))}),
        native({"index": 1, "id": "two", **function("add", SECOND)}),
    ],
}


@pytest.mark.parametrize("raw", DELTAS.values(), ids=DELTAS)
async def test_native_calls_are_read_however_they_are_cut(raw: list[str], dev_server: WorkflowEnvironment) -> None:
    script = [Turn(raw=[*raw, chunk({}, "tool_calls"), "data: [DONE]\n\n"]), Turn("All added.")]
    async with harness(dev_server.client, [add], script) as it:
        view = await it.run(agent("add", config={"dialect": "tools"}))
        sent = it.model.requests[1].messages
    assert (view.status, view.output, view.state) == ("completed", "All added.", {"x": 3, "y": 4})
    assert view.stop_reason == "answer"
    said = next(message for message in sent if message["role"] == "assistant")
    results = [message for message in sent if message["role"] == "tool"]
    assert [call["id"] for call in said["tool_calls"]] == [message["tool_call_id"] for message in results]
    assert [message["content"] for message in results] == ["3", "4"]
    if "one" in raw[0]:
        assert [message["tool_call_id"] for message in results] == ["one", "two"]


async def test_arguments_that_are_no_json_are_a_structural_error(dev_server: WorkflowEnvironment) -> None:
    broken = native({"index": 0, "id": "one", **function("add", '{"a": 1,')})
    script = [Turn(raw=[broken, chunk({}, "tool_calls")]), Turn("Sorry.")]
    async with harness(dev_server.client, [add], script) as it:
        view = await it.run(agent("add", config={"dialect": "tools"}))
        shown = it.model.requests[1].text
    assert (view.status, view.calls[0].status, len(view.errors)) == ("completed", "invalid", 1)
    assert "the arguments of add are no JSON object" in shown


@pytest.mark.parametrize("stream", [True, False])
async def test_a_refusal_is_told_to_the_model(stream: bool, dev_server: WorkflowEnvironment) -> None:
    refusal = [chunk({"refusal": "I cannot "}), chunk({"refusal": "do that."}), *END]
    whole = {
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": None, "refusal": "I cannot do that."},
            }
        ]
    }
    first = (
        Turn(raw=refusal)
        if stream
        else Turn(raw=[json.dumps({"id": "x", "model": "m", "object": "chat.completion", "created": 0, **whole})])
    )
    script = [first, Turn(json.loads(SOLUTION))]
    async with harness(dev_server.client, [add], script) as it:
        view = await it.run(agent("add", config={"stream": stream}))
    assert (view.status, view.requests) == ("completed", 2)
    assert view.errors[0]["error"]["code"] == "refusal"
    assert "I cannot do that." in view.errors[0]["error"]["message"]


@pytest.mark.parametrize(
    ("understands", "asked"),
    [
        ("strict", ["strict"]),
        ("json_schema", ["strict", "json_schema"]),
        ("json_object", ["strict", "json_schema", "json_object"]),
        ("nothing", ["strict", "json_schema", "json_object", None]),
    ],
)
async def test_a_server_without_response_format_is_asked_by_prompt(
    understands: str, asked: list[str | None], dev_server: WorkflowEnvironment
) -> None:
    forms: list[str | None] = []

    def answer(request: ChatRequest) -> Turn:
        form = request.body.get("response_format")
        kind = None if form is None else "strict" if form.get("json_schema", {}).get("strict") else form["type"]
        forms.append(kind)
        if kind is not None and kind != understands:
            return Turn("response_format of this type is not supported", status=400)
        return Turn(
            {"calls": [], "output": {"ok": True}}
            if len(forms) > len(asked)
            else {"calls": [{"_tool": "add", "a": 1, "b": 2}]}
        )

    async with harness(dev_server.client, [add], answer) as it:
        view = await it.run(agent("add", schema={"type": "object", "properties": {"ok": {"type": "boolean"}}}))
    assert (view.status, view.requests) == ("completed", 2)
    # What a server did not understand once it is not sent again.
    assert forms == [*asked, asked[-1]]


async def test_a_server_without_stream_options_is_asked_without(dev_server: WorkflowEnvironment) -> None:
    def answer(request: ChatRequest) -> Turn:
        if "stream_options" in request.body:
            return Turn("Unrecognized request argument supplied: stream_options", status=400)
        return Turn(json.loads(SOLUTION))

    async with harness(dev_server.client, [add], answer) as it:
        view = await it.run(agent("add"))
    assert (view.status, view.state) == ("completed", {"x": 3})


async def test_r9_7_a_context_too_long_is_cut_and_asked_once_more(dev_server: WorkflowEnvironment) -> None:
    long = {"type": "state", "state": {"text": "x" * 50_000, "short": "kept"}}
    sizes: list[int] = []

    def answer(request: ChatRequest) -> Turn:
        sizes.append(len(request.text))
        if sizes[-1] > 20_000:
            return Turn("This model's maximum context length is 8192 tokens.", status=400)
        return Turn({"calls": [], "output": {"ok": True}})

    async with harness(dev_server.client, [add], answer) as it:
        view = await it.run(agent("add", context=[long]))
        assert '"short":"kept"' in it.model.requests[-1].text
    assert (view.status, view.requests, len(sizes)) == ("completed", 1, 2)
    assert view.log[0].reason == "the context was too long, and was cut"


async def test_r9_7_what_is_still_too_long_fails_with_one_line(dev_server: WorkflowEnvironment) -> None:
    answer = Turn("This model's maximum context length is 8 tokens.", status=400)
    async with harness(dev_server.client, [add], lambda _: answer) as it:
        view = await it.run(agent("add"))
        assert len(it.model.requests) == 2
    assert view.status == "failed"
    assert "maximum context length" in (view.error or "")
