"""How soon a word is on a watcher's screen, what a long answer costs that is watched, and what many watchers cost (R10.14, R10.15)."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from contextlib import aclosing
from typing import Any

from temporalio.client import Client

from benchmarks.common import bench_server, executions, model_process, perdure_worker
from benchmarks.stream import KINDS, counting
from perdure import Agent, Perdure, Run
from perdure.testing.scripted_model import TOKEN, ChatRequest, Pace, ScriptedModel, Turn

TOKENS = 10_000
ROUNDS = 10
WATCHERS = 500


def long_text(_: ChatRequest) -> dict[str, Any]:
    """An answer of so many tokens: 20 s at a fast model's pace."""
    return {"calls": [], "output": "word " * (TOKENS * TOKEN // 5)}


async def events() -> str:
    """All three."""
    return "\n\n".join([await first_words(), await long_answers(), await many()])


async def start(client: Client, queue: str, **config: Any) -> Run:
    """An agent whose output is a text."""
    agent = Agent.of({"name": "bench", "config": config, "context": [], "schema": {"type": "string"}})
    return await Perdure(client, task_queue=queue).start(agent)


async def watch(client: Client, run_id: str) -> list[float]:
    """Read a run to its end; when each piece of text came."""
    found: list[float] = []
    async with aclosing(Perdure(client).get_run(run_id).events(topics=["assistant", "lifecycle"])) as reading:
        async for event in reading:
            if event.phase in ("delta", "end"):
                found.append(time.perf_counter())
    return found


async def first_words() -> str:
    """From the server's first token to the first `delta`: the answer is held back until a watcher is there, and for a second more or five."""
    lines = ["| the model has thought for | median ms | worst ms |", "|---|--:|--:|"]
    async with bench_server() as server:
        for seconds in (1, 5):
            waits = [await _first_word(server.client, seconds) for _ in range(ROUNDS if seconds == 1 else ROUNDS // 4)]
            lines.append(f"| {seconds} s | {statistics.median(waits) * 1e3:.0f} | {max(waits) * 1e3:.0f} |")
    return "\n".join(lines)


async def _first_word(client: Client, seconds: float) -> float:
    gate = asyncio.Event()
    answer = {"calls": [], "output": "word " * 60}
    async with (
        ScriptedModel([Turn(answer, gate=gate)], pace=Pace(per_token=0.01)) as model,
        perdure_worker(client, [], model.base_url) as queue,
    ):
        run = await start(client, queue)
        watching = asyncio.create_task(watch(client, run.id))
        await model.wait_for_request(1)
        await asyncio.sleep(seconds)
        gate.set()
        begun = time.perf_counter()
        return (await watching)[0] - begun


async def long_answers() -> str:
    """History and Actions of the same answer."""
    lines = [f"| {TOKENS:,} tokens | pieces seen | history events | Actions | by type |", "|---|--:|--:|--:|---|"]
    async with counting() as (client, count):
        for name, config, watchers in (
            ("not streamed", {"stream": False}, 0),
            ("streamed, unwatched", {}, 0),
            ("one watcher", {}, 1),
            (f"{WATCHERS} watchers", {}, WATCHERS),
        ):
            with model_process(long_text, Pace(0.3, 0.002)) as url:
                async with perdure_worker(client, [], url) as queue:
                    before: Counter[str] = await count()
                    run = await start(client, queue, **config)
                    seen = await asyncio.gather(*(watch(client, run.id) for _ in range(watchers)))
                    await run.result()
                    acts = await count() - before
            events = sum(each for each, _ in await executions(client, run.id))
            kinds = ", ".join(f"{KINDS.get(kind, kind)} {number}" for kind, number in acts.most_common())
            pieces = statistics.median(map(len, seen)) if seen else 0
            lines.append(f"| {name} | {pieces:.0f} | {events} | {acts.total()} | {kinds} |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


async def many() -> str:
    """When each of many watchers of one relay has a piece, against one that is alone."""
    lines = ["| watchers of one relay | CPU ms per second | last behind first, ms |", "|--:|--:|--:|"]
    with model_process(long_text, Pace(0.3, 0.002)) as url:
        async with bench_server() as server, perdure_worker(server.client, [], url) as queue:
            for watchers in (1, 100, WATCHERS):
                perdure = Perdure(server.client)
                run = await start(server.client, queue)
                cpu, begun = time.process_time(), time.perf_counter()
                ends = [
                    each[-1] for each in await asyncio.gather(*(watch(perdure.client, run.id) for _ in range(watchers)))
                ]
                cost = (time.process_time() - cpu) / (time.perf_counter() - begun)
                lines.append(f"| {watchers} | {cost * 1e3:.0f} | {(max(ends) - min(ends)) * 1e3:.0f} |")
    return "\n".join(lines)
