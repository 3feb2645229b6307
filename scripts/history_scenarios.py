"""Scenarios of `record_histories`: how calls, delegates, approvals, hooks and sessions fail, are refused, or end early."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from openai import AsyncOpenAI
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, ResetReapplyExcludeType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from perdure import Agent, Notification, Perdure, ToolError, hook, refuse, tool
from perdure.approvals.requests import APPROVE_ACTIVITY
from perdure.client.recorded_runs import fork_run
from perdure.errors import PerdureError
from perdure.hooks import (
    AfterToolCall,
    AgentBootstrap,
    BeforeAgentStart,
    BeforeCompaction,
    MessageReceived,
    MessageSending,
    Refused,
    SessionStart,
    ToolResultPersist,
)
from perdure.hosting.worker import build_worker
from perdure.runs.audit import audit_id
from perdure.runs.evaluation import EVALUATION_WORKFLOW, EvaluationCase, EvaluationInput, EvaluationPlan, scored_id
from perdure.runs.ledger import ledger_id
from perdure.runs.routes import RouteFunction
from perdure.runs.schedules import SCHEDULED
from perdure.runs.wire import AGENT_WORKFLOW, CLAIM, DECIDE, POLICY
from perdure.sessions.status_webhooks import StatusWebhook
from perdure.sessions.wire import END
from perdure.testing.scripted_model import ChatRequest, Fault, ScriptedModel, Turn
from perdure.tools.invocation import SpaceClaim
from perdure.tools.server_input import ANSWERS, SampleRequest, ServerInput, ServerInputError, ServerQuestion
from tests.support import DONE, Harness, agent, harness, registry
from tests.workflows.test_session import ECHO, HOLD, Gate, echo, idles
from tests.workflows.test_session_replies import Channel, having
from tests.workflows.test_temporal_tools import AGENT as KEEPER
from tests.workflows.test_temporal_tools import plan, shop

if TYPE_CHECKING:
    from perdure.client.run_operations import AgentHandle
    from perdure.client.session import Session
    from scripts.history_recorder import Recorder

EVERYBODY: Final[dict[str, Any]] = {"sender": "ann", "rights": ["*"]}
NAMED: Final = "scripts.history_scenarios"


def calls(*made: dict[str, Any]) -> dict[str, Any]:
    """An answer that calls these."""
    return {"calls": list(made), "output": None}


def no_model(_: Any) -> str:
    """A policy that chooses no model."""
    raise ValueError("no model today")


def approver_fails(_: Any) -> None:
    """A program that cannot decide."""
    raise ValueError("out of order")


def approver_allows(_: Any) -> str:
    """A program that approves everything."""
    return "approve"


async def approver_waits(_: Any) -> None:
    """A program that does not decide."""
    await asyncio.sleep(20)


@tool
async def look(path: str) -> dict[str, Any]:
    """Look at a path."""
    return {"path": path}


@tool(dangerous=True)
async def remove(path: str) -> str:
    """Remove a path."""
    return f"removed {path[:20]}"


@tool
async def vacate(room: str) -> str:
    """Leave a room."""
    return f"{room} is free"


@tool(undo=vacate)
async def occupy(room: str) -> str:
    """Take a room."""
    return f"{room} is taken"


@tool(retries=1)
async def fail(code: str) -> str:
    """Fail."""
    raise ToolError(code, "it does not work")


@tool(timeout=1, retries=0)
async def late() -> None:
    """Take too long."""
    await asyncio.sleep(20)


@tool(heartbeat=1, timeout=60)
async def linger() -> None:
    """Work until cancelled."""
    await asyncio.Event().wait()


@tool
async def measure(text: str) -> int:
    """Measure a text."""
    return len(text)


TOOLS: Final[list[Any]] = [look, remove, fail, late, linger, measure]
Meanwhile = Callable[[Harness, "AgentHandle"], Awaitable[None]]


@dataclass
class Game:
    """A run: its agent, what the model answers, what happens meanwhile, and which runs below it are kept too."""

    document: dict[str, Any]
    turns: Sequence[Any] = ()
    meanwhile: Meanwhile | None = None
    input: Any = None
    below: Sequence[str] = ()


@dataclass
class Turns:
    """The answers of the game that is played."""

    left: Iterator[Any] = field(default_factory=lambda: iter(()))

    def __call__(self, _: Any) -> Any:
        return next(self.left, DONE)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it holds, or can be found out at all: runs can only be looked at."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(RPCError, WorkflowQueryFailedError, PerdureError):  # it may not be there yet
                if await condition():
                    return
            await asyncio.sleep(0.05)


async def play(
    to: Recorder, kind: str, games: Sequence[Game], children: Sequence[dict[str, Any]] = (), **more: Any
) -> None:
    """Run these one after the other, however they end, and write down each as a history of one kind."""
    turns = Turns()
    ids: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for child in children:
            (Path(folder) / f"{child['name']}.json").write_text(json.dumps(child), encoding="utf-8")
        tools, options = [*TOOLS, *more.pop("tools", ())], {"sandboxed": False, "agents": Path(folder), **more}
        async with harness(to.client, tools, turns, named=[NAMED], **options) as it:
            for number, game in enumerate(games):
                turns.left = iter(game.turns)
                handle = await it.start(game.document, game.input, run_id=f"{kind}-{number}")
                if game.meanwhile is not None:
                    await game.meanwhile(it, handle)
                with contextlib.suppress(WorkflowFailureError):
                    await asyncio.wait_for(handle.result(), 60)
                ids += [handle.id, *(f"{handle.id}{'' if name[0] == '.' else '/'}{name}" for name in game.below)]
            await to.keep(to.client, kind, ids)


def when_begun(do: Callable[[Harness, AgentHandle], Awaitable[None]], *running: str, below: str = "") -> Meanwhile:
    """Do it once these calls of the run, or of one below it, run."""

    async def meanwhile(it: Harness, handle: AgentHandle) -> None:
        async def begun() -> bool:
            view = await it.view(f"{handle.id}{below}")
            return {call.id for call in view.calls if call.status == "running"} >= set(running)

        await until(begun)
        await do(it, handle)

    return meanwhile


async def cancel(_: Harness, handle: AgentHandle) -> None:
    await handle.cancel()


async def is_there(handle: WorkflowHandle[Any, Any]) -> bool:
    """Whether the workflow was started; raises `RPCError` where not."""
    await handle.describe()
    return True


async def is_waiting(session: Session) -> bool:
    """Whether the session's run waits for a worker to have room."""
    return bool((await session.handle.describe()).raw_description.pending_activities)


async def record_refusals(to: Recorder) -> None:
    """Runs that are refused at their start, and what anybody sends them that is none of theirs."""
    ids: list[str] = []
    document = agent("look")
    async with harness(to.client, TOOLS, [DONE] * 9, sandboxed=False) as it:

        async def start(*args: Any, **more: Any) -> None:
            id = f"refused-{len(ids)}"
            handle = await it.client.start_workflow(
                AGENT_WORKFLOW,
                args=args,
                id=id,
                task_queue=it.task_queue,
                execution_timeout=timedelta(minutes=1),
                **more,
            )
            ids.append(id)
            with contextlib.suppress(WorkflowFailureError):
                await handle.result()

        await start()
        await start({"agent": 1})
        await start({"agent": {"name": 1}})
        await start({"agent": document, "asks": True})
        await start({"agent": document, "delegates": "none"})
        await start(b"\x00\xff")
        await start({"agent": document, "prompt": {"workspace": 1}})
        for number, said in enumerate(
            [[{"id": "m", "text": "hello"}], [{"id": 1}], [], [{"id": "m", "text": "hello"}] * 2]
        ):
            await start({"agent": document}, start_signal="steer", start_signal_args=said) if number else None
        await to.keep(to.client, "refused", ids)


