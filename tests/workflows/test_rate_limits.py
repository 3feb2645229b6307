"""Limits a minute hold over all workers: the server keeps them, on a queue of each model's and each tool's own."""

from __future__ import annotations

import asyncio
import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from perdure.hosting.connection import data_converter
from perdure.testing.scripted_model import Turn
from tests.support import DONE, agent, harness, until_queue

pytestmark = pytest.mark.asyncio(loop_scope="session")

MODELS = {"models": {"fast": "m", "smart": "m"}}


async def begun(client: Client, run_id: str) -> dict[str, list[datetime]]:
    """When the run's activities were begun, by the queue that they came from."""
    found: dict[str, list[datetime]] = {}
    queues: dict[int, str] = {}
    async for event in client.get_workflow_handle(run_id).fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            queues[event.event_id] = event.activity_task_scheduled_event_attributes.task_queue.name
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            queue = queues[event.activity_task_started_event_attributes.scheduled_event_id]
            found.setdefault(queue, []).append(event.event_time.ToDatetime())
    return found


async def test_two_workers_together_keep_the_rates(dev_server: WorkflowEnvironment) -> None:
    @tool
    def ring() -> None:
        pass

    queue = f"test-{uuid.uuid4().hex[:8]}"
    host = dev_server.client.service_client.config.target_host
    other = await Client.connect(host, data_converter=data_converter(), identity="another worker")
    limits: dict[str, Any] = {"task_queue": queue, "model_limits": {"m": 120.0}, "tool_limits": {"ring": 120.0}}
    plan = [{"type": "plan", "plan": [{"_tool": "ring"} for _ in range(6)]}]
    rings = agent("ring", context=plan, config={"start": "plan", **MODELS})
    async with (
        harness(dev_server.client, [ring], [DONE] * 6, **limits) as it,
        harness(other, [ring], [DONE] * 6, **limits),
    ):
        for name in ("model/m", "tool/ring"):
            # which of the two gets a task is the server's matter
            await until_queue(dev_server.client, f"{queue}/{name}", lambda queue: len(queue.pollers) == 2)
        handles = [await it.start(rings), *[await it.start(agent(config=MODELS)) for _ in range(5)]]
        await asyncio.gather(*(handle.result() for handle in handles))
    times = [await begun(dev_server.client, handle.id) for handle in handles]
    assert set().union(*times) == {f"{queue}/model/m", f"{queue}/tool/ring"}
    for name in ("model/m", "tool/ring"):
        started = sorted(time for each in times for time in each.get(f"{queue}/{name}", []))
        assert len(started) >= 6  # one that a held worker lost begins once more
        # Two a second, and three at the beginning: a second and a half for six. The server's clock is not exact.
        assert (started[-1] - started[0]).total_seconds() > (len(started) - 3) / 2 - 0.3


async def test_a_call_that_waits_for_its_turn_goes_on_when_nobody_limits_it_any_more(
    dev_server: WorkflowEnvironment,
) -> None:
    rung = asyncio.Event()

    @tool
    async def ring() -> None:
        rung.set()

    queue = f"test-{uuid.uuid4().hex[:8]}"
    plan = [{"type": "plan", "plan": [{"_tool": "ring"}, {"_tool": "ring"}]}]
    impatient = {"name": "ring", "_queueTimeout": 2, "properties": {}}
    document = agent(impatient, context=plan, config={"start": "plan"})
    async with harness(dev_server.client, [ring], [], task_queue=queue, tool_limits={"ring": 0.01}) as it:
        handle = await it.start(document)
        await rung.wait()
    async with harness(dev_server.client, [ring], [DONE], task_queue=queue):
        result = await handle.result()
    assert [(call.status, call.attempts) for call in result.calls] == [("done", 1), ("done", 1)]
    assert sorted(await begun(dev_server.client, handle.id)) == [queue, f"{queue}/tool/ring"]


async def test_so_does_a_request(dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    """After five minutes; here after one second."""
    monkeypatch.setattr("perdure.workflows.requests.WAIT", timedelta(seconds=1))
    queue, client = f"test-{uuid.uuid4().hex[:8]}", dev_server.client
    async with harness(client, [], [DONE], task_queue=queue, model_limits={"m": 0.01}) as it:
        first = await it.start(agent(config=MODELS))
        await first.result()  # the one that had been saved up
        handle = await it.start(agent(config=MODELS))
        await it.until_waiting(handle.id, streams=True)
    async with harness(client, [], [DONE], task_queue=queue):
        result = await handle.result()
    assert (result.status, result.requests, result.errors) == ("completed", 1, [])
    assert list(await begun(client, handle.id)) == [queue]


async def test_r20_8_two_workers_together_keep_the_tokens_a_minute(dev_server: WorkflowEnvironment) -> None:
    """Two Requests a second of a thousand tokens, once the first has shown how many a Request takes."""
    queue = f"test-{uuid.uuid4().hex[:8]}"
    limits: dict[str, Any] = {"task_queue": queue, "model_token_limits": {"provider-*": 120_000.0}}
    turns = [Turn(DONE, usage=(950, 50))] * 7
    other = await Client.connect(dev_server.client.service_client.config.target_host, data_converter=data_converter())
    models = {"models": {"fast": "provider-m", "smart": "provider-m"}}
    async with harness(dev_server.client, [], turns, **limits) as it, harness(other, [], turns, **limits):
        first = await it.start(agent(config=models))
        await first.result()
        handles = [await it.start(agent(config=models)) for _ in range(6)]
        await asyncio.gather(*(handle.result() for handle in handles))
    times = [await begun(dev_server.client, handle.id) for handle in handles]
    assert set().union(*times) == {f"{queue}/model/provider-*"}
    started = sorted(time for each in times for time in each[f"{queue}/model/provider-*"])
    assert len(started) == 6
    # The server's own times: a slow machine only makes them longer. Three at the beginning, three at two a second.
    assert (started[-1] - started[0]).total_seconds() > 1.2


async def test_r20_8_a_limit_of_tokens_that_is_lifted_holds_nobody_back(dev_server: WorkflowEnvironment) -> None:
    queue, client = f"test-{uuid.uuid4().hex[:8]}", dev_server.client
    tight: dict[str, Any] = {"task_queue": queue, "model_token_limits": {"m": 60.0}}
    async with harness(client, [], [], **tight):
        pass
    async with harness(client, [], [DONE] * 4, task_queue=queue, model_limits={"m": 60_000.0}) as it:
        handles = [await it.start(agent(config=MODELS)) for _ in range(4)]
        results = await asyncio.gather(*(handle.result() for handle in handles))
    assert [result.status for result in results] == ["completed"] * 4
