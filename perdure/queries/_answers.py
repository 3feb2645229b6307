"""Answers of runs and sessions to queries, also if a worker stops meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from temporalio.api.deployment.v1 import WorkerDeploymentVersion
from temporalio.api.enums.v1 import TaskQueueType, VersioningBehavior, WorkerVersioningMode
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowExecutionDescription,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.errors import RunError, RunNotFoundError
from perdure.runs.wire import RunResult
from perdure.values.limits import QUERY_TIMEOUT

DEV_DEPLOYMENT: Final = "perdure-dev"
"""Temporal's name of the deployment whose versions are the workers of `perdure dev`."""
TIMEOUT: Final = timedelta(seconds=QUERY_TIMEOUT)
"""The timeout of one query."""
BESIDE: Final = 0.3
"""Share of that time after which the query is sent again: a worker may first replay a long history."""
_POLLERS_CHECKED_AFTER: Final = 0.5
"""Seconds without an answer after which the task queue's pollers are checked."""
_STARTING: Final = 2.0
"""Age of a workflow in seconds from which the first check counts. A worker that starts at the same time may not poll yet."""
_GONE_AFTER: Final = timedelta(seconds=90)
"""Time since a worker's last poll after which it counts as gone: a poll takes a minute at most, and two clocks differ."""
_PAUSE: Final = 0.05
"""Seconds until a query that the server cancelled is sent again; twice as long each time."""
UNANSWERED: Final = frozenset({RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.UNAVAILABLE})
"""Statuses of a request that no server has answered."""
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


def failed_result(run_id: str, error: WorkflowFailureError) -> RunResult:
    """Return the result of a run that has failed: the result in its failure's details, or else the failure's message."""
    cause = error.cause
    details = cause.details if isinstance(cause, ApplicationError) else ()
    if details:
        return RunResult.model_validate(details[0])
    message = cause.message if isinstance(cause, ApplicationError) else str(cause)
    return RunResult(run_id=run_id, status="failed", error=message)


async def cancel_all(*tasks: asyncio.Future[Any]) -> None:
    """Cancel these tasks, and wait until they have ended, whatever their results."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


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

    With `client`, a query fails after half a second if `find_missing_worker` finds that no worker can answer it. For a
    workflow that has just started, that takes two seconds. Without `client`, the query waits for a worker.

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
                failed += may_pass(error)
                passes = _is_lost(error) or (may_pass(error) and failed < _ENOUGH)
                if not passes or loop.time() + pause >= ends:
                    return question.result()
            if done:
                await (asyncio.wait(asking, timeout=pause, return_when=ends_with) if asking else asyncio.sleep(pause))
                pause *= 2
    finally:
        await cancel_all(*asking)


async def find_missing_worker(
    client: Client, task_queue: str, description: WorkflowExecutionDescription | None = None
) -> str:
    """Return how to get a worker that takes a workflow's tasks from the queue; empty if one takes them.

    A worker that has stopped counts for 90 s. Of workers with versions, only those count that get the workflow's tasks.
    Without `description`: the tasks of a new workflow.
    """
    response = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
    )
    seen = datetime.now(UTC) - _GONE_AFTER
    pollers = [each for each in response.pollers if each.last_access_time.ToDatetime(UTC) > seen]
    polling = {_version_of(each) for each in pollers}
    versions = response.versioning_info
    pinned = None if description is None else _pinned_version(description)
    wanted = [versions.current_deployment_version if pinned is None else pinned]
    if pinned is None and versions.ramping_version_percentage > 0:
        wanted.append(versions.ramping_deployment_version)
    if any((each.deployment_name, each.build_id) in polling for each in wanted):
        return ""
    deployment, build = max(polling, default=("", ""))
    if pinned is not None or not build:
        return _name_worker(task_queue, wanted[0])
    return (
        f"The workers of task queue {task_queue!r} have version {build!r} of deployment {deployment!r}, which is not "
        f"current. Make it current: temporal worker deployment set-current-version --deployment-name {deployment} "
        f"--build-id {build}"
    )


def _version_of(poller: PollerInfo) -> tuple[str, str]:
    """Return the deployment and the build id of a worker. Both are empty if it takes only runs without a version."""
    options = poller.deployment_options
    is_versioned = options.worker_versioning_mode == WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
    return (options.deployment_name, options.build_id) if is_versioned else ("", "")


def name_missing_worker(description: WorkflowExecutionDescription) -> str:
    """Return the sentence that asks for a worker: the task queue, and the version to which the workflow is pinned."""
    return _name_worker(description.task_queue, _pinned_version(description))


def _name_worker(task_queue: str, version: WorkerDeploymentVersion | None) -> str:
    if version is None or not version.build_id:
        return f"Start a worker on task queue {task_queue!r}"
    if version.deployment_name == DEV_DEPLOYMENT:
        return "Start 'perdure dev' again, with the same --db"
    return (
        f"Start a worker on task queue {task_queue!r} with version {version.build_id!r} "
        f"of deployment {version.deployment_name!r}"
    )


def _pinned_version(description: WorkflowExecutionDescription) -> WorkerDeploymentVersion | None:
    """Return the only version whose workers get the workflow's tasks; `None` for the current version."""
    versioning = description.raw_description.workflow_execution_info.versioning_info
    override = versioning.versioning_override
    if override.HasField("pinned"):
        return override.pinned.version
    is_pinned = versioning.behavior == VersioningBehavior.VERSIONING_BEHAVIOR_PINNED
    return versioning.deployment_version if is_pinned and not override.auto_upgrade else None


async def _check_pollers(client: Client, workflow: WorkflowHandle[Any, Any]) -> Any:
    """Raise `RPCError` if no worker takes the workflow's tasks: the server would report that after ten seconds.
    Otherwise never return.
    """
    await asyncio.sleep(_POLLERS_CHECKED_AFTER)
    try:
        description = await workflow.describe()
        missing = await find_missing_worker(client, description.task_queue, description)
        age = (datetime.now(UTC) - description.start_time).total_seconds()
        if missing and 0 <= age < _STARTING:
            await asyncio.sleep(_STARTING - age)
            missing = await find_missing_worker(client, description.task_queue, description)
    except RPCError:  # the query reports the server's errors; the test server has no such call
        missing = ""
    if missing:
        raise RPCError(missing, RPCStatusCode.FAILED_PRECONDITION, b"")
    await asyncio.Future()


async def execution_before(client: Client, handle: WorkflowHandle[Any, Any]) -> WorkflowHandle[Any, Any]:
    """Return the execution before continue-as-new. Raise `RunNotFoundError` if it is no longer kept, and `RunError` if
    there was none.
    """
    if not (run_id := await continued_execution(handle)):
        raise RunError(f"{handle.id!r} did not continue another execution")
    before = client.get_workflow_handle(handle.id, run_id=run_id)
    try:
        await before.describe()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        raise RunNotFoundError(f"the earlier execution {run_id} of {handle.id} is no longer on the server") from None
    return before


async def continued_execution(handle: WorkflowHandle[Any, Any]) -> str:
    """Return the run id of the execution before continue-as-new; empty if there was none."""
    async for event in handle.fetch_history_events(page_size=1):
        return event.workflow_execution_started_event_attributes.continued_execution_run_id
    return ""


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


def may_pass(error: BaseException | None) -> bool:
    """Whether the workflow may answer the same query later: its workers could not replay it, or had no time."""
    return isinstance(error, WorkflowQueryFailedError) and str(error).startswith(_PASSING)


def _is_lost(error: BaseException | None) -> bool:
    return isinstance(error, RPCError) and (error.status in _TAKEN_BACK or _NOT_YET in error.message)
