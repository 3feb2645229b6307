"""Keys that the worker was configured with stand in nothing that leaves it."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from openai import AsyncOpenAI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from perdure import ToolContext, ToolError, hook, tool
from perdure.activities.registry import Registry
from perdure.activities.secrets import keep_secret, known_secrets, mask_text, mask_value, masked_details
from perdure.errors import ServerError
from perdure.hooks import BeforeToolCall
from perdure.hosting._worker_parts import WorkerParts
from perdure.hosting.connection import connect
from perdure.hosting.settings import Settings
from perdure.runs.caller_context import MASK
from perdure.runs.event_stream import MaskedText
from tests.support import DONE, agent, harness, logged, serving
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = "sk-live-51H8xYzKEY0000000000"


async def test_what_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_TOKEN", KEY)
    monkeypatch.setenv("SOME_TOKEN_SHORT", "no")
    keep_secret("Bearer of-a-header-0001")
    assert mask_text(f"wrong key: {KEY}.") == f"wrong key: {MASK}."
    assert mask_text("of-a-header-0001") == MASK
    assert mask_text("no key in Bearer words") == "no key in Bearer words"
    value = {"a": [f"x{KEY}"], KEY: 1, "n": 2}
    assert mask_value(value) == {"a": [f"x{MASK}"], MASK: 1, "n": 2}
    assert mask_value(same := {"a": "b"}) is same
    for said in ([KEY], (KEY,), {KEY}, Deep(KEY), [(1, {"x": (KEY,)})], KEY.encode()):
        assert KEY not in str(masked_details({"said": said})), said
    assert masked_details((same, 7)) == (same, 7)


async def test_a_key_is_masked_as_it_is_and_as_json_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told while it is written has the same characters as what is told at its end."""
    key = '-----BEGIN KEY-----\n"a+/\\b"\n-----END KEY-----'
    monkeypatch.setenv("SIGNING_KEY", key)
    for text in (f"it is {key}.", f"it is {json.dumps(key)}."):
        live = MaskedText(known_secrets(), MASK)
        told = "".join(map(live.push, text))
        assert told == mask_text(text) == mask_value([text])[0], text
    assert key not in mask_text(f"it is {key}.")
    assert "BEGIN" not in mask_text(f"it is {json.dumps(key)}.")


async def test_keys_that_are_given_otherwise_are_masked_too() -> None:
    """By a flag or a file: no variable is called so."""
    settings = Settings(codec_keys={"new": "a-key-of-the-codec-01"}, inbox_token="a-token-of-the-inbox")
    WorkerParts(Registry(), settings)
    with pytest.raises(ServerError):
        await connect(api_key="a-key-of-temporals-01", target_host="localhost:1", tls=False)
    said = "a-key-of-the-codec-01 a-token-of-the-inbox a-key-of-temporals-01"
    assert mask_text(said) == f"{MASK} {MASK} {MASK}"


@dataclass
class Deep:
    said: str


@tool(retries=0)
def leak(how: str, context: ToolContext) -> str:
    """Say the key."""
    if how == "result":
        context.heartbeat(("so", (KEY,)), Deep(KEY))
        return f"the key is {KEY}"
    if how == "failure":
        raise ToolError("wrong", f"wrong key {KEY}")
    if how == "code":
        raise ToolError(f"wrong {KEY}", "no")
    if how == "class":
        raise type(f"Wrong_{KEY}", (Exception,), {})("no")
    if how == "details":
        raise ApplicationError("no", {"said": (KEY,)}, Deep(KEY), type=KEY, non_retryable=True)
    if how == "cause":
        raise RuntimeError("no") from ApplicationError("no", [KEY])
    try:
        raise KeyError(KEY)
    except KeyError as error:
        raise ValueError("deep") from error


@tool
def echo(text: str) -> str:
    return text


def details_in(history: str) -> str:
    """What a history holds as bytes."""
    return "".join(base64.b64decode(data).decode() for data in re.findall(r'"data": "([^"]+)"', history))


HOWS = ("result", "failure", "bug", "code", "class", "details", "cause")


