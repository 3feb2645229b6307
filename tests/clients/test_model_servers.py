"""Runs whose model is a server that others wrote, aimock, in the form of each provider (R20.1): `make test-clients`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from openai import AsyncOpenAI
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from perdure.activities.endpoints import Endpoints
from perdure.activities.model_servers import connect
from perdure.models.model_names import PROVIDERS, parse_model
from perdure.models.providers.registry import write_request
from perdure.runs.wire import RunView
from perdure.testing import run_locally
from perdure.testing.scripted_model import write_answer
from tests.case_player import Case, compare, play
from tests.clients.test_clients import CLIENTS, installed
from tests.models.test_published_types import BODIES
from tests.soak import combined
from tests.support import perdure
from tests.test_conformance import load_cases

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
    """A running aimock; `asked` are the paths of its requests with their statuses, and `shown` their texts, once it has
    ended."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.asked: list[tuple[str, int]] = []
        self.shown: list[str] = []

    def openai(self) -> AsyncOpenAI:
        """Return a client of its form of OpenAI's."""
        return AsyncOpenAI(base_url=f"{self.address}/v1", api_key="mock", max_retries=0)

    def endpoints(self, openai: AsyncOpenAI) -> Endpoints:
        """Return the servers of all providers, at its address."""
        others = [name for name in PROVIDERS if not name.startswith("openai")]
        return Endpoints(openai, servers={name: connect(name, self.address, "mock") for name in others})


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
    for path, status, shown in json.loads(out.decode().splitlines()[-1]):
        mock.asked.append((path, status))
        mock.shown.append(shown)


async def run(dev_server: WorkflowEnvironment, mock: Mock, provider: str, dialect: str, **config: Any) -> RunView:
    openai = mock.openai()
    models = {"fast": MODELS[provider], "smart": MODELS[provider]}
    document = {
        "name": "sums",
        "context": [
            {"type": "system", "text": "Add."},
            *({"type": "tool", "tool": name} for name in ("add", "double")),
        ],
        "config": {"dialect": dialect, "models": models, **config},
    }
    local = run_locally(
        document, model=openai, tools=[add, double], server=dev_server, endpoints=mock.endpoints(openai)
    )
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


@pytest.mark.parametrize("provider", [name for name in PROVIDERS if name != "google"])  # whose calls are one event here
async def test_a_connection_that_is_lost_after_a_call_repeats_no_call(
    provider: str, dev_server: WorkflowEnvironment
) -> None:
    calls = [*CALLS, {"_tool": "add", "a": 1, "b": "†state.double", "_outputPath": "†state.long"}] * 4
    broken = turn({"calls": calls}, "tools", truncateAfterChunks=30, latency=3)
    async with aimock([broken, turn({"output": ANSWER}, "tools")]) as mock:
        view = await run(dev_server, mock, provider, "tools")
    assert (view.status, view.output, view.requests) == ("completed", ANSWER, 2)
    assert view.state["sum"] == 3
    assert len(view.calls) == len({call.id for call in view.calls}) < len(calls)
    assert {call.status for call in view.calls} == {"done"}


@each_provider
async def test_thoughts_are_no_part_of_the_answer_and_go_back(provider: str, dev_server: WorkflowEnvironment) -> None:
    first = turn({"calls": CALLS}, "tools")
    first["response"] |= {"reasoning": "one and two", "reasoningSignature": "sig"}
    async with aimock([first, turn({"output": ANSWER}, "tools")]) as mock:
        view = await run(dev_server, mock, provider, "tools", sampling={"reasoning_effort": "low"})
    check(view, mock, provider, [200, 200])


async def test_r20_6_a_search_of_openais_server_is_an_event(dev_server: WorkflowEnvironment) -> None:
    # aimock plays hosted tools in the form of Responses alone: the other forms are checked against published types.
    searched = turn({"output": ANSWER}, "solution")
    searched["response"]["webSearches"] = ["price of tea"]
    async with aimock([searched]) as mock:
        openai = mock.openai()
        agent = {
            "name": "searcher",
            "context": [{"type": "system", "text": "Search."}, {"type": "hosted", "tool": "web_search"}],
            "config": {"models": dict.fromkeys(("fast", "smart"), MODELS["openai-responses"])},
        }
        async with run_locally(agent, model=openai, server=dev_server, endpoints=mock.endpoints(openai)) as local:
            run = await local.start({})
            output = await run.result()
            events = [event.data async for event in run.events() if event.topic == "hosted"]
    assert output == ANSWER
    assert [(event["tool"], event["input"]) for event in events] == [("web_search", "price of tea")]


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


