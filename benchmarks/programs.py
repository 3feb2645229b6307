"""Twelve tasks with loops and conditions: as a ReAct loop, as a plan that asks again where it cannot know (before R16), and as one plan.

A task is its levels, the calls that can be made once the results of those before are known, and the script that says all of it at
once. The loop asks its model once per level, for all of that level's calls natively in parallel, and once for the answer. The plan
without loops and conditions has the same levels, a Request's script each, and gives its answer with the last of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from temporalio import activity
from temporalio.client import Client

from benchmarks.common import bench_server, loop_worker, perdure_worker, start
from benchmarks.latency import PACES
from benchmarks.peer import ReActLoop
from perdure import tool
from perdure.models.dialects.script_writer import write_call
from perdure.testing.scripted_model import ChatRequest, Pace, Script, ScriptedModel, Turn
from perdure.values.json import dumps, loads

SECONDS: Final = 0.1
"""What each call takes."""
TOGETHER: Final = 4
"""Tasks that are measured side by side: they wait nearly all of the time."""
Level: TypeAlias = "list[tuple[str, dict[str, Any]]]"
ANSWER: Final = "done"


def records(n: int) -> list[dict[str, Any]]:
    return [{"id": f"item-{at}", "cpu": 100 - 7 * at, "owner": f"team-{at % 3}"} for at in range(n)]


def detail(id: str) -> dict[str, Any]:
    at = int(id.rpartition("-")[2])
    return {"id": id, "load": (37 * at + 11) % 100, "ok": at % 2 == 0, "next": f"item-{at + 1}" if at < 3 else None}


@tool(name="items")
async def items(n: int) -> list[dict[str, Any]]:
    """A list of so many records: id, cpu, owner."""
    await asyncio.sleep(SECONDS)
    return records(n)


@tool(name="look")
async def look(id: str) -> dict[str, Any]:
    """What there is to know of a record: id, load, ok, next."""
    await asyncio.sleep(SECONDS)
    return detail(id)


@tool(name="act")
async def act(id: str, why: str = "") -> dict[str, Any]:
    """Do something about a record."""
    await asyncio.sleep(SECONDS)
    return {"id": id, "why": why}


@tool(name="poll")
async def poll(n: int) -> dict[str, Any]:
    """How far something is."""
    await asyncio.sleep(SECONDS)
    return {"n": n + 1, "done": n + 1 >= 3}


TOOLS: Final[list[Callable[..., Awaitable[Any]]]] = [items, look, act, poll]


def _as_activity(function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """The same tool for the loop, told by JSON arguments and answering in JSON."""

    async def run(arguments: str) -> str:
        params: Any = loads(arguments)
        return dumps(await function(**params))

    return activity.defn(name=function.__name__)(run)


@dataclass(frozen=True)
class Task:
    name: str
    script: str
    levels: list[Level]


def looks(ids: list[str]) -> Level:
    return [("look", {"id": id}) for id in ids]


def acts(ids: list[str], why: str = "") -> Level:
    return [("act", {"id": id, "why": why} if why else {"id": id}) for id in ids]


def ids(n: int) -> list[str]:
    return [record["id"] for record in records(n)]


def listed(n: int) -> Level:
    return [("items", {"n": n})]


EIGHT: Final = ids(8)
TASKS: Final = [
    Task(
        "each: look at all of a list",
        "hosts = items(n=8)\nseen = [look(id=h.id) for h in hosts]\noutput(text=f'{len(seen)} seen')\n",
        [listed(8), looks(EIGHT)],
    ),
    Task(
        "each, filtered by a value",
        "hosts = items(n=8)\nfor h in hosts:\n    if h.cpu > 70:\n        act(id=h.id)\noutput(text='done')\n",
        [listed(8), acts([record["id"] for record in records(8) if record["cpu"] > 70])],
    ),
    Task(
        "look, and act on what is not ok",
        "hosts = items(n=8)\nfor h in hosts:\n    c = look(id=h.id)\n    if not c.ok:\n        act(id=h.id, why='not ok')\noutput(text='done')\n",
        [listed(8), looks(EIGHT), acts([id for id in EIGHT if not detail(id)["ok"]], "not ok")],
    ),
    Task(
        "if and else",
        "c = look(id='item-1')\nif c.ok:\n    poll(n=0)\nelse:\n    act(id=c.id, why='not ok')\noutput(text='done')\n",
        [looks(["item-1"]), acts(["item-1"], "not ok")],
    ),
    Task(
        "a chain of conditions",
        "c = look(id='item-2')\nif c.load > 90:\n    act(id=c.id, why='high')\nelif c.load > 50:\n    act(id=c.id, why='middle')\n"
        "else:\n    poll(n=0)\noutput(text='done')\n",
        [looks(["item-2"]), acts(["item-2"], "middle")],
    ),
    Task(
        "poll until it is done",
        "p = poll(n=0)\nwhile not p.done:\n    p = poll(n=p.n)\noutput(text='done')\n",
        [[("poll", {"n": n})] for n in range(3)],
    ),
    Task(
        "follow what is next",
        "c = look(id='item-0')\nwhile c.next:\n    c = look(id=c.next)\noutput(text=c.id)\n",
        [looks([id]) for id in ids(4)],
    ),
    Task(
        "a loop in a loop",
        "for h in items(n=3):\n    parts = items(n=4)\n    for p in parts:\n        act(id=p.id, why=h.id)\noutput(text='done')\n",
        [listed(3), listed(4) * 3, [call for id in ids(3) for call in acts(ids(4), id)]],
    ),
    Task(
        "the best of all",
        "hosts = items(n=8)\nseen = [look(id=h.id) for h in hosts]\nbest = max(seen, key=lambda s: s.load)\nact(id=best.id)\noutput(text=best.id)\n",
        [listed(8), looks(EIGHT), acts([max(map(detail, EIGHT), key=lambda one: one["load"])["id"]])],
    ),
    Task(
        "once for each owner",
        "hosts = items(n=8)\nfor o in set(h.owner for h in hosts):\n    act(id=o)\noutput(text='done')\n",
        [listed(8), acts(["team-0", "team-1", "team-2"])],
    ),
    Task(
        "a call in a call, for each",
        "hosts = items(n=8)\nfor h in hosts:\n    act(id=h.id, why=f'load {look(id=h.id).load}')\noutput(text='done')\n",
        [listed(8), looks(EIGHT), [("act", {"id": id, "why": f"load {detail(id)['load']}"}) for id in EIGHT]],
    ),
    Task(
        "twenty, of which some",
        "hosts = items(n=20)\nfor h in hosts:\n    c = look(id=h.id)\n    if c.load > 50:\n        act(id=h.id)\noutput(text='done')\n",
        [listed(20), looks(ids(20)), acts([id for id in ids(20) if detail(id)["load"] > 50])],
    ),
]


@dataclass(frozen=True)
class Ran:
    seconds: float
    requests: int
    prompt: int
    completion: int

    @classmethod
    def sum(cls, runs: list[Ran]) -> Ran:
        return cls(
            sum(each.seconds for each in runs),
            sum(each.requests for each in runs),
            sum(each.prompt for each in runs),
            sum(each.completion for each in runs),
        )


def plan_turns(task: Task) -> list[Turn]:
    """What a model writes that can name values but neither loop nor decide in a plan: each level once it can be known."""
    scripts = ["\n".join(write_call({"_tool": name, **given}) for name, given in level) for level in task.levels]
    return [Turn(script + "\n") for script in scripts[:-1]] + [Turn(f"{scripts[-1]}\noutput(text='{ANSWER}')\n")]


async def run_plan(client: Client, turns: Script, pace: Pace, *, control: bool) -> Ran:
    async with (
        ScriptedModel(turns, pace=pace, dialect="script") as model,
        perdure_worker(client, TOOLS, model.base_url) as queue,
    ):
        begun = time.monotonic()
        handle = await start(client, queue, *(each.__name__ for each in TOOLS), dialect="script", control=control)
        result = await handle.result()
        seconds = time.monotonic() - begun
        assert result.status == "completed", result
        assert not [call for call in result.calls if call.error], result.calls
        return Ran(seconds, len(model.requests), model.prompt_tokens, model.completion_tokens)


async def run_loop(client: Client, task: Task, pace: Pace) -> Ran:
    def script(asked: ChatRequest) -> Turn:
        turn = sum(message["role"] == "assistant" for message in asked.messages)
        if turn == len(task.levels):
            return Turn(ANSWER)
        return Turn(tool_calls=[(name, dumps(given)) for name, given in task.levels[turn]])

    more = [_as_activity(each) for each in TOOLS]
    async with ScriptedModel(script, pace=pace) as model, loop_worker(client, model.base_url, more=more) as queue:
        begun = time.monotonic()
        await client.execute_workflow(ReActLoop.run, "go", id=queue, task_queue=queue)
        seconds = time.monotonic() - begun
        return Ran(seconds, len(model.requests), model.prompt_tokens, model.completion_tokens)


async def measure() -> list[tuple[str, str, list[Ran]]]:
    """Each task at each pace: the loop, the plan without R16, and with it."""
    places = asyncio.Semaphore(TOGETHER)

    async def one(client: Client, task: Task, speed: str) -> tuple[str, str, list[Ran]]:
        pace = PACES[speed]
        async with places:
            ran = [
                await run_loop(client, task, pace),
                await run_plan(client, plan_turns(task), pace, control=False),
                await run_plan(client, [Turn(task.script)], pace, control=True),
            ]
        return task.name, speed, ran

    async with bench_server() as server:
        return await asyncio.gather(*(one(server.client, task, speed) for speed in PACES for task in TASKS))


def table() -> str:
    lines = [
        "| task | pace | Requests: loop, plan, one plan | seconds | one plan / loop | prompt tokens | completion tokens |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    measured = asyncio.run(measure())
    for speed in PACES:
        of_speed = [(name, ran) for name, pace, ran in measured if pace == speed]
        summed = [Ran.sum([ran[way] for _, ran in of_speed]) for way in range(3)]
        for name, ran in [*of_speed, ("**all twelve**", summed)]:
            columns = [
                ", ".join(str(each.requests) for each in ran),
                ", ".join(f"{each.seconds:.2f}" for each in ran),
                f"{ran[2].seconds / ran[0].seconds:.2f}",
                ", ".join(str(each.prompt) for each in ran),
                ", ".join(str(each.completion) for each in ran),
            ]
            lines.append(f"| {name} | {speed} | {' | '.join(columns)} |")
    return "\n".join(lines)
