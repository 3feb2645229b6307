"""How long a task takes: Perdure, a hand-written ReAct loop on the same server and model, and the limit.

The limit is computed for each: the model's pace, and the critical path through the calls from where each has been written.
"""

from __future__ import annotations

import asyncio
import statistics
import time
import uuid
from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.registry import Registry
from benchmarks.peer import ModelActivity, ReActLoop, work
from cli.runs import start_run
from cli.server import embedded_server
from demo.scripted_model import TOKEN, ChatRequest, Pace, ScriptedModel, Turn
from perdure import tool
from perdure.agents import parse_agent
from perdure.jsons import dumps
from perdure.toolkit import tool_function
from worker import build_worker

RUNS = 5
PACES = {"fast": Pace(0.3, 0.01), "slow": Pace(0.8, 0.025)}


async def do_work(ms: int, x: Any = None, size: int = 20) -> str:
    """Takes its time and returns so many characters, whatever it reads."""
    del x
    await asyncio.sleep(ms / 1000)
    return "r" * size


@tool(name="work")
async def work_tool(ms: int, x: Any = None, size: int = 20) -> str:
    """Work for some milliseconds."""
    return await do_work(ms, x, size)


@dataclass(frozen=True)
class Step:
    """One call: what it takes and reads, by index; `level` is the turn in which the loop's model asks for it."""

    ms: int
    reads: tuple[int, ...] = ()
    level: int = 0
    size: int = 20

    def arguments(self, read: Any) -> dict[str, Any]:
        extra = {"x": read} if self.reads else {}
        return {"ms": self.ms} | ({"size": self.size} if self.size != 20 else {}) | extra


def dag() -> list[Step]:
    """10 calls in 4 levels of 300 ms."""
    steps = [Step(300) for _ in range(3)]
    for level in (1, 2):
        start = 3 * level
        steps += [Step(300, (start - 3 + n, start - 3 + (n + 1) % 3), level) for n in range(3)]
    return [*steps, Step(300, (6, 7, 8), 3)]


TASKS: dict[str, list[Step]] = {
    "DAG": dag(),
    "parallel": [Step(500) for _ in range(8)],
    "chain": [Step(50, (n - 1,) if n else (), n) for n in range(10)],
    "handover": [Step(50, (n - 1,) if n else (), n, size=2000) for n in range(5)],
}


def solution(steps: list[Step]) -> tuple[str, list[int]]:
    """What Perdure's model writes, and how many characters are out when each call has closed."""
    ends: list[int] = []
    text = '{"calls":['
    for index, step in enumerate(steps):
        reads = [f"†state.s{n}" for n in step.reads]
        call = {
            "_tool": "work",
            **step.arguments(reads[0] if len(reads) == 1 else reads),
            "_outputPath": f"†state.s{index}",
        }
        text += ("," if index else "") + dumps(call)
        ends.append(len(text))
    return text + '],"output":{"ok":true}}', ends


def turns(steps: list[Step]) -> list[list[tuple[str, str]]]:
    """What the loop's model writes, turn by turn: results are written out again as arguments."""
    levels = max(step.level for step in steps) + 1
    written: list[list[tuple[str, str]]] = [[] for _ in range(levels)]
    for step in steps:
        results = ["r" * steps[n].size for n in step.reads]
        arguments = dumps(step.arguments(results[0] if len(results) == 1 else results))
        written[step.level].append(("work", arguments))
    return written


def limit_of_plan(steps: list[Step], pace: Pace) -> float:
    text, ends = solution(steps)
    done: list[float] = []
    for step, end in zip(steps, ends, strict=True):
        written = pace.first_token + pace.per_token * end / TOKEN
        done.append(max([written, *(done[n] for n in step.reads)]) + step.ms / 1000)
    return max(max(done), pace.first_token + pace.per_token * len(text) / TOKEN)


async def run_perdure(client: Client, steps: list[Step], pace: Pace) -> tuple[float, int, int]:
    text, _ = solution(steps)
    function = tool_function(work_tool)
    assert function is not None
    document = {"name": "bench", "context": [{"type": "tool", "tool": "work"}], "schema": {"type": "object"}}
    queue = uuid.uuid4().hex
    async with ScriptedModel([Turn(text)], pace=pace) as model:
        asking = AsyncOpenAI(base_url=model.base_url, api_key="x", max_retries=0)
        async with build_worker(client, Registry([function]), task_queue=queue, model=asking):
            start = time.monotonic()
            handle = await start_run(client, parse_agent(document), document, task_queue=queue)
            result = await handle.result()
            seconds = time.monotonic() - start
        assert [call.status for call in result.calls] == ["done"] * len(steps)
        return seconds, model.prompt_tokens, model.completion_tokens


async def run_loop(client: Client, steps: list[Step], pace: Pace) -> tuple[float, int, int]:
    written = turns(steps)

    def script(asked: ChatRequest) -> Turn:
        turn = sum(message["role"] == "assistant" for message in asked.messages)
        return Turn(tool_calls=written[turn]) if turn < len(written) else Turn('{"ok":true}')

    queue = uuid.uuid4().hex
    async with ScriptedModel(script, pace=pace) as model:
        asking = ModelActivity(AsyncOpenAI(base_url=model.base_url, api_key="x", max_retries=0))
        async with Worker(
            client,
            task_queue=queue,
            workflows=[ReActLoop],
            activities=[asking.ask, work],
            workflow_runner=UnsandboxedWorkflowRunner(),
        ):
            start = time.monotonic()
            await client.execute_workflow(ReActLoop.run, "go", id=queue, task_queue=queue)
            return time.monotonic() - start, model.prompt_tokens, model.completion_tokens


async def measure() -> str:
    """Interleaved, median of `RUNS`."""
    lines = [
        "| task | pace | limit s | Perdure s | of the limit | loop s | loop / Perdure | tokens in, out | loop's tokens in, out |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    async with embedded_server(ui=False) as server:
        for name, steps in TASKS.items():
            for speed, pace in PACES.items():
                ours: list[tuple[float, int, int]] = []
                theirs: list[tuple[float, int, int]] = []
                for _ in range(RUNS):
                    ours.append(await run_perdure(server.client, steps, pace))
                    theirs.append(await run_loop(server.client, steps, pace))
                limit = limit_of_plan(steps, pace)
                perdure, loop = (statistics.median(run[0] for run in runs) for runs in (ours, theirs))
                lines.append(
                    f"| {name} | {speed} | {limit:.2f} | {perdure:.2f} | {perdure / limit:.2f} | {loop:.2f} | {loop / perdure:.1f} "
                    f"| {ours[0][1]}, {ours[0][2]} | {theirs[0][1]}, {theirs[0][2]} |"
                )
                print(lines[-1], flush=True)
    return "\n".join(lines)


def table() -> str:
    return asyncio.run(measure())
