"""Activities that reach another run: a child's input and usage, the end of a session's run, and updates to it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final

from temporalio import activity
from temporalio.client import WorkflowFailureError, WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.queries import GONE, ask_other, client, fetch, other_run, own_run
from perdure.queries import cancellable
from perdure.runs.claim_check import CHILD, USAGE
from perdure.runs.delegates import GIVEN_ACTIVITY, SPENT_ACTIVITY, GivenInput, SpentBudget
from perdure.runs.wire import RUN_QUERY, RunResult, RunView
from perdure.sessions.wire import (
    AFTER_ACTIVITY,
    TURN,
    TURN_ACTIVITY,
    UPDATE_RUN_ACTIVITY,
    RunUpdate,
    RunUpdateResult,
)

_UPDATE_WITHIN: Final = timedelta(seconds=5)
_LOOK: Final = 10.0
"""Seconds between two heartbeats of a turn: a session's cancellation is noticed no sooner."""
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
    """Signal the session that there is room for its run, and hold the place until the run has ended (R10.3)."""
    await own_run().signal(TURN, run_id)
    run, pause = other_run(run_id), 0.05
    while True:
        activity.heartbeat()
        try:
            await asyncio.wait_for(run.result(), _LOOK)
        except TimeoutError:
            continue
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
                update.update, update.argument, rpc_timeout=_UPDATE_WITHIN
            )
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        return RunUpdateResult(refused=cause.message if isinstance(cause, ApplicationError) else str(cause))
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return RunUpdateResult(refused=f"the run {update.run_id} has ended")
        raise
    return RunUpdateResult(answer=answer)
