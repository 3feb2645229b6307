"""Standing approvals of a tenant: granted and revoked in the tenant's ledger, through a client (R23.3)."""

from __future__ import annotations

from collections.abc import Sequence

from temporalio.client import Client

from perdure.errors import DecisionError, DecisionRefusedError
from perdure.queries import update_ledger
from perdure.runs.agent import parse_agent
from perdure.runs.procedures import PROCEDURE, procedure_digest
from perdure.runs.standing_approvals import (
    GRANT,
    REVOKE,
    StandingAnswer,
    StandingApproval,
    StandingRevocation,
    parse_standing_approval,
)
from perdure.values.json import Json, JsonObject


def standing_approval_of(
    document: JsonObject,
    *,
    uses: int,
    until: str,
    by: str,
    bounds: JsonObject,
    sources: Sequence[str],
    name: str | None,
    reason: str,
) -> StandingApproval:
    """Return a standing approval of this agent file. Raise `DecisionError` unless the agent is a procedure, and for
    invalid bounds.
    """
    agent = parse_agent(document)
    if PROCEDURE not in agent.metadata:
        raise DecisionError(f"{agent.name} is not a procedure: make one of a run with 'perdure promote'")
    given: dict[str, Json] = {
        "name": name or agent.name,
        "procedure": agent.name,
        "digest": procedure_digest(agent),
        "bounds": bounds,
        "sources": [*sources],
        "uses": uses,
        "until": until,
        "by": by,
        "reason": reason,
    }
    return parse_standing_approval(given)


async def grant(client: Client, tenant: str, task_queue: str, wanted: StandingApproval) -> StandingApproval:
    """Grant a standing approval. Raise `DecisionRefusedError` if the ledger rejects it."""
    return _kept(await update_ledger(client, tenant, task_queue, GRANT, wanted, StandingAnswer))


async def revoke(client: Client, tenant: str, task_queue: str, name: str, by: str) -> StandingApproval:
    """Revoke a standing approval. Raise `DecisionRefusedError` if none has this name."""
    wanted = StandingRevocation(name=name, by=by)
    return _kept(await update_ledger(client, tenant, task_queue, REVOKE, wanted, StandingAnswer))


def _kept(answer: StandingAnswer) -> StandingApproval:
    if answer.approval is None:
        raise DecisionRefusedError(answer.refused)
    return answer.approval
