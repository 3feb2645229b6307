"""Calls of tools that are activities, workflows or Nexus operations of the user's (R13.6): `perdure.tools.existing` says which, and how."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    NexusOperationError,
    TerminatedError,
    TimeoutError,
    WorkflowAlreadyStartedError,
)
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

from perdure.workflows.sending import Sender

with workflow.unsafe.imports_passed_through():
    from perdure.errors import CallError, JsonError
    from perdure.plan.calls import Call
    from perdure.plan.outcomes import Failed, Outcome, Returned
    from perdure.run.prompts import call_line
    from perdure.run.views.markdown import summary as line
    from perdure.tools.existing import Existing
    from perdure.tools.tool import Tool
    from perdure.values.jsons import Json, check
    from perdure.values.limits import MAX_ID, MAX_MESSAGE, said


async def run_existing(
    call: Call, existing: Existing, sender: Sender, begin: Callable[[Call], Awaitable[None]]
) -> Outcome:
    """What it returns, or its failure as the call's. Its result needs no room kept: the server takes none above 2 MB.

    `begin` is waited for just before it is sent.
    """
    tool = call.tool
    assert tool is not None
    if not 0 < (length := len(_child(call, existing).encode())) <= MAX_ID:
        message = f"{tool.name} cannot be run: its id would have {length:,} bytes, and 1 to {MAX_ID:,} are possible"
        return Failed(CallError("id_too_long", message))
    given = existing.given(call.params)
    size = sum(map(sender.sizes.of, given))
    if size > sender.max_payload:
        message = f"the parameters of {tool.name} have {said(size)} with their references resolved; {sender.max_payload:,} is the most"
        return Failed(CallError("params_too_large", message))
    await sender.room(size)
    await begin(call)
    sender.free(call.id)
    call.attempts = 1
    try:
        value = await _execute(call, tool, existing, given)
        check(value, source=f"the result of {tool.name}")
    except JsonError as error:
        return Failed(CallError("not_json", str(error)))
    except WorkflowAlreadyStartedError as error:
        return Failed(
            CallError("id_taken", f"{tool.name} cannot be run: there is already a workflow {error.workflow_id!r}")
        )
    except (ActivityError, ChildWorkflowError, NexusOperationError) as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError from error
        return Failed(_failure(tool, existing, error.cause or error))
    else:
        return Returned(value)
    finally:
        sender.settle(call.id)


def _child(call: Call, existing: Existing) -> str:
    return existing.workflow_id(call.params, f"{workflow.info().workflow_id}/{call.id}")


async def _execute(call: Call, tool: Tool, existing: Existing, given: list[Json]) -> Any:
    summary = line(call_line(call.params))
    limit = timedelta(seconds=tool.timeout) if tool.timeout else None
    if existing.kind == "activity":
        return await workflow.execute_activity(
            existing.name,
            args=given,
            activity_id=call.id,
            task_queue=tool.task_queue,
            start_to_close_timeout=timedelta(seconds=tool.attempt_timeout),
            schedule_to_start_timeout=timedelta(seconds=tool.queue_timeout) if tool.task_queue else None,
            heartbeat_timeout=timedelta(seconds=tool.heartbeat) if tool.heartbeat else None,
            retry_policy=RetryPolicy(maximum_attempts=tool.retries + 1),
            cancellation_type=workflow.ActivityCancellationType.TRY_CANCEL,
            summary=summary,
        )
    if existing.kind == "workflow":
        return await workflow.execute_child_workflow(
            existing.name,
            args=given,
            id=_child(call, existing),
            task_queue=tool.task_queue,
            execution_timeout=limit,
            retry_policy=RetryPolicy(maximum_attempts=tool.retries + 1) if tool.retries else None,
            parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
            cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
            static_summary=line(f"{tool.name}: {call_line(call.params)}"),
        )
    client = workflow.create_nexus_client(service=existing.service, endpoint=existing.endpoint)
    argument = given[0] if given else None
    return await client.execute_operation(existing.name, argument, schedule_to_close_timeout=limit, summary=summary)


def _failure(tool: Tool, existing: Existing, cause: BaseException) -> CallError:
    if isinstance(cause, ApplicationError):
        return CallError((cause.type or "error")[:MAX_MESSAGE], cause.message[:MAX_MESSAGE])
    if isinstance(cause, TimeoutError):
        seconds = tool.attempt_timeout if existing.kind == "activity" else tool.timeout
        took = (
            f"{existing.title} took longer than {seconds:g} s" if seconds else f"{existing.title} did not end in time"
        )
        return CallError("timeout", f"{tool.name} timed out: {took}, or no worker took it up")
    if isinstance(cause, CancelledError):
        return CallError("cancelled", f"{existing.title} was cancelled")
    if isinstance(cause, TerminatedError):
        return CallError("terminated", f"{existing.title} was terminated")
    return CallError(type(cause).__name__, f"{existing.title} failed: {str(cause)[:MAX_MESSAGE]}")
