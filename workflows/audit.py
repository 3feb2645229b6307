"""The audit log of a task queue, one workflow; and the entries that a run or a session sends to it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

from pydantic import ValidationError
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

from perdure.workflows.arguments import any_arguments, read_input, read_one
from perdure.workflows.continue_as_new import should_continue_as_new, wait_uncancelled
from perdure.workflows.observability import now

with workflow.unsafe.imports_passed_through():
    from perdure.errors import PerdureError
    from perdure.runs.audit import (
        AUDIT_ACTIVITY,
        AUDIT_WORKFLOW,
        BOUNDED_AUDIT_PATCH,
        RECORD,
        WRITE_AUDIT_ACTIVITY,
        AuditBatch,
        AuditLog,
        AuditState,
        count_fitting,
    )
    from perdure.runs.run import RunState
    from perdure.runs.wire import REWRITE
    from perdure.values.json import Json, Sent
    from perdure.values.limits import MAX_PAYLOAD

_ATTEMPT: Final = timedelta(seconds=60)
_UNTIL_TAKEN: Final = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=1))
"""Attempts without a maximum: the sink may be unavailable for days."""


@workflow.defn(name=AUDIT_WORKFLOW, failure_exception_types=[PerdureError, ValidationError])
class AuditWorkflow:
    """The audit log of one task queue: it numbers and chains entries, and writes them to the sink in their order."""

    @workflow.init
    def __init__(self, *arguments: Json) -> None:
        self._refusal: Exception | None = None
        self._log = AuditLog()
        self._rewrites = False
        try:
            state = read_input(AuditState, arguments)
            self._log = AuditLog(state, is_bounded=lambda: workflow.patched(BOUNDED_AUDIT_PATCH))
        except Exception as error:  # `run` raises it: a signal may be handled before
            self._refusal = error

    @workflow.run
    async def run(self, *_: Json) -> None:
        """Write lines until this execution's history is long, and continue as new with those that are left."""
        if self._refusal is not None:
            raise self._refusal
        while True:
            await wait_uncancelled(lambda: bool(self._log.state.pending) or self._is_due())
            if self._log.state.pending:
                await self._write()
            if self._is_due():
                workflow.continue_as_new(self._log.carried())

    async def _write(self) -> None:
        """Write the oldest lines. Return without it when the execution is to continue as new."""
        lines = self._log.oldest()
        writing = workflow.start_activity(
            WRITE_AUDIT_ACTIVITY,
            lines,
            start_to_close_timeout=_ATTEMPT,
            retry_policy=_UNTIL_TAKEN,
            summary=f"lines {lines[0].number} to {lines[-1].number}",
        )
        await wait_uncancelled(lambda: writing.done() or self._is_due())
        if not writing.done():
            writing.cancel()
            await wait_uncancelled(writing.done)
        try:
            await writing
        except ActivityError as error:
            if not is_cancelled_exception(error):
                raise
        else:
            self._log.delivered(len(lines))

    def _is_due(self) -> bool:
        """Whether to continue as new. While the sink is unavailable, more entries may be pending than a new execution
        can begin with.
        """
        return (self._rewrites or should_continue_as_new()) and len(
            self._log.carried().model_dump_json().encode()
        ) <= MAX_PAYLOAD

    @workflow.signal(name=REWRITE, description="Continue as new, to encrypt all values with the newest key")
    @any_arguments
    def rewrite(self, _: Sent[None]) -> None:
        """Continue as new."""
        self._rewrites = True

    @workflow.signal(name=RECORD, description="Internal: append entries to the audit log")
    @any_arguments
    def record(self, batch: Sent[AuditBatch]) -> None:
        """Append the entries, each key once."""
        if (found := read_one(AuditBatch, batch)) is not None:
            self._log.record(found)


async def send_entries(batch: AuditBatch) -> None:
    """Send entries to the audit workflow, however long that takes."""
    entries = batch.entries
    while entries:
        count = count_fitting(entries, MAX_PAYLOAD)
        if count < len(entries) and not workflow.patched(BOUNDED_AUDIT_PATCH):
            count = len(entries)
        await workflow.execute_activity(
            AUDIT_ACTIVITY,
            AuditBatch(entries=entries[:count]),
            start_to_close_timeout=_ATTEMPT,
            retry_policy=_UNTIL_TAKEN,
            summary=f"{count} entries for the audit log",
        )
        entries = entries[count:]


class AuditSender:
    """Sends the entries of a run as they come, one batch at a time, where the run's worker has a sink."""

    def __init__(self, run: RunState, *, begins: bool) -> None:
        """`begins`: whether this execution is the run's first."""
        owner = run.identity.owner
        self._trail = run.journal.audit
        self._is_busy = False
        self._trail.begin(
            is_wanted=run.prepared.audited,
            execution=workflow.info().run_id,
            tenant=owner.tenant,
            session=owner.session,
        )
        if run.undo is not None and begins:
            above = workflow.info().parent
            by = run.undo.by or ("unknown" if above is None else f"run {above.workflow_id}")
            calls: list[Json] = [*run.undo.calls.values()]
            self._trail.add("undo", now(), {"by": by, "undoes": run.undo.run_id, "calls": calls})
        if run.prepared.audited:
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        while True:
            await workflow.wait_condition(lambda: self._trail.is_pending)
            self._is_busy = True
            await send_entries(self._trail.take())
            self._is_busy = False

    async def settle(self, *, ends: bool = True) -> None:
        """Wait until the audit workflow has all entries. If the run `ends`, nothing interrupts that."""
        wait = wait_uncancelled if ends else workflow.wait_condition
        while self._is_busy or self._trail.is_pending:
            await wait(lambda: not (self._is_busy or self._trail.is_pending))
