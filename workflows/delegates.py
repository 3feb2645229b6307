"""Running a delegate: a child workflow with its own history, limits and approvals (R8.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError, CancelledError, ChildWorkflowError, TerminatedError, TimeoutError
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from perdure.calls import Call
    from perdure.delegates import child_document, too_deep
    from perdure.errors import CallError
    from perdure.outcomes import Failed, Outcome, Returned
    from perdure.plan import Plan
    from perdure.prompts import call_line
    from perdure.running import Run
    from perdure.runs import AGENT_WORKFLOW, RunInput, RunResult, RunUsage


async def run_delegate(call: Call, plan: Plan, run: Run, on_spent: Callable[[RunUsage], None]) -> Outcome:
    """The delegate's output, or its failure as the call's; `on_spent` is told what it cost, also when it failed (R9.6)."""
    tool = call.tool
    assert tool is not None
    if (error := too_deep(run.lineage, tool.name)) is not None:
        return Failed(error)
    prepared = run.prepared
    document = child_document(call, prepared.delegates, prepared.delegate_problems, base=plan.values, tools=run.tools)
    if isinstance(document, CallError):
        return Failed(document)
    child = RunInput(
        agent=document,
        input=call.params,
        has_input=True,
        approval=run.desk.guard.change.as_change(),
        lineage=run.lineage,
        delegates=prepared.delegates,
    )
    try:
        result: RunResult = await workflow.execute_child_workflow(
            AGENT_WORKFLOW,
            child,
            id=f"{workflow.info().workflow_id}/{call.id}",
            result_type=RunResult,
            task_queue=tool.task_queue,
            execution_timeout=timedelta(seconds=tool.timeout) if tool.timeout else None,
            parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
            cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_REQUESTED,
            static_summary=f"{tool.name}: {call_line(call.params)}"[:200],
        )
    except ChildWorkflowError as failure:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return _failed(call, failure, on_spent)
    on_spent(result.usage)
    call.attempts = 1
    return Returned(result.output)


def _failed(call: Call, failure: ChildWorkflowError, on_spent: Callable[[RunUsage], None]) -> Failed:
    call.attempts = 1
    cause = failure.cause
    if isinstance(cause, ApplicationError):
        if cause.details:
            on_spent(RunResult.model_validate(cause.details[0]).usage)
        return Failed(
            CallError(cause.type or "delegate_failed", f"the delegate of {call.tool_name} failed: {cause.message}")
        )
    if isinstance(cause, CancelledError):
        return Failed(CallError("cancelled", f"the delegate of {call.tool_name} was cancelled"))
    if isinstance(cause, TerminatedError):
        return Failed(CallError("terminated", f"the delegate of {call.tool_name} was terminated"))
    if isinstance(cause, TimeoutError):
        assert call.tool is not None
        return Failed(
            CallError("timeout", f"the delegate of {call.tool_name} took longer than {call.tool.timeout:g} s")
        )
    return Failed(CallError(type(cause).__name__, str(cause or failure)))
