"""What one run, one message and one who waits need, for `docs/scaling.py`; and many who wait, on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType

from benchmarks.beside import Used, server_pid, used, worker
from benchmarks.common import bench_server, counted, model_process
from perdure import Agent, Perdure
from perdure.hosting.server import free_port
from perdure.testing.scripted_model import ChatRequest
from perdure.values.json import Json

RUNS, AT_ONCE, STEPS, MESSAGES = 100, 20, 8, 10
MANY = int(os.environ.get("PERDURE_BENCH_MANY", "10000"))
"""Runs that wait for a person, and idle sessions."""
AWAKE = 5
RATE, MINUTES = int(os.environ.get("PERDURE_BENCH_RATE", "500")), int(os.environ.get("PERDURE_BENCH_MINUTES", "10"))
"""Runs a minute that `steady` starts, and for how many minutes."""
SETTLES = 5.0
"""Seconds until a session that was answered is idle, and its execution ended."""
FIGURES = Path(__file__).parents[1] / "docs" / "scaling.json"
QUEUE = "scaling"


def agent(kind: str, tool: str = "", answer: str = "object") -> Agent[Any]:
    tools: list[Json] = [{"type": "tool", "tool": tool}] if tool else []
    context: list[Json] = [{"type": "system", "text": f"KIND-{kind}"}, *tools]
    return Agent.of({"name": kind, "context": context, "schema": {"type": answer}})


def script(asked: ChatRequest) -> dict[str, Any]:
    """A chain of empty calls, as many at once, one that a person is asked about, or an answer in a conversation."""
    steps = range(STEPS)
    if "KIND-chain" in asked.text:
        calls = [
            {"_tool": "nothing", "x": f"†state.s{n - 1}" if n else 1, "_outputPath": f"†state.s{n}"} for n in steps
        ]
    elif "KIND-fan" in asked.text:
        calls = [{"_tool": "nothing", "_outputPath": f"†state.s{n}"} for n in steps]
    elif "KIND-ask" in asked.text:
        calls = [{"_tool": "asks", "_outputPath": "†state.s"}]
    else:
        return {"calls": [], "output": "yes"}
    return {"calls": calls, "output": {"ok": True}}


class Bench:
    """A server, a worker and a client: what is done with them, and what that took of each."""

    def __init__(self, perdure: Perdure, server: int, worker: int, port: int) -> None:
        self.perdure, self._server, self._worker, self._port = perdure, server, worker, port

    def used(self) -> tuple[Used, Used]:
        """By server and worker."""
        return used(self._server), used(self._worker)

    async def each(self, count: int, do: Callable[[int], Awaitable[Any]]) -> dict[str, float]:
        """Do so much, `AT_ONCE` at a time: CPU ms and Actions of each, and KB of memory that each leaves behind."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with gate:
                await do(number)

        actions, before, began = await counted(self._port), self.used(), time.monotonic()
        await asyncio.gather(*map(one, range(count)))
        seconds = time.monotonic() - began
        found = (await counted(self._port)).total() - actions.total()
        server, ours = (after - was for after, was in zip(self.used(), before, strict=True))
        return {
            "count": count,
            "per_second": round(count / seconds, 1),
            "actions": round(found / count, 1),
            "worker_cpu_ms": round(ours.cpu / count * 1e3, 1),
            "server_cpu_ms": round(server.cpu / count * 1e3, 1),
            "worker_kb": round(ours.memory / count * 1e3, 1),
            "server_kb": round(server.memory / count * 1e3, 1),
        }

    async def history(self, id: str, execution: str | None = None) -> dict[str, float]:
        """Events, bytes, state transitions, tasks of activities and of workflows of one execution, by default the last."""
        handle = self.perdure.client.get_workflow_handle(id, run_id=execution)
        info = (await handle.describe()).raw_description.workflow_execution_info
        kinds = Counter([event.event_type async for event in handle.fetch_history_events()])
        return {
            "events": info.history_length,
            "bytes": info.history_size_bytes,
            "transitions": info.state_transition_count,
            "activities": kinds[EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED],
            "workflow_tasks": kinds[EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED],
        }


@asynccontextmanager
async def _bench() -> AsyncIterator[Bench]:
    """Start a server, a scripted model and a worker."""
    port = free_port()
    async with bench_server(metrics_port=port) as server:
        address = server.client.service_client.config.target_host
        with model_process(script) as url:
            async with worker(address, QUEUE, url) as pid:
                perdure = Perdure(server.client, task_queue=QUEUE)
                while not await perdure.has_worker():
                    await asyncio.sleep(0.2)
                yield Bench(perdure, server_pid(), pid, port)


async def scaling() -> str:
    """Figures of each kind, written to `docs/scaling.json` as each is measured, and the table of those who wait."""
    async with _bench() as bench:
        for kind in ("chain", "fan"):
            note({kind: await _run(bench, kind)})
        note({"message": await _messages(bench)})
        lines = [await _waiting(bench), await _idle(bench)]
    heads = "| who waits | how many | started / s | server's KB each | worker's KB each | server's MB | worker's MB | until accepted, ms | until done, ms |"
    return "\n".join([heads, "|---|--:|--:|--:|--:|--:|--:|--:|--:|", *lines])


