"""Workers that end, and threads: what a deploy costs a run is nothing (R6.7, R12.1)."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import Counter

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import ToolContext, ToolError, tool
from perdure.activities.registry import Registry
from perdure.client.approvals import decide
from perdure.testing.turns import Turn
from perdure.tools.functions import ToolFunction, tool_function
from tests.support import DONE, agent, harness

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_as_many_sync_calls_run_at_once_as_the_worker_takes(dev_server: WorkflowEnvironment) -> None:
    together = threading.Barrier(30, timeout=30)

    @tool(retries=0)
    def meet() -> int:
        return together.wait() // 30

    calls = [{"_tool": "meet"}] * 30
    async with harness(dev_server.client, [meet], [{"calls": calls, "output": None}, DONE]) as it:
        view = await it.run(agent("meet"))
    assert Counter(call.status for call in view.calls) == {"done": 30}


async def test_a_thread_is_told_that_its_call_was_given_up(dev_server: WorkflowEnvironment) -> None:
    told: list[str] = []
    all_told = asyncio.Event()
    loop = asyncio.get_running_loop()

    def tell(what: str) -> None:
        told.append(what)
        if len(told) == 2:
            loop.call_soon_threadsafe(all_told.set)

    @tool(timeout=1, retries=0)
    def look(context: ToolContext) -> None:
        while not context.cancelled:
            threading.Event().wait(0.01)
        tell("looked")

    @tool(timeout=1, retries=0)
    def say(context: ToolContext) -> None:
        try:
            while True:
                context.progress("on it")
                threading.Event().wait(0.01)
        except ToolError as error:
            tell(error.code)

    calls = [{"_tool": "look"}, {"_tool": "say"}]
    async with harness(dev_server.client, [look, say], [{"calls": calls, "output": None}, DONE]) as it:
        view = await it.run(agent("look", "say"))
        await asyncio.wait_for(all_told.wait(), 30)
    assert [call.error and call.error["code"] for call in view.calls] == ["timeout", "timeout"]
    assert sorted(told) == ["cancelled", "looked"]


@pytest.mark.parametrize("sync", [False, True])
async def test_a_call_cut_off_by_a_deploy_uses_up_no_retry_and_is_no_failure(
    dev_server: WorkflowEnvironment, sync: bool
) -> None:
    begun, attempts = asyncio.Event(), list[int]()
    loop = asyncio.get_running_loop()

    def begin(context: ToolContext) -> bool:
        attempts.append(context.attempt)
        loop.call_soon_threadsafe(begun.set)
        return context.attempt < 3

    async def wait_async(context: ToolContext) -> str:
        if begin(context):
            await asyncio.Event().wait()
        return context.idempotency_key

    def wait_sync(context: ToolContext) -> str:
        if begin(context):
            while not context.cancelled:
                threading.Event().wait(0.01)
            threading.Event().wait(30)
        return context.idempotency_key

    slow = tool(name="slow", retries=1)(wait_sync if sync else wait_async)
    queue, plan = f"test-{uuid.uuid4().hex[:8]}", {"calls": [{"_tool": "slow", "_outputPath": "†state.key"}]}
    async with harness(dev_server.client, [slow], [plan], task_queue=queue, grace=0.0) as it:
        handle = await it.start(agent("slow"))
        await begun.wait()
    begun.clear()
    async with harness(dev_server.client, [slow], [], task_queue=queue, grace=0.0):
        await begun.wait()
    async with harness(dev_server.client, [slow], [DONE], task_queue=queue) as it:
        result = await handle.result()
    assert attempts == [1, 2, 3]
    assert [(call.status, call.attempts, call.error) for call in result.calls] == [("done", 3, None)]
    assert result.errors == []
    assert result.state["key"].startswith(f"{handle.id}/1.0:")


async def test_what_may_not_be_tried_again_is_told_as_cut_off(dev_server: WorkflowEnvironment) -> None:
    begun, paid = asyncio.Event(), list[int]()

    @tool(retries=0)
    async def pay() -> None:
        paid.append(1)
        begun.set()
        await asyncio.Event().wait()

    queue = f"test-{uuid.uuid4().hex[:8]}"
    async with harness(dev_server.client, [pay], [{"calls": [{"_tool": "pay"}]}], task_queue=queue, grace=0.0) as it:
        handle = await it.start(agent("pay"))
        await begun.wait()
    async with harness(dev_server.client, [pay], [DONE], task_queue=queue):
        result = await handle.result()
    assert paid == [1]
    assert result.calls[0].error is not None
    assert result.calls[0].error["code"] == "Interrupted"
    assert "whether it took effect is not known" in result.calls[0].error["message"]


async def test_a_request_cut_off_by_a_deploy_is_asked_again(dev_server: WorkflowEnvironment) -> None:
    queue, gate = f"test-{uuid.uuid4().hex[:8]}", asyncio.Event()
    async with harness(dev_server.client, [], [Turn(DONE, gate=gate)], task_queue=queue, grace=0.0) as it:
        handle = await it.start(agent())
        await it.model.wait_for_request(1)
        gate_opener = asyncio.get_running_loop().call_later(5, gate.set)
    gate_opener.cancel()
    async with harness(dev_server.client, [], [DONE], task_queue=queue):
        result = await handle.result()
    assert (result.status, result.requests, result.errors) == ("completed", 1, [])


class NotesRefusals(Registry):
    """A worker's tools as they are before a deployment."""

    def __init__(self) -> None:
        other = tool_function(tool(name="other")(lambda: 1))
        assert other is not None
        super().__init__([other])
        self.refused = asyncio.Event()

    def get(self, name: str) -> ToolFunction | None:
        if name == "pay":
            self.refused.set()
        return super().get(name)


async def test_a_tool_that_one_worker_lacks_is_waited_for(dev_server: WorkflowEnvironment) -> None:
    paid: list[int] = []

    @tool(dangerous=True, retries=0)
    def pay(context: ToolContext) -> None:
        paid.append(context.attempt)

    queue, without = f"test-{uuid.uuid4().hex[:8]}", NotesRefusals()
    async with harness(dev_server.client, [pay], [{"calls": [{"_tool": "pay"}]}], task_queue=queue) as it:
        handle = await it.start(agent("pay"))
        await it.until_waiting(handle.id, "1.0")
    async with harness(dev_server.client, [], [], task_queue=queue, registry=without):
        await decide(dev_server.client, handle.id, {"call": "1.0", "decision": "approve"})
        await without.refused.wait()
    async with harness(dev_server.client, [pay], [DONE], task_queue=queue):
        result = await handle.result()
    assert paid == [1]
    assert [(call.status, call.attempts) for call in result.calls] == [("done", 1)]
    assert result.errors == []
