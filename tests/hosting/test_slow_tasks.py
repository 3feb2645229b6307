"""A workflow task that the SDK takes for a deadlock: the run is put out of memory once the task has ended, and goes on."""

from __future__ import annotations

import asyncio
import threading
import uuid

import pytest
from temporalio import workflow
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from perdure.hosting import worker_group
from perdure.hosting.sdk_internals import Unsandboxed
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

lost, ends = threading.Event(), threading.Event()


def hold() -> None:
    """Do what a finalizer may do: lose whatever is raised in it."""
    while not ends.is_set():
        try:
            ends.wait(0.01)
        except BaseException:
            lost.set()


@workflow.defn
class Slow:
    @workflow.run
    async def run(self) -> str:
        """Wait in other tasks, too: their ends run where the run is put out of memory."""
        others = [asyncio.create_task(asyncio.sleep(0.01)) for _ in range(3)]
        await asyncio.sleep(0)
        if not lost.is_set():
            hold()
        await asyncio.gather(*others)
        return "done"


async def test_r18_5_a_task_whose_interruption_was_lost_does_not_hold_its_run(dev_server: WorkflowEnvironment) -> None:
    client, name = dev_server.client, f"slow-{uuid.uuid4().hex[:8]}"
    lost.clear()
    ends.clear()
    try:
        async with (
            Worker(client, task_queue=name, workflows=[Slow], workflow_runner=Unsandboxed()),
            asyncio.timeout(HANG),
        ):
            handle = await client.start_workflow(Slow.run, id=name, task_queue=name)
            while not (lost.is_set() and name in worker_group._under_way):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            ends.set()
            assert await handle.result() == "done"
    finally:
        ends.set()
    assert name not in worker_group.held_runs()
