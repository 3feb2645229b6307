"""A session whose run waits for a person in one of its delegates: it says so, and takes the decision (R10.4, R10.9)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure, tool
from perdure.client.histories import replay_history
from perdure.client.session import Session
from perdure.errors import MessageRefusedError
from perdure.hosting.connection import data_converter
from perdure.pages.adapter import pages
from perdure.sessions.wire import SHOW, SessionView
from perdure.testing.scripted_model import ChatRequest
from tests.gateway.support import gateway, some_name
from tests.support import DONE, agent, harness, impatient
from tests.timeouts import HANG
from tests.workflows.test_resets import temporal
from tests.workflows.test_session import ALL, desk, echo, users

pytestmark = pytest.mark.asyncio(loop_scope="session")

RETURNS = "†state.out"


@tool(dangerous=True)
def pay(to: str) -> str:
    """Pay somebody."""
    return f"paid {to}"


def planned(name: str, called: Any, **call: Any) -> dict[str, Any]:
    """An agent that makes one call, which no model is asked for."""
    plan = {"type": "plan", "plan": [{**call, "_outputPath": RETURNS}], "output": RETURNS}
    return agent(called, name=name, config={"start": "plan"}, context=[{"type": "input"}, plan])


def written(folder: Path, *documents: dict[str, Any]) -> Path:
    for document in documents:
        (folder / f"{document['name']}.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


CLERK = planned("clerk", "pay", _tool="pay", to="bob")
ASKS_CLERK = {"name": "clerk", "_delegate": "clerk"}
BOSS = planned("boss", ASKS_CLERK, _tool="clerk", n=1)
ASKS_BOSS = {"name": "boss", "_delegate": "boss"}


def calling(call: dict[str, Any]) -> Callable[[ChatRequest], dict[str, Any]]:
    """A model that makes this call when it hears `pay`, and else answers."""

    def answer(request: ChatRequest) -> dict[str, Any]:
        first = "pay" in users(request)[-1] and "paid bob" not in request.text and "_status" not in request.text
        return {"calls": [call], "output": None} if first else echo(request)

    return answer


async def seen(session: Session, status: str, waiting_runs: int = 0) -> None:
    """Wait until the session, by itself, has this status, and knows of so many runs below its own that wait."""
    async with asyncio.timeout(HANG):
        while True:
            view: SessionView = await session.handle.query(SHOW, result_type=SessionView)
            if (view.status, len(view.waiting_runs)) == (status, waiting_runs):
                return
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("called", "call", "below"),
    [
        (ASKS_CLERK, {"_tool": "clerk"}, ["1.0"]),
        (ASKS_BOSS, {"_tool": "boss"}, ["1.0/0.0"]),
        (ASKS_CLERK, {"_tool": "clerk", "_each": [1, 2], "_outputPath": "†state.all"}, ["1.0/0", "1.0/1"]),
    ],
    ids=["delegate", "delegate of a delegate", "loop"],
)
async def test_r10_4_a_session_knows_that_a_delegate_of_its_run_waits(
    dev_server: WorkflowEnvironment, tmp_path: Path, called: Any, call: dict[str, Any], below: list[str]
) -> None:
    agents = written(tmp_path, CLERK, BOSS)
    document = agent(called, name="desk", schema={"type": "string"})
    async with desk(dev_server, calling(call), document, [pay], agents=agents) as (session, it):
        first = await session.send("pay", sender="ann", rights=ALL)
        runs = [f"{first.run_id}/{path}" for path in below]
        for run in runs:
            await it.until_waiting(run, "0.0")
        await seen(session, "waiting", len(runs))
        found = {one.run_id: (one.request.call, one.request.tool) for one in await session.waiting_below()}
        assert found == dict.fromkeys(runs, ("0.0", "pay"))
        second = await session.send("what is the time?", sender="ann", rights=ALL)
        assert (second.done, second.position) == ("queued", 1)
        assert (
            second.why
            == f"{first.run_id} waits for a person, so the message waits for the run's end; the mode steer delivers it now"
        )
        approves = {"call": "0.0", "decision": "approve"}
        if len(runs) > 1:
            with pytest.raises(MessageRefusedError, match=f"in 2 runs .*: give one as 'run': {runs[0]}, {runs[1]}"):
                await session.decide(approves, sender="ann", rights=ALL)
        with pytest.raises(MessageRefusedError, match=f"in the run 'elsewhere', but calls wait in {runs[0]}"):
            await session.decide(approves, sender="ann", rights=ALL, run="elsewhere")
        for run in runs[:-1]:
            done = await session.decide(approves, sender="ann", rights=ALL, run=run)
            assert done == {"call": "0.0", "decision": "approve"}
            await it.client.get_workflow_handle(run).result()
        await seen(session, "waiting", 1)
        await session.decide(approves, sender="ann", rights=ALL)
        await session.reply(first, 20)
        assert (await session.wait(second, 20)).status == "ok"
        assert (await session.show()).status == "idle"
        for run in runs:
            assert [(each.status, each.approval and each.approval.by) for each in (await it.view(run)).calls] == [
                ("done", "ann")
            ]


@pytest.mark.parametrize("ends", ["terminated", "cancelled"])
async def test_r10_4_a_delegate_that_was_ended_waits_no_more(
    dev_server: WorkflowEnvironment, tmp_path: Path, ends: str
) -> None:
    """A cancelled run says so in its last task. A terminated one cannot: the run above it does."""
    document = agent(ASKS_BOSS, "hold", name="desk", schema={"type": "string"})
    holds = asyncio.Event()

    @tool(timeout=60)
    async def hold() -> str:
        """Wait."""
        await holds.wait()
        return "held"

    def answer(request: ChatRequest) -> dict[str, Any]:
        if "held" in request.text or "pay" not in users(request)[-1]:
            return echo(request)
        return {"calls": [{"_tool": "boss"}, {"_tool": "hold"}], "output": None}

    agents = written(tmp_path, CLERK, BOSS)
    async with desk(dev_server, answer, document, [pay, hold], agents=agents) as (session, it):
        first = await session.send("pay", sender="ann", rights=ALL)
        await it.until_waiting(f"{first.run_id}/1.0/0.0", "0.0")
        await seen(session, "waiting", 1)
        ended = it.client.get_workflow_handle(f"{first.run_id}/1.0")
        await (ended.terminate("by hand") if ends == "terminated" else ended.cancel())
        await seen(session, "running")
        second = await session.send("and this", sender="ann", rights=ALL)
        assert second.done == "steered"
        holds.set()
        await session.reply(first, 20)


async def test_r17_5_a_conversations_page_shows_what_waits_in_a_delegate_once_it_is_there(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    """No event of the session says that a delegate's run waits."""
    opened = asyncio.Event()

    @tool(timeout=60)
    async def hold() -> str:
        """Wait."""
        await opened.wait()
        return "held"

    def answer(request: ChatRequest) -> dict[str, Any]:
        if "You are ASKER." not in request.text:
            return {"calls": [{"_tool": "asker"}], "output": None}
        calls = [{"_tool": "hold"}, {"_tool": "pay", "to": "bob", "_after": ["1.0"]}]
        return {"calls": calls, "output": None}

    asker = agent("pay", "hold", name="asker", context=[{"type": "text", "text": "You are ASKER."}])
    document = agent({"name": "asker", "_delegate": "asker"}, name="desk")
    agents = written(tmp_path, asker)
    async with (
        harness(dev_server.client, [pay, hold], answer, agents=agents) as it,
        gateway(it.client, [pages], task_queue=it.task_queue) as at,
        asyncio.timeout(HANG),
    ):
        session = Perdure(it.client, task_queue=it.task_queue).session(some_name(), agent=Agent.of(document))
        await session.send("pay", sender="ann", rights=ALL)
        async with at.http.stream("GET", f"/live/conversations/{session.key}", params={"after": "0"}) as stream:
            names: list[str] = []
            async for line in stream.aiter_lines():
                names += [line] if line.startswith("event: ") else []
                if names and names[-1] == "event: calls":
                    opened.set()
                if names[-1:] == ["event: waiting"] and "bob" in line:
                    break
        await session.stop(sender="ann", rights=ALL)
    assert "event: waiting" in names


