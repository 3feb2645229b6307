"""Runs whose model is a server that others wrote, aimock, in the form of each provider (R20.1): `make test-clients`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from openai import AsyncOpenAI
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from perdure.activities.endpoints import Endpoints
from perdure.activities.model_servers import connect
from perdure.models.model_names import PROVIDERS, parse_model
from perdure.runs.wire import RunView
from perdure.testing import run_locally
from perdure.testing.scripted_model import write_answer
from tests.clients.test_clients import installed

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.clients]

HERE: Final = Path(__file__).parent
MODELS: Final = {
    "openai": "gpt-4o",
    "openai-responses": "openai-responses:gpt-5",
    "anthropic": "anthropic:claude-sonnet-5",
    "google": "google:gemini-2.5-pro",
    "bedrock": "bedrock:anthropic.claude-opus-5-v1:0",
}
PATHS: Final = {
    "openai": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "google": "/v1beta/models/",
    "bedrock": "/model/",
}
CALLS: Final[list[dict[str, Any]]] = [
    {"_tool": "add", "a": 1, "b": 2, "_outputPath": "†state.sum"},
    {"_tool": "double", "number": "†state.sum", "_outputPath": "†state.double"},
]
ANSWER: Final = "the double is 6"

each_provider = pytest.mark.parametrize("provider", PROVIDERS)


@tool(retries=0)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(retries=0)
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def turn(solution: dict[str, Any], dialect: str, **options: Any) -> dict[str, Any]:
    """Return a turn of aimock: text, or native calls."""
    answer = write_answer(solution, dialect)
    response: dict[str, Any] = {"content": answer.text} if answer.text or not answer.tool_calls else {}
    if answer.tool_calls:
        response["toolCalls"] = [{"name": name, "arguments": arguments} for name, arguments in answer.tool_calls]
    return {"response": response, "options": options}


class Mock:
    """A running aimock; `asked` are the paths of its requests with their statuses, once it has ended."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.asked: list[tuple[str, int]] = []


@asynccontextmanager
async def aimock(turns: list[dict[str, Any]]) -> AsyncIterator[Mock]:
    installed("node")
    program = ("node", str(HERE / "aimock.mjs"), json.dumps(turns))
    process = await asyncio.create_subprocess_exec(
        *program, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    mock = Mock((await process.stdout.readline()).decode().strip())
    try:
        yield mock
    finally:
        out, err = await process.communicate(b"")
    assert out, err.decode()
    mock.asked = [(path, status) for path, status in json.loads(out.decode().splitlines()[-1])]


async def run(dev_server: WorkflowEnvironment, mock: Mock, provider: str, dialect: str, **config: Any) -> RunView:
    openai = AsyncOpenAI(base_url=f"{mock.address}/v1", api_key="mock", max_retries=0)
    others = [name for name in PROVIDERS if not name.startswith("openai")]
    endpoints = Endpoints(openai, servers={name: connect(name, mock.address, "mock") for name in others})
    models = {"fast": MODELS[provider], "smart": MODELS[provider]}
    document = {
        "name": "sums",
        "context": [
            {"type": "system", "text": "Add."},
            *({"type": "tool", "tool": name} for name in ("add", "double")),
        ],
        "config": {"dialect": dialect, "models": models, **config},
    }
    local = run_locally(document, model=openai, tools=[add, double], server=dev_server, endpoints=endpoints)
    async with local as it:
        return await it.run({})


def check(view: RunView, mock: Mock, provider: str, statuses: list[int]) -> None:
    assert (view.status, view.output) == ("completed", ANSWER)
    assert view.state == {"sum": 3, "double": 6}
    assert [status for _, status in mock.asked] == statuses
    assert all(path.startswith(PATHS[provider]) for path, _ in mock.asked)
    assert parse_model(MODELS[provider]).provider == provider


@each_provider
@pytest.mark.parametrize("dialect", ["solution", "tools", "script"])
async def test_a_run_in_every_dialect(provider: str, dialect: str, dev_server: WorkflowEnvironment) -> None:
    turns = [turn({"calls": CALLS}, dialect), turn({"output": ANSWER}, dialect)]
    async with aimock(turns) as mock:
        view = await run(dev_server, mock, provider, dialect)
    check(view, mock, provider, [200, 200])


@each_provider
async def test_answers_that_are_not_streamed(provider: str, dev_server: WorkflowEnvironment) -> None:
    turns = [turn({"calls": CALLS}, "tools"), turn({"output": ANSWER}, "tools")]
    async with aimock(turns) as mock:
        view = await run(dev_server, mock, provider, "tools", stream=False)
    check(view, mock, provider, [200, 200])
    streams = ("alt=sse", "stream", "Stream")
    assert not any(mark in path for path, _ in mock.asked for mark in streams)


@each_provider
@pytest.mark.parametrize("status", [429, 503])
async def test_a_server_that_is_away_is_asked_again(
    provider: str, status: int, dev_server: WorkflowEnvironment
) -> None:
    away = {"response": {"error": {"message": "try later", "type": "rate_limit_error"}, "status": status}}
    turns = [away, turn({"calls": CALLS}, "tools"), turn({"output": ANSWER}, "tools")]
    async with aimock(turns) as mock:
        view = await run(dev_server, mock, provider, "tools")
    check(view, mock, provider, [status, 200, 200])


@each_provider
async def test_a_stream_that_breaks_off_is_asked_again(provider: str, dev_server: WorkflowEnvironment) -> None:
    broken = turn(
        {"output": "a long answer that nobody will ever have read to its end"}, "tools", truncateAfterChunks=3
    )
    turns = [broken, turn({"calls": CALLS}, "tools"), turn({"output": ANSWER}, "tools")]
    async with aimock(turns) as mock:
        view = await run(dev_server, mock, provider, "tools")
    check(view, mock, provider, [200, 200, 200])


@each_provider
async def test_usage_is_counted(provider: str, dev_server: WorkflowEnvironment) -> None:
    turns = [turn({"calls": CALLS}, "tools"), turn({"output": ANSWER}, "tools")]
    counts = {"google": ("promptTokenCount", "candidatesTokenCount"), "openai": ("prompt_tokens", "completion_tokens")}
    prompt, completion = counts.get(provider, ("input_tokens", "output_tokens"))
    for each in turns:
        each["response"]["usage"] = {prompt: 100, completion: 10}
    async with aimock(turns) as mock:
        view = await run(dev_server, mock, provider, "tools")
    check(view, mock, provider, [200, 200])
    assert (view.usage.prompt_tokens, view.usage.completion_tokens) == (200, 20)
