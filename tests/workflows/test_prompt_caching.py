"""Prompt caches: consecutive Requests begin alike, up to what is new; and what a server had cached is counted (R10.19)."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure, ToolError, tool
from perdure.models.dialects.registry import DIALECTS
from perdure.models.requests import ReaderVocabulary
from perdure.models.response_stream import ResponseStream
from perdure.models.usage import Price, RunUsage, Usage
from perdure.testing.scripted_model import ChatRequest, Turn
from tests.support import agent, harness
from tests.timeouts import HANG
from tests.workflows.test_session import ALL, answers, desk

pytestmark = pytest.mark.asyncio(loop_scope="session")

OWN_TURN = 2
"""A turn that a message came upon is told anew once its calls have ended: the answer, and its one call."""
CHANGES = ("# state", "# plan", "No more calls", "Now give that answer")
"""What is another from Request to Request begins so, and stands last."""


@tool
def look(at: str) -> dict[str, Any]:
    """Look at it."""
    if at == "nothing":
        raise ToolError("nothing", "there is nothing")
    return {"seen": at * 20}


CONTEXT: list[dict[str, Any]] = [
    {"type": "text", "text": "Look around."},
    {"type": "state", "state": {"round": 0}, "schema": {"type": "object"}},
    {"type": "data", "kind": "user", "data": {"name": "Ann"}},
    {"type": "text", "text": "Be quick."},
]


def looks(number: int) -> dict[str, Any]:
    """A result for the state, one for no path, and an error."""
    calls = [
        {"_tool": "look", "at": f"kept {number}", "_outputPath": f"†state.r{number}"},
        {"_tool": "look", "at": f"told {number}"},
        {"_tool": "look", "at": "nothing"},
    ]
    return {"calls": calls, "output": None}


def alike(first: ChatRequest, second: ChatRequest) -> int:
    """How many messages two requests begin with alike, byte for byte."""
    pairs = zip(map(json.dumps, first.messages), map(json.dumps, second.messages), strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first.messages), len(second.messages)))


def stands(request: ChatRequest) -> list[dict[str, Any]]:
    """What is expected to stand: all but what changes."""
    return [m for m in request.messages if "schema:" in str(m) or not str(m.get("content") or "").startswith(CHANGES)]


def beside(request: ChatRequest) -> dict[str, Any]:
    return {key: value for key, value in request.body.items() if key not in ("messages", "model")}


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_r10_19_consecutive_requests_begin_alike_up_to_what_is_new(
    dialect: str, dev_server: WorkflowEnvironment
) -> None:
    done = {"calls": [], "output": "it is over"}
    async with harness(dev_server.client, [look], [*map(looks, range(4)), done]) as it:
        it.model.dialect = dialect
        config = {"dialect": dialect, "stuck_after": 9}
        view = await it.run(agent("look", context=CONTEXT, config=config, schema={"type": "string"}))
        requests = it.model.requests
    assert view.status == "completed"
    assert len(requests) >= 5
    for before, after in itertools.pairwise(requests[:5]):
        assert alike(before, after) == len(stands(before))
        assert stands(before) == before.messages[: len(stands(before))]  # what changes stands last
        assert beside(before) == beside(after)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_r10_19_so_does_the_last_request_which_only_wants_an_output(
    dialect: str, dev_server: WorkflowEnvironment
) -> None:
    done = {"calls": [], "output": "it is over"}

    def script(request: ChatRequest) -> dict[str, Any]:
        return done if "No more calls" in request.text else looks(request.number)

    async with harness(dev_server.client, [look], script) as it:
        it.model.dialect = dialect
        config = {"dialect": dialect, "max_requests": 2}
        view = await it.run(agent("look", context=CONTEXT, config=config, schema={"type": "string"}))
        *_, before, last = it.model.requests
    assert (view.status, view.stop_reason, view.output) == ("completed", "max_requests", "it is over")
    assert alike(before, last) == len(stands(before))
    assert "tools" not in last.body


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_r10_19_and_the_runs_of_a_session(dialect: str, dev_server: WorkflowEnvironment) -> None:
    document = {**agent("look", config={"dialect": dialect}), "schema": {"type": "string"}}

    def script(request: ChatRequest) -> dict[str, Any]:
        said = [str(m["content"]) for m in request.messages if m["role"] == "user" and str(m["content"])[:4] == "ann:"]
        after = request.messages[max(n for n, m in enumerate(request.messages) if m.get("content") == said[-1]) :]
        told = any("kept" in json.dumps(m) or "told" in json.dumps(m) for m in after[1:])
        return {"calls": [], "output": f"re: {said[-1]}"} if told else looks(len(said))

    async with desk(dev_server, script, document, [look]) as (session, it):
        it.model.dialect = dialect
        for text in ("one", "two", "three"):
            receipt = await session.send(text, sender="ann", rights=ALL)
            assert await answers(session, receipt) == [f"re: ann: {text}"]
        requests = it.model.requests
    firsts = [n for n, request in enumerate(requests) if not n or told(request) != told(requests[n - 1])]
    assert len(firsts) == 3
    for one, another in itertools.pairwise(firsts):
        assert alike(requests[one], requests[another]) == len(stands(requests[one]))


def told(request: ChatRequest) -> int:
    return sum(str(m.get("content") or "").startswith("ann: ") for m in request.messages)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_r10_19_and_requests_between_which_a_message_came(dialect: str, dev_server: WorkflowEnvironment) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @tool(timeout=60, safe=True)
    async def wait(at: str) -> str:
        """Wait."""
        begun.set()
        await go.wait()
        return at

    def script(request: ChatRequest) -> dict[str, Any]:
        if request.number == 1:
            return looks(1)
        if request.number == 2:
            return {"calls": [{"_tool": "wait", "at": "door"}], "output": None}
        go.set()
        return {"calls": [], "output": "over"} if request.number > 3 else looks(3)

    async with harness(dev_server.client, [look, wait], script) as it:
        it.model.dialect = dialect
        handle = await it.start(agent("look", "wait", context=CONTEXT, config={"dialect": dialect}))
        await asyncio.wait_for(begun.wait(), HANG)
        await Perdure(it.client).get_run(handle.id).steer("Hurry!")
        await handle.result()
        requests = it.model.requests
    assert "Hurry!" in requests[2].text
    for before, after in itertools.pairwise(requests[:4]):
        changes = [n for n, m in enumerate(before.messages) if m not in stands(before)]
        assert alike(before, after) >= min(changes, default=len(before.messages)) - (
            OWN_TURN if dialect == "tools" else 0
        )


@pytest.mark.parametrize(
    ("usage", "cached"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 64}}, 64),
        ({"prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36}, 64),
        ({"cache_read_input_tokens": 64, "prompt_tokens_details": None}, 64),
        ({"cached_tokens": 64}, 64),
        ({"prompt_tokens_details": {"cached_tokens": 900}}, 100),
        ({"prompt_tokens_details": {"cached_tokens": "many"}, "cached_tokens": -1}, 0),
        ({"prompt_tokens_details": [64]}, 0),
        ({}, 0),
    ],
)
async def test_r10_19_cached_tokens_under_whatever_name_a_server_says_them(usage: dict[str, Any], cached: int) -> None:
    answer = ResponseStream("m", 1, DIALECTS["tools"].reader(ReaderVocabulary()))
    answer.take({"usage": {"prompt_tokens": 100, "completion_tokens": 5, **usage}})
    told = answer.result().usage
    assert (told.prompt_tokens, told.cached_tokens) == (100, cached)
    assert ("cachedTokens" in told.as_json()) == (cached > 0)
    assert Usage.model_validate(told.as_json()) == told


async def test_r10_19_cached_tokens_are_summed_priced_and_shown(dev_server: WorkflowEnvironment) -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 800}}
    answers = [Turn(looks(1), usage=usage), Turn({"calls": [], "output": "x"}, usage=usage)]
    prices = {"gpt-4o-mini": {"prompt": 1.0, "completion": 0.0, "cached": 0.25}}
    config = {"prices": prices, "models": {"policy": "fast"}}
    async with harness(dev_server.client, [look], answers) as it:
        view = await it.run(agent("look", config=config, schema=True))
    assert (view.usage.prompt_tokens, view.usage.cached_tokens) == (2000, 1600)
    assert view.usage.by_model["gpt-4o-mini"].cached_tokens == 1600
    assert view.usage.cost == pytest.approx((400 * 1.0 + 1600 * 0.25) / 1e6)
    assert view.result().as_json()["usage"]["byModel"]["gpt-4o-mini"]["cachedTokens"] == 1600


async def test_without_a_price_for_them_cached_tokens_cost_what_others_do() -> None:
    usage = Usage(prompt_tokens=1000, completion_tokens=10, cached_tokens=900)
    assert usage.cost_at(Price(prompt=1.0, completion=1.0)) == pytest.approx(1010 / 1e6)
    usage = usage.plus(Usage(prompt_tokens=100, cache_write_tokens=80))
    assert usage.cost_at(Price(prompt=1.0, completion=1.0, cached=0.1, cache_write=1.25)) == pytest.approx(
        (120 + 10 + 90 + 80 * 1.25) / 1e6
    )
    parent, child = RunUsage(), RunUsage()
    child.count("m", usage, {})
    parent.include(child)
    assert (parent.cached_tokens, parent.by_model["m"].cache_write_tokens) == (900, 80)
    assert Agent(name="a", prices={"m": {"prompt": 1, "completion": 1, "cached": 0.1}}).parsed.config.prices
