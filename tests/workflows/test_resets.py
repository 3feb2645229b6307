"""A run that Temporal's own program resets: what was decided before does not count after it, and who reads goes on (R7.2, R10.14)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowExecutionStatus, WorkflowHistory, WorkflowQueryFailedError
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import (
    ExecuteWorkflowInput,
    Interceptor,
    Replayer,
    UnsandboxedWorkflowRunner,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from perdure import Agent, Perdure, Run, RunFailedError, Selection, Session, ToolContext, tool
from perdure.client.histories import replay_history
from perdure.client.run_operations import AgentHandle
from perdure.client.run_tree import RunTree, RunTreeReader
from perdure.errors import DecisionRefusedError
from perdure.hosting.connection import data_converter
from perdure.hosting.server import find_program
from perdure.pages.adapter import pages
from perdure.runs.events import Event, RunReset, parse_cursor
from perdure.runs.version_switches import LEFT_CHILDREN_END, SINCE
from perdure.runs.wire import DECIDE, RUN_QUERY, RunResult, RunView
from perdure.sessions.wire import DECIDE_IN_SESSION, SessionDecision
from perdure.testing.scripted_model import ChatRequest
from perdure.workflows.agent import AgentWorkflow
from tests.cli.test_approval_commands import settings
from tests.gateway.support import gateway
from tests.support import DONE, ROOT, Harness, agent, harness, impatient, perdure, task_failures
from tests.timeouts import HANG
from tests.workflows.test_delegates import parts, save

pytestmark = pytest.mark.asyncio(loop_scope="session")

removed: list[tuple[str, str]] = []


@tool(dangerous=True)
async def remove(context: ToolContext, path: str) -> str:
    """Remove a file."""
    removed.append((path, context.idempotency_key))
    return f"removed {path}"


TOOLS = [remove]
impatient_server = impatient(20)
PLAN = [{"calls": [{"_tool": "remove", "path": "/a", "_outputPath": "†state.r"}], "output": None}, DONE]


async def temporal(server: WorkflowEnvironment, *arguments: str) -> str:
    """Run Temporal's own program; what it prints."""
    program = find_program("temporal")
    assert program is not None
    process = await asyncio.create_subprocess_exec(
        *(program, "workflow", *arguments, "--address", settings(server)["TEMPORAL_ADDRESS"]),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), HANG)
    assert process.returncode == 0, err.decode()
    return out.decode()


async def reset(server: WorkflowEnvironment, handle: AgentHandle, event: int, *more: str) -> None:
    where = ("--workflow-id", handle.id, "--event-id", str(event), "--reason", "try again")
    await temporal(server, "reset", *where, *more)


async def until_asked(it: Harness, run_id: str, *calls: str) -> RunView:
    """The run once exactly these wait for a person, and its Request has ended: a reset within a Request makes that one again."""
    async with asyncio.timeout(HANG):
        while True:
            view = await it.until_waiting(run_id, *calls)
            if view.log[-1].status == "done":
                return view
            await asyncio.sleep(0.02)


async def task_before_decision(handle: AgentHandle) -> int:
    """The workflow task that ended last before anything was decided."""
    last = 0
    async for event in handle.fetch_history_events():
        signalled = event.workflow_execution_signaled_event_attributes.signal_name
        if signalled == DECIDE or event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
            return last
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            last = event.event_id
    raise AssertionError("nothing was decided")


async def until_refused(it: Harness, run_id: str, count: int) -> RunView:
    """The run once so many decisions were refused. An activity comes before that."""
    async with asyncio.timeout(HANG):
        while True:
            with contextlib.suppress(WorkflowQueryFailedError, RPCError):
                if len((view := await it.view(run_id)).refusals) >= count:
                    return view
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("way", ["client", "signal", "update"])
async def test_r7_2_a_decision_of_before_a_reset_does_not_count_after_it(
    dev_server: WorkflowEnvironment, way: str
) -> None:
    decision: dict[str, Any] = {"call": "1.0", "decision": "edit", "params": {"path": "/b"}}
    removed.clear()
    async with harness(dev_server.client, TOOLS, [*PLAN, DONE]) as it:
        handle = await it.start(agent("remove"))
        await until_asked(it, handle.id, "1.0")
        said = ("--workflow-id", handle.id, "--name", "decide", "--input", json.dumps(decision))
        if way == "signal":
            await temporal(dev_server, "signal", *said)
        elif way == "update":
            await temporal(dev_server, "update", "execute", *said)
        else:
            await Run(it.client, handle.id).decide(decision)
        await asyncio.wait_for(handle.result(), HANG)
        assert [path for path, _ in removed] == ["/b"]
        await reset(dev_server, handle, await task_before_decision(handle))
        again = it.client.get_workflow_handle(handle.id, result_type=RunResult)
        view = await until_refused(it, handle.id, 1)
        assert [path for path, _ in removed] == ["/b"]
        assert "reset" in view.refusals[0]["problem"]
        assert "reset" in view.waiting[0].reason
        await Run(it.client, handle.id).decide(decision)
        result = await asyncio.wait_for(again.result(), HANG)
        replayed = await replay_history(await again.fetch_history(), data_converter(), handle.id)
    assert replayed.problem is None
    assert [call.status for call in result.calls] == ["done"]
    assert removed[0] == removed[1]
    assert len(removed) == 2


