"""Runs from outside: starting, following and fetching them through a Temporal client."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio.api.enums.v1 import PendingActivityState, TaskQueueType
from temporalio.api.failure.v1 import Failure
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, FailureError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.errors import RunError
from perdure.run.agents import Agent
from perdure.run.wire import (
    AGENT_WORKFLOW,
    REQUEST_ACTIVITY,
    RUN_QUERY,
    TASK_QUEUE,
    VALUE_QUERY,
    RunInput,
    RunResult,
    RunStatus,
    RunView,
    ValuePage,
)
from perdure.values.jsons import Json, JsonObject
from perdure.values.limits import MAX_PAYLOAD, MAX_STORED, said
from perdure.values.limits.sizes import Sizes

_STATUS: Final[dict[WorkflowExecutionStatus, RunStatus]] = {
    WorkflowExecutionStatus.RUNNING: "running",
    WorkflowExecutionStatus.COMPLETED: "completed",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.TERMINATED: "terminated",
    WorkflowExecutionStatus.TIMED_OUT: "timed_out",
    WorkflowExecutionStatus.CONTINUED_AS_NEW: "running",
}
QUERY_TIMEOUT: Final = timedelta(seconds=10)
WATCH_INTERVAL: Final = 0.2
"""Seconds between looks at a live run. A query costs the run no history."""
LOOKS_FOR_TROUBLE: Final = 5
"""At every so many looks at a live run it is also asked whether the model answers."""
TROUBLE_INTERVAL: Final = 1.5
"""Seconds between such questions for one who only waits: the first retry comes after one."""

UNSERVED_AFTER: Final = 1.0
"""Seconds after which a call that no worker has taken up is said to wait for one."""

AgentHandle = WorkflowHandle[object, RunResult]


async def start_run(
    client: Client,
    agent: Agent,
    document: Json,
    run_input: Json = None,
    *,
    has_input: bool = False,
    run_id: str | None = None,
    task_queue: str = TASK_QUEUE,
    approval: JsonObject | None = None,
) -> AgentHandle:
    """Start an agent; `approval` is the run's own override of its approval policy (R7.1).

    Raises `RunError` when the id is taken, or what is given is too large; the run itself refuses what is no input of it
    (R2.3).
    """
    given = RunInput(agent=document, input=run_input, has_input=has_input, approval=approval or {})
    _check_size(given, MAX_PAYLOAD if client.data_converter.external_storage is None else MAX_STORED)
    try:
        return await client.start_workflow(
            AGENT_WORKFLOW,
            given,
            id=new_run_id(agent) if run_id is None else run_id,
            task_queue=task_queue,
            # An id names one run for good: idempotency keys are made of it.
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            result_type=RunResult,
            static_summary=_task(agent, run_input)[:200],
            static_details=agent.description or None,
        )
    except WorkflowAlreadyStartedError:
        raise RunError(f"there is already a run {run_id!r}; look at it with: perdure show {run_id}") from None


def _check_size(given: RunInput, limit: int) -> None:
    """Say which part is too large, and what the limit is (R18.8)."""
    if len(given.model_dump_json().encode()) <= limit:
        return
    sizes = {"the input": Sizes().of(given.input), "the agent file": Sizes().of(given.agent)}
    largest = max(sizes, key=lambda name: sizes[name])
    both = " and ".join(f"{name} has {said(size)}" for name, size in sizes.items())
    what = f"{largest} has {said(sizes[largest])}" if sizes[largest] > limit else f"together they are too large: {both}"
    hint = (
        ""
        if limit == MAX_STORED
        else "; larger ones need external storage (PERDURE_STORAGE), or are given as a file's path"
    )
    raise RunError(f"{what}, and {limit:,} is the most{hint}")


def new_run_id(agent: Agent) -> str:
    name = re.sub(r"[^\w-]+", "-", agent.name).strip("-") or "run"
    return f"{name}-{uuid.uuid4().hex[:8]}"


def _task(agent: Agent, run_input: Json) -> str:
    """The task in words: what a person asked for, as far as the input says it."""
    if isinstance(run_input, dict):
        for key in ("request", "task", "instruction", "question", "text"):
            if isinstance(run_input.get(key), str):
                return f"{agent.name}: {run_input[key]}"
    return agent.name if agent.description == "" else f"{agent.name}: {agent.description}"


async def fetch_run(client: Client, run_id: str) -> RunView:
    """The run as it stands or ended. Raises `RunError` when there is none, or nobody can tell."""
    handle: AgentHandle = client.get_workflow_handle(run_id, result_type=RunResult)
    try:
        description = await handle.describe()
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            raise RunError(f"there is no run {run_id!r} in namespace {client.namespace!r}") from None
        raise
    if description.workflow_type != AGENT_WORKFLOW:
        raise RunError(f"{run_id!r} is a {description.workflow_type} workflow, not a run of an agent")
    status = _STATUS[description.status] if description.status is not None else "running"
    try:
        view: RunView = await handle.query(RUN_QUERY, result_type=RunView, rpc_timeout=QUERY_TIMEOUT)
    except WorkflowQueryFailedError as error:
        view = RunView(run_id=run_id)
        if status == "running":  # it answered: what it says is the reason (R18.8)
            raise RunError(f"{run_id!r} cannot be shown: {error}") from None
    except RPCError:
        view = RunView(run_id=run_id)
        if status == "running":
            raise RunError(
                f"no worker answers for {run_id!r}: is one running on task queue {description.task_queue!r}?"
            ) from None
    if status == "running":
        _note_unserved(view, description)
        await _note_trouble(client, view, description)
        await _note_progress(client, view, description)
    if status in ("completed", "failed"):
        result = await _result(handle)
        if result is not None:
            view = view.model_copy(update={name: getattr(result, name) for name in RunResult.model_fields})
    view.status = status
    return view


async def read_value(client: Client, run_id: str, what: str) -> str:
    """The JSON of what a view has cut, whole: `output`, `state`, `calls`, `errors`, a reference or a call's id (R18.3).

    Raises `RunError` when there is no such thing, or no worker answers.
    """
    handle = client.get_workflow_handle(run_id)
    parts: list[str] = []
    offset: int | None = 0
    try:
        while offset is not None:
            answer: ValuePage = await handle.query(
                VALUE_QUERY, args=[what, offset], result_type=ValuePage, rpc_timeout=QUERY_TIMEOUT
            )
            parts.append(answer.text)
            offset = answer.next
    except WorkflowQueryFailedError as error:
        raise RunError(f"{what!r} of {run_id!r} cannot be read: {error}") from None
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            raise RunError(f"there is no run {run_id!r} in namespace {client.namespace!r}") from None
        raise RunError(f"no worker answers for {run_id!r}") from None
    return "".join(parts)


def _note_unserved(view: RunView, description: WorkflowExecutionDescription) -> None:
    """Say of a call that no worker has taken up which task queue it waits on (R12.5)."""
    now = datetime.now(UTC)
    waits = {
        pending.activity_id: pending.activity_options.task_queue.name
        for pending in description.raw_description.pending_activities
        if pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
        and pending.attempt <= 1
        and (now - pending.scheduled_time.ToDatetime(UTC)).total_seconds() > UNSERVED_AFTER
    }
    for call in view.calls:
        if call.status == "running" and call.id in waits:
            call.reason = f"no worker has taken it up yet from task queue {waits[call.id]!r}"


async def _note_trouble(client: Client, view: RunView, description: WorkflowExecutionDescription) -> None:
    """Say of a Request that is asked again why that is: a server that is down is told while it is, not at the end."""
    for pending in description.raw_description.pending_activities:
        if pending.activity_type.name == REQUEST_ACTIVITY and pending.attempt > 1 and view.log:
            words = await _words(client, pending.last_failure)
            view.log[-1].trouble = f"attempt {pending.attempt} after: {words}"


async def _words(client: Client, failure: Failure) -> str:
    """The message of a failure as the server has it, which a codec may have made unreadable."""
    with contextlib.suppress(Exception):
        error = await client.data_converter.decode_failure(failure)
        return error.message if isinstance(error, FailureError) else str(error)
    return failure.message


async def tell_trouble(client: Client, run_id: str, told: Callable[[str], None]) -> None:
    """Until cancelled tell, once each, why a Request of a run is asked again."""
    handle = client.get_workflow_handle(run_id)
    last = ""
    while True:
        await asyncio.sleep(TROUBLE_INTERVAL)
        with contextlib.suppress(RPCError):
            for pending in (await handle.describe()).raw_description.pending_activities:
                asks = pending.activity_type.name == REQUEST_ACTIVITY and pending.HasField("last_failure")
                words = await _words(client, pending.last_failure) if asks else ""
                if words and words != last:
                    last = words
                    told(words)


async def _note_progress(client: Client, view: RunView, description: WorkflowExecutionDescription) -> None:
    """Say of a running call what its tool said last of how far it is (R12.2)."""
    said: dict[str, str] = {}
    for pending in description.raw_description.pending_activities:
        # Whatever stands there is the tool's: what cannot be read says nothing.
        with contextlib.suppress(Exception):
            (detail,) = await client.data_converter.decode(pending.heartbeat_details.payloads)
            said[pending.activity_id] = str(detail["progress"])[:200]
    for call in view.calls:
        if call.status == "running" and call.id in said:
            call.reason = said[call.id]


async def _result(handle: AgentHandle) -> RunResult | None:
    """The result of a run that has ended; of a failed one what its failure carries."""
    try:
        return await handle.result(follow_runs=True)
    except WorkflowFailureError as error:
        cause = error.cause
        details = cause.details if isinstance(cause, ApplicationError) else ()
        if details:
            return RunResult.model_validate(details[0])
        message = cause.message if isinstance(cause, ApplicationError) else str(cause)
        return RunResult(run_id=handle.id, status="failed", error=message)


async def wait_run(client: Client, run_id: str, timeout: float | None = None) -> RunView | None:
    """Wait for the run's end; `None` when `timeout` seconds pass first, which does not touch the run (R10.1)."""
    handle = client.get_workflow_handle(run_id)
    try:
        await asyncio.wait_for(handle.result(), timeout)
    except WorkflowFailureError:
        pass
    except TimeoutError:
        return None
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
    return await fetch_run(client, run_id)


