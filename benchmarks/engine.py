"""What the engine itself costs, with a model that answers at once and tools that do nothing."""

from __future__ import annotations

import asyncio
import functools
import gc
import statistics
import time
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from temporalio.client import Client

from benchmarks.common import bench_server, executions, loop_worker, model_process, perdure_worker, start
from benchmarks.peer import Gather, ReActLoop
from perdure import tool
from perdure.testing.scripted_model import ChatRequest, Turn

RUNS = 7
CALLS, AT_ONCE, CALLS_EACH = 50, 100, 8
SIZES = (10, 100, 1000, 3000)
CALLS_PER_REQUEST = 10
DONE: dict[str, Any] = {"calls": [], "output": {"ok": True}}


@tool
async def nothing(x: Any = None) -> int:
    """Do nothing."""
    del x
    return 1


def one_plan(count: int, _: ChatRequest) -> dict[str, Any]:
    """So many independent calls, and the output."""
    return {
        "calls": [{"_tool": "nothing", "_outputPath": f"†state.s{n}"} for n in range(count)],
        "output": {"ok": True},
    }


def one_turn(count: int, asked: ChatRequest) -> Turn:
    """The same for the loop: a turn with the calls, and a turn with the answer."""
    if asked.messages[-1]["role"] == "tool":
        return Turn('{"ok":true}')
    return Turn(tool_calls=[("work", '{"ms":0}')] * count)


def many_plans(count: int, asked: ChatRequest) -> dict[str, Any]:
    """Requests of ten calls each, until all were made."""
    if asked.number * CALLS_PER_REQUEST > count:
        return DONE
    calls = [{"_tool": "nothing", "x": asked.number, "_outputPath": f"†state.s{n}"} for n in range(CALLS_PER_REQUEST)]
    return {"calls": calls, "output": None}


async def overhead() -> str:
    """Seconds for `CALLS` calls in one plan, against a workflow that gathers as many activities."""
    ours: list[float] = []
    theirs: list[float] = []
    async with bench_server() as server:
        client = server.client
        with model_process(functools.partial(one_plan, CALLS)) as url:
            async with perdure_worker(client, [nothing], url) as queue, loop_worker(client, url) as gathering:
                for _ in range(RUNS + 1):
                    begun = time.monotonic()
                    await (await start(client, queue, "nothing")).result()
                    ours.append(time.monotonic() - begun)
                    begun = time.monotonic()
                    await client.execute_workflow(Gather.run, args=[CALLS], id=uuid.uuid4().hex, task_queue=gathering)
                    theirs.append(time.monotonic() - begun)
    perdure, gather = statistics.median(ours[1:]), statistics.median(theirs[1:])
    return (
        "| calls | Perdure ms | gather ms | ratio |\n|--:|--:|--:|--:|\n"
        f"| {CALLS} | {perdure * 1e3:.0f} | {gather * 1e3:.0f} | {perdure / gather:.2f} |"
    )


async def throughput() -> str:
    """Runs per second and CPU seconds per run, with `AT_ONCE` runs at once on one worker."""
    rates: dict[str, list[float]] = {"Perdure": [], "loop": []}
    costs: dict[str, list[float]] = {"Perdure": [], "loop": []}

    async def measure(name: str, runs: list[Any]) -> None:
        begun, cpu = time.monotonic(), time.process_time()
        await asyncio.gather(*runs)
        rates[name].append(AT_ONCE / (time.monotonic() - begun))
        costs[name].append((time.process_time() - cpu) / AT_ONCE)

    async with bench_server() as server:
        client = server.client
        with (
            model_process(functools.partial(one_plan, CALLS_EACH)) as plans,
            model_process(functools.partial(one_turn, CALLS_EACH)) as turns,
        ):
            for _ in range(5):
                async with perdure_worker(client, [nothing], plans) as queue:
                    await measure("Perdure", [_run(client, queue) for _ in range(AT_ONCE)])
                async with loop_worker(client, turns) as queue:
                    await measure("loop", [_loop(client, queue) for _ in range(AT_ONCE)])
    lines = ["| engine | runs / s | CPU ms per run |", "|---|--:|--:|"]
    for name in rates:
        lines.append(f"| {name} | {statistics.median(rates[name]):.1f} | {statistics.median(costs[name]) * 1e3:.0f} |")
    ratio = statistics.median(rates["Perdure"]) / statistics.median(rates["loop"])
    return "\n".join([*lines, f"\nPerdure's rate is {ratio:.2f} × the loop's."])


async def _run(client: Client, queue: str) -> None:
    await (await start(client, queue, "nothing")).result()


async def _loop(client: Client, queue: str) -> None:
    await client.execute_workflow(ReActLoop.run, "go", id=uuid.uuid4().hex, task_queue=queue)


async def growth() -> str:
    """Time, events and bytes of history per call, and the worker's memory, over runs of more and more calls."""
    lines = [
        "| calls | Requests | ms per call | bare ms per call | ratio | events per call | bytes per call | executions | worker's MB |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    async with bench_server() as server:
        for size in (SIZES[0], *SIZES):  # the first one warms up
            with model_process(functools.partial(many_plans, size)) as url:
                async with perdure_worker(server.client, [nothing], url) as queue:
                    begun = time.monotonic()
                    handle = await start(server.client, queue, "nothing", max_requests=1000)
                    result = await handle.result()
                    seconds = time.monotonic() - begun
                    assert len(result.calls) == size
                    found = await executions(server.client, handle.id)
                    events, volume = (sum(column) for column in zip(*found, strict=True))
                    del result
            gc.collect()
            memory = _memory()
            bare = await _bare(server.client, size)
            line = (
                f"| {size} | {size // CALLS_PER_REQUEST + 1} | {seconds / size * 1e3:.1f} | {bare / size * 1e3:.1f} "
                f"| {seconds / bare:.2f} | {events / size:.1f} | {volume / size:.0f} | {len(found)} | {memory:.0f} |"
            )
            lines.append(line)
    return "\n".join([*lines[:2], *lines[3:]])


async def _bare(client: Client, size: int) -> float:
    """Seconds that the same activities take without an engine: the server's own growth."""
    async with loop_worker(client, "") as queue:
        begun = time.monotonic()
        arguments = [CALLS_PER_REQUEST, size // CALLS_PER_REQUEST, True]
        await client.execute_workflow(Gather.run, args=arguments, id=uuid.uuid4().hex, task_queue=queue)
        return time.monotonic() - begun


def _memory() -> float:
    """Resident memory of this process, in MB (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def run(measure: Callable[[], Coroutine[Any, Any, str]]) -> Callable[[], str]:
    """A measurement as a plain function."""
    return lambda: asyncio.run(measure())