TWO = [{"calls": [{"_tool": "remove", "path": path} for path in ("/a", "/b")], "output": None}, DONE, DONE]


async def test_r7_7_a_policy_of_before_a_reset_counts_after_it_only_where_it_asks_about_more(
    dev_server: WorkflowEnvironment,
) -> None:
    removed.clear()
    async with harness(dev_server.client, TOOLS, TWO) as it:
        handle = await it.start(agent("remove"))
        await until_asked(it, handle.id, "1.0", "1.1")
        run = Run(it.client, handle.id)
        await run.reject("1.1")
        point = await task_before_decision(handle)
        await handle.signal("policy", {"timeout": 600})
        await run.policy(ask="always")
        await run.policy(ask="never")
        await asyncio.wait_for(handle.result(), HANG)
        assert [path for path, _ in removed] == ["/a"]
        await reset(dev_server, handle, point)
        view = await until_refused(it, handle.id, 3)
        assert [path for path, _ in removed] == ["/a"]
        assert ["reset" in each["problem"] for each in view.refusals] == [True] * 3
        policy = await run.policy(tools={"look": "always"})
        assert policy["ask"] == "always"
        await run.policy(ask="never")
        again = it.client.get_workflow_handle(handle.id, result_type=RunResult)
        result = await asyncio.wait_for(again.result(), HANG)
        replayed = await replay_history(await again.fetch_history(), data_converter(), handle.id)
    assert replayed.problem is None
    assert [call.status for call in result.calls] == ["done", "done"]


async def test_a_decision_that_is_refused_at_once_leaves_nothing_in_the_history(
    dev_server: WorkflowEnvironment,
) -> None:
    async with harness(dev_server.client, TOOLS, PLAN) as it:
        handle = await it.start(agent("remove"))
        await until_asked(it, handle.id, "1.0")
        run = Run(it.client, handle.id)
        with pytest.raises(DecisionRefusedError, match=r"no call '1\.7' waits for a decision"):
            await run.approve("1.7")
        taken = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED
        assert taken not in [event.event_type for event in (await handle.fetch_history()).events]
        await run.reject("1.0")
        await asyncio.wait_for(handle.result(), HANG)


MANY = [f"1.{number}" for number in range(6)]


@pytest.mark.parametrize("way", ["signal", "update"])
async def test_decisions_that_come_together_while_somebody_looks_replay(
    dev_server: WorkflowEnvironment, way: str
) -> None:
    """Without a cache: each task replays all before it. With a query in a task, the SDK's core ends the task before the results of its local
    activities are handed out."""
    removed.clear()
    calls = [{"_tool": "remove", "path": f"/{call}"} for call in MANY]
    async with (
        harness(dev_server.client, TOOLS, [{"calls": calls, "output": None}, DONE], cached_workflows=0) as it,
        asyncio.timeout(HANG),
    ):
        handle = await it.start(agent("remove"))
        await until_asked(it, handle.id, *MANY)
        looks = [handle.query(RUN_QUERY, rpc_timeout=timedelta(seconds=1)) for _ in MANY]
        decisions = [{"call": call, "decision": "approve", "remember": True} for call in MANY]
        if way == "signal":
            decided: list[Awaitable[Any]] = [handle.signal(DECIDE, decision) for decision in decisions]
        else:
            decided = [Run(it.client, handle.id).decide(decision) for decision in decisions]
        await asyncio.gather(*decided, *looks, return_exceptions=True)  # a server keeps few queries for one task
        result = await handle.result()
        history = await handle.fetch_history()
        replayed = await replay_history(history, data_converter(), handle.id)
    assert replayed.problem is None
    assert task_failures(history.events) == []
    assert [call.status for call in result.calls] == ["done"] * len(MANY)


def phases(events: list[Event]) -> list[str]:
    return [f"{each.topic} {each.phase} {each.data.get('call', '')}".rstrip() for each in events]


