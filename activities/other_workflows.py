"""Activities that reach other workflows: runs, the ledger of a tenant, and the plan of an undo."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final

from temporalio import activity
from temporalio.client import (
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.heartbeats import supervised_heartbeat
from perdure.activities.queries import GONE, ask_other, client, fetch, other_run, own_run
from perdure.errors import RunError
from perdure.queries import cancel_all, cancellable, list_standing_approvals, read_effects, update_ledger
from perdure.runs.claim_check import CHILD, USAGE
from perdure.runs.delegates import GIVEN_ACTIVITY, SPENT_ACTIVITY, GivenInput, SpentBudget
from perdure.runs.ledger import RESERVE, RESERVE_ACTIVITY, ReservationAnswer, ReserveInput
from perdure.runs.standing_approvals import (
    FIND_STANDING_ACTIVITY,
    USE,
    USE_STANDING_ACTIVITY,
    FindStandingInput,
    StandingAnswer,
    StandingApproval,
    UseStandingInput,
)
from perdure.runs.undo import UNDO_PLAN_ACTIVITY, UndoStart, UndoWanted, plan_undo
from perdure.runs.wire import RUN_QUERY, RunResult, RunView
from perdure.sessions.wire import AFTER_ACTIVITY, TURN, TURN_ACTIVITY, UPDATE_RUN_ACTIVITY, RunUpdate, RunUpdateResult

_UPDATE_WITHIN: Final = timedelta(seconds=5)
_HANDED_OVER: Final = timedelta(seconds=1)
"""Time until the next attempt of a turn. By default the server doubles the time with each attempt, so with each deploy."""
_UNANSWERED: Final = frozenset({RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.UNAVAILABLE})


def _gone(error: RPCError | WorkflowQueryFailedError) -> ApplicationError:
    """Return the failure of an activity whose run did not answer; it is final if the run does not exist."""
    lasting = isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND
    return ApplicationError(str(error), type=GONE, non_retryable=lasting)


@activity.defn(name=GIVEN_ACTIVITY)
async def read_child_input(wanted: GivenInput) -> Any:
    """Return a child run's input from its parent; the child's history records it."""
    try:
        # One such query at a time in this process: inputs may be large.
        return await fetch(CHILD, wanted.name, client().get_workflow_handle(wanted.above, run_id=wanted.execution))
    except RPCError as error:
        raise _gone(error) from None


@activity.defn(name=SPENT_ACTIVITY)
async def read_usage(run_id: str) -> SpentBudget:
    """Return the usage of a run that was cancelled or terminated, or has timed out."""
    try:
        return await fetch(USAGE, "", other_run(run_id))
    except (RPCError, WorkflowQueryFailedError) as error:
        raise _gone(error) from None


@activity.defn(name=AFTER_ACTIVITY)
async def read_result(run_id: str) -> RunResult:
    """Return the result of a run that was cancelled or terminated, or has timed out: it answers queries after its end
    too.
    """
    try:
        view: RunView = await ask_other(run_id, RUN_QUERY, RunView)
        spent: SpentBudget = await fetch(USAGE, "", other_run(run_id))
        closed = (await other_run(run_id).describe()).close_time
    except (RPCError, WorkflowQueryFailedError) as error:
        raise _gone(error) from None
    result = view.result()
    result.rule_record = spent.rule_record
    result.ended_at = None if closed is None else closed.isoformat(timespec="milliseconds")
    return result


@activity.defn(name=TURN_ACTIVITY)
async def hold_turn(run_id: str) -> None:
    """Signal the session that there is room for its run, and hold the place until the run has ended (R10.3).

    A turn is no work: when its worker shuts down, it fails at once, so that another worker holds the place.
    """
    async with supervised_heartbeat():
        await own_run().signal(TURN, run_id)
        ended = asyncio.create_task(_wait_for_end(other_run(run_id)))
        leaving = asyncio.create_task(activity.wait_for_worker_shutdown())
        try:
            await asyncio.wait({ended, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                return ended.result()
        finally:
            await cancel_all(ended, leaving)
    words = f"another worker holds the place of {run_id}, because this one was shut down"
    raise ApplicationError(words, next_retry_delay=_HANDED_OVER, category=ApplicationErrorCategory.BENIGN)


async def _wait_for_end(run: WorkflowHandle[Any, Any]) -> None:
    pause = 0.05
    while True:
        try:
            await run.result()
        except WorkflowFailureError:
            return
        except RPCError as error:  # the run has not started yet, or the server is unavailable
            if error.status is not RPCStatusCode.NOT_FOUND and error.status not in _UNANSWERED:
                raise
            await asyncio.sleep(pause)
            pause = min(1.0, 2 * pause)
        else:
            return


@activity.defn(name=UPDATE_RUN_ACTIVITY)
async def update_run(update: RunUpdate) -> RunUpdateResult:
    """Send an update to a run of this session, and return its answer."""
    try:
        with cancellable():
            answer: Any = await other_run(update.run_id).execute_update(
                update.update, update.argument, id=update.id or None, rpc_timeout=_UPDATE_WITHIN
            )
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        return RunUpdateResult(refused=cause.message if isinstance(cause, ApplicationError) else str(cause))
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return RunUpdateResult(refused=f"the run {update.run_id} has ended")
        raise
    return RunUpdateResult(answer=answer)


@activity.defn(name=UNDO_PLAN_ACTIVITY)
async def plan_undo_of(wanted: UndoWanted) -> UndoStart:
    """Return the undo run of a run, from the present state of the run and its undo runs."""
    try:
        if not wanted.own and (await other_run(wanted.run_id).describe()).status is WorkflowExecutionStatus.RUNNING:
            raise RunError(f"{wanted.run_id} is running: only a run that has ended can be undone")
        found = await read_effects(client(), wanted.run_id)
        if found.open:
            raise RunError(f"{wanted.run_id} is already being undone by {found.open}")
        plan, run_input = plan_undo(found, wanted.calls)
    except RunError as error:
        raise ApplicationError(str(error), type="not_undone", non_retryable=True) from None
    except (RPCError, WorkflowQueryFailedError) as error:
        raise ApplicationError(str(error), type="not_read") from None
    return UndoStart(
        id=found.next_id,
        input=run_input,
        cannot=[f"{each.call} {each.tool}" for each in plan.cannot],
        waits=[f"{each.call} {each.tool}" for each in plan.waits],
        left=plan.left,
    )


@activity.defn(name=RESERVE_ACTIVITY)
async def reserve(wanted: ReserveInput) -> ReservationAnswer:
    """Reserve amounts in the tenant's ledger. A repeated attempt counts once: the key is the same."""
    queue = activity.info().task_queue
    return await update_ledger(client(), wanted.tenant, queue, RESERVE, wanted.reservation, ReservationAnswer)


@activity.defn(name=FIND_STANDING_ACTIVITY)
async def find_standing_approvals(wanted: FindStandingInput) -> list[StandingApproval]:
    """Return the valid standing approvals of a procedure, the oldest first."""
    found = await list_standing_approvals(client(), wanted.tenant)
    return [each for each in reversed(found) if each.digest == wanted.digest and each.status != "revoked"]


@activity.defn(name=USE_STANDING_ACTIVITY)
async def use_standing_approval(wanted: UseStandingInput) -> StandingAnswer:
    """Use a standing approval in a run. A repeated attempt counts once: the run is the same."""
    queue = activity.info().task_queue
    return await update_ledger(client(), wanted.tenant, queue, USE, wanted.use, StandingAnswer)