async def record_ends(to: Recorder) -> None:
    """How runs end that get no further: by their model, their limits, or the program that started them."""
    slow = Turn("slow down", status=429, headers={"retry-after": "5.5"})
    away = Turn("no such key", status=401)
    small = {"fast": "small", "smart": "small", "fallback": ["large"]}
    look_at = calls({"_tool": "look", "path": "/a"})
    number = {"type": "integer"}
    ext = {"name": "ext", "_activity": "perdure.client", "description": "Is carried out elsewhere."}
    many = calls(*({"_tool": "look", "path": f"/{n}", "_outputPath": f"†state.s{n}"} for n in range(6)))
    games = [
        Game(agent("look"), [away]),
        Game(agent("look"), [Turn(refusal="I will not")] * 3),
        Game(agent("look"), [Turn("This model's maximum context length is 8192 tokens.", status=400), DONE]),
        Game(agent("look", config={"models": small}), [slow, slow, DONE]),
        Game(agent("look", config={"model_patience": 0}), [slow] * 9),
        Game(agent("look", config={"models": {"fast": "s", "smart": "s", "policy": f"{NAMED}:no_model"}}), []),
        Game(agent("look", config={"refine": True}), [look_at, {"output": "draft"}, away]),
        Game(agent("look", config={"refine": True, "token_budget": 10}), [look_at, {"output": "draft"}, DONE]),
        Game(agent("look", config={"token_budget": 10}, schema=number), [look_at, {"calls": [], "output": "text"}]),
        Game(agent("look"), [Turn(many, fault=Fault("cut", 150)), away, away]),
        Game(agent(ext, config={"client_timeout": 1}), [calls({"_tool": "ext"}), DONE]),
        Game(agent("look", config={"max_requests": 1}), [look_at, {"calls": [], "output": None}]),
    ]
    await play(to, "ends", games)


async def steers(_: Harness, handle: AgentHandle) -> None:
    """Send the run a message."""
    await handle.signal("steer", {"id": "m1", "text": "hurry", "sender": "ann"})


def releasing(open: asyncio.Event) -> Meanwhile:
    """A message while a call runs; the call ends when the other is held no more."""

    async def meanwhile(it: Harness, handle: AgentHandle) -> None:
        await steers(it, handle)

        async def skipped() -> bool:
            return "skipped" in {call.status for call in (await it.view(handle.id)).calls}

        await until(skipped)
        open.set()

    return meanwhile


async def record_calls(to: Recorder) -> None:
    """Calls that fail: of the engine's tools, of workers, and of what a Temporal user has already."""
    opens = [asyncio.Event() for _ in range(3)]
    claimed = asyncio.Event()
    begun = asyncio.Event()

    @tool(safe=True, timeout=60)
    async def hold(number: int) -> str:
        """Wait until it may go on."""
        await opens[number].wait()
        return "held"

    @tool(exclusive=True, dangerous=True, timeout=60)
    async def alone(name: str) -> str:
        """Run alone."""
        begun.set()
        await opens[2].wait()
        return name

    @tool(timeout=60)
    async def report(name: str) -> str:
        """Report once it may."""
        await claimed.wait()
        return name

    async def one_after_the_other(it: Harness, handle: AgentHandle) -> None:
        await it.until_waiting(handle.id, "1.0", "1.1")
        await handle.execute_update(DECIDE, {"call": "1.0", "decision": "approve"})
        await asyncio.wait_for(begun.wait(), 60)
        await handle.execute_update(DECIDE, {"call": "1.1", "decision": "approve"})
        opens[2].set()

    async def claims(_: Harness, handle: AgentHandle) -> None:
        """Claims as large results make them, of activities that are lost before they return them."""
        for call in ("1.0", "1.1"):
            await handle.signal(CLAIM, SpaceClaim(call_id=call, size=900_000))

        async def fired() -> bool:
            return "EVENT_TYPE_TIMER_FIRED" in (await handle.fetch_history()).to_json()

        await until(fired)
        claimed.set()

    elsewhere = {"name": "elsewhere", "_taskQueue": "nobody", "_queueTimeout": 1, "description": "Is nowhere."}
    sleeps = [{"_tool": "sleep_until", "time": when} for when in ("tomorrow", "2020-01-01T00:00:00")]
    fails = [*sleeps, {"_tool": "late"}, {"_tool": "elsewhere"}]
    large = {"_tool": "measure", "text": {"_expr": "'x' * 1950000"}}
    held: list[dict[str, Any]] = [{"_tool": "hold", "number": 0}, {"_tool": "remove", "path": "/a"}]
    reports = [{"_tool": "report", "name": name} for name in "ab"]
    games = [
        Game(agent("sleep_until", "late", elsewhere), [calls(*fails), DONE]),
        Game(agent("measure"), [calls(large), DONE]),
        Game(
            agent("hold", "remove", config={"token_budget": 10}),
            [calls(*held), DONE],
            when_begun(releasing(opens[0]), "1.0"),
        ),
        Game(
            agent("hold", "remove", config={"deadline": 3}),
            [calls({"_tool": "hold", "number": 1}, held[1]), Turn(DONE, gate=asyncio.Event()), DONE],
            when_begun(steers, "1.0"),
        ),
        Game(
            agent("alone"),
            [calls({"_tool": "alone", "name": "a"}, {"_tool": "alone", "name": "b"}), DONE],
            one_after_the_other,
        ),
    ]
    await play(to, "calls", games, tools=[hold, alone])
    turns = [Game(agent("report"), [calls(*reports), DONE], when_begun(claims, "1.0", "1.1"))]
    await play(to, "turns", turns, tools=[report])
    failing = plan(
        {"_tool": "charge", "euros": 1, "account": "closed", "_outputPath": "†state.a"},
        {"_tool": "deliver", "number": 13, "_outputPath": "†state.c"},
        {"_tool": "deliver", "number": 14, "_outputPath": "†state.t"},
        {"_tool": "left", "fruit": "none", "_outputPath": "†state.d"},
        {"_tool": "scan", "how": "bytes", "_outputPath": "†state.s"},
    )
    waits = plan({"_tool": "deliver", "number": 15, "wait": True, "_outputPath": "†state.c"})
    ends = plan(
        {"_tool": "deliver", "number": 16, "wait": True, "_outputPath": "†state.c"},
        {"_tool": "deliver", "number": 17, "wait": True, "_outputPath": "†state.d"},
    )
    async with shop(to.server, failing, DONE, ends, DONE, waits) as (perdure, client):
        run = await perdure.start(KEEPER, id="existing-fails-0", approval={"ask": "never"})
        async for view in run.views():
            for offer in view.waiting:
                await run.approve(offer)
        run = await perdure.start(KEEPER, id="existing-fails-1", approval={"ask": "never"})
        for number, end in ((16, "cancel"), (17, "terminate")):
            child = client.get_workflow_handle(f"delivery-{number}")
            await until(partial(is_there, child))
            await getattr(child, end)()
        await run.wait()
        run = await perdure.start(KEEPER, id="existing-fails-2", approval={"ask": "never"})
        await until(partial(is_there, client.get_workflow_handle("delivery-15")))
        await run.cancel()
        await run.wait()
        await to.keep(client, "existing-fails", [f"existing-fails-{n}" for n in range(3)])
    await shut_down(to)


