"""The keys that values in Temporal's histories still need (R24.9)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.client import WorkflowExecution as Execution
from temporalio.service import RPCError, RPCStatusCode

from perdure.client._run_lists import AT_ONCE
from perdure.client.erasure import payloads_of
from perdure.values.json import JsonObject

__all__ = ["KeyUse", "key_uses"]

_KEY_ID: Final = "encryption-key-id"
"""Where a payload names its key: in the form of Temporal's own samples."""


@dataclass
class KeyUse:
    """The executions of workflows whose histories need one key.

    ```python
    for use in await perdure.key_uses():
        print(use.key, use.open, use.closed, use.until)
    ```
    """

    key: str
    """The key's id; empty: values that are not encrypted, or whose codec names no key."""
    open: int = 0
    """Executions that have not ended. The key is needed until they have ended or continued as new and their retention is over."""
    closed: int = 0
    """Executions that have ended."""
    until: datetime | None = None
    """When the retention of the last of the ended ones is over."""

    def as_json(self) -> JsonObject:
        """Return it as `perdure codec status --json` prints it.

        ```python
        from perdure.client.key_use import KeyUse

        print(KeyUse("2026-11", open=3).as_json())
        ```
        """
        until = None if self.until is None else self.until.isoformat(timespec="seconds")
        return {"key": self.key, "open": self.open, "closed": self.closed, "until": until}


async def key_uses(client: Client, query: str | None = None) -> list[KeyUse]:
    """Return the use of each key, by key; `query` narrows the executions down."""
    described = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    kept = timedelta(seconds=described.config.workflow_execution_retention_ttl.seconds)
    found: dict[str, KeyUse] = {}
    limit = asyncio.Semaphore(AT_ONCE)

    async def read(each: Execution) -> None:
        async with limit:
            keys = await _keys_of(client, each)
        for key in keys:
            use = found.setdefault(key, KeyUse(key))
            if each.close_time is None:
                use.open += 1
            else:
                use.closed += 1
                use.until = max(use.until or datetime.min.replace(tzinfo=UTC), each.close_time + kept)

    async with asyncio.TaskGroup() as group:
        async for each in client.list_workflows(query):
            group.create_task(read(each))
    return [found[key] for key in sorted(found)]


async def _keys_of(client: Client, each: Execution) -> set[str]:
    handle: WorkflowHandle[Any, Any] = client.get_workflow_handle(each.id, run_id=each.run_id)
    try:
        history = await handle.fetch_history()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return set()
    values = [payload for event in history.events for payload in payloads_of(event) if payload.data]
    return {payload.metadata.get(_KEY_ID, b"").decode(errors="replace") for payload in values}
