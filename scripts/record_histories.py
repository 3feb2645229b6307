"""Records a history of each kind of run, which `tests/test_replay.py` replays: a worker of today goes on with a run of yesterday.

    make histories                    # all of them
    make histories ARGS=sessions      # one part: first, runs, sessions, archive or keys
    make histories ARGS="--into /tmp/histories"   # into another folder

Histories stand under the version that made them. Those of a released version are never written again: a history that no longer
replays is a finding, and the change that broke it is a rule of `perdure/runs/version_switches.py` (R13.7).

After a release, `tests/histories/unreleased` has histories of code that no version has yet (`scripts/history_tests.py`). They may be recorded
anew. When the next version gets its number, all parts are recorded under it, and the folder is deleted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tomllib
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from openai import AsyncOpenAI
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure, ToolContext, ToolError, hook, refuse, tool
from perdure.activities.transcripts import recall
from perdure.client.run_operations import AgentHandle
from perdure.client.tenancy import IdempotentStart
from perdure.errors import PerdureError, ServerError
from perdure.hooks import (
    AfterCompaction,
    AfterToolCall,
    AgentEnd,
    BeforeAgentStart,
    BeforeCompaction,
    BeforeToolCall,
    Command,
    MessageReceived,
    MessageSending,
    MessageSent,
    Refused,
    SessionEnd,
    SessionStart,
    ToolResultPersist,
)
from perdure.hosting.server import embedded_server
from perdure.hosting.worker import build_worker
from perdure.runs.agent import Situation
from perdure.runs.wire import DECIDE
from perdure.sessions.wire import END
from perdure.testing.scripted_model import ChatRequest, Fault, ScriptedModel, Turn
from perdure.testing.toolbox import Workers
from scripts import history_scenarios as scenarios
from scripts.history_recorder import Recorder
from scripts.history_tests import record_since
from scripts.release import is_released, write_digests
from scripts.replay_coverage import HISTORIES, ROOT, UNRELEASED
from tests.support import DONE, Harness, agent, harness, registry
from tests.workflows.test_session import ECHO, HOLD, Gate, echo, idles
from tests.workflows.test_session_replies import Channel, having
from tests.workflows.test_temporal_tools import AGENT as KEEPER
from tests.workflows.test_temporal_tools import plan, shop

STARTS: Final = 5
"""Attempts to start a server: it has five seconds for each."""
IMPATIENT: Final = {"limit.historyCount.suggestContinueAsNew": 60}
"""A server that suggests to continue as new early."""


@tool
async def look(path: str) -> dict[str, Any]:
    """Look at a path."""
    return {"path": path, "size": len(path)}


@tool(retries=1)
async def fail(code: str) -> str:
    """Fail."""
    raise ToolError(code, "it does not work")


@tool(dangerous=True)
async def remove(path: str) -> str:
    """Remove a path."""
    return f"removed {path}"


@tool
async def double(n: int) -> dict[str, Any]:
    """Double a number."""
    return {"n": n * 2, "done": n * 2 > 10}


@tool(heartbeat=1, timeout=60)
async def linger(context: ToolContext) -> str:
    """Work until cancelled."""
    while True:
        context.heartbeat()
        await asyncio.sleep(0.2)


@tool
async def large(size: int) -> str:
    """Make a text."""
    return "x" * size


@tool
async def measure(text: str) -> int:
    """Measure a text."""
    return len(text)


def allows(request: Any) -> Any:
    """An approver of the worker's: one path may be removed."""
    return "approve" if request["params"].get("path") == "/0" else None


def chooses(situation: Situation) -> str:
    """A policy of the worker's own."""
    return situation.models.smart


