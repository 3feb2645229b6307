"""A start that may be said again: the sender's key for what they want done names one request, whoever asks how often (R10.1)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowHandle
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.client.whose.owners import owned_memo, share
from perdure.errors import RunError, RunExistsError
from perdure.sessions.wire import KEY_WORKFLOW, digest
from perdure.values.jsons import Json, shorten
from perdure.values.limits import MAX_NAME

WANTED_MEMO: Final = "wanted"
"""Key of the memo that holds a digest of what was asked for."""
_ANSWER_MEMO: Final = "answer"
"""Key of the memo that holds where the answer is, where that was known beforehand."""
_UNSERVED: Final = timedelta(days=1)
"""After which the server ends the owner of a key that no worker ends, because none knows its type."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What somebody wants done, by a key of theirs.

    The workflow of the id `run_id` owns the key: the run that it began, or for other requests one that does nothing (`take`).
    """

    key: str
    run_id: str
    """Made of the key, and of who it is whose key it is: nobody else can say it, nor find out by it what others want."""
    body: str
    """A digest of it."""

    @classmethod
    def of(cls, tenant: str | None, sender: str | None, key: str, body: Json) -> Wanted:
        """Raises `RunError` for what is no key."""
        if not key.strip() or not key.isprintable() or len(key) > MAX_NAME:
            raise RunError(f"a key is some printable characters, {MAX_NAME} at most, not {shorten(key, 60)}")
        return cls(key, f"run-{digest([tenant or '', sender or '', key])}", digest(body))

    def memo(self) -> dict[str, str]:
        """What is kept with the run."""
        return {WANTED_MEMO: self.body}

    async def found(self, client: Client) -> str:
        """The id of the run that there is already, where it is this. Raises `RunExistsError`."""
        await self._owner(client)
        return self.run_id

    async def answer(self, client: Client) -> str | None:
        """What was given to `take` for this request; `None`: the key is nobody's yet. Raises `RunExistsError` where it is that of another request."""
        try:
            owner = await self._owner(client)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            return None
        return await owner.memo_value(_ANSWER_MEMO, "", type_hint=str)

    async def take(self, client: Client, tenant: str, task_queue: str, answer: str = "") -> bool:
        """Make the key this request's, in all sessions and at all doors; `answer`: where the answer will be, where that is known.

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
            raise RunExistsError(f"the key {self.key!r} is that of another run: say another key, or the same again")
        return owner
