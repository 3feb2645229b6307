"""Activities that an operator completes, fails or pauses by hand, as `temporal activity` does (R18)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflowservice.v1 import PauseActivityRequest, UnpauseActivityRequest
from temporalio.client import AsyncActivityHandle, Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from perdure import hook, tool
from perdure.client.run_operations import AgentHandle
from perdure.hooks import BeforeToolCall
from perdure.testing.scripted_model import Turn
from tests.support import DONE, agent, failed_tasks, harness
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

VALUES = [
    {"price": 1.5},
    {"value": 1.5},
    {"value": 1, "attempt": "first"},
    {"value": 1, "kept": {}},
    {},
    "text",
    ["x"],
    7,
    None,
]


@tool
async def wait(number: int) -> int:
    """Never return."""
    await asyncio.Event().wait()
    return number


async def by_hand(server: WorkflowEnvironment, run: AgentHandle, name: str) -> AsyncActivityHandle:
    """The activity of this id or type once it is pending, for a client that knows nothing of Perdure's types."""
    async with asyncio.timeout(HANG):
        while True:
            pending = (await run.describe()).raw_description.pending_activities
            if found := [each.activity_id for each in pending if name in (each.activity_id, each.activity_type.name)]:
                break
            await asyncio.sleep(0.05)
    client = await Client.connect(server.client.service_client.config.target_host, namespace=server.client.namespace)
    return client.get_async_activity_handle(workflow_id=run.id, run_id=None, activity_id=found[0])


async def test_a_value_that_completes_a_call_by_hand_is_its_result(dev_server: WorkflowEnvironment) -> None:
    calls = [
        {"_tool": "wait", "number": number, "_outputPath": f"†state.v{number}"} for number in range(len(VALUES) + 1)
    ]
    plan = {"calls": calls, "output": None}
    async with harness(dev_server.client, [wait], [plan, DONE]) as it:
        handle = await it.start(agent("wait"))
        for number, value in enumerate(VALUES):
            await (await by_hand(dev_server, handle, f"1.{number}")).complete(value)
        last = await by_hand(dev_server, handle, f"1.{len(VALUES)}")
        await last.fail(ApplicationError("the bank is closed", "x", 3, {"reason": 5}, non_retryable=True))
        result = await handle.result()
        assert await failed_tasks(handle) == []
    assert result.state == {f"v{number}": value for number, value in enumerate(VALUES)}
    (error,) = result.errors
    assert "the bank is closed" in str(error)


@pytest.mark.parametrize("value", [None, {"foo": 1}, "text"])
async def test_an_unusable_answer_by_hand_fails_the_request_with_a_reason(
    dev_server: WorkflowEnvironment, value: Any
) -> None:
    async with harness(dev_server.client, [wait], [Turn(DONE, gate=asyncio.Event())]) as it:
        handle = await it.start(agent("wait"))
        await (await by_hand(dev_server, handle, "request-1")).complete(value)
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
        assert await failed_tasks(handle) == []
    assert "completed by hand with a result that the engine cannot use" in str(failed.value.cause)


async def test_a_model_that_is_failed_by_hand_with_any_details_fails_the_run(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [wait], [Turn(DONE, gate=asyncio.Event())]) as it:
        handle = await it.start(agent("wait"))
        request = await by_hand(dev_server, handle, "request-1")
        await request.fail(ApplicationError("stop", "x", {"reason": 5, "pause": "y"}, [1], non_retryable=True))
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
        assert await failed_tasks(handle) == []
    assert "stop" in str(failed.value.cause)


async def test_a_hook_that_is_completed_by_hand_without_an_answer_refuses_the_call(
    dev_server: WorkflowEnvironment,
) -> None:
    @hook("before_tool_call")
    async def guard(_: BeforeToolCall) -> None:
        await asyncio.Event().wait()

    plan = {"calls": [{"_tool": "wait", "number": 1}], "output": None}
    async with harness(dev_server.client, [wait, guard], [plan, DONE]) as it:
        handle = await it.start(agent("wait"))
        await (await by_hand(dev_server, handle, "perdure.hook")).complete(None)
        result = await handle.result()
        assert await failed_tasks(handle) == []
    (error,) = result.errors
    assert "guard could not be called: perdure.hook was completed by hand" in str(error)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_pause_interrupts_and_repeats_no_call_that_may_not_begin_twice(
    dev_server: WorkflowEnvironment, fails: bool
) -> None:
    began, goes_on = list[int](), asyncio.Event()

    @tool(retries=0, heartbeat=3)
    async def pay(euros: int) -> int:
        began.append(euros)
        while True:
            if activity.cancellation_details() is not None:  # the worker has learned of the pause
                break
            await asyncio.sleep(0.05)
        await goes_on.wait()
        if fails:
            raise OSError("the line is dead")
        return euros

    plan = {"calls": [{"_tool": "pay", "euros": 5, "_outputPath": "†state.paid"}], "output": None}
    client = dev_server.client
    async with harness(client, [pay], [plan, DONE]) as it:
        handle = await it.start(agent("pay"))
        await by_hand(dev_server, handle, "1.0")
        call: dict[str, Any] = {
            "namespace": client.namespace,
            "execution": WorkflowExecution(workflow_id=handle.id),
            "id": "1.0",
            "identity": "ann",
        }
        await client.workflow_service.pause_activity(PauseActivityRequest(**call, reason="the bank is closed"))
        async with asyncio.timeout(HANG):
            while True:
                if reason := (await it.view(handle.id)).calls[0].reason:
                    break
                await asyncio.sleep(0.05)
            goes_on.set()
            while fails:
                pending = (await handle.describe()).raw_description.pending_activities
                if not any(
                    each.state == PendingActivityState.PENDING_ACTIVITY_STATE_PAUSE_REQUESTED for each in pending
                ):
                    break
                await asyncio.sleep(0.05)
        if fails and pending:
            await client.workflow_service.unpause_activity(UnpauseActivityRequest(**call))
        result = await handle.result()
    assert began == [5]
    assert reason.startswith("an operator has paused it (ann: the bank is closed); temporal activity unpause")
    assert result.state == ({} if fails else {"paid": 5})
    codes = [error["error"]["code"] for error in result.errors]
    assert codes == (["Interrupted"] if fails else [])
