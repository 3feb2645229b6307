"""The guard: ten ratios against those of the last release, most of them exact, in one run of a minute or two.

`make bench ARGS=guard` compares with `guard.json` and fails where a ratio has grown by more than a tenth. `make bench ARGS="guard --write"`
writes that file.
"""

from __future__ import annotations

import asyncio
import functools
import json
import platform
import sys
import time
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from benchmarks import plan, prompts
from benchmarks.common import bench_server, loop_worker, model_process, perdure_worker, start
from benchmarks.engine import nothing, one_plan, one_turn
from benchmarks.peer import ReActLoop
from perdure.activities.requests import Events
from perdure.models.dialects.common import DialectRequest
from perdure.models.dialects.registry import DIALECTS
from perdure.models.requests import ReaderVocabulary
from perdure.models.response_stream import ResponseStream, join_chunks
from perdure.tools.tool import parse_tool
from perdure.values.json import dumps

BASELINE: Final = Path(__file__).parent / "guard.json"
MORE, MEASURED_MORE = 1.1, 1.5
"""The share of the baseline that a ratio may reach; the ratio of CPU times was 1.04 to 1.33 on a machine with other work."""
ROUNDS, MOST_ROUNDS, AT_ONCE = 3, 9, 30
"""Rounds of what is measured: the least of each side counts. More rounds follow while a ratio is beyond its bound."""
CPU: Final = f"worker's CPU, {AT_ONCE} runs of 8 calls"
BILLED: Final = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,
    EventType.EVENT_TYPE_MARKER_RECORDED,
    EventType.EVENT_TYPE_TIMER_STARTED,
    EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES,
}
"""Events of a history that are Actions."""


def main(words: list[str]) -> int:
    """Compare with the baseline, or write it; return the exit code."""
    if words not in ([], ["--write"]):
        print(f"guard takes --write or nothing, not {' '.join(words)}", file=sys.stderr)
        return 2
    python = platform.python_version_tuple()[:2]
    known: Any = (
        json.loads(BASELINE.read_text(encoding="utf-8")) if not words else {"python": list(python), "ratios": {}}
    )
    found = counted() | asyncio.run(of_runs(known["ratios"]))
    if words:
        document = {"python": list(python), "ratios": {name: round(ratio, 4) for name, ratio in found.items()}}
        BASELINE.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        print(f"{len(found)} ratios are in {BASELINE}")
        return 0
    rows, beyond = compare(known, found, list(python))
    print("\n".join(["| ratio | baseline | now | |", "|---|--:|--:|---|", *rows]))
    return int(beyond)


def compare(known: dict[str, Any], found: dict[str, float], python: list[str]) -> tuple[list[str], bool]:
    """Return a row for each ratio, and whether one is beyond its bound.

    What the interpreter calls differs by its version, so `COUNTED` is compared under the baseline's alone.
    """
    rows, beyond = [], False
    for name, ratio in found.items():
        before = known["ratios"].get(name)
        words = ""
        if before is None:
            words = "not in the baseline: write it anew"
            beyond = True
        elif name in COUNTED and known["python"] != python:
            words = f"not compared: the baseline is of Python {'.'.join(known['python'])}"
        elif ratio > before * (MEASURED_MORE if name == CPU else MORE):
            words = "beyond its bound"
            beyond = True
        rows.append(f"| {name} | {'–' if before is None else f'{before:.2f}'} | {ratio:.2f} | {words} |")
    return rows, beyond


# Exact: sizes of prompts, and how many Python functions are called.


def counted() -> dict[str, float]:
    """Ratios that are the same on every machine."""
    loop = prompts.characters(prompts.loop_texts())
    found = {f"prompts, {name}": prompts.characters(prompts.perdure_texts(name)) / loop for name in DIALECTS}
    for name, (work, units) in COUNTED.items():
        work()  # so that caches are warm
        found[name] = _calls(work) / units
    return found


