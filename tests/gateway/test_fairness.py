"""A tenant with 1,000 waiting runs delays another's first word by less than twice (R17.1): each has its share of the workers."""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import Any

import pytest

from perdure import Agent, Perdure, Run
from perdure.hosting.server import embedded_server
from perdure.queries import add_attributes
from perdure.runs.wire import ATTRIBUTES
from perdure.testing.scripted_model import ChatRequest, Turn
from tests.support import harness

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.soak]

RUNS = 1_000
PLACES = 20
"""Requests at once, of one worker."""
THINKS = 2.0
"""Seconds until the model writes its first word."""
DOCUMENT: Any = {
    "name": "a",
    "context": [{"type": "system", "text": "Answer."}, {"type": "input", "schema": {"type": "string"}}],
    "schema": {"type": "string"},
}
UNBOUND = {"frontend.namespaceRPS": 100_000, "frontend.rps": 100_000, "frontend.namespaceCount": 10_000}


@pytest.mark.timeout(600)
async def test_who_waits_with_a_thousand_runs_delays_nobody_else_for_long() -> None:
    asked: dict[str, float] = {}
    watched: set[str] = set()

    def answer(request: ChatRequest) -> Turn:
        said = str(request.messages[-1]["content"])
        for name in watched:
            if name in said:
                asked.setdefault(name, time.monotonic())
        gate = asyncio.Event()
        asyncio.get_running_loop().call_later(THINKS, gate.set)
        return Turn({"calls": [], "output": "ok"}, gate=gate)

    async with embedded_server(ui=False, settings=UNBOUND) as server:
        await add_attributes(server.client, list(ATTRIBUTES))
        async with harness(
            server.client, [], answer, sandboxed=False, activities=PLACES, model_timeout=60, grace=0.0
        ) as it:
            perdure, agent = Perdure(it.client, task_queue=it.task_queue), Agent.of(DOCUMENT)

            async def first_word(name: str) -> float:
                """Seconds from the start to the model's first word."""
                watched.add(name)
                began = time.monotonic()
                await perdure.start(agent, name, tenant="small")
                while True:
                    if name in asked:
                        return asked[name] + THINKS - began
                    await asyncio.sleep(0.005)

            alone = [await first_word(f"alone-{n}.") for n in range(5)]
            limit = asyncio.Semaphore(50)

            async def start(number: int) -> Run[Any]:
                async with limit:
                    return await perdure.start(agent, f"many {number}", tenant="large")

            runs = await asyncio.gather(*map(start, range(RUNS)))
            await _wait(it.client, runs[-100:])
            waiting = RUNS + len(alone) - len(it.model.requests)
            beside = [await first_word(f"beside-{n}.") for n in range(8)]
            print(
                f"alone {median(alone):.2f} s, beside {waiting} waiting runs {median(beside):.2f} s, {max(beside):.2f} s at most"
            )
            assert waiting > RUNS / 3
            assert len(it.model.requests) < RUNS  # they wait still
            assert median(beside) < 2 * median(alone)


async def _wait(client: Any, runs: list[Run[Any]]) -> None:
    """Until each of them waits for its Request to be taken up."""
    for run in runs:
        while True:
            if (await client.get_workflow_handle(run.id).describe()).raw_description.pending_activities:
                break
            await asyncio.sleep(0.1)