async def shut_down(to: Recorder) -> None:
    """Workers that are shut down while they wait for the model, and while a call runs that may not be tried again."""
    begun = asyncio.Event()

    @tool(retries=0, timeout=60)
    async def once() -> None:
        """Is not tried again."""
        begun.set()
        await asyncio.Event().wait()

    gate = asyncio.Event()
    script = [Turn(DONE, gate=gate), calls({"_tool": "once", "_outputPath": "†state.a || †state.b"}), DONE, DONE]
    async with ScriptedModel(script, strict=False) as model:
        asked = AsyncOpenAI(base_url=model.base_url, api_key="scripted", max_retries=0, timeout=30)
        queue = f"shut-down-{uuid.uuid4().hex[:8]}"
        it = Harness(to.client, model, queue)

        def worker() -> Any:
            return build_worker(to.client, registry([once]), task_queue=queue, model=asked, grace=0.2)

        async with worker():
            handle = await it.start(agent("once"), run_id="shut-down")
            await model.wait_for_request(1)
        async with worker():
            await asyncio.wait_for(begun.wait(), 60)
        async with worker():
            await asyncio.wait_for(handle.result(), 60)
    await to.keep(to.client, "shut-down", ["shut-down"])


async def record_delegates(to: Recorder) -> None:
    """Delegates and loops that fail, are cancelled, terminated or too late, that are told of changes, and that share a budget."""
    fails = agent("look", name="fails", config={"max_requests": 1}, schema={"type": "integer"})
    slow = agent("linger", name="slow")
    ends = agent("linger", name="ends", config={"deadline": 1})
    asks = agent("remove", name="asks")
    again = {"name": "again", "_delegate": "deep"}
    deep = agent(again, name="deep")
    wide = agent(name="wide")
    children = [fails, slow, ends, asks, deep, wide]
    tools = {name: {"name": name, "_delegate": name} for name in ("fails", "slow", "ends", "asks", "wide")}
    brief = {"name": "brief", "_delegate": "slow", "_timeout": 1}
    lingers = calls({"_tool": "linger"})
    wrong = {"calls": [], "output": "no number"}
    removes = calls({"_tool": "remove", "path": "/a"})

    async def terminates(it: Harness, handle: AgentHandle) -> None:
        await it.client.get_workflow_handle(f"{handle.id}/1.0").terminate()

    async def changes(it: Harness, handle: AgentHandle) -> None:
        await it.until_waiting(f"{handle.id}/1.0", "1.0")
        await handle.signal(POLICY, {"ask": "never"})

    async def changes_loop(it: Harness, handle: AgentHandle) -> None:
        await it.until_waiting(f"{handle.id}/1.0/0", "1.0")
        loop = it.client.get_workflow_handle(f"{handle.id}/1.0")
        await loop.signal(POLICY, {"ask": 1})
        await handle.signal(POLICY, {"ask": "never"})

    each: dict[str, Any] = {"_each": [1, 2], "_outputPath": "†state.all"}
    until = {"_until": "†output.done", "_outputPath": "†state.last"}

    def output(size: int) -> dict[str, Any]:
        return {"calls": [], "output": {"text": {"_expr": f"'y' * {size}"}}}

    two = [{"_tool": "fails", "_outputPath": f"†state.c{n}"} for n in range(3)]
    games = [
        Game(agent(tools["fails"]), [calls({"_tool": "fails"}), wrong, wrong, DONE], below=["1.0"]),
        Game(
            agent(tools["slow"]), [calls({"_tool": "slow"}), lingers, DONE], when_begun(terminates, "1.0", below="/1.0")
        ),
        Game(agent(brief), [calls({"_tool": "brief"}), lingers, DONE]),
        Game(
            agent(tools["slow"]),
            [calls({"_tool": "slow"}), lingers],
            when_begun(cancel, "1.0", below="/1.0"),
            below=["1.0"],
        ),
        Game(agent(tools["ends"]), [calls({"_tool": "ends"}), lingers, DONE, DONE], below=["1.0"]),
        Game(agent(tools["asks"]), [calls({"_tool": "asks"}), removes, DONE, DONE], changes, below=["1.0"]),
        Game(
            agent(tools["asks"]),
            [calls({"_tool": "asks", **each, "_parallel": 1}), removes, DONE, removes, DONE, DONE],
            changes_loop,
            below=["1.0"],
        ),
        Game(agent(again), [calls({"_tool": "again"})] * 6 + [DONE] * 7, below=["1.0/1.0/1.0/1.0/1.0"]),
        Game(agent(tools["fails"]), [calls({"_tool": "fails", **each}), wrong, wrong, wrong, DONE], below=["1.0"]),
        Game(agent(tools["fails"]), [calls({"_tool": "fails", **until}), wrong, wrong, DONE], below=["1.0"]),
        Game(
            agent(tools["slow"]),
            [calls({"_tool": "slow", **each}), lingers, lingers],
            when_begun(cancel, "1.0", below="/1.0/0"),
            below=["1.0"],
        ),
        Game(agent(tools["wide"]), [calls({"_tool": "wide"}), output(257_000), DONE], below=["1.0"]),
        Game(agent(tools["wide"]), [calls({"_tool": "wide"}), output(1_950_000), DONE], below=["1.0"]),
        Game(agent(tools["wide"]), [calls({"_tool": "wide", "text": {"_expr": "'x' * 1950000"}}), DONE]),
        Game(agent(tools["fails"], config={"token_budget": 2_000}), [calls(*two), *[wrong] * 8]),
        Game(
            agent(tools["fails"], config={"token_budget": 3_000}),
            [calls({"_tool": "fails", **each, "_parallel": 1}), *[wrong] * 8],
            below=["1.0"],
        ),
    ]
    await play(to, "delegates", games, children)


async def replaced(it: Harness, handle: WorkflowHandle[Any, Any], below: str) -> None:
    """Reset a workflow to its start, and wait until it has started the run below it anew."""
    await it.until_waiting(below, "1.0")
    left = (await it.client.get_workflow_handle(below).describe()).run_id
    await reset_to_start(it.client, handle)

    async def is_new() -> bool:
        return (await it.client.get_workflow_handle(below).describe()).run_id != left

    await until(is_new)
    await it.until_waiting(below, "1.0")


async def reset_to_start(client: Client, handle: WorkflowHandle[Any, Any], *, messages: bool = True) -> None:
    """Reset a workflow to its first task. Without `messages` the server brings none of before again."""
    await reset_to_task(client, handle, 0, messages=messages)


async def reset_to_task(
    client: Client, handle: WorkflowHandle[Any, Any], number: int, *, messages: bool = True
) -> None:
    """Reset a workflow to one of its tasks that have completed: 0 is the first, -1 the last."""
    execution = (await handle.describe()).run_id  # it may continue as new before the reset arrives
    events = (await client.get_workflow_handle(handle.id, run_id=execution).fetch_history()).events
    tasks = [each for each in events if each.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED]
    await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=handle.id, run_id=execution),
            reason="recorded",
            workflow_task_finish_event_id=tasks[number].event_id,
            request_id=uuid.uuid4().hex,
            reset_reapply_exclude_types=[] if messages else [ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_UPDATE],
        )
    )


