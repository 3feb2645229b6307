"""A question whose worker leaves with it, as in every deploy, is asked again (R13.7)."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueRequest, PollWorkflowTaskQueueResponse
from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, NoWorkerError, Perdure
from perdure.client.run_operations import FROM_HISTORY
from perdure.queries import answer_of, find_missing_worker
from tests.support import harness
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

ECHO: dict[str, Any] = {"name": "echo", "context": [{"type": "system", "text": "Hello"}], "schema": {"type": "string"}}


async def dies_with_it(client: Client, task_queue: str) -> PollWorkflowTaskQueueResponse:
    """A worker that takes what comes next, and is killed."""
    return await client.workflow_service.poll_workflow_task_queue(
        PollWorkflowTaskQueueRequest(
            namespace=client.namespace, task_queue=TaskQueue(name=task_queue), identity="killed"
        ),
        timeout=timedelta(seconds=30),
    )


async def test_a_question_that_a_killed_worker_took_is_answered_by_the_next(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.queries._answers.BESIDE", 0.02)
    queue = f"asked-{uuid.uuid4().hex[:8]}"
    # No cache: else the question goes to the queue of one worker, which says that it has left.
    kept: dict[str, Any] = {"task_queue": queue, "cached_workflows": 0}
    async with harness(dev_server.client, [], [{"calls": [], "output": "hello"}], **kept) as it:
        run = await Perdure(it.client, task_queue=queue).start(Agent.of(ECHO))
        assert await run.result(30) == "hello"
    dead = asyncio.create_task(dies_with_it(it.client, queue))
    asked = asyncio.create_task(run.value("output"))
    assert (await dead).HasField("query")
    async with harness(dev_server.client, [], [], **kept):
        assert await asked == '"hello"'


class Deaf:
    """A workflow that answers in its own way."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.given: list[float] = []

    async def query(self, _: str, *, args: Any, result_type: Any, rpc_timeout: timedelta) -> Any:
        del args, result_type
        self.given.append(rpc_timeout.total_seconds())
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            await asyncio.sleep(rpc_timeout.total_seconds())
            raise lost()
        return answer


def lost(status: RPCStatusCode = RPCStatusCode.CANCELLED) -> RPCError:
    return RPCError("context canceled", status, b"")


async def ask(workflow: Deaf, seconds: float) -> Any:
    handle: WorkflowHandle[Any, Any] = workflow  # type: ignore[assignment]
    return await answer_of(handle, "what", within=timedelta(seconds=seconds))


async def test_what_the_server_took_back_is_asked_again_at_once() -> None:
    workflow = Deaf(lost(), lost(), "it")
    assert await ask(workflow, 60) == "it"
    assert len(workflow.given) == 3


@pytest.mark.parametrize("times", [2, 3])
async def test_what_a_worker_cannot_replay_it_says_again(times: int) -> None:
    unlike = WorkflowQueryFailedError("[TMPRL1100] Nondeterminism error: another history")
    workflow = Deaf(*[unlike] * times, "it")
    if times == 2:
        assert await ask(workflow, 60) == "it"
        return
    with pytest.raises(WorkflowQueryFailedError):
        await ask(workflow, 60)


async def test_one_whose_first_task_is_put_off_is_asked_again() -> None:
    put_off = RPCError("Workflow task is not scheduled yet.", RPCStatusCode.FAILED_PRECONDITION, b"")
    assert await ask(Deaf(put_off, "it"), 60) == "it"


async def test_where_nobody_answers_that_is_said_in_time() -> None:
    workflow = Deaf()
    with pytest.raises(RPCError, match="context canceled"):
        await ask(workflow, 0.3)
    assert 1 < len(workflow.given) <= 4
    assert workflow.given == sorted(workflow.given, reverse=True)


async def test_what_will_not_change_is_not_asked_again() -> None:
    workflow = Deaf(lost(RPCStatusCode.NOT_FOUND), "it")
    with pytest.raises(RPCError):
        await ask(workflow, 60)
    assert len(workflow.given) == 1


async def test_where_no_worker_polls_readers_learn_it_at_once(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.queries._answers.TIMEOUT", timedelta(hours=1))
    alone = Perdure(dev_server.client, task_queue=f"nobody-{uuid.uuid4().hex[:8]}")
    run = await alone.start(Agent.of(ECHO))
    assert not await alone.has_worker()
    for read in (run.view, lambda: run.value("output"), lambda: run.decide({"call": "1.0", "decision": "approve"})):
        async with asyncio.timeout(HANG):
            with pytest.raises(NoWorkerError, match="no worker answers for"):
                await read()
    await run.terminate()


async def test_a_worker_that_has_left_counts_until_its_last_poll_is_old(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harness(dev_server.client, [], [{"calls": [], "output": "hello"}]) as it:
        perdure = Perdure(it.client, task_queue=it.task_queue)
        run = await perdure.start(Agent.of(ECHO))
        assert await run.result(HANG) == "hello"
        monkeypatch.setattr("perdure.queries._answers._POLLERS_CHECKED_AFTER", 0.0)
        assert await perdure.has_worker()
        assert (await run.view()).trouble == ""
    monkeypatch.setattr("perdure.queries._answers.TIMEOUT", timedelta(hours=1))
    monkeypatch.setattr("perdure.queries._answers._GONE_AFTER", timedelta(0))
    async with asyncio.timeout(HANG):
        view = await run.view()
    assert (view.trouble, view.output) == (FROM_HISTORY, "hello")


async def test_a_server_that_does_not_list_pollers_is_asked_as_before(time_skipping: WorkflowEnvironment) -> None:
    with pytest.raises(RPCError) as refused:
        await find_missing_worker(time_skipping.client, "any")
    assert refused.value.status is RPCStatusCode.UNIMPLEMENTED
    workflow = Deaf(lost(), lost(), "it")
    handle: WorkflowHandle[Any, Any] = workflow  # type: ignore[assignment]
    assert await answer_of(handle, "what", client=time_skipping.client) == "it"