def _calls(work: Callable[[], object]) -> int:
    """Return the number of functions that `work` calls, of Python and of C."""
    count = 0

    def profile(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


TOKENS, CALLS, TOOLS = 2000, 500, 100
TOGETHER = 5
"""Tokens that arrive together, as at 10 ms a token after two seconds."""


def _read() -> None:
    text = dumps({"calls": [{"_tool": "t", "x": "x" * (4 * TOKENS)}], "output": None})
    events, answer = Events(), ResponseStream("m", 1, DIALECTS["solution"].reader(ReaderVocabulary()))
    chunks: list[Any] = [{"choices": [{"delta": {"content": text[at : at + 4]}}]} for at in range(0, len(text), 4)]
    for first in range(0, len(chunks), TOGETHER):
        arrived = "".join(f"data: {dumps(chunk)}\n\n" for chunk in chunks[first : first + TOGETHER])
        for document in join_chunks([json.loads(event.data) for event in events.push(arrived.encode())]):
            answer.take(document)


def _compose() -> None:
    properties = {f"p{n}": {"type": "string", "description": "what it is"} for n in range(5)}
    names = [f"tool_{number}" for number in range(TOOLS)]
    tools = {name: parse_tool({"name": name, "properties": properties}, activities=names) for name in names}
    DIALECTS["solution"].parameters(DialectRequest(tools=tools, output={"type": "string"}, max_calls=500))


COUNTED: Final[dict[str, tuple[Callable[[], object], int]]] = {
    "functions called to plan a call": (lambda: plan.play(plan.tangled(CALLS)), CALLS),
    "functions called to read a token": (_read, TOKENS),
    "functions called to offer a tool": (_compose, TOOLS),
}


# Of runs: what their histories hold is counted, CPU time is measured.


async def of_runs(known: dict[str, float]) -> dict[str, float]:
    """Return the ratios of runs to the hand-written loop."""
    found: dict[str, float] = {}
    async with bench_server() as server:
        for calls in (8, 50):
            ours, theirs = await _histories(server.client, calls)
            found[f"bytes of history, {calls} calls"] = ours[1] / theirs[1]
            if calls == 8:
                found["billed events, 8 calls"] = ours[0] / theirs[0]
        found[CPU] = await _cpu(server.client, known.get(CPU))
    return found


async def _histories(client: Client, calls: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the least billed events and bytes of several runs of Perdure, and of the loop."""
    ours, theirs = [], []
    with (
        model_process(functools.partial(one_plan, calls)) as plans,
        model_process(functools.partial(one_turn, calls)) as turns,
    ):
        async with perdure_worker(client, [nothing], plans) as queue, loop_worker(client, turns) as other:
            for _ in range(ROUNDS):
                handle = await start(client, queue, "nothing", stream=False)
                await handle.result()
                ours.append(await _history(client, handle.id))
                theirs.append(await _history(client, await _loop(client, other)))
    return _least(ours), _least(theirs)


def _least(each: list[tuple[int, int]]) -> tuple[int, int]:
    return min(events for events, _ in each), min(size for _, size in each)


async def _history(client: Client, run_id: str) -> tuple[int, int]:
    """Return the billed events of a run, and the bytes of its history."""
    handle = client.get_workflow_handle(run_id)
    events = sum(event.event_type in BILLED for event in (await handle.fetch_history()).events)
    return events, (await handle.describe()).raw_description.workflow_execution_info.history_size_bytes


async def _loop(client: Client, queue: str) -> str:
    run_id = uuid.uuid4().hex
    await client.execute_workflow(ReActLoop.run, "go", id=run_id, task_queue=queue)
    return run_id


async def _cpu(client: Client, before: float | None) -> float:
    """Return the CPU time of Perdure's runs over the loop's: the least of some rounds, and of more while it is above the bound."""
    ours: list[float] = []
    theirs: list[float] = []
    ratio = 0.0

    async def measure(found: list[float], run: Callable[[], Coroutine[Any, Any, object]]) -> None:
        begun = time.process_time()
        await asyncio.gather(*(run() for _ in range(AT_ONCE)))
        found.append(time.process_time() - begun)

    async def ask() -> None:
        await (await start(client, queue, "nothing")).result()

    with model_process(functools.partial(one_plan, 8)) as plans, model_process(functools.partial(one_turn, 8)) as turns:
        for done in range(1, MOST_ROUNDS + 1):
            async with perdure_worker(client, [nothing], plans) as queue:
                await measure(ours, ask)
            async with loop_worker(client, turns) as other:
                await measure(theirs, functools.partial(_loop, client, other))
            ratio = min(ours[1:] or ours) / min(theirs[1:] or theirs)  # the first ones warm up
            if done > ROUNDS and before is not None and ratio <= before * MORE:
                break
    return ratio