async def record_abandoned(to: Recorder) -> None:
    """A run and a session that are reset to before they started a run, and do not start it anew: it is cancelled."""
    removes, asks = calls({"_tool": "remove", "path": "/a"}), agent("remove", name="asks")

    async def is_cancelled(it: Harness, workflow_id: str, execution: str) -> bool:
        described = await it.client.get_workflow_handle(workflow_id, run_id=execution).describe()
        return described.status is WorkflowExecutionStatus.CANCELED

    async def leaves(it: Harness, handle: WorkflowHandle[Any, Any], below: str, *, messages: bool = True) -> None:
        await it.until_waiting(below, "1.0")
        left = (await it.client.get_workflow_handle(below).describe()).run_id
        await reset_to_start(it.client, handle, messages=messages)
        await until(partial(is_cancelled, it, below, left))

    async def run_leaves(it: Harness, handle: AgentHandle) -> None:
        await leaves(it, handle, f"{handle.id}/1.0")
        await it.client.get_workflow_handle(handle.id).result()

    turns = [calls({"_tool": "asks"}), removes, DONE]
    await play(to, "abandoned", [Game(agent({"name": "asks", "_delegate": "asks"}), turns, run_leaves)], [asks])
    async with to.conversation("session-abandoned", [removes, DONE], asks, [remove]) as (session, it):
        receipt = await session.send("remove it", id="1", **EVERYBODY)
        await leaves(it, session.handle, str(receipt.run_id), messages=False)
        await session.send("hello", id="2", **EVERYBODY)
        await session.wait("2", 60)
        await idles(session)


async def record_resets(to: Recorder) -> None:
    """A run and a session that are reset to before they started a run which is still open."""
    removes = calls({"_tool": "remove", "path": "/a"})
    asks = agent("remove", name="asks")

    async def again(it: Harness, handle: AgentHandle) -> None:
        below = f"{handle.id}/1.0"
        await replaced(it, handle, below)
        await Perdure(it.client).get_run(below).approve("1.0")
        await it.client.get_workflow_handle(handle.id).result()

    pays = calls({"_tool": "asks"})
    turns = [pays, removes, pays, removes, DONE, DONE]
    await play(to, "resets", [Game(agent({"name": "asks", "_delegate": "asks"}), turns, again)], [asks])
    script = [removes, removes, DONE]
    async with to.conversation("session-reset", script, asks, [remove]) as (session, it):
        receipt = await session.send("remove it", id="1", **EVERYBODY)
        assert receipt.run_id is not None
        await replaced(it, session.handle, receipt.run_id)
        await session.decide({"call": "1.0", "decision": "approve"}, **EVERYBODY)
        await session.wait("1", 60)
        await idles(session)


async def record_left_behind(to: Recorder) -> None:
    """A session whose run is reset while a loop below it waits and has lost an iteration; a user's workflow that is open at a reset."""
    each, removes = calls({"_tool": "asks", "_each": [1, 2]}), calls({"_tool": "remove", "path": "/a"})
    script = [each, removes, removes, each, removes, removes, DONE, DONE, DONE]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "asks.json").write_text(json.dumps(agent("remove", name="asks")), encoding="utf-8")
        desk = agent({"name": "asks", "_delegate": "asks"}, name="desk")
        async with to.conversation("session-left", script, desk, [remove], most=6, agents=Path(folder)) as (
            session,
            it,
        ):
            receipt = await session.send("remove it", id="1", **EVERYBODY)
            below = [f"{receipt.run_id}/1.0/{number}" for number in range(2)]
            for run_id in below:
                await it.until_waiting(run_id, "1.0")
            await it.client.get_workflow_handle(below[0]).terminate()
            await replaced(it, it.client.get_workflow_handle(str(receipt.run_id)), below[1])
            for run_id in below:
                await it.until_waiting(run_id, "1.0")
                await Perdure(it.client).get_run(run_id).approve("1.0")
            await session.wait("1", 60)
            await idles(session)
    waits = plan({"_tool": "deliver", "number": 20, "wait": True, "_outputPath": "†state.c"})
    brings = plan({"_tool": "deliver", "number": 20, "_outputPath": "†state.c"}, output="†state.c")
    async with shop(to.server, waits, brings) as (perdure, client):
        run = await perdure.start(KEEPER, id="existing-reset")
        await until(partial(is_there, client.get_workflow_handle("delivery-20")))
        await reset_to_start(client, run.handle)
        await run.result()
        await to.keep(client, "existing-reset", ["existing-reset"])


async def record_left_loops(to: Recorder) -> None:
    """A loop that is reset itself, and a long loop of a plain tool that a reset has left behind, are ended with their iterations."""
    removes, asks = calls({"_tool": "remove", "path": "/a"}), agent("remove", name="asks")

    async def ended(it: Harness, workflow_id: str, execution: str) -> bool:
        described = await it.client.get_workflow_handle(workflow_id, run_id=execution).describe()
        return described.status is WorkflowExecutionStatus.CANCELED

    async def execution_of(it: Harness, workflow_id: str) -> str:
        return (await it.client.get_workflow_handle(workflow_id).describe()).run_id

    async def loop_is_reset(it: Harness, handle: AgentHandle) -> None:
        first, second = (f"{handle.id}/1.0/{number}" for number in range(2))
        await it.until_waiting(first, "1.0")
        await Perdure(it.client).get_run(first).approve("1.0")
        await it.until_waiting(second, "1.0")
        left = await execution_of(it, second)
        await reset_to_start(it.client, it.client.get_workflow_handle(f"{handle.id}/1.0"))
        await until(partial(ended, it, second, left))
        for run_id in (first, second):
            await it.until_waiting(run_id, "1.0")
            await Perdure(it.client).get_run(run_id).approve("1.0")

    async def run_is_reset(it: Harness, handle: AgentHandle) -> None:
        loop = it.client.get_workflow_handle(f"{handle.id}/1.0")
        await until(partial(is_there, loop))
        left = await execution_of(it, loop.id)
        await reset_to_start(it.client, handle)
        await until(partial(ended, it, loop.id, left))
        await it.client.get_workflow_handle(handle.id).result()

    each = calls({"_tool": "asks", "_each": [1, 2], "_parallel": 1})
    long = calls({"_tool": "remove", "path": "†item", "_each": [f"/{n}" for n in range(101)]})
    games = [
        Game(
            agent({"name": "asks", "_delegate": "asks"}),
            [each, removes, DONE, removes, removes, DONE, removes, DONE, DONE],
            loop_is_reset,
            below=["1.0"],
        ),
        Game(agent("remove"), [long, DONE], run_is_reset),
    ]
    await play(to, "left-loops", games, [asks])


