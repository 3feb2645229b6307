"""Which execution of a run it is: recorded in the history, where a decision depends on it (R7.2)."""

from __future__ import annotations

from temporalio import activity

from perdure.people.wire import EXECUTION_ACTIVITY


@activity.defn(name=EXECUTION_ACTIVITY)
async def execution() -> str:
    """Return the id that Temporal has given this execution: a reset execution has another than the one before it."""
    return activity.info().workflow_run_id or ""
