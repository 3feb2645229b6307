"""Finalizers that the garbage collector calls start no task in an event loop."""

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


def drop_client() -> int:
    """Drop a client that nobody has closed, in a cycle; return the number of tasks that this starts."""
    before = len(asyncio.all_tasks())
    dropped: list[Any] = [AsyncOpenAI(base_url="http://127.0.0.1:1", api_key="none")]
    dropped.append(dropped)
    del dropped
    gc.collect()
    return len(asyncio.all_tasks()) - before


@workflow.defn
class Collects:
    @workflow.run
    async def run(self) -> int:
        started = drop_client()
        await asyncio.sleep(0.01)  # the workflow's loop is there again
        return started


async def test_a_collected_client_starts_no_task_in_a_workflow_or_its_worker(dev_server: WorkflowEnvironment) -> None:
    """In a worker the task would close sockets by numbers that other sockets have by then: these would never be read again."""
    name = f"collects-{uuid.uuid4().hex[:8]}"
    async with Worker(dev_server.client, task_queue=name, workflows=[Collects], workflow_runner=Unsandboxed()):
        assert await dev_server.client.execute_workflow(Collects.run, id=name, task_queue=name) == 0
        assert drop_client() == 0
        await asyncio.sleep(0.01)  # the test's loop is there again