async def record_approvals(to: Recorder) -> None:
    """Programs that do not decide, what is remembered, every way that a decision comes, and what is none."""
    removes = calls({"_tool": "remove", "path": "/a"}, {"_tool": "remove", "path": "/b"})
    large = calls({"_tool": "remove", "path": {"_expr": "'x' * 17000"}})

    def program(name: str) -> dict[str, Any]:
        return {"approval": {"approver": f"{NAMED}:{name}"}}

    async def decides(it: Harness, handle: AgentHandle) -> None:
        await it.until_waiting(handle.id, *(f"1.{n}" for n in range(5)))
        for signal, said in (
            ("approve", []),
            ("policy", [{"ask": 1}]),
            ("policy", []),
            (CLAIM, [1]),
            ("calls", [{"number": "one"}]),
            ("edit", [{"call": "1.0", "params": {"path": "/e"}}]),
            ("replace", [{"call": "1.1", "with": {"_tool": "ask_person", "question": "Which?"}}]),
            ("policy", [{"timeout": 3_600}]),
        ):
            await handle.signal(signal, args=said)
        for change in ({"timeout": 7_200}, {"ask": 1}):
            with contextlib.suppress(WorkflowUpdateFailedError):
                await handle.execute_update(POLICY, change)
        await it.until_waiting(handle.id, "1.1", "1.2", "1.3", "1.4")
        await handle.signal("answer", {"call": "1.1", "answer": "that one"})
        await handle.signal(DECIDE, {"call": "1.2", "decision": "approve"})
        await handle.signal("approve", {"call": "1.3", "remember": True})
        with contextlib.suppress(WorkflowUpdateFailedError):
            await handle.execute_update(DECIDE, {"call": "9.9", "decision": "approve"})
        with contextlib.suppress(WorkflowUpdateFailedError):
            await handle.execute_update(DECIDE, {"call": "1.4", "decision": "approve"})

    async def approves(it: Harness, handle: AgentHandle) -> None:
        await it.until_waiting(handle.id, "1.0", "1.1")
        for call in ("1.0", "1.1"):
            await handle.signal("approve", {"call": call})

    five = calls(*({"_tool": "remove", "path": f"/{n}"} for n in range(5)))
    games = [
        Game(agent("remove", config=program("approver_fails")), [removes, DONE], approves),
        Game(agent("remove", config=program("approver_allows")), [large, DONE]),
        Game(agent("remove", config=program("approver_waits")), [removes], when_asked),
        Game(agent("remove", "ask_person"), [five, DONE], decides),
    ]
    await play(to, "approvals", games)


async def record_quorum(to: Recorder) -> None:
    """A call that two people approve, after one of them has changed it, and one that a third rejects."""
    both = calls({"_tool": "remove", "path": "/a"}, {"_tool": "remove", "path": "/b"})

    async def decides(it: Harness, handle: AgentHandle) -> None:
        await it.until_waiting(handle.id, "1.0", "1.1")
        await handle.execute_update(DECIDE, {"call": "1.0", "decision": "approve", "by": "bob"})
        await handle.execute_update(DECIDE, {"call": "1.0", "decision": "edit", "by": "cleo", "params": {"path": "/c"}})
        with contextlib.suppress(WorkflowUpdateFailedError):
            await handle.execute_update(POLICY, {"tools": {"remove": "never"}})
        await handle.signal("approve", {"call": "1.1", "by": "bob"})
        await handle.signal("reject", {"call": "1.1", "by": "dan"})
        await handle.signal("approve", {"call": "1.0", "by": "bob"})

    policy = {"approval": {"tools": {"remove": {"by": 2, "not": "requester"}}}}
    await play(to, "quorum", [Game(agent("remove", config=policy), [both, DONE], decides)])


async def record_forks(to: Recorder) -> None:
    """A run with a decision, and forks of it: one whose call is edited, one with a changed result, and one of its plan."""
    looks = {"_tool": "look", "path": "/a", "_outputPath": "†state.a"}
    first = calls(looks, {"_tool": "remove", "path": "†state.a.path"})
    script = [first, calls({"_tool": "look", "path": "/b"}), DONE]
    async with harness(to.client, to.tools, [*script, DONE, DONE, DONE], sandboxed=False) as it:
        handle = await it.start(agent("look", "remove"), run_id="forked")
        await it.until_waiting(handle.id, "1.1")
        await handle.execute_update(DECIDE, {"call": "1.1", "decision": "approve", "by": "bob"})
        await handle.result()
        ids = [handle.id]
        changes: tuple[dict[str, Any], ...] = ({"edits": {"2.0": {"path": "/c"}}}, {"results": {"2.0": {"path": "/d"}}})
        for number, how in enumerate(changes, 2):
            fork = await fork_run(it.client, "forked", "3", id=f"forked-{number}", **how)
            await fork.result()
            ids.append(fork.id)
        fork = await fork_run(it.client, "forked", "2", id="forked-4", edits={"1.1": {"path": "/e"}})
        await it.until_waiting(fork.id, "1.1")
        await fork.execute_update(DECIDE, {"call": "1.1", "decision": "approve", "by": "bob"})
        await fork.result()
        await to.keep(to.client, "forked", [*ids, fork.id])


async def record_uncached(to: Recorder) -> None:
    """A run of a worker that keeps no workflow in memory: no local activity prepares it."""
    await play(
        to, "uncached", [Game(agent("look"), [calls({"_tool": "look", "path": "/a"}), DONE])], cached_workflows=0
    )


async def record_rules(to: Recorder) -> None:
    """A call that the tenant's ledger grants, and one that it refuses; a run with a rule that is reset after a call."""
    first, second = calls({"_tool": "remove", "path": "/a"}), calls({"_tool": "remove", "path": "/b"})
    daily: dict[str, Any] = {"rule": "count_at_most", "of": "remove", "count": 1, "per": "tenant/day"}
    sooner: dict[str, Any] = {"rule": "count_at_most", "of": "remove", "count": 1}
    asks: dict[str, Any] = {"ask": "never", "tools": {"remove": {"when": {"properties": {"path": {"const": "/b"}}}}}}

    async def again(it: Harness, handle: AgentHandle) -> None:
        await it.until_waiting(handle.id, "2.0")
        await reset_to_start(it.client, handle)
        await it.client.get_workflow_handle(handle.id).result()

    loose = {**sooner, "otherwise": "ask"}
    games = [
        Game(agent("remove", config={"approval": {"ask": "never"}, "rules": [daily]}), [first, second, DONE]),
        Game(agent("remove", config={"approval": asks, "rules": [loose]}), [first, second, DONE, DONE], again),
    ]
    await play(to, "rules", games)
    await to.keep(to.client, "ledger", [ledger_id("")])


async def record_undo(to: Recorder) -> None:
    """A run whose model undoes a call, one that fails and undoes what it has done, and the undo runs; one waits for approval."""
    wish = calls({"_tool": "undo", "calls": ["1.0"], "_outputPath": "†state.u"})
    asks = {"approval": {"tools": {"vacate": "always"}}}

    async def approves(it: Harness, handle: AgentHandle) -> None:
        undo = it.client.get_workflow_handle(f"{handle.id}.undo-1")
        for call in ("0.0", "0.1"):
            await it.until_waiting(undo.id, call)
            await undo.signal("approve", {"call": call, "by": "bob"})

    taken = calls({"_tool": "occupy", "room": "r1"}, {"_tool": "occupy", "room": "r2", "_after": ["1.0"]})
    fails = {"on_failure": "undo", "max_requests": 1}
    await play(
        to,
        "undone",
        [
            Game(agent("occupy", "undo", config=asks), [taken, wish, DONE], approves, below=(".undo-1",)),
            Game(agent("occupy", config=fails), [taken, taken], below=(".undo-1",)),
        ],
        tools=[occupy, vacate],
    )


