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
"""Key of the memo that holds the tenant of a run or a session, where it has one; whatever runs below it has none of its own."""
_TENANT: Final = SearchAttributeKey.for_keyword(TENANT_ATTRIBUTE)
_LONGEST_KEY: Final = 64
"""Bytes of a fairness key."""


def owned_memo(tenant: str | None) -> dict[str, str]:
    """Return the memo of everything that is started for a tenant."""
    return {TENANT_MEMO: tenant} if tenant else {}


def share(tenant: str | None, priority: int | None = None) -> Priority:
    """Return the place of an execution in the task queue; its activities and child workflows inherit it.

    Work of a smaller `priority` comes first. Of one priority each tenant has the same share, however much of either waits.
    """
    key = None
    if tenant:
        key = tenant if len(tenant.encode()) <= _LONGEST_KEY else digest(tenant, _LONGEST_KEY)
    return Priority(priority_key=priority, fairness_key=key)


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
    """Return the tenant; `None`: nobody can tell any more."""
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


WANTED_MEMO: Final = "wanted"
"""Key of the memo that holds a digest of what was asked for."""
_ANSWER_MEMO: Final = "answer"
"""Key of the memo that holds where the answer is, where that was known beforehand."""
_UNSERVED: Final = timedelta(days=1)
"""After which the server ends the owner of a key that no worker ends, because none knows its type."""


@dataclass(frozen=True, slots=True)
class IdempotentStart:
    """A start by an idempotency key of the caller.

    The workflow with the id `run_id` owns the key: the run that it began, or for other requests a workflow that does nothing (`take`).
    """

    key: str
    run_id: str
    """Made of the key, and of who it is whose key it is: nobody else can say it, nor find out by it what others want."""
    body: str
    """A digest of it."""

    @classmethod
    def of(cls, tenant: str | None, sender: str | None, key: str, body: Json) -> IdempotentStart:
        """Return the start of this key. Raise `RunError` for a text that is no key."""
        if not key.strip() or not key.isprintable() or len(key) > MAX_NAME:
            raise RunError(f"{shorten(key, 60)} is not a valid key: use 1 to {MAX_NAME} printable characters")
        return cls(key, cls.id_of(tenant, sender, key), digest(body))

    @staticmethod
    def id_of(tenant: str | None, sender: str | None, key: str) -> str:
        """Return the id of the run that the key names."""
        return f"run-{digest([tenant or '', sender or '', key])}"

    @classmethod
    def of_delivery(cls, tenant: str, trigger: str, delivery: str) -> IdempotentStart:
        """Return the start of a webhook's delivery: the same one whatever its body maps to, because a sender may count its attempts in there."""
        wanted = cls.of(tenant, trigger, delivery, None)
        return replace(wanted, run_id=f"run-{digest(['trigger', tenant, trigger, delivery])}")

    def memo(self) -> dict[str, str]:
        """Return the memo of the run."""
        return {WANTED_MEMO: self.body}

    async def find_run_id(self, client: Client) -> str:
        """Return the id of the run that there is already, where it is this. Raises `RunExistsError`."""
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
        """Make the key this request's, in all sessions and at all adapters; `answer`: where the answer will be, where that is known.

        Returns whether it is now; else it was already. Raises `RunExistsError` where it is that of another request.
        """
        try:
            await client.start_workflow(
                KEY_WORKFLOW,
                id=self.run_id,
                task_queue=task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                execution_timeout=_UNSERVED,
                memo=self.memo() | owned_memo(tenant) | ({_ANSWER_MEMO: answer} if answer else {}),
                priority=share(tenant),
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
