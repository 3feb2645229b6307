"""Runs whose models answer in the form of each provider, over HTTP: streamed, whole, broken, refused (R20.1, R20.2, R20.4)."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from perdure.models.model_names import parse_model
from perdure.models.usage import Price
from perdure.runs.wire import RunView
from perdure.testing import ScriptedModel, Turn, run_locally
from perdure.testing._provider_forms import FORMS, aws_event
from perdure.testing.scripted_model import TOKEN, ChatRequest, Fault, cut, rate_limited, refusal, server_error
from tests.case_player import compare, play
from tests.soak import combined
from tests.test_conformance import load_cases

pytestmark = pytest.mark.asyncio(loop_scope="session")

MODELS = {
    "openai-responses": "openai-responses:gpt-5",
    "anthropic": "anthropic:claude-sonnet-5",
    "google": "google:gemini-3-pro",
    "bedrock": "bedrock:anthropic.claude-opus-5-v1:0",
}
"""A model of each provider whose form is not that of Chat Completions."""
OTHERS = {
    "openai-responses": "openai-responses:o3",
    "anthropic": "anthropic:claude-opus-5",
    "google": "google:gemini-3-flash",
    "bedrock": "bedrock:anthropic.claude-sonnet-5-v1:0",
}
DIALECTS = ("solution", "tools", "script")

each_provider = pytest.mark.parametrize("provider", MODELS)


@tool(retries=0)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(retries=0)
async def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def document(provider: str, *, dialect: str = "tools", **config: Any) -> dict[str, Any]:
    models = {"fast": MODELS[provider], "smart": MODELS[provider], **config.pop("models", {})}
    settings = {"dialect": dialect, "models": models, **config}
    return {"name": "sums", "context": [{"type": "system", "text": "Add."}, "add", "double"], "config": settings}


CALL = {"_tool": "add", "a": 1, "b": 2, "_outputPath": "†state.sum"}
SUM: list[dict[str, Any]] = [{"calls": [CALL]}, {"output": "the sum is 3"}]


def agent(provider: str, **options: Any) -> dict[str, Any]:
    made = document(provider, **options)
    made["context"] = [{"type": "tool", "tool": each} if isinstance(each, str) else each for each in made["context"]]
    return made


async def run(dev_server: WorkflowEnvironment, document: dict[str, Any], model: ScriptedModel, **more: Any) -> RunView:
    async with run_locally(document, model=model, tools=[add, double], server=dev_server, **more) as local:
        return await local.run({})


@each_provider
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_run_in_every_dialect(provider: str, dialect: str, dev_server: WorkflowEnvironment) -> None:
    model = ScriptedModel(SUM, dialect=dialect)
    view = await run(dev_server, agent(provider, dialect=dialect), model)
    assert (view.status, view.output, view.state) == ("completed", "the sum is 3", {"sum": 3})
    assert [request.provider for request in model.requests] == [provider] * 2
    assert view.usage.prompt_tokens == model.prompt_tokens > 0
    assert view.usage.completion_tokens == model.completion_tokens > 0
    assert list(view.usage.by_model) == [MODELS[provider]]


@each_provider
async def test_an_answer_that_is_not_streamed(provider: str, dev_server: WorkflowEnvironment) -> None:
    model = ScriptedModel(SUM, dialect="tools")
    view = await run(dev_server, agent(provider, stream=False), model)
    assert (view.status, view.output) == ("completed", "the sum is 3")
    assert not any(request.form.streamed(request.body, request.path) for request in model.requests)
    assert view.usage.prompt_tokens == model.prompt_tokens > 0


@each_provider
async def test_a_call_starts_while_the_model_writes(provider: str, dev_server: WorkflowEnvironment) -> None:
    gate = asyncio.Event()

    @tool(retries=0)
    def begin() -> str:
        """Let the model go on writing."""
        gate.set()
        return "begun"

    first = {"_tool": "begin", "_outputPath": "†state.begun"}
    length = len("begin") + len(json.dumps({"_outputPath": "†state.begun"}, separators=(",", ":"), ensure_ascii=False))
    turn = Turn({"calls": [first, CALL]}, gate=gate, gate_after=length + 3)
    model = ScriptedModel([turn, {"output": "done"}], dialect="tools", chunk=4)
    made = agent(provider)
    made["context"].append({"type": "tool", "tool": "begin"})
    async with run_locally(made, model=model, tools=[add, double, begin], server=dev_server) as local:
        view = await local.run({})
    assert (view.status, view.state) == ("completed", {"begun": "begun", "sum": 3})


@each_provider
async def test_a_stream_that_breaks_before_a_call_is_asked_again(
    provider: str, dev_server: WorkflowEnvironment
) -> None:
    model = ScriptedModel([cut({"calls": [CALL]}, 2), *SUM], dialect="tools")
    view = await run(dev_server, agent(provider), model)
    assert (view.status, view.output, len(model.requests)) == ("completed", "the sum is 3", 3)


@each_provider
async def test_a_stream_that_breaks_after_a_call_is_not_repeated(
    provider: str, dev_server: WorkflowEnvironment
) -> None:
    calls = [CALL, {"_tool": "double", "number": 4, "_outputPath": "†state.double"}]
    length = len("add") + len(json.dumps({k: v for k, v in CALL.items() if k != "_tool"}, separators=(",", ":")))
    model = ScriptedModel(
        [Turn({"calls": calls}, fault=Fault("cut", length)), {"output": "done"}], dialect="tools", chunk=4
    )
    view = await run(dev_server, agent(provider), model)
    assert (view.status, view.state, len(model.requests)) == ("completed", {"sum": 3}, 2)
    assert "your answer broke off after 1 calls" in model.requests[1].text


@pytest.mark.parametrize(
    ("provider", "trouble"), combined(MODELS, [rate_limited(0.01), server_error(500), server_error(529)])
)
async def test_a_server_that_is_away_is_asked_again(
    provider: str, trouble: Turn, dev_server: WorkflowEnvironment
) -> None:
    model = ScriptedModel([trouble, *SUM], dialect="tools")
    view = await run(dev_server, agent(provider), model)
    assert (view.status, view.output) == ("completed", "the sum is 3")


OVERLOADED: dict[str, list[str | bytes]] = {
    "openai-responses": [
        'event: response.failed\ndata: {"type":"response.failed","response":{"status":"failed",'
        '"error":{"code":"server_error","message":"try later"}}}\n\n'
    ],
    "anthropic": [
        'event: message_start\ndata: {"type":"message_start","message":{"model":"m","usage":{"input_tokens":3}}}\n\n',
        'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n',
    ],
    "google": ['data: {"error":{"code":503,"message":"The model is overloaded.","status":"UNAVAILABLE"}}\n\n'],
    "bedrock": [
        aws_event("messageStart", {"role": "assistant"}),
        aws_event("throttlingException", {"message": "Too many requests"}, exception=True),
    ],
}


@each_provider
async def test_a_server_that_is_overloaded_in_the_stream_is_asked_again(
    provider: str, dev_server: WorkflowEnvironment
) -> None:
    media_type = FORMS[parse_model(MODELS[provider]).provider].media_type
    model = ScriptedModel([Turn(raw=OVERLOADED[provider], media_type=media_type), *SUM], dialect="tools")
    view = await run(dev_server, agent(provider), model)
    assert (view.status, view.output) == ("completed", "the sum is 3")


@each_provider
async def test_a_request_that_no_retry_mends_ends_the_run(provider: str, dev_server: WorkflowEnvironment) -> None:
    model = ScriptedModel(lambda _: Turn("no such model", status=404), dialect="tools")
    with pytest.raises(AssertionError, match=r"is failed: .* the model's server answered 404: no such model"):
        await run(dev_server, agent(provider), model)


@pytest.mark.filterwarnings("ignore:The model:DeprecationWarning")
async def test_a_parameter_that_the_client_of_today_does_not_have_reaches_an_older_model(
    dev_server: WorkflowEnvironment,
) -> None:
    older = "anthropic:claude-sonnet-4-5"
    made = agent("anthropic", models={"fast": older, "smart": older}, sampling={"temperature": 0.2})
    model = ScriptedModel(SUM, dialect="tools")
    view = await run(dev_server, made, model)
    assert (view.status, model.requests[0].body["temperature"]) == ("completed", 0.2)
    assert model.requests[0].body["max_tokens"] == 64_000
    assert model.requests[0].headers["anthropic-version"] == "2023-06-01"  # the client's version refuses sampling


async def test_a_request_without_sampling_has_the_version_of_the_client(dev_server: WorkflowEnvironment) -> None:
    constants = pytest.importorskip("anthropic._constants")
    model = ScriptedModel(SUM, dialect="tools")
    await run(dev_server, agent("anthropic"), model)
    assert {each.headers["anthropic-version"] for each in model.requests} == {constants.ANTHROPIC_API_VERSION}


@each_provider
async def test_a_refusal_ends_the_run_as_refused(provider: str, dev_server: WorkflowEnvironment) -> None:
    model = ScriptedModel(lambda _: refusal("I cannot help with that."), dialect="tools")
    with pytest.raises(AssertionError, match=r"is refused: I cannot help with that\."):
        await run(dev_server, agent(provider), model)


@each_provider
async def test_an_answer_that_is_cut_off_is_reported(provider: str, dev_server: WorkflowEnvironment) -> None:
    model = ScriptedModel([Turn("the sum", finish_reason="length"), {"output": "the sum is 3"}], dialect="tools")
    view = await run(dev_server, agent(provider), model)
    assert (view.status, view.output) == ("completed", "the sum is 3")
    assert "cut off at the model's length limit" in model.requests[1].text


def thought_of(request: ChatRequest) -> list[dict[str, Any]]:
    return [message["reasoning"] for message in request.messages if "reasoning" in message]


@each_provider
async def test_thoughts_go_back_to_the_model_that_signed_them(provider: str, dev_server: WorkflowEnvironment) -> None:
    model = ScriptedModel([Turn(SUM[0], reasoning="1 and 2 make 3"), SUM[1]], dialect="tools")
    made = agent(provider, sampling={"reasoning_effort": "medium"})
    async with run_locally(made, model=model, tools=[add, double], server=dev_server) as local:
        view = await local.run({})
    assert view.status == "completed"
    (back,) = thought_of(model.requests[1])
    every: dict[str, dict[str, Any]] = {
        "openai-responses": {
            "encrypted_content": "sealed-1-0",
            "summary": [{"type": "summary_text", "text": "1 and 2 make 3"}],
        },
        "anthropic": {"thinking": "1 and 2 make 3", "signature": "signed-1-0"},
        "google": {"thoughtSignature": "signed-1"},
        "bedrock": {"text": "1 and 2 make 3", "signature": "signed-1-0"},
    }
    sealed = every[provider]
    assert {key: back[key] for key in sealed} == sealed


@each_provider
async def test_thoughts_do_not_go_to_another_model(provider: str, dev_server: WorkflowEnvironment) -> None:
    other = OTHERS[provider]
    turns = [Turn({"calls": [{**CALL, "_tool": "broken"}]}, reasoning="a secret"), SUM[1]]
    model = ScriptedModel(turns, dialect="tools")
    made = agent(provider, models={"smart": other}, sampling={"reasoning_effort": "medium"})
    view = await run(dev_server, made, model)
    assert [request.model for request in model.requests] == [
        MODELS[provider].partition(":")[2],
        other.partition(":")[2],
    ]
    assert view.status == "completed"
    assert "signed-1" not in json.dumps(model.requests[1].body)
    assert "sealed-1" not in json.dumps(model.requests[1].body)


@each_provider
async def test_a_price_without_the_provider_counts(provider: str, dev_server: WorkflowEnvironment) -> None:
    name = MODELS[provider].partition(":")[2]
    made = agent(provider, prices={name: Price(prompt=10, completion=10).model_dump(exclude_none=True)}, cost_budget=5)
    view = await run(dev_server, made, ScriptedModel(SUM, dialect="tools"))
    assert view.status == "completed"
    assert view.usage.cost == pytest.approx(view.usage.tokens * 10 / 1_000_000)


def blocks_of(body: dict[str, Any]) -> list[tuple[dict[str, Any], bool]]:
    """Return the blocks of a prompt in the order of the cache (tools, system texts, messages), each with whether it is
    marked: by a key of its own, or by a block behind it."""
    tools = body.get("tools") or body.get("toolConfig", {}).get("tools", ())
    said = [{"role": each["role"], **block} for each in body["messages"] for block in each["content"]]
    found: list[tuple[dict[str, Any], bool]] = []
    for block in [*tools, *body.get("system", ()), *said]:
        if "cachePoint" in block:
            found[-1] = (found[-1][0], True)
        else:
            plain = {key: value for key, value in block.items() if key != "cache_control"}
            found.append((plain, "cache_control" in block))
    return found


class PrefixCache:
    """A server's cache of prompts: it keeps what a mark ended, and counts what a later prompt repeats of that.

    As Anthropic's does: it reads at a mark, or at one of the 20 blocks before, where an earlier prompt had a mark.
    """

    lookback = 20

    def __init__(self) -> None:
        self.kept: set[str] = set()
        self.shares: list[float] = []

    def __call__(self, request: ChatRequest) -> dict[str, Any]:
        """Return the counts for a request, and keep its prefixes."""
        prefixes: list[str] = []
        marked: list[bool] = []
        whole = ""
        for block, is_marked in blocks_of(request.body):
            marked.append(is_marked)
            whole += json.dumps(block, sort_keys=True)
            prefixes.append(whole)
        assert sum(marked) <= 4
        found = 0
        for index, mark in enumerate(marked):
            for prefix in prefixes[max(0, index - self.lookback) : index + 1] if mark else ():
                found = max(found, len(prefix) if prefix in self.kept else 0)
        self.kept |= {prefix for prefix, mark in zip(prefixes, marked, strict=True) if mark}
        self.shares.append(found / len(whole))
        prompt, cached = -(-len(whole) // TOKEN), found // TOKEN
        return {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}}


marked_provider = pytest.mark.parametrize("provider", ["anthropic", "bedrock"])


@marked_provider
async def test_the_stable_prefix_is_marked_and_read_from_the_cache(
    provider: str, dev_server: WorkflowEnvironment
) -> None:
    cache = PrefixCache()

    def turn(request: ChatRequest) -> Turn:
        made = request.number
        calls = [{"_tool": "add", "a": made, "b": n, "_outputPath": f"†state.n{made}_{n}"} for n in range(15)]
        return Turn({"calls": calls} if made < 6 else {"output": "done"}, usage=cache(request))

    made = agent(provider)
    made["context"][0]["text"] = "You add numbers for a living. " * 200
    model = ScriptedModel(turn, dialect="tools")
    view = await run(dev_server, made, model)
    print("shares of the prompt from the cache:", [f"{share:.2f}" for share in cache.shares])
    assert view.status == "completed"
    first, *later = cache.shares
    assert first == 0
    assert min(later) > 0.6
    assert later == sorted(later) or min(later[1:]) > 0.8
    assert view.usage.cached_tokens > 0.6 * view.usage.prompt_tokens


@marked_provider
@pytest.mark.parametrize("dialect", ["solution", "script"])
async def test_what_changes_is_behind_the_last_mark(
    provider: str, dialect: str, dev_server: WorkflowEnvironment
) -> None:
    cache = PrefixCache()

    def turn(request: ChatRequest) -> Turn:
        call = {**CALL, "_outputPath": f"†state.n{request.number}"}
        return Turn({"calls": [call]} if request.number < 4 else {"output": "done"}, usage=cache(request))

    made = agent(provider, dialect=dialect)
    made["context"][0]["text"] = "You add numbers for a living. " * 200
    view = await run(dev_server, made, ScriptedModel(turn, dialect=dialect))
    assert view.status == "completed"
    assert cache.shares[0] == 0
    assert min(cache.shares[1:]) > 0.6


class AutomaticCache:
    """A server's cache that needs no marks: it reads what a prompt has in common with the beginning of an earlier one."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.shares: list[float] = []

    def __call__(self, request: ChatRequest) -> dict[str, Any]:
        """Return the counts for a request, and keep its prompt: tools and schema stand before all messages."""
        body = request.body
        messages = (
            body.get("messages") or body.get("input") or [body.get("systemInstruction"), *body.get("contents", ())]
        )
        beside = [body.get(key) for key in ("tools", "response_format", "text", "generationConfig")]
        whole = json.dumps([*beside, *messages])
        found = max((len(os.path.commonprefix([whole, each])) for each in self.kept), default=0)  # noqa: RUF071 - characters
        self.kept.append(whole)
        self.shares.append(found / len(whole))
        cached = found // TOKEN
        return {"prompt_tokens": -(-len(whole) // TOKEN), "prompt_tokens_details": {"cached_tokens": cached}}


AUTOMATIC = {"openai": "gpt-4.1", "openai-responses": MODELS["openai-responses"], "google": MODELS["google"]}


@pytest.mark.parametrize(("provider", "dialect"), combined(AUTOMATIC, DIALECTS))
async def test_r20_4_a_cache_without_marks_finds_the_stable_prefix(
    provider: str, dialect: str, dev_server: WorkflowEnvironment
) -> None:
    cache = AutomaticCache()

    def turn(request: ChatRequest) -> Turn:
        call = {**CALL, "_outputPath": f"†state.n{request.number}"}
        return Turn({"calls": [call]} if request.number < 5 else {"output": "done"}, usage=cache(request))

    made = agent("google", dialect=dialect, models={"fast": AUTOMATIC[provider], "smart": AUTOMATIC[provider]})
    made["context"][0]["text"] = "You add numbers for a living. " * 200
    view = await run(dev_server, made, ScriptedModel(turn, dialect=dialect))
    print("shares of the prompt from the cache:", [f"{share:.2f}" for share in cache.shares])
    assert view.status == "completed"
    assert cache.shares[0] == 0
    assert min(cache.shares[1:]) > 0.8
    assert view.usage.cached_tokens > 0.6 * view.usage.prompt_tokens


CASES = {case["name"]: case for case in load_cases()}
FEW = ("payment-declined-takes-the-error-branch", "wrong-parameters-then-corrected", "replan-for-the-dog")


def conformance(names: list[str]) -> list[Any]:
    return [
        pytest.param(name, provider, dialect, id=f"{name}-{provider}-{dialect}")
        for name in names
        for provider in MODELS
        for dialect in DIALECTS
    ]


async def _differences(name: str, provider: str, dialect: str, dev_server: WorkflowEnvironment) -> list[str]:
    case = CASES[name]
    return compare(case, await play(dev_server.client, case, dialect=dialect, model_name=MODELS[provider]))


@pytest.mark.parametrize(("name", "provider", "dialect"), conformance([name for name in CASES if name in FEW])[::5])
async def test_conformance_in_every_form(
    name: str, provider: str, dialect: str, dev_server: WorkflowEnvironment
) -> None:
    assert await _differences(name, provider, dialect, dev_server) == []


@pytest.mark.soak
@pytest.mark.parametrize(("name", "provider", "dialect"), conformance([*CASES]))
async def test_all_conformance_in_every_form(
    name: str, provider: str, dialect: str, dev_server: WorkflowEnvironment
) -> None:
    assert await _differences(name, provider, dialect, dev_server) == []
