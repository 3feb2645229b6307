"""Resets as the server records them: whether a reset made this execution, and the end of children that the earlier one
left open.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution as ExecutionId
from temporalio.client import (
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowQueryFailedError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.queries import client, fetch, own_run
from perdure.approvals.requests import EXECUTION_ACTIVITY, LEFT_BEHIND
from perdure.queries import TIMEOUT
from perdure.rules import RuleRecord
from perdure.runs.claim_check import USAGE
from perdure.runs.delegates import END_FORMER_ACTIVITY, END_LEFT_ACTIVITY, FORMER_RECORD_ACTIVITY
from perdure.runs.notifications import NOTIFICATION_WORKFLOW
from perdure.values.json import dumps

_ENDS_WITHIN: Final = 30.0
"""Seconds in which a cancelled child and its own children have to end. A child without a worker is terminated then."""


@activity.defn(name=EXECUTION_ACTIVITY)
async def execution() -> str:
    """Return the id that Temporal has given this execution: a reset execution has another than the one before it.

    `LEFT_BEHIND` if a parent workflow was reset to a point before it started this run, or a run between.
    """
    with contextlib.suppress(RPCError):  # without permission to read the parent the decision counts, as without a reset
        if await _is_left_behind():
            return LEFT_BEHIND
    return activity.info().workflow_run_id or ""


async def _is_left_behind() -> bool:
    child = await own_run().describe(rpc_timeout=TIMEOUT)
    while (above := _parent(child)) is not None:
        now = await _describe(above.workflow_id)
        if now.run_id == above.run_id:
            child = now
            continue
        if not await _was_reset(above):
            return False  # it continued as new, or its id was used again
        if not _has(now, child):
            return True
        child = now
    return False


@activity.defn(name=END_LEFT_ACTIVITY)
async def end_left_behind() -> None:
    """Cancel the open children that an execution from before a reset has started, and that this execution does not
    have.

    Notifications continue.

    The index of the server lists the children, and this execution's description lists its own: both have a child that
    starts meanwhile.
    """
    own = activity.info()
    query = f"ExecutionStatus = 'Running' AND WorkflowId STARTS_WITH {dumps(f'{own.workflow_id}/')}"
    try:
        found = [each async for each in client().list_workflows(query) if each.parent_id == own.workflow_id]
        # A notification outlives the run that has sent it: nothing sends its key again.
        open_children = [each for each in found if each.workflow_type != NOTIFICATION_WORKFLOW]
        now = await own_run().describe(rpc_timeout=TIMEOUT)
        for each in open_children:
            child = await _describe(each.id)
            above = _parent(child)
            if above is None or above.run_id == own.workflow_run_id or _has(now, child) or not await _was_reset(above):
                continue
            handle = client().get_workflow_handle(each.id, first_execution_run_id=_first(child))
            with contextlib.suppress(RPCError):  # it has just ended
                await handle.cancel(rpc_timeout=TIMEOUT)
    except RPCError as error:
        lasting = error.status is RPCStatusCode.PERMISSION_DENIED
        raise ApplicationError(str(error), type="not_ended", non_retryable=lasting) from None


@activity.defn(name=FORMER_RECORD_ACTIVITY)
async def read_former_record() -> RuleRecord:
    """Return the record, for the run's rules, of the executions of this workflow that a reset has ended.

    An execution that continued as new passed its record to the next one.
    """
    own, found = activity.info(), RuleRecord()
    named = f"WorkflowId = {dumps(own.workflow_id)} AND ExecutionStatus != 'ContinuedAsNew'"
    try:
        async for each in client().list_workflows(named):
            if each.run_id != own.workflow_run_id:
                former = client().get_workflow_handle(each.id, run_id=each.run_id)
                found.join((await fetch(USAGE, "", former)).rule_record or RuleRecord())
    except (RPCError, WorkflowQueryFailedError) as error:
        lasting = isinstance(error, RPCError) and error.status is RPCStatusCode.PERMISSION_DENIED
        raise ApplicationError(str(error), type="not_read", non_retryable=lasting) from None
    return found


@activity.defn(name=END_FORMER_ACTIVITY)
async def end_former(child_id: str, forces: bool = True) -> bool:
    """End the open workflow with this id, if an earlier execution of this workflow has started it.

    Return whether the id is free then. A workflow of another parent is not changed. A child that does not end by its
    cancellation is terminated with `forces`; else this fails, and is tried again.
    """
    try:
        child = await _describe(child_id)
        if child.status is not WorkflowExecutionStatus.RUNNING:
            return True
        above, own = _parent(child), activity.info()
        if above is None or above.workflow_id != own.workflow_id or above.run_id == own.workflow_run_id:
            return False
        handle = client().get_workflow_handle(child_id, first_execution_run_id=_first(child))
        with contextlib.suppress(WorkflowFailureError):
            await handle.cancel(rpc_timeout=TIMEOUT)
            try:
                await asyncio.wait_for(handle.result(), _ENDS_WITHIN)
            except TimeoutError:
                if not forces:
                    raise ApplicationError(f"{child_id} was cancelled but continues", type="not_ended") from None
                await handle.terminate("the workflow above was reset and starts it anew", rpc_timeout=TIMEOUT)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return True  # it has just ended
        lasting = error.status is RPCStatusCode.PERMISSION_DENIED
        raise ApplicationError(str(error), type="not_ended", non_retryable=lasting) from None
    return True


async def _describe(workflow_id: str, run_id: str | None = None) -> WorkflowExecutionDescription:
    return await client().get_workflow_handle(workflow_id, run_id=run_id).describe(rpc_timeout=TIMEOUT)


def _parent(described: WorkflowExecutionDescription) -> ExecutionId | None:
    """Return the execution that started this one; `None` for one that a client started."""
    parent = described.raw_description.workflow_execution_info.parent_execution
    return parent if parent.workflow_id else None


async def _was_reset(execution: ExecutionId) -> bool:
    described = await _describe(execution.workflow_id, execution.run_id)
    return bool(described.raw_description.workflow_extended_info.reset_run_id)


def _has(above: WorkflowExecutionDescription, child: WorkflowExecutionDescription) -> bool:
    """Whether the parent workflow has this one as its child now."""
    known = {each.run_id for each in above.raw_description.pending_children}
    return _first(child) in known or child.run_id in known


def _first(described: WorkflowExecutionDescription) -> str:
    """Return the first execution of the chain, which continue-as-new and resets keep."""
    return described.raw_description.workflow_execution_info.first_run_id or described.run_id