TOOLS: Final[list[Callable[..., Any]]] = [look, fail, remove, double, linger, large, measure]
NAMES: Final = [function.__name__ for function in TOOLS]
LOOK: Final = {"_tool": "look", "path": "/a", "_outputPath": "†state.a"}
BRANCH: Final = {"_tool": "fail", "code": "no", "_outputPath": "†state.good || †state.bad"}
READS: Final = {"_tool": "look", "path": "{†state.a.path}/b", "_outputPath": "†state.b"}
SEVERAL: Final = [
    {"calls": [LOOK, READS, BRANCH, {"_tool": "look"}], "output": None},
    {"calls": [{"_tool": "fail", "code": "again"}], "output": None},
    DONE,
]
CHILD: Final = agent("look", "double", name="child", context=[{"type": "input"}])
ONCE: Final = {"_tool": "child", "_outputPath": "†state.c", "n": 3}
DELEGATE: Final = {"name": "child", "_delegate": "child"}


def given(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"type": "plan", "plan": list(calls), "output": {"n": "†state.d.n", "done": "†state.d.done"}}


LOOPED: Final = agent(
    "double",
    name="child",
    config={"start": "plan"},
    context=[{"type": "input"}, given({"_tool": "double", "n": "†input.item", "_outputPath": "†state.d"})],
)
REPEATED: Final = agent(
    "double",
    name="child",
    config={"start": "plan"},
    context=[
        {"type": "input"},
        given({"_tool": "double", "n": "†state.previous.n || †input.n", "_outputPath": "†state.d"}),
    ],
)


async def talk(to: Recorder, name: str) -> None:
    """A session of three messages, one of them while a run is active; its executions, idle ones too."""
    document = agent("look", name="desk", schema=True)
    async with harness(
        to.client, to.tools, [{"calls": [LOOK], "output": None}, DONE, DONE, DONE], sandboxed=False
    ) as it:
        session = Perdure(it.client, task_queue=it.task_queue).session(name, agent=Agent.of(document))
        receipts = [await session.send("look", sender="ann", id="1")]
        receipts.append(await session.send("and there", sender="ann", id="2"))
        receipts.append(await session.send("then that", sender="bob", id="3", mode="followup"))
        for receipt in receipts:
            await session.wait(receipt)
        await to.write(to.client, name, session.id)  # its worker still has it go on as new to idle


async def decides(it: Harness, handle: AgentHandle) -> None:
    """Every kind of decision, by signal and by update, and a change of policy."""
    await it.until_waiting(handle.id, *(f"1.{n}" for n in range(6)))
    await handle.signal("approve", {"call": "1.0", "by": "Ann"})
    await handle.signal("reject", {"call": "1.1", "reason": "still needed"})
    await handle.execute_update(DECIDE, {"call": "1.2", "decision": "edit", "params": {"path": "/e"}, "by": "Ann"})
    await handle.execute_update(
        DECIDE, {"call": "1.3", "decision": "replace", "with": {"_tool": "look", "path": "/r"}, "by": "Ann"}
    )
    await handle.execute_update(DECIDE, {"call": "1.5", "decision": "answer", "answer": "yes"})
    await handle.signal("approve", {"call": "9.9"})
    await handle.signal("policy", {"ask": "never"})


async def approves_plan(it: Harness, handle: AgentHandle) -> None:
    await it.until_waiting(handle.id, "1")
    await handle.execute_update(DECIDE, {"call": "1", "decision": "approve"})


async def cancels(it: Harness, handle: AgentHandle) -> None:
    async with asyncio.timeout(20):
        while not [call for call in (await it.view(handle.id)).calls if call.status == "running"]:
            pass
    await handle.cancel()


async def steers(it: Harness, handle: AgentHandle) -> None:
    """Two messages while a call waits: one is taken back. Then the call is decided."""
    run = Perdure(it.client).get_run(handle.id)
    await it.until_waiting(handle.id, "1.0")
    await run.steer("only /a", by="ann", id="m1")
    taken_back = await run.steer("never mind", by="ann")
    with contextlib.suppress(PerdureError):
        await run.withdraw(taken_back)
    await it.model.wait_for_request(2)
    with contextlib.suppress(PerdureError):
        await run.reject("1.0", reason="not now")