async def record_undo_below(to: Recorder) -> None:
    """A run with a delegate whose undo goes down into the delegate's run; one whose undo fails, and one with nothing to undo."""
    once = {"_tool": "occupy", "room": "r1", "_outputPath": "†state.out"}
    plan = {"type": "plan", "plan": [once], "output": "†state.out"}
    child = agent("occupy", name="child", config={"start": "plan"}, context=[plan])
    boss, wish = {"name": "child", "_delegate": "child"}, calls({"_tool": "undo", "_outputPath": "†state.u"})
    asks = {"approval": {"tools": {"vacate": "always"}}}
    below = (".undo-1", "1.0", "1.0.undo-1")

    async def rejects(it: Harness, handle: AgentHandle) -> None:
        undo = f"{handle.id}.undo-1"
        await it.until_waiting(undo, "0.0")
        await it.client.get_workflow_handle(undo).signal("reject", {"call": "0.0", "by": "bob"})

    await play(
        to,
        "undone-below",
        [
            Game(agent(boss, "undo"), [calls({"_tool": "child"}), wish, DONE], below=below),
            Game(agent("occupy", "undo", config=asks), [calls(once), wish, DONE], rejects, below=(".undo-1",)),
            Game(agent("look", "undo"), [wish, DONE]),
        ],
        [child],
        tools=[occupy, vacate],
    )


async def record_budgets(to: Recorder) -> None:
    """A run that spends a budget which runs share, and one that finds it spent."""
    first = calls({"_tool": "look", "path": "/a"})
    budgets = [{"of": "agent", "unit": "tokens", "sum": 3000, "per": "month", "names": ["spender"]}]
    spender = {**agent("look"), "name": "spender"}
    turns = [Turn(first, usage=(900, 100)), Turn(first, usage=(900, 100)), Turn(DONE, usage=(1900, 100))]
    await play(to, "budgets", [Game(spender, turns), Game(spender)], budgets=budgets)


async def record_server_input(to: Recorder) -> None:
    """Calls whose server asks first: a person, who answers or declines, a model that answers, and one that fails."""

    @tool
    async def book(about: str) -> str:
        """Ask as the tool of an MCP server does."""
        answers = ANSWERS.get()
        if not answers.answers:
            form = {"type": "object", "properties": {"sure": {"type": "boolean"}}}
            question = ServerQuestion(server="x", key="sure", message="Sure?", form=form)
            sample = SampleRequest(key="text", messages=[{"role": "user", "content": about}], max_tokens=10)
            asked = {"questions": [question]} if about.startswith("person") else {"samples": [sample]}
            raise ServerInputError(ServerInput(server="x", state="s", **asked))
        return json.dumps(answers.answers, sort_keys=True)

    async def decides(it: Harness, handle: AgentHandle) -> None:
        await it.until_waiting(handle.id, "1.0", "1.1")
        await handle.execute_update(DECIDE, {"call": "1.0", "decision": "answer", "answer": "yes"})
        await handle.signal("reject", {"call": "1.1"})

    people = calls(*({"_tool": "book", "about": f"person {n}"} for n in range(2)))
    model, broken = calls({"_tool": "book", "about": "model"}), Turn("no such key", status=401)
    games = [
        Game(agent("book"), [people, DONE], decides),
        Game(agent("book"), [model, Turn("Yes.", dialect="tools"), DONE]),
    ]
    await play(to, "server-input", [*games, Game(agent("book"), [model, broken, DONE])], tools=[book])


async def record_audit(to: Recorder) -> None:
    """A run whose decisions go to an audit log, and the log, which is written to a file."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "audit.jsonl"
        script = [calls({"_tool": "remove", "path": "/a"}), DONE]
        async with harness(to.client, to.tools, script, sandboxed=False, audit=f"file:{log}") as it:
            handle = await it.start(agent("remove"), run_id="audited")
            await it.until_waiting(handle.id, "1.0")
            await handle.execute_update(DECIDE, {"call": "1.0", "decision": "approve", "by": "bob"})
            await handle.result()

            async def is_written() -> bool:
                history = await it.client.get_workflow_handle(audit_id(it.task_queue)).fetch_history()
                return any(event.HasField("activity_task_completed_event_attributes") for event in history.events)

            await until(is_written)
            await to.keep(to.client, "audited", [handle.id])
            await to.keep(to.client, "audit", [audit_id(it.task_queue)])


async def record_standing(to: Recorder) -> None:
    """Runs of a procedure under a standing approval: one that it covers with its loop of 102 items, and one after it was revoked; and the ledger."""
    item = {"_tool": "remove", "_each": [f"/{number}" for number in range(102)], "path": "†item"}
    items = agent(
        "remove",
        name="tidy",
        config={"start": "plan"},
        context=[{"type": "plan", "plan": [{"_tool": "remove", "path": "/a"}, item], "output": "tidy"}],
        metadata={"procedure": {"version": 1}},
    )
    with tempfile.TemporaryDirectory() as folder:
        log = f"file:{Path(folder) / 'audit.jsonl'}"
        async with harness(to.client, to.tools, [], sandboxed=False, audit=log) as it:
            perdure, tidy = Perdure(to.client, task_queue=it.task_queue), Agent.of(items)
            await perdure.grant_standing_approval(tidy, uses=1, until="2999-12-31", by="ann", tenant="standing")
            await (await perdure.start(tidy, id="standing-0", tenant="standing")).wait()
            await perdure.revoke_standing_approval("tidy", by="ann", tenant="standing")
            left = await perdure.start(tidy, id="standing-1", tenant="standing")
            await it.until_waiting(left.id, "0.0")
            await left.cancel()
            await left.wait()
            await to.keep(to.client, "standing", ["standing-0", "standing-0/0.1", "standing-0/0.1/1", "standing-1"])
            await to.keep(to.client, "standing-ledger", [ledger_id("standing")])


async def record_evaluations(to: Recorder) -> None:
    """Evaluations: one that continues as new, with a run that times out; one without its evaluators; and scores of runs, of which one is too many."""

    def answer(request: ChatRequest) -> Any:
        return calls({"_tool": "remove", "path": "/a"}) if "asks" in request.text and request.number == 1 else DONE

    def plan(name: str, *cases: EvaluationCase, **more: Any) -> EvaluationInput:
        return EvaluationInput(
            plan=EvaluationPlan(id=name, name="cases", agent=agent("remove"), cases=[*cases], **more)
        )

    few = [EvaluationCase(name=str(n), inputs="0", has_input=True, evaluators=[{"MaxTokens": 9}]) for n in range(12)]
    waits = EvaluationCase(name="asks", inputs="asks", has_input=True)
    async with harness(to.impatient, to.tools, answer, sandboxed=False) as it:
        for name, wanted in (
            ("evaluated", plan("evaluated", waits, *few, parallel=3, decide="wait", timeout=3)),
            ("evaluated-badly", plan("evaluated-badly", EvaluationCase(name="0", evaluators=["Nobody"]))),
        ):
            handle = await it.client.start_workflow(EVALUATION_WORKFLOW, wanted, id=name, task_queue=it.task_queue)
            with contextlib.suppress(WorkflowFailureError):
                await handle.result()
        await to.write(it.client, "evaluated")
        await to.keep(it.client, "evaluated-badly", ["evaluated-badly"])
        await to.keep(it.client, "evaluated-runs", [scored_id("evaluated-1"), scored_id("evaluated-2")])
        scored = agent("remove", config={"evaluate": {"evaluators": [{"MaxTokens": 9}], "per_day": 1}})
        for number in (1, 2):
            handle = await it.start(scored, "x", run_id=f"scored-{number}")
            await handle.result()
            await it.client.get_workflow_handle(scored_id(handle.id)).result()
        await to.keep(it.client, "scored", ["scored-1", scored_id("scored-1"), scored_id("scored-2")])


async def when_asked(_: Harness, handle: AgentHandle) -> None:
    """Cancel the run once a program decides on its call."""

    async def decides() -> bool:
        pending = (await handle.describe()).raw_description.pending_activities
        return APPROVE_ACTIVITY in {each.activity_type.name for each in pending}

    await until(decides)
    await handle.cancel()


def run_hooks() -> list[Any]:
    """Hooks of runs that do what a run's input says, and that fail."""

    @hook("before_agent_start")
    def begins(event: BeforeAgentStart) -> BeforeAgentStart | Refused | None:
        if event.input == "refuse":
            return refuse("not today")
        if event.input == "system":
            return event.changed(system="Answer shortly.")
        return event.changed(input="changed") if event.input == "input" else None

    @hook("agent_bootstrap")
    def boots(event: AgentBootstrap) -> AgentBootstrap | Refused | None:
        if event.agent == "bare":
            return refuse("no files, no run")
        return event.changed(files={"EXTRA.md": "Be kind."}) if event.agent == "more" else None

    @hook("after_tool_call")
    def after(event: AfterToolCall) -> AfterToolCall | Refused | None:
        if event.code == "look":
            raise ValueError("a hook that fails")
        if event.code == "fail":
            return event.changed(message="said otherwise")
        return event.changed(result="a moment") if event.code == "sleep_until" else refuse("nobody may read it")

    @hook("agent_end")
    def ends(_: Any) -> None:
        raise ValueError("a hook that fails")

    @hook("tool_result_persist")
    def keeps(event: ToolResultPersist) -> ToolResultPersist | Refused:
        return refuse("not kept") if event.code == "ask_person" else event.changed(result="kept")

    return [begins, boots, after, ends, keeps]


