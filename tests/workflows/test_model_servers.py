"""Servers as they are: what stands between the protocol as it is written and what OpenAI-compatible servers send (R9.1)."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from openai import APIConnectionError, APIStatusError, AsyncOpenAI
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from perdure import Run, tool
from perdure.activities.endpoints import Endpoints
from perdure.activities.failures import context_failure, model_failure
from perdure.client.run import watch_run, watch_trouble
from perdure.hosting.worker import build_worker
from perdure.models.media_parts import files_of
from perdure.models.provider_errors import refusal_of
from perdure.models.requests import Endpoint
from perdure.plan import NOT_BEGUN
from perdure.runs.wire import CONTEXT_TOO_LONG
from perdure.testing.scripted_model import ChatRequest, ScriptedModel, Turn
from tests.models.test_provider_errors import SAID
from tests.support import agent, harness, registry

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
    assert "the arguments of add are not a JSON object" in shown


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


def document(body: Any, status: int = 200) -> Turn:
    return Turn(raw=[json.dumps(body)], status=status, media_type="application/json")


def event(body: Any, name: str = "") -> Turn:
    """A stream that begins as every stream does, and goes on with an error."""
    start = chunk({"role": "assistant", "content": ""})
    return Turn(raw=[start, (f"event: {name}\n" if name else "") + f"data: {json.dumps(body)}\n\n"])


WORDS: dict[str, tuple[Turn, str]] = {
    "error as text": (document({"error": "no such model: m", "code": "not found"}, 404), "answered 404: no such model: m"),
    "error in a list": (document([{"error": {"code": 400, "message": "a bad one"}}], 400), "answered 400: a bad one"),
    "detail": (document({"detail": "Unauthorized"}, 401), "answered 401: Unauthorized"),
    "message": (document({"object": "error", "message": "wrong", "code": 400}, 400), "answered 400: wrong"),
    "plain text": (Turn(raw=["<html><h1>405 Not\n Allowed</h1></html>"], status=405, media_type="text/html"), "405 Not Allowed"),
    "behind a router": (
        document({"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": "one image at most"}}}, 400),
        "Provider returned error: one image at most",
    ),
    "in the stream": (event({"error": {"message": "cannot", "type": "invalid_request_error"}}), "answered 400: cannot"),
    "event: error": (event({"error": {"message": "cannot", "code": 400}}, "error"), "answered 400: cannot"),
    "in a choice": (
        event({"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "error", "error": {"code": 403, "message": "no"}}]}),
        "answered 403: no",
    ),
    "an object of errors": (event({"object": "error", "message": "cannot", "code": 400}), "answered 400: cannot"),
    "event: error with no error in it": (event({"message": "cannot", "status_code": 404}, "error"), "answered 404: cannot"),
    "a document in place of the stream": (document({"error": {"message": "cannot", "code": 400}}), "answered 400: cannot"),
    "a detail in place of the stream": (document({"detail": "cannot", "status": 404}), "answered 404: cannot"),
}  # fmt: skip


@pytest.mark.parametrize(("turn", "words"), WORDS.values(), ids=WORDS)
async def test_b7_the_words_of_an_error_reach_the_user(turn: Turn, words: str, dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [add], [turn]) as it:
        view = await it.run(agent("add"))
    assert view.status == "failed"
    assert words in (view.error or "")
    assert "\n" not in (view.error or "")


BROKEN = Turn(raw=['data: {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 5}}\n\n'])


@pytest.mark.parametrize(
    ("fallback", "turns", "tokens"),
    [
        ([], [BROKEN, Turn({"calls": [], "output": {"ok": True}}, usage=(120, 8))], {"gpt-4o-mini": 105 + 128}),
        (
            ["other"],
            [BROKEN, BROKEN, BROKEN, Turn({"calls": [], "output": {"ok": True}}, usage=(120, 8))],
            {"gpt-4o-mini": 210, "other": 105 + 128},
        ),
    ],
    ids=["retry", "fallback"],
)
async def test_r9_6_answers_that_break_off_count(
    fallback: list[str], turns: list[Turn], tokens: dict[str, int], dev_server: WorkflowEnvironment
) -> None:
    async with harness(dev_server.client, [], turns) as it:
        view = await it.run(agent(config={"models": {"fallback": fallback}}))
    assert view.output == {"ok": True}
    assert {model: used.tokens for model, used in view.usage.by_model.items()} == tokens
    assert sum(used.requests for used in view.usage.by_model.values()) == 1
    assert [request.usage.tokens for request in view.log] == [128]


async def test_b7_what_each_server_says_is_given_up_waited_for_or_tried_again() -> None:
    final = {400: "BadRequestError", 401: "AuthenticationError", 404: "NotFoundError", 422: "UnprocessableEntityError"}
    turns = [
        Turn(raw=[body], status=status, media_type="text/plain") if isinstance(body, str) else document(body, status)
        for _, status, body, _, _ in SAID
        if status is not None
    ]
    async with ScriptedModel(turns) as model:
        client = AsyncOpenAI(base_url=model.base_url, api_key="any", max_retries=0)
        endpoints = Endpoints(client)
        for server, status, _, words, kind in SAID:
            if status is None:
                continue
            with pytest.raises(APIStatusError) as caught:
                await asked(endpoints)
            failure = model_failure(caught.value)
            wanted = {"too_long": CONTEXT_TOO_LONG, "no_money": "NoMoney"}.get(kind) or final.get(status)
            wanted = None if kind == "bad_answer" else wanted
            assert words in failure.message, server
            assert (failure.non_retryable, failure.type if wanted else None) == (wanted is not None, wanted), server
        await client.close()
    model.check()


async def asked(endpoints: Endpoints, model: str = "m") -> None:
    async with endpoints.ask(model, {"messages": []}):
        pass


async def test_two_requests_that_are_refused_at_once_are_one_step() -> None:
    body = {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": {}}}}
    refusal = refusal_of(400, "strict response_format is not supported")
    assert refusal is not None
    endpoints = Endpoints()
    sent = endpoints.fitted("m", body)
    assert endpoints.learn("m", body, sent, refusal)
    assert endpoints.learn("m", body, sent, refusal)
    assert endpoints.fitted("m", body)["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "s", "schema": {}},
    }


def picture(number: int) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{number:04}"}}


async def test_r20_3_a_limit_of_the_number_of_files_is_remembered_for_the_model() -> None:
    turns = [Turn("At most 2 image(s) may be provided in one request.", status=400), Turn("a"), Turn("b")]
    async with ScriptedModel(turns) as model:
        client = AsyncOpenAI(base_url=model.base_url, api_key="any", max_retries=0)
        endpoints = Endpoints(client)
        for last in (3, 4):
            parts = [picture(number) for number in range(last)]
            async with endpoints.ask("m", {"messages": [{"role": "user", "content": parts}]}):
                pass
        await client.close()
    model.check()
    assert [files_of(asked.messages, ["images"]) for asked in model.requests] == [
        [picture(0), picture(1), picture(2)],
        [picture(1), picture(2)],
        [picture(2), picture(3)],
    ]


@pytest.mark.parametrize(
    ("words", "sent"), [("Request contains an invalid argument.", [2, 1, 0]), ("Too many images", [2, 1, 1, 0])]
)
async def test_r20_3_files_that_were_left_out_in_vain_are_sent_again(words: str, sent: list[int]) -> None:
    async with ScriptedModel([*(Turn(words, status=400) for _ in sent), Turn("a")]) as model:
        client = AsyncOpenAI(base_url=model.base_url, api_key="any", max_retries=0)
        endpoints = Endpoints(client)
        body = {"messages": [{"role": "user", "content": [picture(0), picture(1)]}]}
        with pytest.raises(APIStatusError):
            async with endpoints.ask("m", body):
                pass
        async with endpoints.ask("m", body):
            pass
        await client.close()
    model.check()
    assert [len(files_of(asked.messages, ["images"])) for asked in model.requests] == [*sent, 2]


async def test_r9_7_a_rate_limit_is_waited_for_as_the_words_say() -> None:
    async with ScriptedModel([Turn("Rate limit reached. Please try again in 7.66s.", status=429)]) as model:
        client = AsyncOpenAI(base_url=model.base_url, api_key="any", max_retries=0)
        with pytest.raises(APIStatusError) as caught:
            await asked(Endpoints(client))
        await client.close()
    failure = model_failure(caught.value)
    assert (failure.type, failure.next_retry_delay) == ("RateLimitError", timedelta(seconds=7.66))


async def test_b9_a_context_that_temporal_cannot_carry_is_too_long() -> None:
    too_large = context_failure(ApplicationError("Blob data size exceeds limit.", type=NOT_BEGUN))
    assert (too_large.type, too_large.non_retryable) == (CONTEXT_TOO_LONG, True)
    assert context_failure(passing := ApplicationError("no poller", type=NOT_BEGUN)) is passing


async def test_b7_an_error_in_a_whole_answer_reaches_the_user(dev_server: WorkflowEnvironment) -> None:
    turn = document({"error": {"message": "cannot", "code": 400}})
    async with harness(dev_server.client, [add], [turn]) as it:
        view = await it.run(agent("add", config={"stream": False}))
    assert (view.status, "answered 400: cannot" in (view.error or "")) == ("failed", True)


@pytest.mark.parametrize("stream", [True, False])
async def test_b7_a_page_in_place_of_an_answer_is_told(stream: bool, dev_server: WorkflowEnvironment) -> None:
    turn = Turn(raw=["<html><title>Sign in: prompt is too long</title></html>"], media_type="text/html")
    async with harness(dev_server.client, [add], [turn, turn]) as it:
        view = await it.run(agent("add", config={"stream": stream}))
    assert (view.status, "Sign in" in (view.error or "")) == ("failed", True)


async def test_b7_a_refusal_in_the_stream_is_stepped_down_from(dev_server: WorkflowEnvironment) -> None:
    def answer(request: ChatRequest) -> Turn:
        if request.body.get("response_format", {}).get("type") == "json_schema":
            return event({"error": {"message": "response_format json_schema is not supported", "code": 400}})
        return Turn(json.loads(SOLUTION))

    async with harness(dev_server.client, [add], answer) as it:
        view = await it.run(agent("add", schema={"type": "object", "properties": {"ok": {"type": "boolean"}}}))
    assert (view.status, view.state, view.requests) == ("completed", {"x": 3}, 1)


async def test_b7_a_schema_that_is_refused_switches_nothing_off_for_others(dev_server: WorkflowEnvironment) -> None:
    forms: list[tuple[str, Any]] = []

    def answer(request: ChatRequest) -> Turn:
        form = request.body["response_format"]
        forms.append(
            ("odd" if "odd" in json.dumps(form) else "even", form.get("json_schema", {}).get("strict", form["type"]))
        )
        if forms[-1] == ("odd", True):
            return Turn(
                "Invalid schema for response_format 'solution': In context=(), 'odd' is not permitted", status=400
            )
        return Turn({"calls": [], "output": {forms[-1][0]: True}})

    def wanted(name: str) -> Any:
        properties = {name: {"type": "boolean"}}
        return agent(
            "add",
            schema={"type": "object", "properties": properties, "required": [name], "additionalProperties": False},
        )

    async with harness(dev_server.client, [add], answer) as it:
        for name in ("odd", "even", "odd"):
            assert (await it.run(wanted(name))).status == "completed"
    assert forms == [("odd", True), ("odd", "json_schema"), ("even", True), ("odd", "json_schema")]


async def test_a_server_that_is_down_is_named_with_the_variable_that_says_so() -> None:
    endpoints = Endpoints(
        AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="none", max_retries=0),
        {"backup": Endpoint(base_url="http://127.0.0.1:9/v2")},
    )
    for model, address, setting in (
        ("m", "http://127.0.0.1:9/v1", "OPENAI_BASE_URL"),
        ("m@backup", "http://127.0.0.1:9/v2", "'backup' of PERDURE_ENDPOINTS"),
    ):
        with pytest.raises(APIConnectionError) as caught:
            await asked(endpoints, model)
        failure = model_failure(caught.value, setting=endpoints.setting(model))
        assert (failure.type, failure.non_retryable) == ("Connection", False)
        assert address in failure.message
        assert f"check {setting}" in failure.message


async def test_a_wrong_path_is_named_with_the_variable_that_says_so() -> None:
    async with ScriptedModel([]) as model:
        client = AsyncOpenAI(base_url=model.base_url.removesuffix("/v1"), api_key="any", max_retries=0)
        with pytest.raises(APIStatusError) as caught:
            await asked(Endpoints(client))
        await client.close()
        address = model.base_url.removesuffix("/v1")
    failure = model_failure(caught.value)
    assert (
        failure.message
        == f"the model's server answered 404: Not Found at {address}/chat/completions: check OPENAI_BASE_URL"
    )


async def test_whoever_watches_or_waits_is_told_that_the_server_is_down(dev_server: WorkflowEnvironment) -> None:
    dead = AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="none", max_retries=0)
    queue = "server-down"
    async with harness(dev_server.client, [add], [], task_queue="unused") as it:
        worker = build_worker(it.client, registry([add]), task_queue=queue, model=dead, sandboxed=True)
        it.task_queue = queue
        async with worker:
            handle = await it.start(agent("add"))
            troubles = watch_trouble(it.client, handle.id)
            telling = asyncio.create_task(anext(troubles))
            async for view in watch_run(it.client, handle.id):
                if view.log and view.log[-1].trouble:
                    break
            words = await telling
            await troubles.aclose()
            assert "http://127.0.0.1:9/v1" in words
            assert words.removeprefix("retrying the Request: ") in view.log[-1].trouble
            assert (await it.view(handle.id)).log[-1].trouble
            await handle.cancel()


async def test_a_server_without_stream_options_is_asked_without(dev_server: WorkflowEnvironment) -> None:
    def answer(request: ChatRequest) -> Turn:
        if "stream_options" in request.body:
            return Turn("Unrecognized request argument supplied: stream_options", status=400)
        return Turn(json.loads(SOLUTION))

    async with harness(dev_server.client, [add], answer) as it:
        view = await it.run(agent("add"))
    assert (view.status, view.state) == ("completed", {"x": 3})


TOO_LONG = {
    "by its words": Turn("This model's maximum context length is 8192 tokens.", status=400),
    "with another status": Turn("the request exceeds the available context size", status=500),
    "by its status alone": Turn(raw=["<h1>Payload</h1>"], status=413, media_type="text/html"),
    "in the stream": event({"error": "Trying to keep the first 14538 tokens when context the overflows."}),
    "as plain text in the stream": Turn(raw=[chunk({"content": ""}), "event: error\ndata: Prompt is too long\n\n"]),
    "in place of the stream": document({"message": "too many tokens: 5000 of 4081"}),
}


@pytest.mark.parametrize("refusal", TOO_LONG.values(), ids=TOO_LONG)
async def test_r9_7_a_context_too_long_is_cut_and_asked_once_more(
    refusal: Turn, dev_server: WorkflowEnvironment
) -> None:
    long = {"type": "state", "state": {"text": "x" * 50_000, "short": "kept"}}
    sizes: list[int] = []

    def answer(request: ChatRequest) -> Turn:
        sizes.append(len(request.text))
        if sizes[-1] > 10_000:
            return refusal
        return Turn({"calls": [], "output": {"ok": True}})

    async with harness(dev_server.client, [add], answer) as it:
        view = await it.run(agent("add", context=[long]))
        assert '"short":"kept"' in it.model.requests[-1].text
        events = [each async for each in Run(it.client, view.run_id).events(topics=["request", "compaction"])]
    assert [each.phase for each in events if each.topic == "compaction"] == ["start", "end"]
    assert [each.data["attempt"] for each in events if each.topic == "request" and each.phase == "end"] == [2]
    assert (view.status, view.requests, len(sizes)) == ("completed", 1, 2)
    assert view.log[0].reason == "the context was too long, and was cut"


async def test_r9_7_what_is_still_too_long_fails_with_one_line(dev_server: WorkflowEnvironment) -> None:
    answer = Turn("This model's maximum context length is 8 tokens.", status=400)
    async with harness(dev_server.client, [add], lambda _: answer) as it:
        view = await it.run(agent("add"))
        assert len(it.model.requests) == 2
    assert view.status == "failed"
    assert "maximum context length" in (view.error or "")