async def stops_child(it: Harness, handle: AgentHandle) -> None:
    """The delegate's run is cancelled by itself."""
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(RPCError):
                await it.client.get_workflow_handle(f"{handle.id}/1.0").cancel()
                return


async def resets(it: Harness, handle: AgentHandle) -> None:
    """The run goes on, in a new execution, from before its policy was changed and its call decided; both are done again."""
    run = Perdure(it.client).get_run(handle.id)
    await it.until_waiting(handle.id, "1.0")
    events = (await handle.fetch_history()).events
    last = [each for each in events if each.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED][-1]
    await run.policy(timeout=3_600)
    await handle.signal(DECIDE, {"call": "1.0", "decision": "edit", "params": {"path": "/b"}})
    await handle.result()
    await it.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=it.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=handle.id),
            reason="recorded",
            workflow_task_finish_event_id=last.event_id,
            request_id=uuid.uuid4().hex,
        )
    )
    await it.until_waiting(handle.id, "1.0")
    await run.policy(timeout=7_200)
    await run.approve("1.0", by="Ann")
    await it.client.get_workflow_handle(handle.id).result()


def hooks_of_runs() -> list[Any]:
    """One of each kind, changing and refusing."""

    @hook("before_agent_start")
    def begins(event: BeforeAgentStart) -> BeforeAgentStart | None:
        return event.changed(input={"path": "/given"}) if event.input else None

    @hook("agent_end")
    def ends(_: AgentEnd) -> None: ...

    @hook("before_tool_call")
    def passes(event: BeforeToolCall) -> BeforeToolCall | Refused | None:
        if event.params.get("path") == "/secret":
            return refuse("it is secret")
        return event.changed(params={"path": "/changed"}) if event.params.get("path") == "/old" else None

    @hook("after_tool_call")
    def hides(event: AfterToolCall) -> AfterToolCall | None: ...

    @hook("tool_result_persist")
    def keeps(_: ToolResultPersist) -> None: ...

    return [begins, ends, passes, hides, keeps]


def hooks_of_sessions() -> list[Any]:
    """One of each kind."""

    @hook("session_start")
    def starts(_: SessionStart) -> None: ...

    @hook("session_end")
    def ends(_: SessionEnd) -> None: ...

    @hook("message_received")
    def receives(event: MessageReceived) -> MessageReceived | Refused | None:
        if "forbidden" in event.text:
            return refuse("not here")
        return event.changed(text=event.text.upper()) if "loud" in event.text else None

    @hook("command")
    def commands(_: Command) -> None: ...

    @hook("before_compaction")
    def compacts(_: BeforeCompaction) -> None: ...

    @hook("after_compaction")
    def compacted(_: AfterCompaction) -> None: ...

    @hook("message_sending")
    def sends(event: MessageSending) -> MessageSending | None:
        return event.changed(text=f"{event.text}!")

    @hook("message_sent")
    def sent(_: MessageSent) -> None: ...

    return [starts, ends, receives, commands, compacts, compacted, sends, sent]


def with_memory(request: ChatRequest) -> Any:
    """Sums up when it is asked to, and else says much."""
    if "You keep the memory" in request.text:
        return Turn("They spoke of many things.", dialect="tools")
    return {"calls": [], "output": "and so on, and so on. " * 2_000}


