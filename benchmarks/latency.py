"""How long a task takes: Perdure, a hand-written ReAct loop on the same server and model, and the limit.

The limit is computed for each: the model's pace, and the critical path through the calls from where each has been written.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from temporalio.client import Client

from benchmarks.common import loop_worker, perdure_worker, start
from benchmarks.peer import ReActLoop, do_work
from cli.server import embedded_server
from demo.scripted_model import ScriptedModel
from demo.turns import TOKEN, ChatRequest, Pace, Turn
from perdure import tool
from perdure.jsons import dumps

RUNS = 5
PICTURE = Path(__file__).parent / "latency.svg"
PACES = {"fast": Pace(0.3, 0.01), "slow": Pace(0.8, 0.025)}


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
    async with (
        ScriptedModel([Turn(text)], pace=pace) as model,
        perdure_worker(client, [work_tool], model.base_url) as queue,
    ):
        begun = time.monotonic()
        handle = await start(client, queue, "work")
        result = await handle.result()
        seconds = time.monotonic() - begun
        assert [call.status for call in result.calls] == ["done"] * len(steps)
        return seconds, model.prompt_tokens, model.completion_tokens


async def run_loop(client: Client, steps: list[Step], pace: Pace) -> tuple[float, int, int]:
    written = turns(steps)

    def script(asked: ChatRequest) -> Turn:
        turn = sum(message["role"] == "assistant" for message in asked.messages)
        return Turn(tool_calls=written[turn]) if turn < len(written) else Turn('{"ok":true}')

    async with ScriptedModel(script, pace=pace) as model, loop_worker(client, model.base_url) as queue:
        begun = time.monotonic()
        await client.execute_workflow(ReActLoop.run, "go", id=queue, task_queue=queue)
        return time.monotonic() - begun, model.prompt_tokens, model.completion_tokens


@dataclass(frozen=True)
class Row:
    """Medians, in seconds, of one task at one pace."""

    task: str
    pace: str
    limit: float
    perdure: float
    loop: float
    tokens: tuple[int, int]
    loop_tokens: tuple[int, int]

    def line(self) -> str:
        return (
            f"| {self.task} | {self.pace} | {self.limit:.2f} | {self.perdure:.2f} | {self.perdure / self.limit:.2f} "
            f"| {self.loop:.2f} | {self.loop / self.perdure:.1f} | {self.tokens[0]}, {self.tokens[1]} "
            f"| {self.loop_tokens[0]}, {self.loop_tokens[1]} |"
        )


async def measure() -> list[Row]:
    """Interleaved, median of `RUNS`."""
    rows: list[Row] = []
    async with embedded_server(ui=False) as server:
        for name, steps in TASKS.items():
            for speed, pace in PACES.items():
                ours: list[tuple[float, int, int]] = []
                theirs: list[tuple[float, int, int]] = []
                for _ in range(RUNS):
                    ours.append(await run_perdure(server.client, steps, pace))
                    theirs.append(await run_loop(server.client, steps, pace))
                perdure, loop = (statistics.median(run[0] for run in runs) for runs in (ours, theirs))
                limit = limit_of_plan(steps, pace)
                rows.append(Row(name, speed, limit, perdure, loop, ours[0][1:], theirs[0][1:]))
                print(rows[-1].line(), flush=True)
    return rows


def table() -> str:
    rows = asyncio.run(measure())
    draw(rows)
    return "\n".join(
        [
            "| task | pace | limit s | Perdure s | of the limit | loop s | loop / Perdure | tokens in, out | loop's tokens in, out |",
            "|---|---|--:|--:|--:|--:|--:|--:|--:|",
            *(row.line() for row in rows),
        ]
    )


def draw(rows: list[Row], target: Path = PICTURE) -> None:
    """The times as bars; on a logarithmic axis, for *handover* is far away from the rest."""
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
    for axis, pace in zip(axes, PACES, strict=True):
        of_pace = [row for row in rows if row.pace == pace]
        at = range(len(of_pace))
        for offset, name, colour in (
            (-0.27, "limit", "#b8bfc8"),
            (0.0, "perdure", "#2f6f5e"),
            (0.27, "loop", "#c2703d"),
        ):
            values = [getattr(row, name) for row in of_pace]
            bars = axis.bar([x + offset for x in at], values, 0.25, color=colour, label=name)
            axis.bar_label(bars, fmt="%.1f", fontsize=7, padding=1)
        axis.set_xticks(list(at), [row.task for row in of_pace])
        axis.set_yscale("log")
        axis.set_ylim(1, 110)
        axis.set_title(f"{pace} model", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("seconds (log)")
    axes[0].legend(frameon=False, fontsize=8, loc="upper left")
    figure.savefig(target, metadata={"Date": None})
