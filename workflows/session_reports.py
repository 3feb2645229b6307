"""Reports to a session: whether its run, or a run below it, waits for a person (R10.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.approvals.requests import WAITS, RunWaits


class SessionReports:
    """The reports of one execution to the session at the beginning of its id."""

    def __init__(self) -> None:
        self._count = 0
        """Number of the last report."""
        self._signals: set[asyncio.Task[None]] = set()

    def send(self, run_id: str, *, waits: bool, closed: bool = False, left: Collection[str] | None = None) -> None:
        """Send a `RunWaits` of this run, or of one below it that can send none."""
        # The time also counts up where this run goes on as new, or is reset.
        self._count = max(self._count + 1, int(workflow.time() * 1000))
        report = RunWaits(
            run_id=run_id, count=self._count, waits=waits, closed=closed, left=None if left is None else sorted(left)
        )
        session = workflow.get_external_workflow_handle(workflow.info().workflow_id.partition("/")[0])
        self._signals.add(task := asyncio.create_task(session.signal(WAITS, report)))
        task.add_done_callback(self._forget)

    async def until_sent(self) -> None:
        """Wait until the session has all reports. A server sends no signal of an execution that ends in the same task."""
        if self._signals:
            await workflow.wait([*self._signals])

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._signals.discard(task)
        if not task.cancelled():
            task.exception()  # the session may be gone