async def record_runs(to: Recorder) -> None:
    """What `record` does not: hooks, lost workers, what is large, what is limited, what changes a run under way."""
    paths = ("/old", "/secret", "/a")
    looked = [{"_tool": "look", "path": path, "_outputPath": f"†state.s{n}"} for n, path in enumerate(paths)]
    await to.play(
        "hooks",
        agent("look", "remove", context=[{"type": "input"}]),
        [{"calls": [*looked, {"_tool": "remove", "path": "/old"}], "output": None}, DONE],
        input={"path": "/"},
        tools=hooks_of_runs(),
        options={},
        meanwhile=approves("1.3"),
    )
    big = [{"_tool": "large", "size": size, "_outputPath": f"†state.t{n}"} for n, size in enumerate((257_000, 17_000))]
    reads = [{"_tool": "measure", "text": f"{{†state.t{n}}}", "_outputPath": f"†state.m{n}"} for n in range(2)]
    await to.play("large", agent("large", "measure"), [{"calls": [*big, *reads], "output": None}, DONE])
    limits = {"model_limits": {"gpt-4o-mini": 50.0, "gpt-4o": 50.0}, "tool_limits": {"look": 50.0}}
    await to.play("limited", agent(*NAMES), SEVERAL, options=limits)
    slow = Turn("slow down", status=429, headers={"retry-after": "5.5"})
    await to.play("model-away", agent("look"), [slow, *SEVERAL[1:]])
    other = {"models": {"fast": "small", "smart": "large", "policy": "scripts.record_histories:chooses"}}
    await to.play("policy", agent(*NAMES, config=other), SEVERAL, options={"named": ["scripts.record_histories"]})
    approver = {"approval": {"approver": "scripts.record_histories:allows", "timeout": 1}}
    removes = [{"_tool": "remove", "path": f"/{n}"} for n in range(2)]
    await to.play(
        "approver",
        agent("remove", config=approver),
        [{"calls": removes, "output": None}, DONE],
        options={"named": ["scripts.record_histories"]},
    )
    each = {"_tool": "double", "_each": list(range(5)), "n": "†item", "_outputPath": "†state.all"}
    until = {"_tool": "double", "n": "†state.last.n || 1", "_until": "†output.done", "_outputPath": "†state.last"}
    await to.play("loops", agent("double"), [{"calls": [each, until], "output": None}, DONE])
    hundreds = {"_tool": "double", "_each": list(range(130)), "n": "†item", "_outputPath": "†state.all"}
    await to.play("hundreds", agent("double"), [{"calls": [hundreds], "output": None}, DONE])
    let = {"_tool": "_let", "value": "†n", "_outputPath": "†state.v"}
    inner = {"_tool": "_for", "_each": list(range(60)), "_as": "n", "_body": [let]}
    rounds = {"_tool": "_for", "_each": [1, 2], "_as": "m", "_body": [inner], "_outputPath": "†state.all"}
    await to.play("rounds", agent(), [{"calls": [rounds], "output": {"ok": True}}])
    await to.play(
        "steered",
        agent("remove", "look"),
        [
            {"calls": [{"_tool": "remove", "path": "/b"}, LOOK], "output": None},
            {"calls": [LOOK], "output": None},
            {"calls": [{"_tool": "keep", "calls": ["1.0"]}], "output": None},
            DONE,
        ],
        meanwhile=steers,
    )
    lingering = agent("linger", name="child")
    waits = {"_tool": "linger"}
    await to.play(
        "cancelled-delegate",
        agent(DELEGATE),
        [{"calls": [ONCE], "output": None}, {"calls": [waits], "output": None}, DONE],
        child=lingering,
        meanwhile=stops_child,
    )
    shared = {"token_budget": 100_000}
    two = [{"_tool": "child", "text": f"{n}" * 65_000, "_outputPath": f"†state.c{n}"} for n in range(2)]
    great = {"calls": [], "output": {"text": "y"}}
    await to.play(
        "large-delegate",
        agent(DELEGATE, config=shared),
        [{"calls": two, "output": None}, great, great, DONE],
        child=CHILD,
    )
    await moves(to)
    removal = {"calls": [{"_tool": "remove", "path": "/a", "_outputPath": "†state.r"}], "output": None}
    await to.play("reset", agent(*NAMES), [removal, DONE, DONE], meanwhile=resets)
    await lost(to)
    async with shop(
        to.server,
        plan(
            {"_tool": "ship", "street": "Main", "_outputPath": "†state.ship"},
            {"_tool": "charge", "euros": 2.5},
            {"_tool": "pay", "input": 3, "_outputPath": "†state.pay"},
            {"_tool": "deliver", "number": 7, "_outputPath": "†state.deliver"},
            {"_tool": "left", "fruit": "apple", "count": 3, "_outputPath": "†state.left"},
            output={"ok": True},
        ),
    ) as (perdure, client):
        run = await perdure.start(KEEPER, id="existing")
        async for view in run.views():
            if view.waiting:
                await run.approve(view.waiting[0])
                break
        await run.result()
        await to.write(client, "existing")


