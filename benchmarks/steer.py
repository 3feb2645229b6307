"""A correction in the middle of a task: `steer` against what others do with a new message (R10.5).

*skip and ask again*: a ReAct loop that looks for messages between turns, skips the calls that its model has just written and asks again.
*cancel and restart*: the run is cancelled, and a new one begins with the task and the correction. *wait for the end*: the run goes on, and a
second one then corrects what was done wrong. From its acceptance on every second call is to be made otherwise (`fix`).
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from benchmarks.common import asking, bench_server, perdure_worker
from benchmarks.latency import PACES, TASKS, Step
from benchmarks.peer import ModelActivity, SkippingLoop
from perdure import tool
from perdure.approvals.requests import STEER
from perdure.client.run_operations import AgentHandle, start_run
from perdure.runs.agent import parse_agent
from perdure.runs.wire import CALLS_SIGNAL
from perdure.testing.scripted_model import TOKEN, ChatRequest, ScriptedModel, Turn
from perdure.values.json import JsonObject

PARTS: Final = (0.1, 0.5, 0.9)
"""Of the time that the task takes uncorrected."""
CORRECTION: Final = "From now on every call of an even key is to be made with fix: true."
TOGETHER: Final = 4
"""Cases that are measured side by side: they wait nearly all of the time."""


@dataclass
class Case:
    """One task, and what has become of its calls."""

    steps: list[Step]
    accepted: float = float("inf")
    """When the correction was accepted; `time.monotonic`, as all times here."""
    heard: float = float("inf")
    """When a model that had read it wrote its first words."""
    starts: list[tuple[float, int, bool]] = field(default_factory=list)
    """Each call: when it started, its key, and whether it was made as corrected."""
    ends: list[tuple[float, int]] = field(default_factory=list)

    def begun(self, at: float) -> set[int]:
        return {key for started, key, _ in self.starts if started <= at}

    async def do(self, key: int, fix: bool) -> str:
        self.starts.append((time.monotonic(), key, fix))
        await asyncio.sleep(self.steps[key].ms / 1000)
        self.ends.append((time.monotonic(), key))
        return "r" * self.steps[key].size

    def call(self, key: int, *, fix: bool, literal: bool = False) -> dict[str, Any]:
        """The call of a key, reading the state, or with what it reads written out."""
        reads: list[Any] = [f"†state.s{n}" for n in self.steps[key].reads]
        if literal:
            reads = ["r" * self.steps[n].size for n in self.steps[key].reads]
        more = {"x": reads} if reads else {}
        return {"_tool": "do", "key": key, **more, **({"fix": True} if fix else {}), "_outputPath": f"†state.s{key}"}


@dataclass
class Measured:
    unasked: int
    """Calls that started after the correction was accepted, and before a model that had read it wrote anything."""
    seconds: float | None
    """From there to the first corrected call; `None`: nothing was left to correct."""
    tokens: int
    """That models wrote, also in answers that were cut."""
    thrown: int
    """Calls that had ended, and were made again."""


async def measured(case: Case, model: ScriptedModel, run: Any, signal: str = "") -> Measured:
    unasked = sum(case.accepted < at < case.heard for at, _, _ in case.starts)
    if signal and case.accepted < float("inf"):
        unasked = await scheduled_unasked(run, signal)
    fixed = [at for at, _, fix in case.starts if fix and at > case.accepted]
    again = sum(any(end < at and key == other for end, other in case.ends) for at, key, _ in case.starts)
    tokens = sum(arrivals[-1][1] // TOKEN for arrivals in model.arrivals if arrivals)
    return Measured(unasked, min(fixed) - case.accepted if fixed else None, tokens, again)


async def scheduled_unasked(run: Any, signal: str) -> int:
    """The same as the history has it: calls scheduled behind the message, and before anything of an answer that was asked for behind it."""
    said, asked, count = False, 0, 0
    async for event in run.fetch_history_events():
        told = event.workflow_execution_signaled_event_attributes.signal_name
        scheduled = event.activity_task_scheduled_event_attributes.activity_type.name
        answered = event.activity_task_completed_event_attributes.scheduled_event_id
        if asked and (told == CALLS_SIGNAL or answered == asked):
            break
        said = said or told == signal
        if said and scheduled == "do":
            count += 1
        elif said and scheduled and not asked:
            asked = event.event_id
    return count


# Perdure.


def planner(case: Case, wait: bool) -> Callable[[ChatRequest], Turn]:
    """A model that plans all at once; told of the correction, what is not begun, or what was begun since."""

    def answer(asked: ChatRequest) -> Turn:
        keys = range(len(case.steps))
        if CORRECTION not in asked.text:
            return Turn({"calls": [case.call(key, fix=False) for key in keys], "output": {"ok": True}})
        case.heard = min(case.heard, time.monotonic() + PACES["fast"].first_token)
        if wait:
            wrong = [key for key in keys if key % 2 == 0 and key not in case.begun(case.accepted)]
            return Turn({"calls": [case.call(key, fix=True, literal=True) for key in wrong], "output": {"ok": True}})
        shown: dict[int, dict[str, Any]] = {}
        for line in asked.text.splitlines():
            if line.startswith('{"_tool":"do"'):
                shown[json.loads(line)["key"]] = json.loads(line)
        held = [call["_id"] for key, call in shown.items() if call["_status"] == "held" and key % 2]
        left = [key for key in keys if key not in shown or (shown[key]["_status"] == "held" and key % 2 == 0)]
        calls: list[dict[str, Any]] = [{"_tool": "keep", "calls": held}] if held else []
        return Turn({"calls": calls + [case.call(key, fix=key % 2 == 0) for key in left], "output": {"ok": True}})

    return answer


async def begin(client: Client, queue: str, *said: str) -> AgentHandle:
    context: list[dict[str, Any]] = [{"type": "tool", "tool": "do"}, *({"type": "text", "text": text} for text in said)]
    config = {"approval": {"ask": "never"}}
    document: JsonObject = {"name": "bench", "config": config, "context": context, "schema": {"type": "object"}}
    return await start_run(client, parse_agent(document), document, task_queue=queue)


async def with_perdure(client: Client, case: Case, at: float | None, way: str) -> Measured:
    @tool(name="do")
    async def do(key: int, x: Any = None, fix: bool = False) -> str:
        """Do one thing."""
        del x
        return await case.do(key, fix)

    async with (
        ScriptedModel(planner(case, way == "wait for the end"), pace=PACES["fast"], strict=False) as model,
        perdure_worker(client, [do], model.base_url) as queue,
    ):
        run = await begin(client, queue)
        if at is not None:
            await asyncio.sleep(at)
            case.accepted = time.monotonic()
        if way == "steer" and at is not None:
            with suppress(RPCError):  # it may have ended just before
                await run.signal(STEER, {"id": "m1", "text": CORRECTION})
        if way == "cancel and restart":
            with suppress(RPCError):
                await run.cancel()
            run = await begin(client, queue, CORRECTION)
        if way == "wait for the end":
            await run.result()
            run = await begin(client, queue, CORRECTION)
        await run.result()
        return await measured(case, model, run, STEER if way == "steer" else "")


# The loop.


def stepper(case: Case) -> Callable[[ChatRequest], Turn]:
    """A model that asks for what can be done now, a level at a time."""

    def answer(asked: ChatRequest) -> Turn:
        heard = CORRECTION in asked.text
        if heard:
            case.heard = min(case.heard, time.monotonic() + PACES["fast"].first_token)
        done = {key for _, key in case.ends}
        ready = [k for k, step in enumerate(case.steps) if k not in done and all(n in done for n in step.reads)]
        calls = [case.call(key, fix=heard and key % 2 == 0, literal=True) for key in ready]
        native = [("do", json.dumps({k: v for k, v in call.items() if k[0] != "_"})) for call in calls]
        return Turn(tool_calls=native) if native else Turn('{"ok":true}')

    return answer


async def with_loop(client: Client, case: Case, at: float | None, _: str) -> Measured:
    @activity.defn(name="do")
    async def do(arguments: str) -> str:
        given = json.loads(arguments)
        return await case.do(given["key"], given.get("fix", False))

    queue = uuid.uuid4().hex
    async with (
        ScriptedModel(stepper(case), pace=PACES["fast"], strict=False) as model,
        asking(model.base_url) as openai,
        Worker(client, task_queue=queue, workflows=[SkippingLoop], activities=[ModelActivity(openai).ask, do]),
    ):
        run = await client.start_workflow(SkippingLoop.run, "Do it.", id=uuid.uuid4().hex, task_queue=queue)
        if at is not None:
            await asyncio.sleep(at)
            case.accepted = time.monotonic()
            with suppress(RPCError):
                await run.signal(SkippingLoop.say, CORRECTION)
        await run.result()
        return await measured(case, model, run, "say")


Run = Callable[[Client, Case, float | None, str], Awaitable[Measured]]
WAYS: Final[dict[str, Run]] = {
    "steer": with_perdure,
    "skip and ask again": with_loop,
    "cancel and restart": with_perdure,
    "wait for the end": with_perdure,
}


async def steer() -> str:
    """The table: of each figure those of a correction after 10, 50 and 90 %."""
    places = asyncio.Semaphore(TOGETHER)
    async with bench_server() as server:

        async def lasts(name: str, run: Run) -> float:
            async with places:
                case, begun = Case(TASKS[name]), time.monotonic()
                await run(server.client, case, None, "")
                return max(end for end, _ in case.ends) - begun

        async def one(name: str, way: str, at: float) -> Measured:
            async with places:
                return await WAYS[way](server.client, Case(TASKS[name]), at, way)

        runs: tuple[Run, ...] = (with_perdure, with_loop)
        kinds = [(name, run) for name in TASKS for run in runs]
        whole = dict(zip(kinds, await asyncio.gather(*(lasts(*kind) for kind in kinds)), strict=True))
        rows = [(name, way) for name in TASKS for way in WAYS]
        found = await asyncio.gather(
            *(one(name, way, part * whole[name, WAYS[way]]) for name, way in rows for part in PARTS)
        )
    lines = [
        "| task | new message | started unasked | s to the first corrected call | completion tokens | finished and done again |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for n, (name, way) in enumerate(rows):
        three = found[n * len(PARTS) : (n + 1) * len(PARTS)]
        cells = [
            [str(each.unasked) for each in three],
            ["–" if each.seconds is None else f"{each.seconds:.2f}" for each in three],
            [str(each.tokens) for each in three],
            [str(each.thrown) for each in three],
        ]
        lines.append(f"| {name} | {way} | " + " | ".join(" / ".join(cell) for cell in cells) + " |")
    return "\n".join(lines)