async def record_hooks(to: Recorder) -> None:
    """Hooks of runs that refuse, change and fail, at every point."""
    ask = {"_tool": "ask_person", "question": "Sure?"}
    nap = {"_tool": "sleep_until", "seconds": 0.1}
    made = calls({"_tool": "look", "path": "/a"}, nap, {"_tool": "fail", "code": "no"}, {"_tool": "child"}, ask)

    async def answers(it: Harness, handle: AgentHandle) -> None:
        await it.until_waiting(handle.id, "1.4")
        await handle.signal("answer", {"call": "1.4", "answer": "yes"})

    child = agent(name="child")
    all_tools = agent("look", "sleep_until", "fail", "ask_person", {"name": "child", "_delegate": "child"})
    takes = [{"type": "input"}]
    games = [
        *(Game(agent("look", context=takes), [DONE], input=said) for said in ("refuse", "system", "input", "nothing")),
        Game(agent("look", name="bare"), [DONE]),
        Game(agent("look", name="more"), [DONE]),
        Game(all_tools, [made, DONE, DONE, DONE], answers),
    ]
    await play(to, "hooked", games, [child], tools=run_hooks())


async def record_talks(to: Recorder) -> None:
    """Sessions whose runs are taken back, end early or fail, whose agent and metadata change, and whose hooks refuse."""
    gate = Gate()
    wrong: list[dict[str, Any]] = [{}, {"messageId": "x", "sender": "ann", "text": ""}]
    async with to.conversation("session-ended", gate.answer, HOLD, [gate.tool], most=6, session_runs=1) as (
        session,
        it,
    ):
        handle = session.handle
        await session.wait(await session.send("first", id="0", **EVERYBODY), 60)
        with contextlib.suppress(PerdureError):
            await session.describe({"topic": "shoes"})
        edited = {**HOLD, "context": [*HOLD["context"], {"type": "text", "text": "Be kind."}]}
        other = Perdure(it.client, task_queue=it.task_queue).session("session-ended", agent=Agent.of(edited))
        await other.wait(await other.send("second", id="1", **EVERYBODY), 60)
        await handle.signal("nothing", 1)
        await session.send("hold", id="2", **EVERYBODY)
        await gate.asked.wait()
        with contextlib.suppress(PerdureError):
            await session.decide({"call": "9.9", "decision": "approve"}, **EVERYBODY)
        run = await session.run()
        assert run is not None
        await it.client.get_workflow_handle(run.id).terminate()
        await session.wait("2", 60)
        gate.open.set()
        for said in wrong:
            with contextlib.suppress(WorkflowUpdateFailedError):
                await handle.execute_update("send", said)
        await idles(session)
    await record_waits(to)
    await record_deliveries(to)
    await record_held_back(to)


async def record_waits(to: Recorder) -> None:
    """A session that ends while its run works, and two whose runs are taken back while they wait for it."""
    gate = Gate()
    async with to.conversation("session-deleted", gate.answer, HOLD, [gate.tool], most=3, session_runs=1) as (
        session,
        it,
    ):
        await session.send("hold", id="1", **EVERYBODY)
        await gate.asked.wait()
        for name in ("session-stopped", "session-withdrawn"):
            other = Perdure(it.client, task_queue=it.task_queue).session(name, agent=Agent.of(HOLD))
            await other.send("waits", id="1", **EVERYBODY)
            await until(partial(is_waiting, other))
            if name == "session-stopped":
                await other.stop(**EVERYBODY)
            else:
                await other.withdraw("1", **EVERYBODY)
            await idles(other)
            await to.write(to.client, name, other.id)
        await session.handle.execute_update(END, EVERYBODY)


async def record_status_webhooks(to: Recorder) -> None:
    """A session that informs addresses of its runs: of one that waits for a person and ends, and of one that has ended; one is removed."""
    script = [calls({"_tool": "remove", "path": "/a"}), DONE, DONE]
    async with to.conversation("session-informs", script, agent("remove"), [remove], most=3) as (session, it):
        receipt = await session.send("remove it", id="1", **EVERYBODY)
        assert receipt.run_id is not None
        one = StatusWebhook(id="one", run_id=receipt.run_id, url="http://127.0.0.1:9/one")
        await session.set_status_webhook(one, sender="ann")
        await session.describe({"channel": "web"})
        await it.until_waiting(receipt.run_id, "1.0")
        await session.decide({"call": "1.0", "decision": "approve"}, **EVERYBODY)
        await session.wait("1", 60)
        two = one.model_copy(update={"id": "two"})
        await session.set_status_webhook(two, sender="ann")
        await session.set_status_webhook(two, sender="ann", remove=True)
        with contextlib.suppress(PerdureError):
            await session.set_status_webhook(one.model_copy(update={"run_id": "none"}), sender="ann")
        await session.wait(await session.send("and more", id="2", **EVERYBODY), 60)
        await idles(session)


async def record_asking(to: Recorder) -> None:
    """A session with hooks and a limit of runs, and two delegates that wait for a person: one is decided, one terminated."""

    @hook("session_start")
    def begins(_: SessionStart) -> None: ...

    @hook("message_received")
    def receives(_: MessageReceived) -> None: ...

    call = {"_tool": "remove", "path": "/a", "_outputPath": "†state.out"}
    plan = {"type": "plan", "plan": [call], "output": "†state.out"}
    child = agent("remove", name="child", config={"start": "plan"}, context=[plan])
    desk = agent({"name": "child", "_delegate": "child"}, name="desk")
    script = [calls({"_tool": "child"}, {"_tool": "child"}), DONE]
    with tempfile.TemporaryDirectory() as folder:
        agents = Path(folder)
        (agents / "child.json").write_text(json.dumps(child), encoding="utf-8")
        async with to.conversation(
            "session-asking", script, desk, [remove, begins, receives], most=3, agents=agents, session_runs=1
        ) as (session, it):
            receipt = await session.send("remove it", id="1", **EVERYBODY)
            below = [f"{receipt.run_id}/1.{n}" for n in range(2)]

            async def all_wait() -> bool:
                return len(await session.waiting_below()) == len(below)

            await until(all_wait)
            await it.client.get_workflow_handle(below[0]).terminate()
            await session.decide({"call": "0.0", "decision": "approve"}, run=below[1], **EVERYBODY)
            await session.wait("1", 60)
            await idles(session)