async def moves(to: Recorder) -> None:
    """A call whose tool the worker of today lacks: it is tried again until one of tomorrow has it."""

    @tool(dangerous=True)
    async def late() -> str:
        """Is not on every worker."""
        return "done"

    name = "moved"
    async with ScriptedModel([{"calls": [{"_tool": "late"}], "output": None}, DONE], strict=False) as model:
        asked = AsyncOpenAI(base_url=model.base_url, api_key="scripted", max_retries=0, timeout=5)
        queue = f"moved-{uuid.uuid4().hex[:8]}"
        it = Harness(to.client, model, queue)

        def worker(*tools: Any) -> Any:
            return build_worker(to.client, registry([look, *tools]), task_queue=queue, model=asked, grace=0.0)

        async with worker(late):
            handle = await it.start(agent("late"), run_id=name)
            await it.until_waiting(name, "1.0")
        async with worker():
            await handle.execute_update(DECIDE, {"call": "1.0", "decision": "approve"})
            async with asyncio.timeout(60):
                while EventType.EVENT_TYPE_TIMER_FIRED not in {
                    event.event_type for event in (await handle.fetch_history()).events
                }:
                    pass
        async with worker(late):
            await handle.result()
    await to.write(to.client, name)


def approves(*calls: str) -> Callable[[Harness, AgentHandle], Awaitable[None]]:
    """Whoever approves these once they wait."""

    async def meanwhile(it: Harness, handle: AgentHandle) -> None:
        await it.until_waiting(handle.id, *calls)
        for call in calls:
            await handle.execute_update(DECIDE, {"call": call, "decision": "approve", "by": "Ann"})

    return meanwhile


async def lost(to: Recorder) -> None:
    """A worker that is lost while its calls run: one may be tried again, the other may not."""
    begun = asyncio.Event()
    seen: list[str] = []

    async def first_never_ends(name: str) -> str:
        seen.append(name)
        if len(seen) == 2:
            begun.set()
        if seen.count(name) == 1:
            await asyncio.sleep(3_600)
        return name

    @tool(heartbeat=1, retries=0, timeout=60)
    async def fragile() -> str:
        """Is not tried again."""
        return await first_never_ends("fragile")

    @tool(heartbeat=1, retries=2, timeout=60)
    async def sturdy() -> str:
        """Is tried again."""
        return await first_never_ends("sturdy")

    both = [
        {"_tool": "fragile", "_outputPath": "†state.f || †state.lost"},
        {"_tool": "sturdy", "_outputPath": "†state.s"},
    ]
    async with ScriptedModel([{"calls": both, "output": None}, DONE], strict=False) as model:
        asked = AsyncOpenAI(base_url=model.base_url, api_key="scripted", max_retries=0, timeout=5)
        queue = f"lost-{uuid.uuid4().hex[:8]}"
        workers = Workers(to.client, mortal=True)
        await workers.start(
            lambda client: [build_worker(client, registry([fragile, sturdy]), task_queue=queue, model=asked, grace=0.0)]
        )
        try:
            handle = await Harness(to.client, model, queue).start(agent("fragile", "sturdy"), run_id="lost-worker")
            await asyncio.wait_for(begun.wait(), 60)
            await workers.kill()
            await handle.result()
        finally:
            await workers.close()
    await to.write(to.client, "lost-worker")


