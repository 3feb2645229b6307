"""The client of a task queue's audit workflow (R24.4)."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy

from perdure.runs.audit import AUDIT_WORKFLOW, RECORD, AuditBatch, AuditState, audit_id

_TO_SERVER: Final = timedelta(seconds=10)


async def record_entries(client: Client, task_queue: str, batch: AuditBatch) -> None:
    """Send entries to the audit workflow of the queue. The first batch starts it."""
    await client.start_workflow(
        AUDIT_WORKFLOW,
        AuditState(),
        id=audit_id(task_queue),
        task_queue=task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        start_signal=RECORD,
        start_signal_args=[batch],
        static_summary="the audit log",
        rpc_timeout=_TO_SERVER,
    )
