"""A run's deadline: one timer, which waits as long as the run waits for people (R9.5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.run.running import Run
    from perdure.run.stopping import Limit, WorkClock
    from perdure.values.durations import SHORTEST


def watch(run: Run, clock: WorkClock, on_reached: Callable[[Limit], None]) -> asyncio.Task[None]:
    """Start the clock, and tell when the run has worked for as long as it may. Cancel the task when it does not matter any more."""
    clock.work(workflow.time())
    return asyncio.create_task(_watch(run, clock, on_reached))


async def _watch(run: Run, clock: WorkClock, on_reached: Callable[[Limit], None]) -> None:
    deadline = run.shares.budget.deadline
    if deadline is None:
        return
    while (limit := run.shares.budget.late(clock.worked(workflow.time()))) is None:
        await workflow.sleep(max(deadline - clock.worked(workflow.time()), SHORTEST), summary="deadline")
        # What it waits for may take days: one timer then, not one after another.
        await workflow.wait_condition(lambda: not clock.paused)
    on_reached(limit)
