"""Reservations in a tenant's ledger, which the first of them starts."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any, Final

from temporalio import activity
from temporalio.client import WithStartWorkflowOperation
from temporalio.common import WorkflowIDConflictPolicy

from perdure.activities.queries import client
from perdure.runs.ledger import (
    LEDGER_WORKFLOW,
    RESERVE,
    RESERVE_ACTIVITY,
    LedgerInput,
    ReservationAnswer,
    ReserveInput,
    ledger_id,
)

_ANSWERS_WITHIN: Final = timedelta(seconds=10)


@activity.defn(name=RESERVE_ACTIVITY)
async def reserve(wanted: ReserveInput) -> ReservationAnswer:
    """Reserve amounts in the tenant's ledger. A repeated attempt counts once: the key is the same."""
    start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
        LEDGER_WORKFLOW,
        LedgerInput(tenant=wanted.tenant),
        id=ledger_id(wanted.tenant),
        task_queue=activity.info().task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        static_summary="what the tenant's runs use together",
    )
    try:
        answer: ReservationAnswer = await client().execute_update_with_start_workflow(
            RESERVE,
            wanted.reservation,
            start_workflow_operation=start,
            result_type=ReservationAnswer,
            rpc_timeout=_ANSWERS_WITHIN,
        )
    except BaseException:
        with contextlib.suppress(BaseException):  # it is raised there as well, and would be logged as never retrieved
            await asyncio.wait_for(start.workflow_handle(), 0.1)
        raise
    return answer
