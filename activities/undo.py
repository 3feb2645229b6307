"""The plan of an undo that a run starts itself."""

from __future__ import annotations

from temporalio import activity
from temporalio.client import WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from perdure.activities.queries import client
from perdure.errors import RunError
from perdure.queries import read_effects
from perdure.runs.undo import UNDO_PLAN_ACTIVITY, UndoStart, UndoWanted, plan_undo


@activity.defn(name=UNDO_PLAN_ACTIVITY)
async def plan_undo_of(wanted: UndoWanted) -> UndoStart:
    """Return the undo run of a run, from the present state of the run and its undo runs."""
    try:
        found = await read_effects(client(), wanted.run_id)
        if found.open:
            raise RunError(f"{wanted.run_id} is being undone already, by {found.open}")
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
    )