async def watch_run(client: Client, run_id: str) -> AsyncIterator[RunView]:
    """The run at every look, the last one after its end."""
    handle = client.get_workflow_handle(run_id)
    ended = asyncio.ensure_future(handle.result())
    try:
        description: WorkflowExecutionDescription | None = None
        for look in itertools.count():
            if ended.done():
                break
            # Where no worker answers now, the run goes on when one comes back.
            with contextlib.suppress(RPCError, WorkflowQueryFailedError):
                view: RunView = await handle.query(RUN_QUERY, result_type=RunView, rpc_timeout=QUERY_TIMEOUT)
                if description is None or look % LOOKS_FOR_TROUBLE == 0:
                    description = await handle.describe()
                await _note_trouble(client, view, description)
                await _note_progress(client, view, description)
                yield view
            await asyncio.wait([ended], timeout=WATCH_INTERVAL)
    finally:
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)
    yield await fetch_run(client, run_id)


async def has_worker(client: Client, task_queue: str) -> bool:
    """Whether any worker takes workflow tasks from the queue; those just gone count for some minutes."""
    response = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
    )
    return bool(response.pollers)


async def list_runs(client: Client, limit: int) -> list[JsonObject]:
    """Runs, newest first: `{"runId", "status", "startedAt", "endedAt"}`."""
    rows: list[JsonObject] = []
    async for run in client.list_workflows(f"WorkflowType = '{AGENT_WORKFLOW}'", limit=limit):
        rows.append(
            {
                "runId": run.id,
                "status": _STATUS[run.status] if run.status is not None else "running",
                "startedAt": run.start_time.isoformat(),
                "endedAt": None if run.close_time is None else run.close_time.isoformat(),
            }
        )
    return rows