async def test_r10_14_who_reads_a_run_that_is_reset_goes_on_and_is_told(dev_server: WorkflowEnvironment) -> None:
    seen: list[Event] = []
    decided = asyncio.Event()

    async def read(run: Run[Any]) -> None:
        async for event in run.events(topics=["approval", "tool"]):
            seen.append(event)
            if event.topic == "tool" and event.phase == "end":
                decided.set()

    async with harness(dev_server.client, TOOLS, TWO) as it, asyncio.timeout(HANG):
        handle = await it.start(agent("remove"))
        run = Run(it.client, handle.id)
        reading = asyncio.create_task(read(run))
        await until_asked(it, handle.id, "1.0", "1.1")
        await run.approve("1.0")
        await decided.wait()
        before = list(seen)
        await reset(dev_server, handle, await task_before_decision(handle))
        await until_asked(it, handle.id, "1.0", "1.1")
        await run.reject("1.0")
        await run.approve("1.1")
        await reading
        later = [event async for event in run.events(before[-1].cursor, topics=["approval", "tool"])]
        all_of_it = [event async for event in run.events(topics=["approval", "tool"])]
        env = settings(dev_server)
        lines = await perdure("events", handle.id, "--from", before[-1].cursor, env=env)
        shown = await perdure("show", handle.id, env=env)
        origin = await run.origin()
    offered = ["approval start 1.0", "approval start 1.1"]
    assert phases(before) == [*offered, "approval end 1.0", "tool start 1.0", "tool end 1.0"]
    after = phases(seen[len(before) :])
    assert after[:3] == ["lifecycle reset", *offered]
    assert sorted(after[3:]) == sorted(
        ["approval end 1.0", "tool end 1.0", "approval end 1.1", "tool start 1.1", "tool end 1.1"]
    )
    assert phases(later) == after, "whoever comes back later with a place behind the reset point reads the same"
    assert phases(all_of_it) == [*offered, *after], "whoever reads it all is not given what does not count"
    assert [event.cursor for event in all_of_it] == sorted({event.cursor for event in all_of_it}, key=_place)
    assert json.loads(lines.out.splitlines()[0])["phase"] == "reset"
    assert origin.reset
    assert "Temporal reset this run" in shown.out


@pytest.mark.parametrize("ends", [True, False])
async def test_who_waits_for_a_run_that_is_reset_waits_for_its_new_end(
    dev_server: WorkflowEnvironment, ends: bool
) -> None:
    """The reset of a run that goes on terminates its execution: its waiters took that for the end."""
    async with harness(dev_server.client, TOOLS, [PLAN[0], *PLAN]) as it, asyncio.timeout(HANG):
        handle = await it.start(agent("remove"))
        await until_asked(it, handle.id, "1.0")
        run: Run[Any] = Run(it.client, handle.id)
        output, viewing = asyncio.create_task(run.result()), asyncio.create_task(run.wait())
        done, _ = await asyncio.wait([output, viewing], timeout=0.5)
        assert not done
        where = ("--workflow-id", handle.id, "--type", "FirstWorkflowTask", "--reason", "try again")
        await temporal(dev_server, "reset", *where)
        await until_asked(it, handle.id, "1.0")
        if ends:
            await run.approve("1.0")
        else:
            await run.terminate()
        view = await viewing
        if ends:
            assert await output == {"ok": True}
        else:
            with pytest.raises(RunFailedError):
                await output
    assert view.status == ("completed" if ends else "terminated")


async def test_lists_have_a_run_that_was_reset_once(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, TOOLS, [PLAN[0], PLAN[0]]) as it:
        handle = await it.start(agent("remove"))
        await until_asked(it, handle.id, "1.0")
        where = ("--workflow-id", handle.id, "--type", "FirstWorkflowTask", "--reason", "try again")
        await temporal(dev_server, "reset", *where)
        await until_asked(it, handle.id, "1.0")
        api, query = Perdure(it.client, task_queue=it.task_queue), f"WorkflowId = '{handle.id}'"

        async def read_statuses(status: str | None) -> list[list[str]]:
            mine = Selection(status=status, query=query)
            page = await api.page_of_runs(mine, size=9)
            return [[each.status for each in page.rows], [each.status async for each in api.list_runs(mine)]]

        async with asyncio.timeout(HANG):
            while True:  # the server's index is a moment late
                executions = sorted([each.status or 0 async for each in it.client.list_workflows(query)])
                if executions == [WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.TERMINATED]:
                    break
                await asyncio.sleep(0.02)
        assert await read_statuses(None) == [["running"]] * 2
        assert await read_statuses("terminated") == [[]] * 2
        await api.get_run(handle.id).cancel()


async def test_r10_14_a_run_that_is_reset_to_its_start_is_read_anew(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, TOOLS, TWO) as it, asyncio.timeout(HANG):
        handle = await it.start(agent("remove"))
        run = Run(it.client, handle.id)
        await until_asked(it, handle.id, "1.0", "1.1")
        await run.reject("1.0")
        await run.reject("1.1")
        await handle.result()
        before = [event async for event in run.events()]
        async with gateway(it.client, [pages], task_queue=it.task_queue) as at:
            page = await at.http.get(f"/runs/{handle.id}")
        assert page.status_code == 200
        assert "Temporal reset" not in page.text
        assert not (await run.origin()).reset
        where = ("--workflow-id", handle.id, "--type", "FirstWorkflowTask", "--reason", "try again")
        await temporal(dev_server, "reset", *where)
        view = await run.wait()
        later = [event async for event in run.events(before[-2].cursor)]
        async with gateway(it.client, [pages], task_queue=it.task_queue) as at:
            page = await at.http.get(f"/runs/{handle.id}")
        assert "Temporal reset this run" in page.text
        assert (await run.origin()).reset
    assert (view.status, view.resets) == ("completed", 1)
    assert phases(before)[0] == "lifecycle start"
    assert phases(later)[:2] == ["lifecycle reset", "lifecycle start"]
    assert phases(later)[-1] == "lifecycle end"


