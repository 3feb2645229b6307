"""Whose a run is, and how much of a queue is theirs: tenants share workers, and neither see nor slow each other (R10.2)."""

from __future__ import annotations

from typing import Final

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowHandle
from temporalio.common import Priority, SearchAttributeKey
from temporalio.service import RPCError, RPCStatusCode

from perdure.errors import RunNotFoundError
from perdure.run.wire import AGENT_WORKFLOW, TENANT_ATTRIBUTE
from perdure.sessions.wire import SESSION_WORKFLOW, digest

TENANT_MEMO: Final = "tenant"
"""Key of the memo that holds the tenant of a run or a session, where it has one; whatever runs below it has none of its own."""
_TENANT: Final = SearchAttributeKey.for_keyword(TENANT_ATTRIBUTE)
_LONGEST_KEY: Final = 64
"""Bytes of a fairness key."""


def owned_memo(tenant: str | None) -> dict[str, str]:
    """What is kept with what is started for a tenant."""
    return {TENANT_MEMO: tenant} if tenant else {}


def share(tenant: str | None) -> Priority:
    """Its share of the task queue's work, as large as each other tenant's, whatever waits of either. What runs below has the same."""
    if not tenant:
        return Priority.default
    return Priority(fairness_key=tenant if len(tenant.encode()) <= _LONGEST_KEY else digest(tenant, _LONGEST_KEY))


async def check_owner(client: Client, id: str, tenant: str, *, asked: str | None = None) -> None:
    """Whether a run, or a session, is the tenant's: it, or what it runs below, was started for it. Raises `RunNotFoundError` where it is not, in
    the words that there are for none at all; `asked` is what was asked for, where that is a run of the session."""
    handle: WorkflowHandle[object, object] = client.get_workflow_handle(id)
    kind = AGENT_WORKFLOW if asked is None else SESSION_WORKFLOW
    try:
        found = await handle.describe()
        if found.workflow_type == kind and await _tenant_of(client, found) == tenant:
            return
    except RPCError as error:
        # What is empty or too long is no id at all.
        if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
            raise
    raise RunNotFoundError(f"there is no run {asked or id!r} in namespace {client.namespace!r}")


async def _tenant_of(client: Client, found: WorkflowExecutionDescription) -> str | None:
    """`None`: nobody can tell any more."""
    root = found.raw_description.workflow_execution_info.root_execution.workflow_id
    if root and root != found.id:
        try:
            found = await client.get_workflow_handle(root).describe()
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            return found.typed_search_attributes.get(_TENANT)  # what it ran below is not kept any more
    named = await found.memo_value(TENANT_MEMO, "", type_hint=str)
    return named or found.typed_search_attributes.get(_TENANT) or ""