async def record_sessions(to: Recorder) -> None:
    """Sessions: replies on their way, commands, hooks, decisions, what is taken back, cut, archived and read again, and their end."""
    everybody: dict[str, Any] = {"sender": "ann", "rights": ["*"]}
    channel = Channel(refuse("nobody lives there"), OSError("the line is dead"))
    chatting = {"registry": having(channel, *hooks_of_sessions())}
    async with to.conversation("session-replies", registry=chatting["registry"], most=6) as (session, _):
        with contextlib.suppress(PerdureError):
            await session.send("forbidden", **everybody)
        for number in range(3):
            receipt = await session.send(f"loud {number}", id=f"m{number}", route="chat:C1", **everybody)
            await session.wait(receipt, 60)
        await channel.until(2)
        await session.new(**everybody)
        await session.reset(**everybody)
        await idles(session)
        await session.handle.execute_update(END, everybody)  # `delete` would have the server forget it
    gate = Gate()
    async with to.conversation("session-modes", gate.answer, HOLD, [gate.tool], most=4, session_runs=1) as (session, _):
        await session.send("hold", id="1", **everybody)
        await gate.asked.wait()
        await session.send("steers", id="2", mode="steer", **everybody)
        await session.send("follows", id="3", mode="followup", **everybody)
        await session.send("goes", id="4", mode="followup", **everybody)
        await session.withdraw("4", **everybody)
        with contextlib.suppress(PerdureError):
            await session.withdraw("2", **everybody)
        await session.send("interrupts", id="5", mode="interrupt", **everybody)
        await session.wait("5", 60)
        await session.wait("3", 60)
        await session.send("a", id="6", mode="collect", **everybody)
        await session.send("b", id="7", mode="collect", **everybody)
        await session.wait("7", 60)
        await session.stop(**everybody)
        await idles(session)
    removing = {**agent("remove", name="desk"), "schema": True}
    turns = [{"calls": [{"_tool": "remove", "path": "/a"}], "output": None}, DONE]
    async with to.conversation("session-decided", turns, removing, TOOLS) as (session, _):
        receipt = await session.send("remove it", id="1", **everybody)
        async with asyncio.timeout(30):
            while not (waiting := await session.waiting()):
                pass
        await session.decide({"call": waiting[0].call, "decision": "approve"}, **everybody)
        await session.wait(receipt)
        await idles(session)
    forgetful = {**ECHO, "config": {"session": {"context_tokens": 2_000}}}
    async with to.conversation("session-kept", with_memory, forgetful, [recall, *hooks_of_sessions()], most=3) as (
        session,
        _,
    ):
        for number in range(8):
            receipt = await session.send(f"{number} {'y' * 20_000}", id=f"m{number}", **everybody)
            await session.wait(receipt, 60)
        await session.compact(**everybody)
        await session.new(**everybody)
        for number in range(4):
            await session.wait(await session.send("short", id=f"n{number}", **everybody), 60)
        await session.send(f"0 {'y' * 20_000}", id="m0", **everybody)  # known, though it is archived
        with contextlib.suppress(PerdureError):
            await session.recall("short")
        await idles(session)