async def test_r10_14_a_continued_execution_that_is_reset_to_its_start_is_read_from_there(
    impatient_server: WorkflowEnvironment,
) -> None:
    script = [
        *({"calls": [{"_tool": "remove", "path": f"/{number}"}], "output": None} for number in range(3)),
        *[DONE] * 4,
    ]
    async with harness(impatient_server.client, TOOLS, script) as it, asyncio.timeout(HANG):
        handle = await it.start(agent("remove"))
        run = Run(it.client, handle.id)
        for number in range(1, 4):
            await until_asked(it, handle.id, f"{number}.0")
            await run.approve(f"{number}.0")
        await handle.result()
        before = [event async for event in run.events()]
        newest = it.client.get_workflow_handle(handle.id)
        first = await newest.fetch_history()
        assert first.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
        where = ("--workflow-id", handle.id, "--type", "FirstWorkflowTask", "--reason", "try again")
        await temporal(impatient_server, "reset", *where)
        view = await run.wait()
        later = [event async for event in run.events(before[-1].cursor)]
        all_of_it = [event async for event in run.events()]
        replayed = await replay_history(await newest.fetch_history(), data_converter(), handle.id)
    assert replayed.problem is None
    assert (view.status, view.resets) == ("completed", 1)
    assert phases(later)[0] == "lifecycle reset"
    assert phases(later)[-1] == "lifecycle end"
    assert [each.cursor for each in all_of_it[-len(later) :]] == [each.cursor for each in later]
    assert phases(all_of_it).count("lifecycle reset") == phases(all_of_it).count("lifecycle start") == 1


async def test_r10_14_who_reads_learns_of_every_reset(dev_server: WorkflowEnvironment) -> None:
    """The second reset goes back behind the first one, and the third one too: the history no longer holds those."""
    seen: list[Event] = []
    news = asyncio.Event()

    async def read(run: Run[Any]) -> None:
        async for event in run.events(topics=["approval"]):
            seen.append(event)
            news.set()

    async def until_read(count: int) -> None:
        while phases(seen)[-1:] != ["approval start 1.0"] or phases(seen).count("lifecycle reset") < count:
            news.clear()
            await news.wait()

    async with harness(dev_server.client, TOOLS, [PLAN[0], *[PLAN[0]] * 2, DONE]) as it, asyncio.timeout(HANG):
        handle = await it.start(agent("remove"))
        run = Run(it.client, handle.id)
        reading = asyncio.create_task(read(run))
        await until_asked(it, handle.id, "1.0")
        await until_read(0)
        for count in range(1, 4):
            where = ("--event-id", str(await newest_task(handle))) if count == 1 else ("--type", "FirstWorkflowTask")
            await temporal(dev_server, "reset", "--workflow-id", handle.id, *where, "--reason", "try again")
            await until_read(count)
        early = seen[phases(seen).index("lifecycle reset")]
        await run.approve("1.0")
        await reading
        later = [event async for event in run.events(early.cursor, topics=["approval"])]
    reset_and_asked = ["lifecycle reset", "approval start 1.0"]
    assert phases(seen) == ["approval start 1.0", *reset_and_asked * 3, "approval end 1.0"]
    assert phases(later) == [*reset_and_asked, "approval end 1.0"]


