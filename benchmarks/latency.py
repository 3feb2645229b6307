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

from benchmarks.common import bench_server, loop_worker, perdure_worker, start
from benchmarks.peer import ReActLoop, do_work
from perdure import tool
from perdure.models.dialects.registry import DIALECTS
from perdure.models.requests import ReaderVocabulary
from perdure.testing.scripted_model import TOKEN, ChatRequest, Pace, ScriptedModel, Turn, write_answer
from perdure.values.json import dumps

RUNS = 5
PICTURE = Path(__file__).parent / "latency.svg"
COLOURS = ("#1f4e43", "#2f8f76", "#7cc4ad", "#c2703d")
"""Of the dialects, and of the loop."""
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


def solution(steps: list[Step]) -> dict[str, Any]:
    """What Perdure's model plans."""
    calls = []
    for index, step in enumerate(steps):
        reads = [f"†state.s{n}" for n in step.reads]
        read = reads[0] if len(reads) == 1 else reads
        calls.append({"_tool": "work", **step.arguments(read), "_outputPath": f"†state.s{index}"})
    return {"calls": calls, "output": {"ok": True}}


def written(steps: list[Step], dialect: str) -> tuple[list[int], int]:
    """How many characters are out when each call has closed, and how many the whole answer has."""
    whole = solution(steps)
    answer = write_answer(whole, dialect)
    ends: list[int] = []
    if dialect == "tools":
        out = len(answer.text)
        for name, arguments in answer.tool_calls:
            out += len(name) + len(arguments)
            ends.append(out)
        return ends, out
    reader, calls = DIALECTS[dialect].reader(ReaderVocabulary()), 0
    for out, character in enumerate(answer.text, 1):
        closed = len(reader.push(character))
        ends += [out] * closed
        calls += closed
    assert calls == len(steps)
    return ends, len(answer.text)


def turns(steps: list[Step]) -> list[list[tuple[str, str]]]:
    """What the loop's model writes, turn by turn: results are written out again as arguments."""
    levels = max(step.level for step in steps) + 1
    asked: list[list[tuple[str, str]]] = [[] for _ in range(levels)]
    for step in steps:
        results = ["r" * steps[n].size for n in step.reads]
        arguments = dumps(step.arguments(results[0] if len(results) == 1 else results))
        asked[step.level].append(("work", arguments))
    return asked


def limit_of_plan(steps: list[Step], pace: Pace, dialect: str) -> float:
    ends, length = written(steps, dialect)
    done: list[float] = []
    for step, end in zip(steps, ends, strict=True):
        out = pace.first_token + pace.per_token * end / TOKEN
        done.append(max([out, *(done[n] for n in step.reads)]) + step.ms / 1000)
    return max(max(done), pace.first_token + pace.per_token * length / TOKEN)


async def run_perdure(client: Client, steps: list[Step], pace: Pace, dialect: str) -> tuple[float, int, int]:
    async with (
        ScriptedModel([Turn(solution(steps))], pace=pace, dialect=dialect) as model,
        perdure_worker(client, [work_tool], model.base_url) as queue,
    ):
        begun = time.monotonic()
        handle = await start(client, queue, "work", dialect=dialect)
        result = await handle.result()
        seconds = time.monotonic() - begun
        assert [call.status for call in result.calls] == ["done"] * len(steps)
        return seconds, model.prompt_tokens, model.completion_tokens


async def run_loop(client: Client, steps: list[Step], pace: Pace) -> tuple[float, int, int]:
    planned = turns(steps)

    def script(asked: ChatRequest) -> Turn:
        turn = sum(message["role"] == "assistant" for message in asked.messages)
        return Turn(tool_calls=planned[turn]) if turn < len(planned) else Turn('{"ok":true}')

    async with ScriptedModel(script, pace=pace) as model, loop_worker(client, model.base_url) as queue:
        begun = time.monotonic()
        await client.execute_workflow(ReActLoop.run, "go", id=queue, task_queue=queue)
        return time.monotonic() - begun, model.prompt_tokens, model.completion_tokens


@dataclass(frozen=True)
class Row:
    """Medians, in seconds, of one task at one pace in one dialect."""

    task: str
    pace: str
    dialect: str
    limit: float
    perdure: float
    loop: float
    tokens: tuple[int, int]
    loop_tokens: tuple[int, int]

    def line(self) -> str:
        return (
            f"| {self.task} | {self.pace} | {self.dialect} | {self.limit:.2f} | {self.perdure:.2f} "
            f"| {self.perdure / self.limit:.2f} | {self.loop:.2f} | {self.loop / self.perdure:.1f} "
            f"| {self.tokens[0]}, {self.tokens[1]} | {self.loop_tokens[0]}, {self.loop_tokens[1]} |"
        )


async def measure() -> list[Row]:
    """Interleaved, median of `RUNS`."""
    rows: list[Row] = []
    async with bench_server() as server:
        for name, steps in TASKS.items():
            for speed, pace in PACES.items():
                ours: dict[str, list[tuple[float, int, int]]] = {dialect: [] for dialect in DIALECTS}
                theirs: list[tuple[float, int, int]] = []
                for _ in range(RUNS):
                    for dialect, runs in ours.items():
                        runs.append(await run_perdure(server.client, steps, pace, dialect))
                    theirs.append(await run_loop(server.client, steps, pace))
                loop = statistics.median(run[0] for run in theirs)
                for dialect, runs in ours.items():
                    seconds = statistics.median(run[0] for run in runs)
                    limit = limit_of_plan(steps, pace, dialect)
                    rows.append(Row(name, speed, dialect, limit, seconds, loop, runs[0][1:], theirs[0][1:]))
                    print(rows[-1].line(), flush=True)
    return rows


def table() -> str:
    rows = asyncio.run(measure())
    draw(rows)
    return "\n".join(
        [
            "| task | pace | dialect | limit s | Perdure s | of the limit | loop s | loop / Perdure | tokens in, out | loop's tokens in, out |",
            "|---|---|---|--:|--:|--:|--:|--:|--:|--:|",
            *(row.line() for row in rows),
        ]
    )


def draw(rows: list[Row], target: Path = PICTURE) -> None:
    """The times as bars; on a logarithmic axis, for *handover* is far away from the rest."""
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
    for axis, pace in zip(axes, PACES, strict=True):
        of_pace = {(row.task, row.dialect): row for row in rows if row.pace == pace}
        at = range(len(TASKS))
        heights = {dialect: [of_pace[task, dialect].perdure for task in TASKS] for dialect in DIALECTS}
        heights["ReAct loop"] = [of_pace[task, "solution"].loop for task in TASKS]
        for number, (name, values) in enumerate(heights.items()):
            colour = COLOURS[number]
            bars = axis.bar([x + 0.21 * (number - 1.5) for x in at], values, 0.2, color=colour, label=name)
            axis.bar_label(bars, fmt="%.1f", fontsize=6, padding=1)
        axis.set_xticks(list(at), list(TASKS))
        axis.set_yscale("log")
        axis.set_ylim(0.5, 110)
        axis.set_title(f"{pace} model", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("seconds (log)")
    axes[0].legend(frameon=False, fontsize=8, loc="upper left")
    figure.savefig(target, metadata={"Date": None})