async def record(to: Recorder) -> None:
    """Each kind of run, once."""
    remove_it = [{"_tool": "remove", "path": f"/{n}"} for n in range(5)]
    ask = {"_tool": "ask_person", "question": "Sure?"}
    for dialect in ("solution", "tools", "script"):
        await to.play(f"plain-{dialect}", agent(*NAMES, config={"dialect": dialect}), SEVERAL)
    await to.play("unstreamed", agent(*NAMES, config={"stream": False}), SEVERAL)
    await to.play("step", agent(*NAMES, config={"execution": "step"}), [SEVERAL[0], *SEVERAL])
    await to.play(
        "given-plan",
        agent(
            "double", config={"start": "plan"}, context=[given({"_tool": "double", "n": 1, "_outputPath": "†state.d"})]
        ),
        [],
    )
    await to.play(
        "decisions",
        agent("remove", "look", "ask_person"),
        [{"calls": [*remove_it, ask], "output": None}, DONE],
        meanwhile=decides,
    )
    asked = {"approval": {"scope": "plan"}}
    await to.play(
        "plan-approval",
        agent("look", config=asked),
        [{"calls": [LOOK, READS], "output": None}, DONE],
        meanwhile=approves_plan,
    )
    timeout = {"approval": {"timeout": 0.2}}
    await to.play("approval-timeout", agent("remove", config=timeout), [{"calls": remove_it, "output": None}, DONE])
    sleep = {"_tool": "sleep_until", "seconds": 0.3}
    await to.play("sleep", agent("sleep_until"), [{"calls": [sleep], "output": None}, DONE])
    await to.play(
        "deadline", agent("linger", config={"deadline": 1}), [{"calls": [{"_tool": "linger"}], "output": None}, DONE]
    )
    await to.play(
        "stuck", agent("look", config={"stuck_after": 2}), [{"calls": [LOOK], "output": None}] * 2 + [DONE] * 2
    )
    broken = Turn(SEVERAL[0], fault=Fault("cut", 120))
    await to.play("interrupted", agent(*NAMES), [broken, *SEVERAL])
    fallback = {"models": {"fast": "small", "smart": "small", "fallback": ["large"]}}
    await to.play("fallback", agent(*NAMES, config=fallback), [Turn("no such key", status=401), *SEVERAL])
    await to.play(
        "refused-output",
        agent("look", schema={"type": "object", "required": ["ok"]}),
        [{"calls": [], "output": {}}, DONE],
    )
    await to.play(
        "cancelled", agent("linger"), [{"calls": [{"_tool": "linger"}], "output": None}], meanwhile=cancels, fails=True
    )
    await to.play(
        "failed", agent("look", config={"max_requests": 1}), [{"calls": [LOOK], "output": None}] * 3, fails=True
    )
    await to.play("delegate", agent(DELEGATE), [{"calls": [ONCE], "output": None}, SEVERAL[2], DONE], child=CHILD)
    each = {"_tool": "child", "_each": [1, 2, 3], "_parallel": 2, "_outputPath": "†state.all"}
    await to.play("each", agent(DELEGATE), [{"calls": [each], "output": None}, DONE], child=LOOPED)
    until = {"_tool": "child", "n": 1, "_until": "†output.done", "_outputPath": "†state.last"}
    await to.play("until", agent(DELEGATE), [{"calls": [until], "output": None}, DONE], child=REPEATED)
    many = {"_tool": "child", "_each": list(range(30)), "_outputPath": "†state.all"}
    await to.play("long-each", agent(DELEGATE), [{"calls": [many], "output": None}, DONE], child=LOOPED, impatient=True)
    steps = [{"calls": [{**LOOK, "path": f"/{n}"}], "output": None} for n in range(8)]
    await to.play("continued", agent("look"), [*steps, DONE], impatient=True)
    await talk(to, "session")


async def record_keys(to: Recorder) -> None:
    """The owner of an idempotency key."""
    async with harness(to.client, [], [], sandboxed=False) as it:
        wanted = IdempotentStart.of("", "ann", "key", "a request")
        await wanted.take(it.client, "", it.task_queue)
        await to.write(it.client, "key", wanted.run_id)


async def record_archive(to: Recorder) -> None:
    """A session whose old entries are archived, and found again."""

    def short(request: ChatRequest) -> Any:
        if "You keep the memory" in request.text:
            return Turn("They spoke of many things.", dialect="tools")
        return {"calls": [], "output": str(echo(request)["output"])[:40]}

    everybody: dict[str, Any] = {"sender": "ann", "rights": ["*"]}
    async with to.conversation("session-archived", short, most=6) as (session, _):
        await session.wait(await session.send(f"the first {'x' * 40_000}", id="first", **everybody), 60)
        for number in range(20):
            await session.wait(await session.send(f"{number} {'y' * 2_000}", id=f"m{number}", **everybody), 60)
        await session.new(**everybody)
        await session.wait(await session.send("short", id="last", **everybody), 60)
        for number in range(10):
            await session.send("short", id=f"n{number}", mode="followup", **everybody)
            await session.wait(f"n{number}", 60)
        await idles(session)
        await session.send(f"the first {'x' * 40_000}", id="first", **everybody)  # known, though it is archived
        await idles(session)