INVOICE: Final[list[dict[str, Any]]] = [
    {"_tool": "find_customer", "id": "C-17", "_outputPath": "†state.who"},
    {
        "_tool": "send_invoice",
        "email": "†state.who.email",
        "amount": "†state.who.balance",
        "_outputPath": "†state.sent",
    },
]
VARIABLES: Final = {
    "openai": {"OPENAI_BASE_URL": "{}/v1", "OPENAI_API_KEY": "mock"},
    "openai-responses": {"OPENAI_BASE_URL": "{}/v1", "OPENAI_API_KEY": "mock"},
    "anthropic": {"ANTHROPIC_BASE_URL": "{}", "ANTHROPIC_API_KEY": "mock"},
    "google": {"GOOGLE_GEMINI_BASE_URL": "{}", "GEMINI_API_KEY": "mock"},
    "bedrock": {
        "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": "{}",
        "AWS_BEARER_TOKEN_BEDROCK": "mock",
        "AWS_REGION": "eu-west-1",
    },
}


@pytest.mark.parametrize(("provider", "dialect"), combined(PROVIDERS, ["solution", "tools", "script"]))
async def test_models_check_finds_that_a_model_writes_plans(provider: str, dialect: str) -> None:
    task = ("--task", "references", "--dialect", dialect, "--fast", MODELS[provider], "--smart", MODELS[provider])
    hello: dict[str, Any] = {"response": {"content": "OK"}}
    turns = [hello, turn({"calls": INVOICE}, dialect), turn({"output": {"invoice": "INV-2041"}}, dialect)]
    async with aimock(turns) as mock:
        env = {key: value.format(mock.address) for key, value in VARIABLES[provider].items()}
        command = await perdure("models", "check", "--json", *task, env=env)
    assert command.code == 0, command.err
    (row,) = json.loads(command.out)["rows"]
    assert (row["passed"], row["of"], row["dialect"]) == (1, 1, dialect)


async def test_googles_own_types_accept_each_body() -> None:
    # The other providers' types are in the development environment: see tests/models/test_published_types.py.
    installed("google")
    bodies = [
        write_request(f"google:{name}", name, {**chat, "reasoning_effort": effort})
        for name in ("gemini-2.5-pro", "gemini-3-pro-preview")
        for effort in ("none", "max")
        for chat in BODIES.values()
    ]
    python = CLIENTS / "google" / "bin" / "python"
    process = await asyncio.create_subprocess_exec(
        *(str(python), str(HERE / "google_types.py")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate(json.dumps(bodies).encode())
    assert (process.returncode, len(out.splitlines())) == (0, len(bodies)), err.decode()[-2000:]


CASES: Final = {case["name"]: case for case in load_cases()}
FEW: Final = ("payment-declined-takes-the-error-branch", "wrong-parameters-then-corrected", "replan-for-the-dog")


async def differences(
    case: Case, provider: str, dialect: str, stream: bool, dev_server: WorkflowEnvironment
) -> list[str]:
    turns = [turn(solution, dialect) for solution in case["turns"]]
    config = {**case["agent"].get("config", {}), "stream": stream}
    played_case = {**case, "agent": {**case["agent"], "config": config}}
    async with aimock(turns) as mock:
        openai = mock.openai()
        played = await play(
            dev_server.client,
            played_case,
            dialect=dialect,
            model_name=MODELS[provider],
            server=openai,
            endpoints=mock.endpoints(openai),
        )
    return compare(case, replace(played, prompts=mock.shown))


@pytest.mark.parametrize(
    ("provider", "dialect", "stream"), combined(PROVIDERS, ["solution", "tools", "script"], [True, False])
)
async def test_conformance_with_a_server_of_others(
    provider: str, dialect: str, stream: bool, dev_server: WorkflowEnvironment
) -> None:
    for name in FEW:
        assert await differences(CASES[name], provider, dialect, stream, dev_server) == []


@pytest.mark.soak
@each_provider
@pytest.mark.parametrize("dialect", ["solution", "tools", "script"])
@pytest.mark.parametrize("name", CASES)
async def test_all_conformance_with_a_server_of_others(
    name: str, provider: str, dialect: str, dev_server: WorkflowEnvironment
) -> None:
    assert await differences(CASES[name], provider, dialect, True, dev_server) == []
