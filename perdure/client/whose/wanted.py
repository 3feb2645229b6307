"""A start that may be said again: the sender's key for what they want done names one run, whoever asks how often (R10.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from temporalio.client import Client, WorkflowHandle

from perdure.errors import RunError, RunExistsError
from perdure.sessions.wire import digest
from perdure.values.jsons import Json, shorten
from perdure.values.limits import MAX_NAME

WANTED_MEMO: Final = "wanted"
"""Key of the memo that holds a digest of what was asked for."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What somebody wants done, by a key of theirs."""

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
        handle: WorkflowHandle[object, object] = client.get_workflow_handle(self.run_id)
        if await (await handle.describe()).memo_value(WANTED_MEMO, "", type_hint=str) != self.body:
            raise RunExistsError(f"the key {self.key!r} is that of another run: say another key, or the same again")
        return self.run_id
