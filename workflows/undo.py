"""Undo from inside a run: the model's wish, a run that fails, and the runs of delegates (R23.4)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ChildWorkflowError, FailureError, is_cancelled_exception
from temporalio.workflow import ChildWorkflowCancellationType, ChildWorkflowHandle, ParentClosePolicy

from perdure.workflows.children import ChildRuns
from perdure.workflows.failures import message_of
from perdure.workflows.internal_activities import execute_typed
from perdure.workflows.observability import owner_attributes

with workflow.unsafe.imports_passed_through():
    from perdure.approvals.policy import parse_policy
    from perdure.errors import CallError
    from perdure.plan import Call, Failed, Outcome, Returned
    from perdure.runs.run import RunState
    from perdure.runs.undo import UNDO_PLAN_ACTIVITY, UndoStart, UndoWanted
    from perdure.runs.version_switches import PARTIAL_UNDO_FAILS, UNDO_FOLLOWS_POLICY
    from perdure.runs.views import summary as line
    from perdure.runs.wire import AGENT_WORKFLOW, RunResult
    from perdure.values.json import Json, JsonObject

_PLANNING = RetryPolicy(maximum_attempts=20, maximum_interval=timedelta(seconds=10))


async def run_undo(call: Call, run: RunState, children: ChildRuns) -> Outcome:
    """Undo calls of this run, as its model wishes; in an undo run, the run of a delegate that its record names."""
    own, params = workflow.info().workflow_id, call.inputs.params
    if run.undo is None:
        calls: Any = params.get("calls")
        return await undo_run(own, calls if isinstance(calls, list) else None, run, children)
    if (below := params.get("run")) not in run.undo.below:
        return Failed(CallError("not_undone", "the record of this undo has no such run"))
    return await undo_run(str(below), None, run, children)


def _with_changes(approval: JsonObject, run: RunState) -> JsonObject:
    """Return the changes of an undone run's policy with those of this run."""
    return parse_policy(approval).changed(run.approval_queue.guard.change).as_change()


async def undo_run(run_id: str, calls: Sequence[str] | None, run: RunState, children: ChildRuns) -> Outcome:
    """Undo a run by an undo run below this one, and return what was undone. It continues if this run ends.

    While it runs, it receives the changes of this run's policy (R7.7).
    """
    follows, changes = run.prepared.follows(UNDO_FOLLOWS_POLICY), children.changes
    named = None if calls is None else [str(each) for each in calls]
    wanted = UndoWanted(run_id=run_id, calls=named, own=run.undo is None)
    try:
        start: UndoStart = await execute_typed(
            UNDO_PLAN_ACTIVITY,
            [wanted],
            UndoStart,
            start_to_close_timeout=timedelta(minutes=2),
            retry_policy=_PLANNING,
            summary=line(f"what is to be undone of {run_id}"),
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        return Failed(CallError("not_undone", message_of(error)))
    problem: Outcome | None = None
    if run.undo is not None and (start.waits or start.left) and run.prepared.follows(PARTIAL_UNDO_FAILS):
        problem = Failed(CallError("not_undone", _explain_rest(run_id, start)))
    told = {"cannot_be_undone": start.cannot, "unknown": start.waits}
    left: JsonObject = {key: list[Json](names) for key, names in told.items() if names}
    if start.input is None:
        return problem or Returned({"undone": [], **left})
    try:
        handle: ChildWorkflowHandle[Any, RunResult] = await workflow.start_child_workflow(
            AGENT_WORKFLOW,
            start.input.model_copy(
                update={
                    "lineage": run.lineage,
                    "requesters": [*start.input.requesters, *run.approval_queue.requesters],
                    **({"approval": _with_changes(start.input.approval, run)} if follows else {}),
                }
            ),
            id=start.id,
            result_type=RunResult,
            # An undo that has begun is completed after any end of this run.
            parent_close_policy=ParentClosePolicy.ABANDON,
            cancellation_type=ChildWorkflowCancellationType.ABANDON,
            static_summary=line(f"undo of {run_id}"),
            search_attributes=owner_attributes(),
        )
        with children.running(handle, changes) if follows else nullcontext():
            result = await handle
    except ChildWorkflowError as error:
        words = str(error.cause or error)
        return Failed(CallError("not_undone", f"{words}; the undo run is {start.id}"))
    except FailureError as error:
        if is_cancelled_exception(error):
            raise
        return Failed(CallError("not_undone", f"{start.id} could not be started: {error}"))
    return problem or Returned(result.output if not left else {**(result.output or {}), **left})


def _explain_rest(run_id: str, start: UndoStart) -> str:
    """Return the reason why the undo of a child run leaves calls that are not undone."""
    if not start.waits:
        return f"{start.left:,} calls of {run_id} remain for the next undo"
    return (
        f"calls of {run_id} stay, because it is not known whether they, or calls that depend on them, took effect: "
        f"{', '.join(start.waits)}"
    )


def undo_words(outcome: Outcome) -> str:
    """Return the outcome of the undo of a failed run, for its failure's message."""
    if isinstance(outcome, Failed):
        return f"some of the run's calls were not undone: {outcome.error.message}"
    found: Any = outcome.value if isinstance(outcome, Returned) and isinstance(outcome.value, dict) else {}
    parts = [f"undone: {', '.join(found.get('undone') or ()) or 'nothing'}"]
    parts += [f"{words}: {', '.join(found[key])}" for key, words in _LEFT.items() if found.get(key)]
    return "; ".join(parts)


_LEFT = {"cannot_be_undone": "without an undo", "unknown": "unknown whether done"}
