"""Runs and sessions at which somebody looks ask their workers by no local activity (R13.7). A run's preparation is one, where the
worker keeps the run in memory meanwhile.

Where a query comes with a task, the SDK's core ends the task before the results of its local activities are handed out; a replay hands them
out in the first task. Without a cache each task is such a replay, and what signals and updates do meanwhile came in another order.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from datetime import timedelta
from itertools import takewhile
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.client import WorkflowHistory, WorkflowQueryFailedError
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment

from perdure import hook, tool
from perdure.hooks import MessageReceived, SessionStart
from perdure.runs.agent import Situation
from perdure.runs.wire import RUN_QUERY, RunView
from perdure.sessions.wire import SHOW, Receipt
from perdure.testing import ScriptedModel
from perdure.values.limits import MAX_COMMANDS
from tests.support import DONE, Harness, agent, check_replays, harness
from tests.timeouts import HANG
from tests.workflows.test_session import ALL, desk, idles

pytestmark = pytest.mark.asyncio(loop_scope="session")


def in_turn(situation: Situation) -> str:
    """A worker's own policy."""
    return "fast" if situation.number % 2 else "smart"


def local_activities(history: WorkflowHistory) -> int:
    names = [event.marker_recorded_event_attributes.marker_name for event in history.events]
    return names.count("core_local_activity")


async def check_has_replayed(history: WorkflowHistory) -> None:
    """Check that no worker failed to replay it, and that it replays."""
    causes = {event.workflow_task_failed_event_attributes.cause for event in history.events}
    assert WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR not in causes
    await check_replays(history)


async def test_a_policy_of_the_workers_own_is_asked_while_somebody_looks(dev_server: WorkflowEnvironment) -> None:
    @tool
    async def look(number: int) -> int:
        looks = [run.query(RUN_QUERY, rpc_timeout=timedelta(seconds=1)) for _ in range(3)]
        with contextlib.suppress(WorkflowQueryFailedError, RPCError):  # a server keeps few queries for one task
            await asyncio.gather(*looks, run.signal("policy", {"timeout": 600 + number}))
        return number

    script = [{"calls": [{"_tool": "look", "number": number}], "output": None} for number in range(3)]
    document = agent("look", config={"models": {"policy": "tests.workflows.test_queries_during_tasks:in_turn"}})
    options: dict[str, Any] = {"cached_workflows": 0, "named": ["tests.workflows.test_queries_during_tasks"]}
    async with harness(dev_server.client, [look], [*script, DONE], **options) as it, asyncio.timeout(HANG):
        run = it.client.get_workflow_handle("looked-at")
        result = await (await it.start(document, run_id=run.id)).result()
        history = await run.fetch_history()
    await check_has_replayed(history)
    assert (result.status, result.requests) == ("completed", 4)
    assert local_activities(history) == 0


@pytest.mark.parametrize("cached", [0, 1000])
async def test_who_looks_at_a_run_before_its_first_task_costs_no_task(
    dev_server: WorkflowEnvironment, cached: int
) -> None:
    """A worker that keeps no workflow in memory lost the first task, for 10 s: the query evicted the run with its local activity."""
    queue = f"before-{cached}-{uuid4().hex[:8]}"
    run = await Harness(dev_server.client, ScriptedModel([]), queue).start(agent(), run_id=queue)
    asked = asyncio.create_task(run.query(RUN_QUERY, result_type=RunView))
    await asyncio.sleep(0)
    async with harness(dev_server.client, [], [DONE], task_queue=queue, cached_workflows=cached):
        async with asyncio.timeout(HANG):
            assert (await asked).run_id == queue
            await run.result()
        history = await run.fetch_history()
    assert EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT not in {event.event_type for event in history.events}
    assert local_activities(history) == (1 if cached else 0)
    await check_has_replayed(history)


async def test_r13_7_calls_of_the_first_task_start_alike_when_a_replay_has_another_time_there(
    dev_server: WorkflowEnvironment,
) -> None:
    """A query during the local activity splits the first task in two. A replay takes both as one: its time is that of the
    local activity's end, and no longer that of the second task.
    """

    @tool
    async def look(number: int) -> int:
        return number

    calls: list[dict[str, Any]] = [{"_tool": "look", "number": number} for number in range(2 * MAX_COMMANDS)]
    # Its timer is set after a call of the second batch has returned: between the starts of other calls.
    calls[MAX_COMMANDS]["_outputPath"] = "†state.second"
    calls.append({"_tool": "sleep_until", "seconds": 0.1, "_after": ["†state.second"]})
    document = agent("look", "sleep_until", context=[{"type": "plan", "plan": calls}], config={"start": "plan"})
    async with harness(dev_server.client, [look], [DONE]) as it, asyncio.timeout(HANG):
        handle = await it.start(document)
        await handle.result()
        history = await it.client.get_workflow_handle(handle.id).fetch_history()
    assert local_activities(history) == 1
    await check_replays(history)
    (marker,) = [event for event in history.events if event.event_type == EventType.EVENT_TYPE_MARKER_RECORDED]
    (data,) = marker.marker_recorded_event_attributes.details["data"].payloads
    times = json.loads(data.data)
    times["complete_time"]["seconds"] -= 10
    data.data = json.dumps(times).encode()
    for event in takewhile(lambda event: event is not marker, history.events):
        event.event_time.seconds -= 10
    await check_replays(history)


@pytest.mark.parametrize("limit", [0, 5])
async def test_a_session_is_asked_for_its_hooks_and_its_limit_while_somebody_looks(
    dev_server: WorkflowEnvironment, limit: int
) -> None:
    """Messages come while it records its hooks, and while it asks whether a worker has room."""

    @hook("session_start")
    def begins(_: SessionStart) -> None: ...

    @hook("message_received")
    def receives(_: MessageReceived) -> None: ...

    options: dict[str, Any] = {"cached_workflows": 0, "session_runs": limit, "rules": {"mode": "collect"}}
    async with desk(dev_server, tools=[begins, receives], **options) as (session, it), asyncio.timeout(HANG):

        async def send(text: str) -> Receipt:
            with contextlib.suppress(WorkflowQueryFailedError, RPCError):  # a server keeps few queries for one task
                looks = [session.handle.query(SHOW, rpc_timeout=timedelta(seconds=1)) for _ in range(2)]
                await asyncio.gather(*looks)
            return await session.send(text, sender="ann", rights=ALL)

        for receipt in await asyncio.gather(*(send(f"{number}") for number in range(6))):
            await session.wait(receipt)
        await idles(session)
        found = [
            await it.client.get_workflow_handle(session.id, run_id=one.run_id).fetch_history()
            async for one in it.client.list_workflows(f"WorkflowId = '{session.id}'")
        ]
    assert found
    for history in found:
        await check_has_replayed(history)
        assert local_activities(history) == 0