async def steady() -> str:
    """Start runs of eight calls in a row at a fixed rate, however long each takes: one line for each minute.

    The last line shows the runs that were left when the last one had started.
    """
    lines = [
        "| minute | started | ended | p50, s | p99, s | worker's cores | server's cores | worker's MB | server's MB |"
    ]
    lines.append("|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    async with _bench() as bench:
        given, took = agent("chain", "nothing"), list[float]()

        async def one() -> None:
            began = time.monotonic()
            await (await bench.perdure.start(given)).result()
            took.append(time.monotonic() - began)

        await bench.each(AT_ONCE, lambda _: one())  # warms up
        async with asyncio.TaskGroup() as runs:
            began, ended = time.monotonic(), len(took)
            for minute in range(MINUTES):
                before = bench.used()
                for number in range(RATE):
                    runs.create_task(one())
                    due = began + 60 * (minute + (number + 1) / RATE)
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                now, ordered = bench.used(), sorted(took[ended:])
                server, ours = (after - was for after, was in zip(now, before, strict=True))
                p50, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
                lines.append(
                    f"| {minute + 1} | {RATE} | {len(ordered)} | {p50:.2f} | {p99:.2f} "
                    f"| {ours.cpu / 60:.2f} | {server.cpu / 60:.2f} | {now[1].memory:.0f} | {now[0].memory:.0f} |"
                )
                ended = len(took)
        lines.append(f"| after | 0 | {len(took) - ended} | | | | | | |")
    return "\n".join(lines)


def note(figures: dict[str, Any]) -> None:
    """Put figures into `docs/scaling.json`, in place of those of the same names."""
    known = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
    FIGURES.write_text(json.dumps(known | figures, indent=1) + "\n", encoding="utf-8")


async def _run(bench: Bench, kind: str) -> dict[str, float]:
    given = agent(kind, "nothing")

    async def one(_: int) -> None:
        await (await bench.perdure.start(given)).result()

    await bench.each(AT_ONCE, one)  # warms up
    figures = await bench.each(RUNS, one)
    run = await bench.perdure.start(given)
    await run.result()
    return figures | await bench.history(run.id)


async def _messages(bench: Bench) -> dict[str, float]:
    """Messages to sessions that are there, each with its run; events and bytes are those of the run and of the session's share."""
    given = agent("talk", answer="string")
    sessions = [bench.perdure.session(f"s{n}", agent=given) for n in range(AT_ONCE)]

    async def one(number: int) -> None:
        session = sessions[number % AT_ONCE]
        await session.reply(await session.send(f"message {number}", sender="ann"), 60)

    await bench.each(AT_ONCE, one)
    figures = await bench.each(AT_ONCE * MESSAGES, one)
    alone = bench.perdure.session("alone", agent=given)
    await alone.reply(await alone.send("hello", sender="ann"), 60)
    await asyncio.sleep(SETTLES)
    execution = (await alone.handle.describe()).run_id  # that in which it is idle, and which ends with the next message
    receipt = await alone.send("awake?", sender="ann")
    await alone.reply(receipt, 60)
    await asyncio.sleep(SETTLES)
    own, run = await bench.history(alone.id, execution), await bench.history(str(receipt.run_id))
    return figures | {key: run[key] + own[key] for key in run}


async def _waiting(bench: Bench) -> str:
    given, ids = agent("ask", "asks"), [""] * MANY

    async def one(number: int) -> None:
        ids[number] = (await bench.perdure.start(given)).id

    async def all_wait() -> None:
        while (await bench.perdure.client.count_workflows("PerdureWaiting > 0")).count < MANY:
            await asyncio.sleep(0.5)

    figures = await _many(bench, one, all_wait) | await bench.history(ids[0])
    note({"waiting": figures})
    accepted, done = [], []
    for id in ids[:AWAKE]:
        began = time.monotonic()
        run = bench.perdure.get_run(id)
        await run.approve((await run.waiting())[0])
        accepted.append(time.monotonic() - began)
        await run.result()
        done.append(time.monotonic() - began)
    return _line("runs that wait for a person", bench, figures, accepted, done)


async def _idle(bench: Bench) -> str:
    given = agent("talk", answer="string")

    async def one(number: int) -> None:
        session = bench.perdure.session(f"idle-{number}", agent=given)
        await session.reply(await session.send("hello", sender="ann"), 120)

    async def settle() -> None:
        await asyncio.sleep(SETTLES)

    figures = await _many(bench, one, settle) | await bench.history(bench.perdure.session("idle-0").id)
    note({"idle_session": figures})
    accepted, done = [], []
    for number in range(AWAKE):
        session, began = bench.perdure.session(f"idle-{number}", agent=given), time.monotonic()
        receipt = await session.send("awake?", sender="ann")
        accepted.append(time.monotonic() - began)
        await session.reply(receipt, 60)
        done.append(time.monotonic() - began)
    return _line("idle sessions", bench, figures, accepted, done)


async def _many(
    bench: Bench, one: Callable[[int], Awaitable[Any]], settled: Callable[[], Awaitable[None]]
) -> dict[str, float]:
    """How many were started a second, and the memory that each holds once nothing moves."""
    before = bench.used()
    figures = await bench.each(MANY, one)
    await settled()
    server, ours = (after - was for after, was in zip(bench.used(), before, strict=True))
    return {
        "count": MANY,
        "per_second": figures["per_second"],
        "server_kb": round(server.memory / MANY * 1e3, 1),
        "worker_kb": round(ours.memory / MANY * 1e3, 1),
    }


def _line(what: str, bench: Bench, found: dict[str, float], accepted: list[float], done: list[float]) -> str:
    server, ours = bench.used()
    return (
        f"| {what} | {MANY} | {found['per_second']} | {found['server_kb']} | {found['worker_kb']} | {server.memory:.0f} | {ours.memory:.0f} "
        f"| {statistics.median(accepted) * 1e3:.0f} | {statistics.median(done) * 1e3:.0f} |"
    )
