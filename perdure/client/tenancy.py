"""Tenancy and idempotent starts: owners of runs, and keys that name one run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowHandle
from temporalio.common import Priority, SearchAttributeKey, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.errors import RunError, RunExistsError, RunNotFoundError
from perdure.runs.wire import AGENT_WORKFLOW, TENANT_ATTRIBUTE
from perdure.sessions.wire import KEY_WORKFLOW, SESSION_WORKFLOW, digest
from perdure.values.json import Json, shorten
from perdure.values.limits import MAX_NAME

TENANT_MEMO: Final = "tenant"
"""Key of the memo that holds the tenant of a run or a session, if it has one. Runs below it have no tenant of their
own.
"""
_TENANT: Final = SearchAttributeKey.for_keyword(TENANT_ATTRIBUTE)
_LONGEST_KEY: Final = 64
"""Bytes of a fairness key."""


def owned_memo(tenant: str | None) -> dict[str, str]:
    """Return the memo of a workflow that is started for a tenant."""
    return {TENANT_MEMO: tenant} if tenant else {}


def queue_priority(tenant: str | None, priority: int | None = None) -> Priority:
    """Return the place of an execution in the task queue; its activities and child workflows inherit it.

    Work of a smaller `priority` comes first. Within one priority each tenant has the same share, however long its
    backlog.
    """
    key = None
    if tenant:
        key = tenant if len(tenant.encode()) <= _LONGEST_KEY else digest(tenant, _LONGEST_KEY)
    return Priority(priority_key=priority, fairness_key=key)


async def check_owner(client: Client, id: str, tenant: str, *, asked: str | None = None) -> None:
    """Raise `RunNotFoundError` unless a run, a session, or its root was started for this tenant. The error is that of a
    missing run.

    `asked`: the id of a run of the session, for the error.
    """
    handle: WorkflowHandle[object, object] = client.get_workflow_handle(id)
    kind = AGENT_WORKFLOW if asked is None else SESSION_WORKFLOW
    try:
        found = await handle.describe()
        if found.workflow_type == kind and await _tenant_of(client, found) == tenant:
            return
    except RPCError as error:
        # An empty or too long id is invalid.
        if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
            raise
    raise RunNotFoundError(f"there is no run {asked or id!r} in namespace {client.namespace!r}")


async def _tenant_of(client: Client, found: WorkflowExecutionDescription) -> str | None:
    """Return the tenant; `None`: it is no longer known."""
    root = found.raw_description.workflow_execution_info.root_execution.workflow_id
    if root and root != found.id:
        try:
            found = await client.get_workflow_handle(root).describe()
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            return found.typed_search_attributes.get(_TENANT)  # its root is no longer kept
    named = await found.memo_value(TENANT_MEMO, "", type_hint=str)
    return named or found.typed_search_attributes.get(_TENANT) or ""


WANTED_MEMO: Final = "wanted"
"""Key of the memo that holds a digest of the request."""
_ANSWER_MEMO: Final = "answer"
"""Key of the memo that holds the place of the answer, if it was known at the start."""
_UNSERVED: Final = timedelta(days=1)
"""The time after which the server ends the owner of a key that no worker has ended."""


@dataclass(frozen=True, slots=True)
class IdempotentStart:
    """A start by an idempotency key of the caller.

    The workflow with the id `run_id` owns the key: the run that it began, or, for requests that start no run, a
    workflow that does nothing (`take`).
    """

    key: str
    run_id: str
    """A digest of the key and its owner, so that others can neither use the id nor learn the key from it."""
    body: str
    """A digest of the request."""

    @classmethod
    def of(cls, tenant: str | None, sender: str | None, key: str, body: Json) -> IdempotentStart:
        """Return the start of this key. Raise `RunError` for an invalid key."""
        if not key.strip() or not key.isprintable() or len(key) > MAX_NAME:
            raise RunError(f"{shorten(key, 60)} is not a valid key: use 1 to {MAX_NAME} printable characters")
        return cls(key, cls.id_of(tenant, sender, key), digest(body))

    @staticmethod
    def id_of(tenant: str | None, sender: str | None, key: str) -> str:
        """Return the id of the run that the key names."""
        return f"run-{digest([tenant or '', sender or '', key])}"

    @classmethod
    def of_delivery(cls, tenant: str, trigger: str, delivery: str) -> IdempotentStart:
        """Return the start of a webhook's delivery. Its body does not count, because a sender may number its attempts
        there.
        """
        wanted = cls.of(tenant, trigger, delivery, None)
        return replace(wanted, run_id=f"run-{digest(['trigger', tenant, trigger, delivery])}")

    def memo(self) -> dict[str, str]:
        """Return the memo of the run."""
        return {WANTED_MEMO: self.body}

    async def find_run_id(self, client: Client) -> str:
        """Return the id of the existing run, if this request started it. Raises `RunExistsError` if another did."""
        await self._owner(client)
        return self.run_id

    async def answer(self, client: Client) -> str | None:
        """Return the answer that `take` recorded for this request; `None`: the key is unused. Raises `RunExistsError` if another request uses the
        key.
        """
        try:
            owner = await self._owner(client)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            return None
        return await owner.memo_value(_ANSWER_MEMO, "", type_hint=str)

    async def take(self, client: Client, tenant: str, task_queue: str, answer: str = "") -> bool:
        """Take the key for this request, for all sessions and adapters. `answer`: the place of the answer, if it is
        known.

        Return `False` if this request already had it. Raises `RunExistsError` if another request has it.
        """
        try:
            await client.start_workflow(
                KEY_WORKFLOW,
                id=self.run_id,
                task_queue=task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                execution_timeout=_UNSERVED,
                memo=self.memo() | owned_memo(tenant) | ({_ANSWER_MEMO: answer} if answer else {}),
                priority=queue_priority(tenant),
                static_summary="an idempotency key",
            )
        except WorkflowAlreadyStartedError:
            await self._owner(client)
            return False
        return True

    async def _owner(self, client: Client) -> WorkflowExecutionDescription:
        handle: WorkflowHandle[object, object] = client.get_workflow_handle(self.run_id)
        owner = await handle.describe()
        if await owner.memo_value(WANTED_MEMO, "", type_hint=str) != self.body:
            raise RunExistsError(
                f"the key {self.key!r} belongs to a run with another agent or input: use another key, or repeat that start"
            )
        return owner