@pytest.mark.parametrize("which", ["delegate", "run above", "iteration"])
async def test_r10_4_a_session_forgets_what_a_reset_or_a_terminated_iteration_leaves(
    dev_server: WorkflowEnvironment, tmp_path: Path, which: str
) -> None:
    """After the reset nothing waits any more: the delegate answers at once, or its run does not call it again."""
    holds = asyncio.Event()
    was_reset = False

    @tool(timeout=60)
    async def hold() -> str:
        """Wait."""
        await holds.wait()
        return "held"

    def answer(request: ChatRequest) -> dict[str, Any]:
        if "You are ASKER." in request.text:
            return {"calls": [{"_tool": "pay", "to": "bob"}], "output": None} if not was_reset else DONE
        if "held" in request.text or "pay" not in users(request)[-1]:
            return echo(request)
        asks = {"_tool": "asker", **({"_each": [1, 2], "_outputPath": "†state.all"} if which == "iteration" else {})}
        return {"calls": [{"_tool": "hold"}] if was_reset else [asks, {"_tool": "hold"}], "output": None}

    asker = agent("pay", name="asker", context=[{"type": "text", "text": "You are ASKER."}])
    document = agent({"name": "asker", "_delegate": "asker"}, "hold", name="desk", schema={"type": "string"})
    agents = written(tmp_path, asker)
    async with desk(dev_server, answer, document, [pay, hold], agents=agents) as (session, it):
        first = await session.send("pay", sender="ann", rights=ALL)
        below = [f"{first.run_id}/1.0" + (f"/{number}" if which == "iteration" else "") for number in range(2)]
        for run_id in sorted({*below}):
            await it.until_waiting(run_id, "1.0")
        await seen(session, "waiting", len({*below}))
        if which == "iteration":
            await it.client.get_workflow_handle(below[0]).terminate("by hand")
            await seen(session, "waiting", 1)
            await it.client.get_workflow_handle(below[1]).terminate("by hand")
        else:
            was_reset = True
            run_id = below[0] if which == "delegate" else str(first.run_id)
            where = ("--workflow-id", run_id, "--type", "FirstWorkflowTask", "--reason", "try again")
            await temporal(dev_server, "reset", *where)
        await seen(session, "running")
        assert (await session.send("and this", sender="ann", rights=ALL)).done == "steered"
        holds.set()
        await session.reply(first, 20)
        for id in {str(first.run_id), f"{first.run_id}/1.0"}:
            history = await it.client.get_workflow_handle(id).fetch_history()
            assert (await replay_history(history, data_converter(), id)).problem is None