async def record_deliveries(to: Recorder) -> None:
    """Replies of which nobody knows whether they arrived, that a hook withholds, or that no route takes."""

    @hook("message_sending")
    def sends(event: MessageSending) -> Refused | None:
        return refuse("not that") if "secret" in event.text else None

    channel = Channel(ApplicationError("gone", type="gone", non_retryable=True))
    async with to.conversation("session-unknown", echo, registry=having(channel, sends), most=4) as (session, _):
        for text, route in (("one", "chat:C1"), ("secret", "chat:C1"), ("two", "post:B")):
            await session.wait(await session.send(text, route=route, **EVERYBODY), 60)
        found: list[dict[str, Any]] = []

        async def settled() -> bool:
            found[:] = [each for each in (await session.show()).entries if each["type"] == "delivery"]
            return len(found) == 3

        await until(settled)
        for each in found:
            with contextlib.suppress(PerdureError):
                await session.redeliver(channel.tried[0] if each["status"] == "unknown" else "none/1", **EVERYBODY)
        await idles(session)


async def record_schedules(to: Recorder) -> None:
    """A run that a schedule has started: it reads its agent and its input's time at its start."""
    with tempfile.TemporaryDirectory() as agents:
        document = agent("look", name="nightly", context=[{"type": "input"}])
        (Path(agents) / "nightly.json").write_text(json.dumps(document), encoding="utf-8")
        script = [calls({"_tool": "look", "path": "†input.day"}), DONE]
        async with harness(to.client, to.tools, script, sandboxed=False, agents=Path(agents)) as it:
            schedule = Perdure(it.client, task_queue=it.task_queue).schedule("scheduled")
            await schedule.create("nightly", {"day": SCHEDULED}, cron="0 0 * * *")
            await schedule.backfill("2026-01-01", "2026-01-01")

            async def has_ended() -> bool:
                view = await schedule.show()
                return bool(view.runs) and not view.running

            await until(has_ended)
            await to.write(to.client, "scheduled", (await schedule.show()).runs[0].run_id)
            await schedule.delete()


async def record_notifications(to: Recorder) -> None:
    """A run that informs people of a request, of one that waits, of its budget and its end; and one that cannot begin."""
    functions = registry([remove])
    tried: list[str] = []

    async def page(notification: Notification) -> None:
        tried.append(notification.kind)
        if len(tried) == 1:
            raise ApplicationError("down")

    functions.notification_routes.add(RouteFunction("ops", page, is_async=True))
    notify: dict[str, Any] = {
        "approval_requested": ["ops"],
        "approval_waiting": [{"after": 0.2, "routes": ["ops"]}],
        "budget_nearly_used": ["ops"],
        "budget_share": 0.00001,
        "run_failed": ["ops"],
        "run_ended": ["ops", "none"],
    }
    config = {"token_budget": 10_000_000, "notify": notify}
    script = [calls({"_tool": "remove", "path": "/a"}), calls({"_tool": "remove", "path": "/b"}), DONE]
    async with harness(to.client, [], script, registry=functions, sandboxed=False) as it:
        refused = await it.start(agent("remove", config=config), run_id="unnotified")
        with contextlib.suppress(WorkflowFailureError):
            await refused.result()
        notify["run_ended"] = ["ops"]
        handle = await it.start(agent("remove", config=config), run_id="notified")

        async def waits() -> bool:
            return tried.count("approval_waiting") == 1

        await until(waits)
        await it.client.get_workflow_handle(handle.id).signal("approve", {"call": "1.0"})
        await it.until_waiting(handle.id, "2.0")
        await it.client.get_workflow_handle(handle.id).signal("reject", {"call": "2.0"})
        await handle.result()
    for name in ("unnotified", "notified"):
        await to.write(it.client, name, most=3)


async def record_notification_slots(to: Recorder) -> None:
    """A run whose eleventh request waits until a delivery that is tried for long makes room for it."""
    functions = registry([remove])
    informed: list[str] = []

    async def page(notification: Notification) -> None:
        if notification.call != "1.10":
            raise ApplicationError("down")
        informed.append(notification.call)

    functions.notification_routes.add(RouteFunction("ops", page, is_async=True))
    config = {"notify": {"approval_requested": ["ops"]}}
    script = [calls(*({"_tool": "remove", "path": f"/{n}"} for n in range(11))), DONE]
    async with harness(to.client, [], script, registry=functions, sandboxed=False) as it:
        handle = await it.start(agent("remove", config=config), run_id="notified-later")

        async def is_informed() -> bool:
            return bool(informed)

        await until(is_informed)
        for number in range(11):
            await it.client.get_workflow_handle(handle.id).signal("approve", {"call": f"1.{number}"})
        await handle.result()
    await to.write(it.client, "notified-later", most=1)


async def record_informed_again(to: Recorder) -> None:
    """A request that waits when its run is reset: it is asked again, and informs people again."""
    functions = registry([remove])
    informed: list[str] = []

    async def page(notification: Notification) -> None:
        informed.append(notification.key)

    functions.notification_routes.add(RouteFunction("ops", page, is_async=True))
    config = {"notify": {"approval_requested": ["ops"]}}
    script = [calls({"_tool": "remove", "path": "/a"}), DONE]
    async with harness(to.client, [], script, registry=functions, sandboxed=False) as it:
        handle = await it.start(agent("remove", config=config), run_id="informed-again")

        async def is_delivered() -> bool:
            view = await it.view(handle.id)
            return bool(view.notifications) and view.notifications[-1].routes[0].status == "delivered"

        async def is_informed_again() -> bool:
            return len(set(informed)) == 2

        await until(is_delivered)
        await reset_to_task(it.client, handle, -1)
        await until(is_informed_again)
        await it.client.get_workflow_handle(handle.id).signal("approve", {"call": "1.0"})
        await it.client.get_workflow_handle(handle.id).result()
    await to.keep(it.client, "informed-again", [handle.id])


async def record_held_back(to: Recorder) -> None:
    """A compaction that a hook does not allow, and calls whose results a hook keeps from the transcript."""

    @hook("before_compaction")
    def may(_: BeforeCompaction) -> Refused:
        return refuse("it is under legal hold")

    ask = {"_tool": "sleep_until", "seconds": 0.1}
    document = {**ECHO, "context": [*ECHO["context"], {"type": "tool", "tool": "sleep_until"}]}
    script = [calls(ask), {"calls": [], "output": "x" * 6_000}, *[{"calls": [], "output": "y" * 6_000}] * 3]
    async with to.conversation("session-held-back", script, document, [may, *run_hooks()[2:]], most=3) as (session, _):
        for number in range(3):
            await session.wait(await session.send(f"{number}", **EVERYBODY), 60)
        with contextlib.suppress(PerdureError):
            await session.compact(**EVERYBODY)
        await idles(session)
