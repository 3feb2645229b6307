"""What the collector finalizes while a workflow's task is carried out starts nothing in that workflow."""

from __future__ import annotations

import asyncio
import gc
import uuid
from typing import Any

import pytest
from openai import AsyncOpenAI
from temporalio import workflow
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from perdure.hosting.sdk_internals import Unsandboxed

pytestmark = pytest.mark.asyncio(loop_scope="session")


@workflow.defn
class Collects:
    @workflow.run
    async def run(self) -> int:
        """Drop a client that nobody has closed, in a cycle; return how many tasks that has started."""
        before = len(asyncio.all_tasks())
        dropped: list[Any] = [AsyncOpenAI(base_url="http://127.0.0.1:1", api_key="none")]
        dropped.append(dropped)
        del dropped
        gc.collect()
        started = len(asyncio.all_tasks()) - before
        await asyncio.sleep(0.01)  # the workflow's loop is there again
        return started


async def test_a_client_that_is_collected_in_a_workflow_s_task_starts_nothing_there(
    dev_server: WorkflowEnvironment,
) -> None:
    name = f"collects-{uuid.uuid4().hex[:8]}"
    async with Worker(dev_server.client, task_queue=name, workflows=[Collects], workflow_runner=Unsandboxed()):
        assert await dev_server.client.execute_workflow(Collects.run, id=name, task_queue=name) == 0
