"""What reading a streamed answer costs the worker, and what a run costs in Temporal's Actions, against the hand-written loop."""

from __future__ import annotations

import asyncio
import functools
import statistics
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from temporalio.client import Client

from benchmarks.common import asking, bench_server, counted, loop_worker, model_process, perdure_worker, start
from benchmarks.engine import nothing, one_plan, one_turn
from benchmarks.latency import TASKS, Step, solution, turns, work_tool
from benchmarks.peer import ReActLoop
from perdure.activities.endpoints import Endpoints
from perdure.activities.requests import read_answer
from perdure.hosting.server import free_port
from perdure.models.dialects.registry import DIALECTS
from perdure.models.requests import ReaderVocabulary
from perdure.models.response_stream import ResponseStream
from perdure.testing.scripted_model import TOKEN, ChatRequest, Pace, Turn

TOKENS = 2000
AT_ONCE = 30
PACE = Pace(0.3, 0.01)
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "go"}], "stream": True}


def long_answer(_: ChatRequest) -> dict[str, Any]:
    """An answer of so many tokens, in one call."""
    return {"calls": [{"_tool": "nothing", "x": "x" * (TOKENS * TOKEN)}], "output": {"ok": True}}


async def tokens() -> str:
    """CPU of reading one token, by the client's objects and by ours; and of a whole run at a model's pace."""
    lines = ["| reader | µs of CPU per token, in bursts | paced, 2 ms per token |", "|---|--:|--:|"]
    found: dict[str, list[float]] = {"the client's objects": [], "Perdure": []}
    for pace in (Pace(per_token=1e-6), Pace(per_token=0.002)):  # a pace makes each token an event of its own
        with model_process(long_answer, pace) as url:
            async with asking(url) as client:
                for name, read in (("the client's objects", _by_objects), ("Perdure", _by_us)):
                    rounds = []
                    for _ in range(2):
                        begun = time.process_time()
                        await read(client)
                        rounds.append((time.process_time() - begun) / TOKENS)
                    found[name].append(statistics.median(rounds))
    lines += [f"| {name} | {burst * 1e6:.0f} | {paced * 1e6:.0f} |" for name, (burst, paced) in found.items()]
    return "\n".join([*lines, "", *await _paced_runs()])


async def _by_objects(client: Any) -> None:
    stream = await client.chat.completions.create(model="m", **BODY)
    async for chunk in stream:
        for choice in chunk.choices:
            _ = choice.delta.content


async def _by_us(client: Any) -> None:
    answer = ResponseStream("m", 1, DIALECTS["solution"].reader(ReaderVocabulary()))
    async with Endpoints(client).ask("m", BODY) as response:
        await read_answer(response, answer)
    assert len(answer.result().calls) == 1


async def _paced_runs() -> list[str]:
    """CPU of a run of eight empty calls, 30 runs at once, the model at a pace."""
    costs: dict[str, list[float]] = {"Perdure": [], "loop, streamed": [], "loop, not streamed": []}

    async def measure(name: str, runs: list[Any]) -> None:
        cpu = time.process_time()
        await asyncio.gather(*runs)
        costs[name].append((time.process_time() - cpu) / AT_ONCE)

    async with bench_server() as server:
        client = server.client
        with (
            model_process(functools.partial(one_plan, 8), PACE) as plans,
            model_process(functools.partial(one_turn, 8), PACE) as turning,
        ):
            for _ in range(2):
                async with perdure_worker(client, [nothing], plans) as queue:
                    await measure("Perdure", [_run(client, queue, "nothing") for _ in range(AT_ONCE)])
                for name, stream in (("loop, streamed", True), ("loop, not streamed", False)):
                    async with loop_worker(client, turning, stream=stream) as queue:
                        await measure(name, [_loop(client, queue) for _ in range(AT_ONCE)])
    base = statistics.median(costs["loop, not streamed"])
    lines = ["| engine | CPU ms per run | of the loop that does not stream |", "|---|--:|--:|"]
    for name, each in costs.items():
        lines.append(f"| {name} | {statistics.median(each) * 1e3:.0f} | {statistics.median(each) / base:.2f} |")
    return lines


async def _run(client: Client, queue: str, tool: str) -> None:
    await (await start(client, queue, tool)).result()


async def _loop(client: Client, queue: str) -> None:
    await client.execute_workflow(ReActLoop.run, "go", id=uuid.uuid4().hex, task_queue=queue)


LONG = [Step(20_000), Step(1000)]
"""One call of 20 s and one of 1 s: what heartbeats cost."""


def plan_of(steps: list[Step], _: ChatRequest) -> Turn:
    return Turn(solution(steps))


def turn_of(steps: list[Step], asked: ChatRequest) -> Turn:
    planned = turns(steps)
    turn = sum(message["role"] == "assistant" for message in asked.messages)
    return Turn(tool_calls=planned[turn]) if turn < len(planned) else Turn('{"ok":true}')


KINDS = {
    "command_ScheduleActivityTask": "activities",
    "command_BatchMarkers": "markers",
    "command_ModifyWorkflowProperties": "memo",
    "command_UpsertWorkflowSearchAttributes": "search attributes",
    "command_StartTimer": "timers",
    "grpc_QueryWorkflow": "queries",
    "grpc_RecordActivityTaskHeartbeat": "heartbeats",
    "grpc_SignalWorkflowExecution": "signals",
    "grpc_StartWorkflowExecution": "starts",
}
"""The server's names of what it counts."""
FREE: Final = "command_ModifyWorkflowProperties"
"""The dev server counts it, but Temporal Cloud's list of Actions (`docs.temporal.io/cloud/actions`) has no change of the memo."""
DOLLARS: Final = 50 / 1_000_000
"""Of an Action, at list price: the first five million of a month, by `docs.temporal.io/cloud/pricing` on 2026-11-23."""


async def actions() -> str:
    """Actions of one run by type, as the dev server itself counts them, and those of the hand-written loop."""
    lines = [
        "| task | Perdure | loop | ratio | dollars of 1,000 runs: Perdure | loop | Perdure's by type |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    async with counting() as (client, count):
        for name, steps in {**TASKS, "20 s and 1 s": LONG}.items():
            with model_process(functools.partial(plan_of, steps), PACE) as url:
                async with perdure_worker(client, [work_tool], url) as queue:
                    before = await count()
                    await _run(client, queue, "work")
                    ours = await count() - before
            with model_process(functools.partial(turn_of, steps), PACE) as url:
                async with loop_worker(client, url) as queue:
                    before = await count()
                    await _loop(client, queue)
                    theirs = await count() - before
            kinds = ", ".join(
                f"{KINDS.get(kind, kind)} {number}" for kind, number in ours.most_common() if kind != FREE
            )
            billed, others = (each.total() - each[FREE] for each in (ours, theirs))
            dollars = f"{1000 * billed * DOLLARS:.2f} | {1000 * others * DOLLARS:.2f}"
            lines.append(f"| {name} | {billed} | {others} | {billed / others:.2f} | {dollars} | {kinds} |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


@asynccontextmanager
async def counting() -> AsyncIterator[tuple[Client, Any]]:
    """A server, and what it has counted so far in the namespace `default`."""
    port = free_port()

    async def count() -> Counter[str]:
        return await counted(port)

    async with bench_server(metrics_port=port) as server:
        yield server.client, count