@pytest.mark.parametrize(("name", "places"), [("plain-tools", []), ("reset.2", [False]), ("resets", [True])])
async def test_a_reset_to_the_start_is_told_from_a_longer_first_task(name: str, places: list[bool]) -> None:
    """The first task of `reset.2` waited for a local activity: its history is as long as after a reset to it."""
    found: list[list[RunReset]] = []

    class Looks(Interceptor):
        def workflow_interceptor_class(self, _: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
            class Inbound(WorkflowInboundInterceptor):
                async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
                    try:
                        return await super().execute_workflow(input)
                    finally:
                        found.append(workflow.instance().events(0).resets)

            return Inbound

    written = json.loads((ROOT / "tests/histories/0.2.0" / f"{name}.json").read_text(encoding="utf-8"))
    replayer = Replayer(
        workflows=[AgentWorkflow],
        data_converter=data_converter(),
        interceptors=[Looks()],
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    await replayer.replay_workflow(WorkflowHistory.from_json(written.pop("workflowId"), written))
    assert [[each.event == 0 for each in resets] for resets in found] == [places]


async def test_r7_2_a_run_is_reset_again_and_decided_by_temporals_own_program(dev_server: WorkflowEnvironment) -> None:
    removed.clear()
    approve = ("--name", "approve", "--input", '{"call": "1.0"}')
    async with harness(dev_server.client, TOOLS, [*PLAN, DONE, DONE]) as it, asyncio.timeout(HANG):
        handle = await it.start(agent("remove"))
        for number in range(3):
            await until_asked(it, handle.id, "1.0")
            assert len(removed) == number
            await temporal(dev_server, "signal", "--workflow-id", handle.id, *approve)
            again = it.client.get_workflow_handle(handle.id, result_type=RunResult)
            await again.result()
            if number < 2:
                await reset(dev_server, again, await task_before_approval(again))
        view = await it.view(handle.id)
    assert len({key for _, key in removed}) == 1
    assert (len(removed), view.resets, len(view.refusals)) == (3, 2, 2)


async def task_before_approval(handle: AgentHandle) -> int:
    """The workflow task that ended last before the newest approval."""
    last = found = 0
    async for event in handle.fetch_history_events():
        if event.workflow_execution_signaled_event_attributes.signal_name == "approve":
            found = last
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            last = event.event_id
    return found


def _place(cursor: str) -> int:
    return parse_cursor(cursor).events


PAYS: dict[str, Any] = {
    "name": "payer",
    "context": [{"type": "system", "text": "Act."}, {"type": "tool", "tool": "remove"}],
}


async def test_a_session_that_is_reset_in_its_first_execution_goes_on_with_its_run(
    dev_server: WorkflowEnvironment,
) -> None:
    removed.clear()
    async with harness(dev_server.client, TOOLS, PLAN) as it, asyncio.timeout(HANG):
        client = Perdure(it.client, task_queue=it.task_queue)
        session = client.session(f"reset-{it.task_queue}", agent=Agent.of(PAYS))
        receipt = await session.send("Remove it.", sender="ann")
        assert receipt.run_id is not None
        await until_asked(it, receipt.run_id, "1.0")
        await temporal(
            dev_server, "reset", "--workflow-id", session.id, "--type", "LastWorkflowTask", "--reason", "try again"
        )
        assert (await session.show()).run_id == receipt.run_id
        await session.decide({"call": "1.0", "decision": "approve"}, sender="ann", rights=["approve"])
        await session.reply(receipt)
    assert len(removed) == 1


CANCELED = WorkflowExecutionStatus.CANCELED


async def execution_of(it: Harness, workflow_id: str) -> str:
    return (await it.client.get_workflow_handle(workflow_id).describe()).run_id


async def begun_execution_of(it: Harness, workflow_id: str) -> str:
    async with asyncio.timeout(HANG):
        while True:
            with contextlib.suppress(RPCError):
                return await execution_of(it, workflow_id)
            await asyncio.sleep(0.02)


async def status_of(it: Harness, workflow_id: str, execution: str) -> WorkflowExecutionStatus | None:
    return (await it.client.get_workflow_handle(workflow_id, run_id=execution).describe()).status


async def until_replaced(it: Harness, workflow_id: str, execution: str) -> None:
    """Wait until another execution has this id."""
    async with asyncio.timeout(HANG):
        while True:
            if await execution_of(it, workflow_id) != execution:
                return
            await asyncio.sleep(0.02)


PAYER = {"name": "payer", "context": [{"type": "system", "text": "You are PAYER."}, {"type": "tool", "tool": "remove"}]}
PAY: dict[str, Any] = {"name": "pay", "properties": {"task": {}}, "_delegate": "payer"}
PAID = [{"calls": [{"_tool": "remove", "path": "/paid", "_outputPath": "†state.r"}], "output": None}, DONE]


def pays(tmp_path: Path, *calls: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """An agent with such calls, one of them of a delegate that pays; and its model."""

    def payer(request: ChatRequest) -> Any:
        return PAID["# plan" in request.text]

    def parent(request: ChatRequest) -> Any:
        return DONE if "# plan" in request.text else {"calls": list(calls), "output": None}

    save(tmp_path, PAYER)
    return agent("remove", PAY), parts(PARENT=parent, PAYER=payer)


@pytest.mark.parametrize("loop", [False, True])
async def test_r7_2_a_delegate_that_was_open_at_a_reset_is_ended_before_it_starts_anew(
    dev_server: WorkflowEnvironment, tmp_path: Path, loop: bool
) -> None:
    removed.clear()
    document, model = pays(tmp_path, {"_tool": "pay", "task": "rent", **({"_each": [1]} if loop else {})})
    async with harness(dev_server.client, TOOLS, model, agents=tmp_path) as it, asyncio.timeout(HANG):
        handle = await it.start(document)
        below = f"{handle.id}/1.0" + "/0" * loop
        await until_asked(it, below, "1.0")
        first = await execution_of(it, below)
        where = ("--workflow-id", handle.id, "--type", "FirstWorkflowTask", "--reason", "try again")
        await temporal(dev_server, "reset", *where)
        await until_replaced(it, below, first)
        await until_asked(it, below, "1.0")
        assert (removed, await status_of(it, below, first)) == ([], CANCELED)
        await Run(it.client, below).approve("1.0")
        again = it.client.get_workflow_handle(handle.id, result_type=RunResult)
        result = await again.result()
        replayed = await replay_history(await again.fetch_history(), data_converter(), handle.id)
    assert replayed.problem is None
    assert [call.status for call in result.calls] == ["done"]
    assert [path for path, _ in removed] == ["/paid"]


async def test_r7_2_a_decision_on_a_delegate_that_a_reset_has_left_behind_does_not_count(
    dev_server: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the delegate is still there: a run that began before `left-children-end` does not cancel it at once."""
    monkeypatch.setattr("perdure.hosting._worker_parts.NEWEST", SINCE[LEFT_CHILDREN_END] - 1)
    removed.clear()
    after: dict[str, Any] = {"_tool": "pay", "task": "rent", "_after": ["1.0"]}
    document, model = pays(tmp_path, {"_tool": "remove", "path": "/first"}, after)
    async with harness(dev_server.client, TOOLS, model, agents=tmp_path) as it, asyncio.timeout(HANG):
        handle = await it.start(document)
        await until_asked(it, handle.id, "1.0")
        point = await newest_task(handle)
        await Run(it.client, handle.id).approve("1.0")
        below = f"{handle.id}/1.1"
        await until_asked(it, below, "1.0")
        first = await execution_of(it, below)
        await reset(dev_server, handle, point)
        with pytest.raises(DecisionRefusedError, match="the parent run was reset"):
            await Run(it.client, below).approve("1.0")
        approve = ("--name", "approve", "--input", '{"call": "1.0"}')
        await temporal(dev_server, "signal", "--workflow-id", below, *approve)
        await until_refused(it, below, 2)
        await until_refused(it, handle.id, 1)
        await Run(it.client, handle.id).approve("1.0")
        await until_replaced(it, below, first)
        await until_asked(it, below, "1.0")
        assert [path for path, _ in removed] == ["/first", "/first"]
        await Run(it.client, below).approve("1.0")
        result = await it.client.get_workflow_handle(handle.id, result_type=RunResult).result()
    assert [call.status for call in result.calls] == ["done", "done"]
    assert [path for path, _ in removed] == ["/first", "/first", "/paid"]


async def test_a_delegate_that_began_before_the_point_of_a_reset_goes_on(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    removed.clear()
    document, model = pays(tmp_path, {"_tool": "remove", "path": "/first"}, {"_tool": "pay", "task": "rent"})
    async with harness(dev_server.client, TOOLS, model, agents=tmp_path) as it, asyncio.timeout(HANG):
        handle = await it.start(document)
        below = f"{handle.id}/1.1"
        await until_asked(it, below, "1.0")
        await until_asked(it, handle.id, "1.0")
        first = await execution_of(it, below)
        point = await newest_task(handle)
        await Run(it.client, handle.id).reject("1.0")
        await reset(dev_server, handle, point)
        await until_refused(it, handle.id, 1)
        await Run(it.client, below).approve("1.0")
        await Run(it.client, handle.id).approve("1.0")
        result = await it.client.get_workflow_handle(handle.id, result_type=RunResult).result()
        assert await execution_of(it, below) == first
    assert [call.status for call in result.calls] == ["done", "done"]
    assert sorted(path for path, _ in removed) == ["/first", "/paid"]


async def until_ended(it: Harness, workflow_id: str, execution: str) -> WorkflowExecutionStatus | None:
    async with asyncio.timeout(HANG):
        while True:
            status = await status_of(it, workflow_id, execution)
            if status != WorkflowExecutionStatus.RUNNING:
                return status
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("loop", [False, True])
async def test_r7_2_a_delegate_that_a_reset_has_left_behind_is_cancelled(
    dev_server: WorkflowEnvironment, tmp_path: Path, loop: bool
) -> None:
    """The reset run never starts it anew, so nothing else would end it. A delegate from before the point goes on."""
    removed.clear()
    tax: dict[str, Any] = {"_tool": "pay", "task": "tax", "_after": ["1.1"], **({"_each": [1]} if loop else {})}
    document, model = pays(tmp_path, {"_tool": "pay", "task": "rent"}, {"_tool": "remove", "path": "/a"}, tax)
    async with harness(dev_server.client, TOOLS, model, agents=tmp_path) as it, asyncio.timeout(HANG):
        handle = await it.start(document)
        kept, left = f"{handle.id}/1.0", f"{handle.id}/1.2" + "/0" * loop
        await until_asked(it, handle.id, "1.1")
        await until_asked(it, kept, "1.0")
        point = await newest_task(handle)
        await Run(it.client, handle.id).approve("1.1")
        await until_asked(it, left, "1.0")
        executions = {each: await execution_of(it, each) for each in (kept, left)}
        await reset(dev_server, handle, point)
        await until_refused(it, handle.id, 1)
        assert await until_ended(it, left, executions[left]) == CANCELED
        assert await status_of(it, kept, executions[kept]) == WorkflowExecutionStatus.RUNNING
        await Run(it.client, kept).approve("1.0")
        await Run(it.client, handle.id).reject("1.1")
        again = it.client.get_workflow_handle(handle.id, result_type=RunResult)
        result = await again.result()
        replayed = await replay_history(await again.fetch_history(), data_converter(), handle.id)
    assert replayed.problem is None
    assert [call.status for call in result.calls] == ["done", "rejected", "skipped"]
    assert sorted(path for path, _ in removed) == ["/a", "/paid"]


async def newest_task(handle: AgentHandle) -> int:
    """The workflow task that ended last."""
    ended = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    return max([event.event_id async for event in handle.fetch_history_events() if event.event_type == ended])


async def test_a_session_that_is_reset_to_its_start_ends_its_open_run_and_asks_anew(
    dev_server: WorkflowEnvironment,
) -> None:
    removed.clear()
    async with harness(dev_server.client, TOOLS, [PLAN[0], *PLAN]) as it, asyncio.timeout(HANG):
        client = Perdure(it.client, task_queue=it.task_queue)
        session = client.session(f"reset-{it.task_queue}", agent=Agent.of(PAYS))
        receipt = await session.send("Remove it.", sender="ann", id="m-1")
        assert receipt.run_id is not None
        await until_asked(it, receipt.run_id, "1.0")
        first = await execution_of(it, receipt.run_id)
        await temporal(
            dev_server, "reset", "--workflow-id", session.id, "--type", "FirstWorkflowTask", "--reason", "try again"
        )
        again = await session.send("Remove it.", sender="ann", id="m-1")
        assert again.run_id == receipt.run_id
        await until_replaced(it, receipt.run_id, first)
        await until_asked(it, receipt.run_id, "1.0")
        assert (removed, await status_of(it, receipt.run_id, first)) == ([], CANCELED)
        await session.decide({"call": "1.0", "decision": "approve"}, sender="ann", rights=["approve"])
        result = await session.wait(again)
        replayed = await replay_history(
            await it.client.get_workflow_handle(session.id).fetch_history(), data_converter(), session.id
        )
    assert replayed.problem is None
    assert (result.error, len(removed)) == (None, 1)


async def test_r10_14_who_reads_a_session_that_is_reset_goes_on_and_is_told(dev_server: WorkflowEnvironment) -> None:
    """Its run was begun before the point and goes on; a message from behind it comes again, behind the event of the reset."""
    seen: list[Event] = []
    news = asyncio.Event()
    topics = ["lifecycle", "message", "approval", "tool"]

    async def read(session: Session) -> None:
        async for event in session.events(topics=topics):
            seen.append(event)
            news.set()

    async def until_read(*last: str) -> None:
        while tuple(phases(seen)[-len(last) :]) != last:
            news.clear()
            await news.wait()

    async with harness(dev_server.client, TOOLS, [*PLAN, DONE]) as it, asyncio.timeout(HANG):
        client = Perdure(it.client, task_queue=it.task_queue)
        session = client.session(f"reset-{it.task_queue}", agent=Agent.of(PAYS))
        first = await session.send("Remove it.", sender="ann")
        assert first.run_id is not None
        reading = asyncio.create_task(read(session))
        await until_asked(it, first.run_id, "1.0")
        await until_read("approval start 1.0")
        handle: AgentHandle = it.client.get_workflow_handle(session.id, result_type=RunResult)
        point = await newest_task(handle)
        second = await session.send("What is left?", sender="ann", mode="followup")
        await until_read("message accepted")
        before = list(seen)
        await reset(dev_server, handle, point)
        await until_read("lifecycle reset", "message accepted")
        assert (await session.show()).run_id == first.run_id
        await session.decide({"call": "1.0", "decision": "approve"}, sender="ann", rights=["approve"])
        await session.reply(second)
        await until_read("message taken", "lifecycle end")
        later = []
        async for event in session.events(before[-1].cursor, topics=topics):
            later.append(event)
            if event.cursor == seen[-1].cursor:
                break
        replayed = await replay_history(await handle.fetch_history(), data_converter(), session.id)
        reading.cancel()
    after = seen[len(before) :]
    assert phases(after) == [
        *("lifecycle reset", "message accepted", "approval end 1.0", "tool start 1.0", "tool end 1.0"),
        *("lifecycle end", "lifecycle start", "message taken", "lifecycle end"),
    ]
    assert (after[0].run_id, after[0].data) == ("", {"number": 1, "runId": first.run_id})
    assert after[1].data["messageId"] == second.message_id
    assert [(each.cursor, each.phase) for each in later] == [(each.cursor, each.phase) for each in after]
    assert replayed.problem is None


async def test_a_decision_that_a_sessions_reset_brings_again_has_its_first_answer(
    dev_server: WorkflowEnvironment,
) -> None:
    """Whoever waits for the answer reads it from the new execution. The run had the decision already: it was refused."""
    async with harness(dev_server.client, TOOLS, [*PLAN, DONE]) as it, asyncio.timeout(HANG):
        client = Perdure(it.client, task_queue=it.task_queue)
        session = client.session(f"reset-{it.task_queue}", agent=Agent.of(PAYS))
        receipt = await session.send("Remove it.", sender="ann")
        assert receipt.run_id is not None
        await until_asked(it, receipt.run_id, "1.0")
        handle: AgentHandle = it.client.get_workflow_handle(session.id, result_type=RunResult)
        point = await newest_task(handle)
        decision = {"call": "1.0", "decision": "approve"}
        asked = SessionDecision(decision=decision, sender="ann", rights=["approve"])
        answer = await handle.execute_update(DECIDE_IN_SESSION, asked, id="d-1")
        await reset(dev_server, handle, point)
        assert await handle.execute_update(DECIDE_IN_SESSION, asked, id="d-1") == answer
        assert (await session.wait(receipt)).error is None
        replayed = await replay_history(await handle.fetch_history(), data_converter(), session.id)
    assert replayed.problem is None


async def test_a_run_that_a_sessions_reset_has_left_behind_is_cancelled(dev_server: WorkflowEnvironment) -> None:
    """The server is told not to bring the message again: no run of the session would take its place."""
    async with harness(dev_server.client, TOOLS, [DONE, *PLAN]) as it, asyncio.timeout(HANG):
        client = Perdure(it.client, task_queue=it.task_queue)
        session = client.session(f"reset-{it.task_queue}", agent=Agent.of(PAYS))
        handle: AgentHandle = it.client.get_workflow_handle(session.id, result_type=RunResult)
        await session.reply(await session.send("Hello.", sender="ann"))
        point = await newest_task(handle)
        receipt = await session.send("Remove it.", sender="ann")
        assert receipt.run_id is not None
        await until_asked(it, receipt.run_id, "1.0")
        first = await execution_of(it, receipt.run_id)
        await reset(dev_server, handle, point, "--reapply-exclude", "All")
        assert await until_ended(it, receipt.run_id, first) == CANCELED
        assert (await session.show()).status == "idle"
        replayed = await replay_history(await handle.fetch_history(), data_converter(), session.id)
    assert replayed.problem is None


async def test_who_has_read_a_delegates_end_reads_the_run_that_a_reset_begins_anew(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    """Its id is the same: an adapter of the gateway would never show what waits there."""
    document, model = pays(tmp_path, {"_tool": "pay", "task": "rent"})
    async with harness(dev_server.client, TOOLS, model, agents=tmp_path) as it, asyncio.timeout(HANG):
        handle = await it.start(document)
        run, below, reader = Run(it.client, handle.id), f"{handle.id}/1.0", RunTreeReader()
        await until_asked(it, below, "1.0")
        first = await execution_of(it, below)
        await Run(it.client, below).approve("1.0")
        await handle.result()
        while (await reader.below(run, asked=True))["1.0"].status != "completed":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        where = ("--workflow-id", handle.id, "--type", "FirstWorkflowTask", "--reason", "try again")
        await temporal(dev_server, "reset", *where)
        await until_replaced(it, below, first)
        await until_asked(it, below, "1.0")
        while (view := (await reader.below(run, asked=True))["1.0"]).status != "running":  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # the index is a moment late
        tree = RunTree(await run.view(), {"1.0": view})
        assert ([(path, offer.call) for path, offer in tree.waiting], tree.rests) == ([("1.0", "1.0")], True)
        await run.cancel()


async def test_r7_2_a_loop_that_is_reset_itself_ends_the_iterations_that_it_left_behind(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    """It waits with its first iteration, so it does not start the later one anew for long."""
    removed.clear()
    document, model = pays(tmp_path, {"_tool": "pay", "task": "rent", "_each": [1, 2], "_parallel": 1})
    async with harness(dev_server.client, TOOLS, model, agents=tmp_path) as it, asyncio.timeout(HANG):
        handle = await it.start(document)
        loop = f"{handle.id}/1.0"
        await until_asked(it, f"{loop}/0", "1.0")
        first = await execution_of(it, f"{loop}/0")
        await Run(it.client, f"{loop}/0").approve("1.0")
        await until_asked(it, f"{loop}/1", "1.0")
        left = await execution_of(it, f"{loop}/1")
        where = ("--workflow-id", loop, "--type", "FirstWorkflowTask", "--reason", "try again")
        await temporal(dev_server, "reset", *where)
        await until_replaced(it, f"{loop}/0", first)
        await until_asked(it, f"{loop}/0", "1.0")
        assert await until_ended(it, f"{loop}/1", left) == CANCELED
        await Run(it.client, f"{loop}/0").approve("1.0")
        await until_replaced(it, f"{loop}/1", left)
        await until_asked(it, f"{loop}/1", "1.0")
        await Run(it.client, f"{loop}/1").approve("1.0")
        result = await handle.result()
        looped = it.client.get_workflow_handle(loop)
        replayed = await replay_history(await looped.fetch_history(), data_converter(), loop)
    assert replayed.problem is None
    assert [call.status for call in result.calls] == ["done"]
    assert [path for path, _ in removed] == ["/paid"] * 3


async def test_r7_2_a_long_loop_of_a_plain_tool_that_a_reset_has_left_behind_is_cancelled(
    dev_server: WorkflowEnvironment,
) -> None:
    """A run without any delegate leaves children behind, too."""
    loop = {"_tool": "remove", "path": "†item", "_each": [f"/{n}" for n in range(101)], "_after": ["1.0"]}
    script = [{"calls": [{"_tool": "remove", "path": "/a"}, loop], "output": None}, DONE]
    async with harness(dev_server.client, TOOLS, script) as it, asyncio.timeout(HANG):
        handle = await it.start(agent("remove"))
        await until_asked(it, handle.id, "1.0")
        point = await newest_task(handle)
        await Run(it.client, handle.id).approve("1.0")
        left = f"{handle.id}/1.1"
        execution = await begun_execution_of(it, left)
        await reset(dev_server, handle, point)
        await until_refused(it, handle.id, 1)
        assert await until_ended(it, left, execution) == CANCELED
        await Run(it.client, handle.id).reject("1.0")
        result = await it.client.get_workflow_handle(handle.id, result_type=RunResult).result()
    assert [call.status for call in result.calls] == ["rejected", "skipped"]
