"""Reservations and standing approvals in a tenant's ledger, which the first reservation starts."""

from __future__ import annotations

from temporalio import activity

from perdure.activities.queries import client
from perdure.queries import list_standing_approvals, update_ledger
from perdure.runs.ledger import RESERVE, RESERVE_ACTIVITY, ReservationAnswer, ReserveInput
from perdure.runs.standing_approvals import (
    FIND_STANDING_ACTIVITY,
    USE,
    USE_STANDING_ACTIVITY,
    FindStandingInput,
    StandingAnswer,
    StandingApproval,
    UseStandingInput,
)


@activity.defn(name=RESERVE_ACTIVITY)
async def reserve(wanted: ReserveInput) -> ReservationAnswer:
    """Reserve amounts in the tenant's ledger. A repeated attempt counts once: the key is the same."""
    queue = activity.info().task_queue
    return await update_ledger(client(), wanted.tenant, queue, RESERVE, wanted.reservation, ReservationAnswer)


@activity.defn(name=FIND_STANDING_ACTIVITY)
async def find_standing_approvals(wanted: FindStandingInput) -> list[StandingApproval]:
    """Return the valid standing approvals of a procedure, the oldest first."""
    found = await list_standing_approvals(client(), wanted.tenant)
    return [each for each in reversed(found) if each.digest == wanted.digest and each.status != "revoked"]


@activity.defn(name=USE_STANDING_ACTIVITY)
async def use_standing_approval(wanted: UseStandingInput) -> StandingAnswer:
    """Use a standing approval in a run. A repeated attempt counts once: the run is the same."""
    queue = activity.info().task_queue
    return await update_ledger(client(), wanted.tenant, queue, USE, wanted.use, StandingAnswer)
