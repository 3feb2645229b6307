"""The turn of a session's run, where workers limit how many of them are under way at a time (R10.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception
from temporalio.workflow import ActivityCancellationType

from perdure.workflows.failures import not_taken_up
from perdure.workflows.queues.routing import WAIT, ask_limited

with workflow.unsafe.imports_passed_through():
    from perdure.sessions.wire import TURN_ACTIVITY
    from perdure.tools.limited import runs_queue

_BEATS: Final = timedelta(seconds=60)
_LONGEST: Final = timedelta(days=365)


class Turns:
    """Those that this execution's runs wait for, or hold."""

    def __init__(self) -> None:
        self._given: set[str] = set()
        self._holding: asyncio.Task[None] | None = None

    def give(self, run_id: str) -> None:
        """A worker has room for it."""
        self._given.add(run_id)

    async def take(self, run_id: str, wanted: Callable[[], bool]) -> None:
        """Wait until a worker has room for the run, or it is not `wanted` any more; at once where nothing is limited."""
        while wanted() and (await ask_limited()).runs:
            holding = self._holding = asyncio.create_task(_hold(run_id))
            await self._until_given(run_id, holding, wanted)
            if run_id in self._given or not holding.done() or not _not_taken_up(holding):
                return

    async def _until_given(self, run_id: str, holding: asyncio.Task[None], wanted: Callable[[], bool]) -> None:
        await workflow.wait_condition(lambda: run_id in self._given or holding.done() or not wanted())

    def leave(self) -> None:
        """The run has ended, or will not begin."""
        if self._holding is not None:
            self._holding.cancel()
            self._holding = None


def _not_taken_up(holding: asyncio.Task[None]) -> bool:
    """Whether nobody gives turns any more: then it is asked whether there is still a limit."""
    error = None if holding.cancelled() else holding.exception()
    return isinstance(error, ActivityError) and not_taken_up(error)


async def _hold(run_id: str) -> None:
    try:
        await workflow.execute_activity(
            TURN_ACTIVITY,
            run_id,
            task_queue=runs_queue(workflow.info().task_queue),
            start_to_close_timeout=_LONGEST,
            schedule_to_start_timeout=WAIT,
            heartbeat_timeout=_BEATS,
            cancellation_type=ActivityCancellationType.TRY_CANCEL,
            summary=f"room for {run_id}"[:200],
        )
    except ActivityError as error:
        if not is_cancelled_exception(error):
            raise
