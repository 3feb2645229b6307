"""How many runs of a batch go before an interactive run that starts behind all of them (R24.3). It counts runs, and no seconds."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final

from benchmarks.beside import worker
from benchmarks.common import bench_server
from perdure import Agent, Perdure
from perdure.testing.scripted_model import ChatRequest, ScriptedModel

BATCH: Final = int(os.environ.get("PERDURE_BENCH_MANY", "2000"))
UNDER_WAY: Final = 50
"""Answered runs of the batch after which the interactive run starts."""
AT_ONCE: Final = 50
"""Starts at once."""
AGENT: Final[Agent[Any]] = Agent.of(
    {
        "name": "bench",
        "context": [{"type": "input", "schema": {"type": "string"}}],
        "schema": {"type": "string"},
        "config": {"dialect": "script"},
    }
)


async def priorities() -> str:
    """Return the runs of a batch that are answered while an interactive run waits, by its priority; the batch has 5."""
    lines = [
        "| priority of the interactive run | runs of the batch, all started before it | answered when it starts | answered while it waits |",
        "|--:|--:|--:|--:|",
    ]
    for priority in (1, 5):
        before, after = await _answered(priority)
        lines.append(f"| {priority} | {BATCH:,} | {before:,} | {after - before:,} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


async def _answered(priority: int) -> tuple[int, int]:
    """Return the batch's answered Requests when the interactive run starts, and when its own Request arrives."""
    answered, under_way, seen = 0, asyncio.Event(), 0

    def answer(request: ChatRequest) -> dict[str, Any]:
        nonlocal answered, seen
        if "interactive" in request.text:
            seen = answered
        else:
            answered += 1
            if answered == UNDER_WAY:
                under_way.set()
        return {"calls": [], "output": "done"}

    places = asyncio.Semaphore(AT_ONCE)

    async def begin(perdure: Perdure, number: int) -> None:
        async with places:
            await perdure.start(AGENT, f"batch {number}", priority=5)

    async with bench_server() as server, ScriptedModel(answer, dialect="script") as model:
        perdure = Perdure(server.client, task_queue="batch")
        await asyncio.gather(*(begin(perdure, number) for number in range(BATCH)))
        async with worker(server.client.service_client.config.target_host, "batch", model.base_url):
            await under_way.wait()
            before = answered
            await (await perdure.start(AGENT, "interactive", priority=priority)).result()
            return before, seen
