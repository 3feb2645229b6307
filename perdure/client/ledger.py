"""The accounts of a tenant's ledger, as its workflow has them."""

from __future__ import annotations

from datetime import UTC, datetime

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure.queries import TIMEOUT, cancellable
from perdure.runs.ledger import ACCOUNTS_QUERY, AccountView, ledger_id

__all__ = ["AccountView"]


async def list_accounts(client: Client, tenant: str) -> list[AccountView]:
    """Return the accounts of a tenant in their present periods; a tenant whose runs have used nothing has none."""
    try:
        with cancellable():
            found: list[AccountView] = await client.get_workflow_handle(ledger_id(tenant)).query(
                ACCOUNTS_QUERY, datetime.now(UTC).date().isoformat(), result_type=list[AccountView], rpc_timeout=TIMEOUT
            )
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return []
        raise
    return found
