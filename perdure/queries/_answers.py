"""Answers of runs and sessions to queries, also if a worker stops meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.service import RPCError, RPCStatusCode

from perdure.errors import RunError
from perdure.values.limits import QUERY_TIMEOUT

TIMEOUT: Final = timedelta(seconds=QUERY_TIMEOUT)
"""The timeout of one query."""
BESIDE: Final = 0.3
"""Share of that time after which the query is sent again: a worker may first replay a long history."""
_POLLERS_CHECKED_AFTER: Final = 0.5
"""Seconds without an answer after which the task queue's pollers are checked."""
_GONE_AFTER: Final = timedelta(seconds=90)
"""Time since a worker's last poll after which it counts as gone: a poll takes a minute at most, and two clocks differ."""
_PAUSE: Final = 0.05
"""Seconds until a query that the server cancelled is sent again; twice as long each time."""
_TAKEN_BACK: Final = {RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED}
_NOT_YET: Final = "not scheduled yet"
"""The server's message for an execution whose first task it delays, such as one that has just continued as new."""
_NONDETERMINISM: Final = "[TMPRL1100]"
_PASSING: Final = (_NONDETERMINISM, "[TMPRL1101]")
"""Messages of a worker that had no processor time for two seconds, or whose history grew while it answered. A worker
that cannot replay a workflow sends the same message each time.
"""
_MESSAGE: Final = re.compile(r'"(\[TMPRL\d+\] (?:[^"\\]|\\.)*)"')
"""The message of the SDK's core in the debug output of a failure."""
_ENOUGH: Final = 3
"""The number of such messages that counts as an error."""


@contextmanager
def cancellable() -> Iterator[None]:
    """Raise `CancelledError` if the caller cancels an update, or its time is over. The SDK raises a server error
    then."""
    try:
        yield
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        if isinstance(error.__cause__, asyncio.CancelledError):
            raise asyncio.CancelledError(*error.__cause__.args) from None
        raise


async def update_with_start(
    client: Client, update: str, argument: Any, start: WithStartWorkflowOperation[Any, Any], **options: Any
) -> Any:
    """Return the answer to an update that starts its workflow if there is none. `options`: of the SDK's method of this kind."""
    try:
        with cancellable():
            return await client.execute_update_with_start_workflow(
                update, argument, start_workflow_operation=start, **options
            )
    except BaseException:
        # The error is raised there as well, and would be logged as never retrieved. A cancellation ends this wait too.
        with contextlib.suppress(Exception):
            await asyncio.wait_for(start.workflow_handle(), 0.1)
        raise


async def answer_of(
    workflow: WorkflowHandle[Any, Any],
    query: str,
    *arguments: Any,
    result_type: Any = None,
    within: timedelta | None = None,
    client: Client | None = None,
) -> Any:
    """Return the first answer to a query that is repeated as often as needed, `within` 10 s by default.

    With `client`, a query of a task queue that no worker polls fails after half a second. Without `client`, the query waits
    for a worker.

    A worker that stops, as in every deploy, may leave queries unanswered. The server gives them to no other worker: it
    reports them as cancelled, or reports nothing until their timeout. Raise what `WorkflowHandle.query` raises; without
    an answer, its `RPCError`.
    """
    loop, seconds, pause = asyncio.get_running_loop(), (within or TIMEOUT).total_seconds(), _PAUSE
    ends = loop.time() + seconds
    ends_with = asyncio.FIRST_COMPLETED
    asking = set() if client is None else {asyncio.ensure_future(_check_pollers(client, workflow))}
    failed = 0
    try:
        while True:
            left = ends - loop.time()
            if left > _PAUSE or not asking:
                limit = timedelta(seconds=max(left, _PAUSE))
                asked = workflow.query(query, args=arguments, result_type=result_type, rpc_timeout=limit)
                asking.add(asyncio.ensure_future(asked))
            done, asking = await asyncio.wait(asking, timeout=BESIDE * seconds, return_when=ends_with)
            for question in sorted(done, key=lambda each: each.exception() is not None):
                error = question.exception()
                failed += _may_pass(error)
                passes = _is_lost(error) or (_may_pass(error) and failed < _ENOUGH)
                if not passes or loop.time() + pause >= ends:
                    return question.result()
            if done:
                await (asyncio.wait(asking, timeout=pause, return_when=ends_with) if asking else asyncio.sleep(pause))
                pause *= 2
    finally:
        for question in asking:
            question.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def has_worker(client: Client, task_queue: str) -> bool:
    """Whether any worker takes workflow tasks from the queue. A worker that has stopped counts for 90 s."""
    response = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
    )
    seen = datetime.now(UTC) - _GONE_AFTER
    return any(poller.last_access_time.ToDatetime(UTC) > seen for poller in response.pollers)


async def _check_pollers(client: Client, workflow: WorkflowHandle[Any, Any]) -> Any:
    """Raise `RPCError` if no worker polls the workflow's task queue: the server would report that after ten seconds.
    Otherwise never return.
    """
    await asyncio.sleep(_POLLERS_CHECKED_AFTER)
    try:
        task_queue = (await workflow.describe()).task_queue
        is_polled = await has_worker(client, task_queue)
    except RPCError:  # the query reports the server's errors; the test server has no such call
        is_polled = True
    if not is_polled:
        raise RPCError(f"no worker polls task queue {task_queue!r}", RPCStatusCode.FAILED_PRECONDITION, b"")
    await asyncio.Future()


async def execution_before(client: Client, handle: WorkflowHandle[Any, Any]) -> WorkflowHandle[Any, Any]:
    """Return the execution before continue-as-new. Raise `RPCError` if it is no longer kept."""
    async for event in handle.fetch_history_events(page_size=1):
        started = event.workflow_execution_started_event_attributes
        if started.continued_execution_run_id:
            return client.get_workflow_handle(handle.id, run_id=started.continued_execution_run_id)
        break
    raise RunError(f"{handle.id!r} did not continue another execution")


def query_problem(workflow_id: str, error: WorkflowQueryFailedError) -> str:
    """Return the error of a query without an answer: the worker's message, or that it cannot replay the run, with a
    remedy.
    """
    return cannot_replay(workflow_id, str(error)) if str(error).startswith(_NONDETERMINISM) else str(error)


def replay_problem(error: str) -> str:
    """Return the error of a failed replay as one line: the SDK's message, without the debug output around it."""
    found = _MESSAGE.search(error)
    return " ".join((error if found is None else found[1].replace('\\"', '"')).split())


def cannot_replay(workflow_id: str, why: str) -> str:
    """Return the message for a run or session whose workers have another version, with a remedy."""
    return (
        f"a worker cannot replay {workflow_id!r}, because another version wrote its history ({why}). "
        f"Start workers of that version, or end the run at once: perdure terminate {workflow_id}"
    )


def _may_pass(error: BaseException | None) -> bool:
    return isinstance(error, WorkflowQueryFailedError) and str(error).startswith(_PASSING)


def _is_lost(error: BaseException | None) -> bool:
    return isinstance(error, RPCError) and (error.status in _TAKEN_BACK or _NOT_YET in error.message)