async def record_part(part: Callable[[Recorder], Awaitable[None]], folder: Path) -> None:
    """Record one part on servers of its own. A server that a loaded machine does not start in time is started again."""
    async with contextlib.AsyncExitStack() as stack:
        servers: list[WorkflowEnvironment] = []
        for settings in ({}, IMPATIENT):
            for left in reversed(range(STARTS)):
                try:
                    servers.append(await stack.enter_async_context(embedded_server(ui=False, settings=settings)))
                    break
                except ServerError:
                    if not left:
                        raise
        await part(Recorder(folder, TOOLS, *servers))


async def main() -> int:
    """Record all parts anew, or those that the command names. Refuses to write over the histories of a version that is released."""
    current = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    current = current.partition(".dev")[0]
    parts = {
        "first": record,
        "runs": record_runs,
        "sessions": record_sessions,
        "archive": record_archive,
        "keys": record_keys,
        "schedules": scenarios.record_schedules,
        "refusals": scenarios.record_refusals,
        "ends": scenarios.record_ends,
        "calls": scenarios.record_calls,
        "delegates": scenarios.record_delegates,
        "resets": scenarios.record_resets,
        "left": scenarios.record_left_behind,
        "left_loops": scenarios.record_left_loops,
        "abandoned": scenarios.record_abandoned,
        "approvals": scenarios.record_approvals,
        "quorum": scenarios.record_quorum,
        "forks": scenarios.record_forks,
        "uncached": scenarios.record_uncached,
        "rules": scenarios.record_rules,
        "undone": scenarios.record_undo,
        "undone_below": scenarios.record_undo_below,
        "budgets": scenarios.record_budgets,
        "audit": scenarios.record_audit,
        "server_input": scenarios.record_server_input,
        "standing": scenarios.record_standing,
        "evaluations": scenarios.record_evaluations,
        "hooks": scenarios.record_hooks,
        "talks": scenarios.record_talks,
        "asking": scenarios.record_asking,
        "status_webhooks": scenarios.record_status_webhooks,
        "notifications": scenarios.record_notifications,
        "notification_slots": scenarios.record_notification_slots,
        "informed_again": scenarios.record_informed_again,
        "since": record_since,
    }
    parser = argparse.ArgumentParser(description=f"Record the histories of {current}.")
    parser.add_argument("part", nargs="*", help=f"all, or some of: {', '.join(parts)}")
    released = is_released(current, ROOT / "CHANGELOG.md")
    folder = HISTORIES / (UNRELEASED if released else current)
    parser.add_argument("--into", type=Path, default=folder, metavar="FOLDER")
    args = parser.parse_args()
    if args.into.resolve() == HISTORIES / current and released:
        print(f"{current} is released: its histories stay as they are", file=sys.stderr)
        return 1
    if unknown := set(args.part) - set(parts):
        parser.error(f"unknown: {', '.join(sorted(unknown))}. Use one of: {', '.join(parts)}")
    args.into.mkdir(parents=True, exist_ok=True)
    if not args.part:
        for old in args.into.glob("*.json"):
            old.unlink()
    for part in args.part or (["since"] if args.into == HISTORIES / UNRELEASED else parts):
        await record_part(parts[part], args.into)
    write_digests(args.into)
    return 0


if __name__ == "__main__":
    code = asyncio.run(main())
    sys.stdout.flush()
    os._exit(code)  # as the command line leaves: the SDK's threads may abort the interpreter while it takes itself down
