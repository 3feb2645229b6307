"""An output with references streams up to the reference, and goes on as soon as it is resolved (R19.4), for every reader."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from rich.console import Console
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure, tool
from perdure.cli._event_commands import EventPrinter
from perdure.gateway.agui.adapter import agui_adapter
from perdure.gateway.api.adapter import api
from perdure.gateway.openai.adapter import openai_adapter
from tests.gateway.support import Served, bearer, gateway, some_name, write_agents, write_tokens
from tests.gateway.test_agui import asked, user
from tests.gateway.test_events_api import events as sent_events
from tests.support import Harness, harness
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

GATES: dict[str, asyncio.Event] = {}


@tool(safe=True)
async def look_up(who: str) -> str:
    """Look somebody up."""
    await GATES[who].wait()
    return f"Mr. {who}"


CALLS = [{"_tool": "look_up", "who": who, "_outputPath": f"†state.{who}"} for who in ("a", "b")]
ANSWER: dict[str, Any] = {"calls": CALLS, "output": "I asked {†state.a}, then {†state.b}: done."}
STEPS = ("I asked ", "I asked Mr. a, then ", "I asked Mr. a, then Mr. b: done.")
AGENT: dict[str, Any] = {"name": "asker", "context": [{"type": "tool", "tool": "look_up"}]}


@dataclass
class Desk:
    """A gateway with all its protocols, its worker, and a token."""

    served: Served
    it: Harness
    token: str

    @property
    def perdure(self) -> Perdure:
        return Perdure(self.it.client, task_queue=self.it.task_queue)


@asynccontextmanager
async def desk(client: Client, folder: Path, *, answer: dict[str, Any] = ANSWER, **options: Any) -> AsyncIterator[Desk]:
    GATES.clear()
    GATES.update(a=asyncio.Event(), b=asyncio.Event())
    (token,) = write_tokens(folder / "tokens.json", ("acme", "ann", ["*"]))
    agents = write_agents(folder / "agents", AGENT)
    given: dict[str, Any] = {"agents": agents, "gateway_tokens": folder / "tokens.json"}
    async with (
        harness(client, [look_up], [answer], chunk=1000, agents=agents, **options) as it,
        gateway(client, [openai_adapter, agui_adapter, api], task_queue=it.task_queue, **given) as served,
    ):
        yield Desk(served, it, token)


async def by_run(desk: Desk) -> AsyncIterator[str]:
    handle = await desk.it.start(AGENT)
    async for event in desk.perdure.events(handle.id):
        if (event.topic, event.phase) == ("assistant", "delta"):
            yield event.data["text"]
        assert event.phase != "superseded"


async def by_session(desk: Desk) -> AsyncIterator[str]:
    session = desk.perdure.session(some_name(), agent=Agent.of(AGENT))
    async for event in session.stream(await session.send("Go.", sender="ann")):
        if (event.topic, event.phase) == ("assistant", "delta"):
            yield event.data["text"]


async def by_printer(desk: Desk) -> AsyncIterator[str]:
    """What `perdure events` prints while it stands in the line of the text."""
    handle = await desk.it.start(AGENT)
    printed: list[str] = []

    class Kept:
        def write(self, text: str) -> int:
            printed.append(text)
            return len(text)

        def flush(self) -> None:
            pass

    printer = EventPrinter(Console(file=Kept(), width=1000, color_system=None))  # type: ignore[arg-type]
    async for event in desk.perdure.events(handle.id):
        printed.clear()
        printer.print_event(event)
        if event.phase == "delta":
            yield "".join(printed).rpartition(" assistant ")[2]


async def by_http(desk: Desk) -> AsyncIterator[str]:
    http = desk.served.http
    http.headers.update(bearer(desk.token))
    run = (await http.post("/v1/runs", json={"agent": "asker"})).json()["runId"]
    async with http.stream("GET", f"/v1/runs/{run}/events") as answer:
        async for each in sent_events(answer):
            if each.what == "assistant delta":
                yield each.data["data"]["text"]


async def by_agui(desk: Desk) -> AsyncIterator[str]:
    said = asked(threadId=some_name(), messages=[user("Go.")])
    async with desk.served.http.stream("POST", "/ag-ui/asker", json=said, headers=bearer(desk.token)) as answer:
        async for line in answer.aiter_lines():
            event = json.loads(line[6:]) if line.startswith("data: ") else {}
            if event.get("type") == "TEXT_MESSAGE_CONTENT":
                yield event["delta"]


async def by_responses(desk: Desk) -> AsyncIterator[str]:
    async with openai_of(desk) as ai:
        async for event in await ai.responses.create(model="asker", input="Go.", stream=True):
            if event.type == "response.output_text.delta":
                yield event.delta


async def by_completions(desk: Desk) -> AsyncIterator[str]:
    async with openai_of(desk) as ai:
        said: Any = [{"role": "user", "content": "Go."}]
        async for chunk in await ai.chat.completions.create(model="asker", messages=said, stream=True):
            if chunk.choices and chunk.choices[0].delta.content:
                yield chunk.choices[0].delta.content


def openai_of(desk: Desk) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{desk.served.address}/v1", api_key=desk.token, max_retries=0, timeout=HANG)


@pytest.mark.parametrize(
    "reader",
    [by_run, by_session, by_printer, by_http, by_agui, by_responses, by_completions],
    ids=lambda each: each.__name__,
)
async def test_r19_4_text_goes_on_as_soon_as_a_reference_is_resolved(
    dev_server: WorkflowEnvironment, tmp_path: Path, reader: Callable[[Desk], AsyncIterator[str]]
) -> None:
    async with desk(dev_server.client, tmp_path) as it, asyncio.timeout(HANG):
        text, steps = "", iter(STEPS)
        following, gates = next(steps), iter(GATES.values())
        async for piece in reader(it):
            text += piece
            assert following.startswith(text), "a piece came before its reference, or twice"
            if text == following and text != STEPS[-1]:
                next(gates).set()
                following = next(steps)
        assert text == STEPS[-1]
        assert len(it.it.model.requests) == 1
