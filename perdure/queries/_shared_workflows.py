"""Clients of the workflows that many runs share: a tenant's ledger, and a task queue's audit log (R24.4)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from temporalio.client import Client, WithStartWorkflowOperation, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from perdure.queries._answers import answer_of, update_with_start
from perdure.runs.audit import AUDIT_WORKFLOW, RECORD, AuditBatch, AuditState, audit_id
from perdure.runs.ledger import ACCOUNTS_QUERY, LEDGER_WORKFLOW, AccountView, LedgerInput, ledger_id
from perdure.runs.standing_approvals import STANDING_QUERY, StandingApproval
from perdure.values.json import WireModel

T = TypeVar("T")
_ANSWERS_WITHIN: Final = timedelta(seconds=10)


async def update_ledger(
    client: Client, tenant: str, task_queue: str, update: str, argument: WireModel, result_type: type[T]
) -> T:
    """Return the ledger's answer to an update. The first update starts the ledger on this task queue."""
    start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
        LEDGER_WORKFLOW,
        LedgerInput(tenant=tenant),
        id=ledger_id(tenant),
        task_queue=task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        static_summary="what the tenant's runs use together",
    )
    limits: dict[str, Any] = {"result_type": result_type, "rpc_timeout": _ANSWERS_WITHIN}
    answer: T = await update_with_start(client, update, argument, start, **limits)
    return answer


async def list_accounts(client: Client, tenant: str) -> list[AccountView]:
    """Return the accounts of a tenant in their present periods; a tenant whose runs have used nothing has none."""
    now = datetime.now(UTC).date().isoformat()
    return await _ask_ledger(client, tenant, ACCOUNTS_QUERY, now, list[AccountView])


async def list_standing_approvals(client: Client, tenant: str) -> list[StandingApproval]:
    """Return the standing approvals of a tenant, the newest first."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return await _ask_ledger(client, tenant, STANDING_QUERY, now, list[StandingApproval])


async def _ask_ledger(client: Client, tenant: str, query: str, now: str, kind: type[list[T]]) -> list[T]:
    try:
        handle: WorkflowHandle[Any, Any] = client.get_workflow_handle(ledger_id(tenant))
        found: list[T] = await answer_of(handle, query, now, result_type=kind, client=client)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return []
        raise
    return found


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
