"""Turns of a session's runs, where workers limit the number of active runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception
from temporalio.workflow import ActivityCancellationType

from perdure.workflows.dispatch import WAIT, ask_limited
from perdure.workflows.failures import not_taken_up

with workflow.unsafe.imports_passed_through():
    from perdure.runs.version_switches import ASKS_BY_ACTIVITY
    from perdure.sessions.wire import TURN_ACTIVITY, UNLIMITED_RUNS_PATCH
    from perdure.tools.invocation import runs_queue

_BEATS: Final = timedelta(seconds=60)
_LONGEST: Final = timedelta(days=365)


class RunTurns:
    """The turns of this execution's runs: runs that wait for a turn, or hold one."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._holding: asyncio.Task[None] | None = None

    def give(self, run_id: str) -> None:
        """Give a run its turn: a worker has room for it."""
        self._taken.add(run_id)

    async def take(self, run_id: str, wanted: Callable[[], bool], *, local: bool) -> None:
        """Wait until a worker has room for the run, or the run is no longer `wanted`. Return at once without a limit.
        `local`: ask for the limit as 0.1.0 did.
        """
        while wanted() and await self._are_limited(local=local):
            holding = self._holding = asyncio.create_task(_hold(run_id))
            await self._until_taken(run_id, holding, wanted)
            if run_id in self._taken or not holding.done() or not _not_taken_up(holding):
                return

    async def _are_limited(self, *, local: bool) -> bool:
        """Whether workers limit the number of active runs. Where a worker begins to limit it, the next execution follows."""
        if not local and workflow.patched(UNLIMITED_RUNS_PATCH):
            return False
        return (await ask_limited(local=local or not workflow.patched(ASKS_BY_ACTIVITY))).runs

    async def _until_taken(self, run_id: str, holding: asyncio.Task[None], wanted: Callable[[], bool]) -> None:
        await workflow.wait_condition(lambda: run_id in self._taken or holding.done() or not wanted())

    def leave(self) -> None:
        """Return the turn: the run has ended, or will not begin."""
        if self._holding is not None:
            self._holding.cancel()
            self._holding = None


def _not_taken_up(holding: asyncio.Task[None]) -> bool:
    """Whether workers no longer give turns. The caller then queries whether there is still a limit."""
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