impatient_server = impatient(20)


async def test_r10_4_a_run_that_waits_no_more_and_goes_on_as_new_at_once_says_so(
    impatient_server: WorkflowEnvironment,
) -> None:
    """A server sends no signal of an execution that ends in the same task."""
    holds = asyncio.Event()

    @tool(timeout=600)
    async def hold() -> str:
        """Wait."""
        await holds.wait()
        return "held"

    pays = {"calls": [{"_tool": "pay", "to": "bob"}], "output": None}
    script = [pays, {"calls": [{"_tool": "hold"}], "output": None}, DONE]
    async with desk(impatient_server, script, agent("pay", "hold", name="desk"), [pay, hold]) as (session, it):
        first = await session.send("pay", sender="ann", rights=ALL)
        assert first.run_id is not None
        await it.until_waiting(first.run_id, "1.0")
        await seen(session, "waiting")
        execution = (await it.client.get_workflow_handle(first.run_id).describe()).run_id
        await session.decide({"call": "1.0", "decision": "reject"}, sender="ann", rights=ALL)
        async with asyncio.timeout(HANG):
            while True:
                if (await it.client.get_workflow_handle(first.run_id).describe()).run_id != execution:
                    break
                await asyncio.sleep(0.02)
        await seen(session, "running")
        holds.set()
        assert (await session.wait(first, HANG)).status == "ok"


async def test_r10_4_a_run_that_has_gone_on_as_new_says_again_that_it_waits(
    impatient_server: WorkflowEnvironment,
) -> None:
    @tool
    def look() -> str:
        """Look."""
        return "nothing"

    pays = {"calls": [{"_tool": "pay", "to": "bob"}], "output": None}
    looks = {"calls": [{"_tool": "look"}], "output": None}
    document = agent("pay", "look", name="desk")
    async with desk(impatient_server, [pays, looks, looks, pays, DONE], document, [pay, look]) as (session, it):
        first = await session.send("pay", sender="ann", rights=ALL)
        assert first.run_id is not None
        for call in ("1.0", "4.0"):
            await it.until_waiting(first.run_id, call)
            await seen(session, "waiting")
            await session.decide({"call": call, "decision": "approve"}, sender="ann", rights=ALL)
        assert (await session.wait(first, 20)).status == "ok"
        described = await it.client.get_workflow_handle(first.run_id).describe()
        assert described.run_id != described.raw_description.workflow_execution_info.first_run_id