async def test_a_tool_that_says_a_key(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BANK_SECRET", KEY)
    calls = [{"_tool": "leak", "how": how, "_outputPath": f"†state.{how}"} for how in HOWS]
    with caplog.at_level(logging.DEBUG):
        async with harness(dev_server.client, [leak], [{"calls": calls}, DONE, DONE]) as it:
            handle = await it.start(agent("leak"))
            await handle.result()
            history = (await handle.fetch_history()).to_json()
            view = await it.view(handle.id)
            prompts = "".join(request.shown for request in it.model.requests)
    assert view.state["result"] == f"the key is {MASK}"
    assert view.calls[1].error == {"code": "wrong", "message": f"wrong key {MASK}"}
    for text in (history, details_in(history), prompts, caplog.text):
        assert KEY not in text
    assert [call.error["code"] for call in view.calls[3:] if call.error] == [
        f"wrong {MASK}",
        f"Wrong_{MASK}",
        "ApplicationError",
        "RuntimeError",
    ]


async def test_a_model_server_that_echoes_the_key(
    dev_server: WorkflowEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(request: Request) -> JSONResponse:
        said = request.headers["authorization"].removeprefix("Bearer ")
        return JSONResponse(
            {"error": {"message": f"Incorrect API key provided: {said}", "code": "invalid_api_key"}}, 401
        )

    app = Starlette(routes=[Route("/v1/chat/completions", refuse, methods=["POST"])])
    async with serving(app) as url:
        asking = AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
        with caplog.at_level(logging.DEBUG):
            async with harness(dev_server.client, [leak], [], model=asking) as it:
                handle = await it.start(agent("leak"))
                with pytest.raises(Exception, match="Workflow execution failed"):
                    await handle.result()
                history = (await handle.fetch_history()).to_json()
                view = await it.view(handle.id)
    assert f"Incorrect API key provided: {MASK}" in str(view.error)
    assert KEY not in history
    assert KEY not in "\n".join(
        record.getMessage() for record in caplog.records if record.name.startswith("temporalio")
    )


async def test_a_model_server_that_says_the_key_in_its_answer(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_KEY", KEY)
    calls = [{"_tool": "echo", "text": f"so {KEY}", "_outputPath": "†state.said"}]
    script = [{"calls": calls}, {"calls": [], "output": {"key": KEY}}]
    async with harness(dev_server.client, [echo], script) as it:
        handle = await it.start(agent("echo"))
        result = await handle.result()
        history = (await handle.fetch_history()).to_json()
    assert (result.state["said"], result.output) == (f"so {MASK}", {"key": MASK})
    assert KEY not in history


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("payloads", [False, True])
async def test_a_workers_log_tells_no_key(
    monkeypatch: pytest.MonkeyPatch, form: Literal["text", "json"], payloads: bool
) -> None:
    monkeypatch.setenv("MODEL_KEY", KEY)
    with logged(form, payloads=payloads) as written:
        try:
            raise ValueError(f"wrong {KEY}")
        except ValueError:
            logging.getLogger("anybody").exception("it said %s", {"key": KEY})
    assert (f"wrong {MASK}" in written.getvalue()) == payloads
    assert f"{{'key': '{MASK}'}}" in written.getvalue()
    assert KEY not in written.getvalue()


def fails_with_a_key(offer: dict[str, Any]) -> str:
    del offer
    raise RuntimeError(f"no answer from a server that said {KEY}") from ApplicationError("no", KEY, type=KEY)


async def test_a_program_that_decides_and_fails_with_a_key(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_KEY", KEY)
    approval = {"ask": "always", "approver": f"{__name__}:fails_with_a_key"}
    script = [{"calls": [{"_tool": "echo", "text": "so"}]}, DONE]
    async with harness(dev_server.client, [echo], script, named=[__name__]) as it:
        handle = await it.start(agent("echo", config={"approval": approval}))
        await it.until_waiting(handle.id, "1.0")
        async with asyncio.timeout(HANG):
            while not (await it.view(handle.id)).refusals:  # noqa: ASYNC110 (a decision would end the program before it has failed)
                await asyncio.sleep(0.02)
        await handle.signal("approve", {"call": "1.0"})
        await handle.result()
        history = (await handle.fetch_history()).to_json()
        view = await it.view(handle.id)
    assert f"a server that said {MASK}" in view.refusals[0]["problem"]
    assert KEY not in history + details_in(history)


@hook("before_tool_call")
def leaks(_: BeforeToolCall) -> None:
    try:
        raise KeyError(KEY)
    except KeyError as error:
        raise RuntimeError(f"wrong key {KEY}") from error


async def test_a_hook_that_fails_with_a_key(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In a worker with the plugin the log is the user's own, and masks nothing."""
    monkeypatch.setenv("BANK_SECRET", KEY)
    calls = [{"_tool": "echo", "text": "so", "_outputPath": "†state.said"}]
    with caplog.at_level(logging.DEBUG):
        async with harness(dev_server.client, [echo, leaks], [{"calls": calls}, DONE, DONE]) as it:
            handle = await it.start(agent("echo"))
            await handle.result()
            history = (await handle.fetch_history()).to_json()
    assert f"wrong key {MASK}" in caplog.text
    assert KEY not in caplog.text
    assert KEY not in history + details_in(history)
