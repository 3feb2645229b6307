"""What a run's activities say while they run, read by describing the run: no Action, and no event of its history (R10.14)."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client, WorkflowExecutionDescription

from perdure.client.pending import failure_words, silent, unserved
from perdure.run.events.stream import Live
from perdure.run.events.wire import Noted, Written
from perdure.run.wire import REQUEST_ACTIVITY
from perdure.values.jsons import JsonObject

_SHOWN = 500
"""Characters of how far a call is, or of why it is tried again."""


class Looking:
    """One run's; what is as it was at the look before is not decoded again."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._decoded: dict[str, tuple[bytes, Any]] = {}
        self._words: dict[tuple[str, int], str] = {}

    async def live(self, description: WorkflowExecutionDescription, asked: JsonObject) -> Live:
        """How things stand; `asked` is what was said of the Request when it began."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        written: Written | None = None
        updates: list[Noted] = []
        pending = description.raw_description.pending_activities
        for each in pending:
            detail = await self._detail(each)
            trouble = await self._trouble(each)
            if each.activity_type.name == REQUEST_ACTIVITY:
                with contextlib.suppress(ValidationError):
                    written = Written.model_validate(detail)
                if trouble:
                    data = {key: asked[key] for key in ("number", "model") if key in asked}
                    updates.append(Noted(topic="request", phase="update", at=at, data=data | {"reason": trouble}))
            elif "." in each.activity_id:
                told = _told(each, detail, trouble)
                updates += [Noted(topic="tool", phase="update", at=at, data=told)] if told else []
        ids = {each.activity_id for each in pending}
        self._decoded = {key: kept for key, kept in self._decoded.items() if key in ids}
        self._words = {key: kept for key, kept in self._words.items() if key[0] in ids}
        return Live(at, written, tuple(updates))

    async def _detail(self, pending: PendingActivityInfo) -> Any:
        """What was heartbeat last. Whatever a tool says stands there: what cannot be read says nothing."""
        if not pending.HasField("heartbeat_details"):
            return None
        raw = pending.heartbeat_details.SerializeToString(deterministic=True)
        known = self._decoded.get(pending.activity_id)
        if known is None or known[0] != raw:
            detail = None
            with contextlib.suppress(Exception):
                detail = (await self._client.data_converter.decode(pending.heartbeat_details.payloads))[0]
            known = self._decoded[pending.activity_id] = (raw, detail)
        return known[1]

    async def _trouble(self, pending: PendingActivityInfo) -> str:
        """Why it is tried again, while it is."""
        if pending.attempt <= 1 or not pending.HasField("last_failure"):
            return ""
        key = (pending.activity_id, pending.attempt)
        if key not in self._words:
            words = await failure_words(self._client, pending.last_failure)
            self._words[key] = f"attempt {pending.attempt} after: {words[:_SHOWN]}"
        return self._words[key]


def _told(pending: PendingActivityInfo, detail: Any, trouble: str) -> JsonObject:
    """What is said of a call; nothing where there is nothing to say."""
    said: JsonObject = {}
    if isinstance(detail, dict) and "progress" in detail:
        said["progress"] = str(detail["progress"])[:_SHOWN]
    if words := silent(pending) or unserved(pending) or trouble:
        said |= {"attempt": pending.attempt, "reason": words}
    return {"call": pending.activity_id, "tool": pending.activity_type.name} | said if said else {}
