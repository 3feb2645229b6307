"""The encryption keys that values in Temporal's histories still need (R24.9)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from temporalio.api.common.v1 import Payload
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeScheduleRequest,
    DescribeScheduleResponse,
    UpdateScheduleRequest,
)
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle, WorkflowQueryFailedError
from temporalio.client import WorkflowExecution as Execution
from temporalio.common import RawValue
from temporalio.converter import DataConverter
from temporalio.service import RPCError, RPCStatusCode

from perdure.client._run_lists import AT_ONCE
from perdure.client.erasure import Remaining, ignore_not_found, payloads_of
from perdure.errors import PerdureError, RunError
from perdure.hosting.codec import is_lasting
from perdure.queries import describe, read_segment, start_segment
from perdure.queries.media_store import encode_again, walk_files
from perdure.runs.audit import AUDIT_WORKFLOW
from perdure.runs.ledger import LEDGER_WORKFLOW
from perdure.runs.wire import REWRITE
from perdure.sessions.transcript import SEGMENT_WORKFLOW
from perdure.sessions.wire import SESSION_WORKFLOW
from perdure.values.json import JsonObject, fields_as_json

__all__ = ["KeyRewrite", "KeyUse", "key_uses", "rewrite_keys"]

_LASTING: Final = ", ".join(
    f"'{name}'" for name in (SESSION_WORKFLOW, SEGMENT_WORKFLOW, LEDGER_WORKFLOW, AUDIT_WORKFLOW)
)
_GOES_ON_WITHIN: Final = 30.0
"""Seconds to wait until idle sessions have continued as new: each first waits a second for a message."""
_PAUSE: Final = 0.1
_UNDECODED: Final = "no configured key decodes it"
_KEY_ID: Final = "encryption-key-id"
"""The metadata field with a payload's key id, as in Temporal's samples."""


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
    """The time at which the retention of the last ended execution is over."""
    files: int = 0
    """Files in external storage, of all namespaces that store there."""
    schedules: int = 0
    """Schedules, whose runs read their input."""

    def as_json(self) -> JsonObject:
        """Return it as `perdure codec status --json` prints it.

        ```python
        from perdure.client.key_use import KeyUse

        print(KeyUse("2026-11", open=3).as_json())
        ```
        """
        until = None if self.until is None else self.until.isoformat(timespec="seconds")
        return {**fields_as_json(self), "until": until}


@dataclass
class KeyRewrite:
    """The workflows and files that were rewritten under the codec's newest key.

    ```python
    report = await perdure.rewrite_keys()
    print(report.key, report.workflows, report.files, report.remaining)
    ```
    """

    key: str
    """The newest key."""
    workflows: int = 0
    """Sessions, their segments, ledgers and audit logs that have continued with values under this key."""
    files: int = 0
    """Stored files that were encoded again under this key."""
    schedules: int = 0
    """Schedules that were encoded again under this key."""
    remaining: list[Remaining] = field(default_factory=list)
    """Workflows, schedules and files that are not rewritten yet, each with the reason."""

    def as_json(self) -> JsonObject:
        """Return it as `perdure codec rewrite --json` prints it.

        ```python
        from perdure.client.key_use import KeyRewrite

        print(KeyRewrite("2026-11", workflows=3).as_json())
        ```
        """
        return fields_as_json(self) | {"remaining": [each.as_json() for each in self.remaining]}


async def key_uses(client: Client, query: str | None = None) -> list[KeyUse]:
    """Return the use of each key, sorted by key. `query` selects executions. Without a query, schedules and stored files count too."""
    described = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    kept = timedelta(seconds=described.config.workflow_execution_retention_ttl.seconds)
    found: dict[str, KeyUse] = {}

    async def read(each: Execution) -> None:
        for key in await _keys_of(client, each):
            use = found.setdefault(key, KeyUse(key))
            if each.close_time is None:
                use.open += 1
            else:
                use.closed += 1
                use.until = max(use.until or datetime.min.replace(tzinfo=UTC), each.close_time + kept)

    await _run_all([read(each) async for each in client.list_workflows(query)])
    if query is None:
        async for _, payload in walk_files(client.data_converter):
            found.setdefault(key := _key_of(payload), KeyUse(key)).files += 1
        async for _, schedule in _walk_schedules(client):
            for key in await _keys_in(client, payloads_of(schedule.schedule)):
                found.setdefault(key, KeyUse(key)).schedules += 1
    return [found[key] for key in sorted(found)]


async def rewrite_keys(client: Client, within: float = _GOES_ON_WITHIN) -> KeyRewrite:
    """Rewrite the values of sessions, segments, ledgers, audit logs and schedules, and stored files, under the newest key.

    `within`: seconds to wait for workflows to continue as new. If a worker still encrypts under another key, no segment,
    schedule or file is rewritten: that worker may lack the newest key, and could not read them. Raises `RunError` without
    a codec that names its key.
    """
    codec = client.data_converter.payload_codec
    if codec is None:
        raise RunError("no codec is configured: set PERDURE_CODEC")
    [probe] = await codec.encode([Payload(metadata={"encoding": b"json/plain"}, data=b"0")])
    report = KeyRewrite(_key_of(probe))
    if not report.key:
        raise RunError(f"the codec does not name its key: its payloads have no {_KEY_ID}")
    lasting = f"ExecutionStatus = 'Running' AND WorkflowType IN ({_LASTING})"
    found = [each async for each in client.list_workflows(lasting)]
    segments = [each for each in found if each.workflow_type == SEGMENT_WORKFLOW]
    others = [each for each in found if each.workflow_type != SEGMENT_WORKFLOW]
    if await _continue_workflows(client, report, others, within):
        await _run_all(_rewrite_segment(client, report, each) for each in segments)
        await _rewrite_schedules(client, report)
        async for name, payload in walk_files(client.data_converter):
            if _key_of(payload) == report.key:
                continue
            if await encode_again(client.data_converter, name, payload):
                report.files += 1
            else:
                report.remaining.append(Remaining("file", name, _UNDECODED))
    report.remaining.sort(key=lambda each: (each.what, each.id))
    return report


async def _continue_workflows(client: Client, report: KeyRewrite, found: list[Execution], within: float) -> bool:
    """Signal workflows with values under an old key to continue as new, and wait for them. Return `False` if one has
    continued under an old key: its worker lacks the new one.
    """
    left: list[Execution] = []

    async def signal(each: Execution) -> None:
        if await _old_keys(client, report, each):
            with ignore_not_found():
                await client.get_workflow_handle(each.id).signal(REWRITE)
                left.append(each)

    await _run_all(map(signal, found))
    ends, all_new = asyncio.get_running_loop().time() + within, True
    while left:
        for each in [*left]:
            now = await describe(client, each.id)
            if now is not None and now.run_id == each.run_id and now.status is WorkflowExecutionStatus.RUNNING:
                continue
            left.remove(each)
            if now is None or now.run_id == each.run_id:  # it has ended
                continue
            if used := await _old_keys(client, report, now):
                why = f"a worker or client still encrypts with the key {', '.join(sorted(used))}: restart it with the new keys"
                report.remaining.append(Remaining("workflow", each.id, why))
                all_new = False
            else:
                report.workflows += 1
        if asyncio.get_running_loop().time() > ends:
            break
        await asyncio.sleep(_PAUSE)
    report.remaining += [Remaining("workflow", each.id, "it has an active run, or no worker answers") for each in left]
    return all_new


async def _rewrite_segment(client: Client, report: KeyRewrite, each: Execution) -> None:
    """Begin a segment again with the same entries, under the newest key."""
    if not await _old_keys(client, report, each):
        return
    try:
        with ignore_not_found():
            segment = await read_segment(client, each.id, int(each.id.rpartition("-")[2]))
            await start_segment(client, each.id, segment, each.task_queue, replace=True)
            report.workflows += 1
    except (PerdureError, RPCError, WorkflowQueryFailedError) as error:
        report.remaining.append(Remaining("workflow", each.id, f"it cannot be read: {error}"))


async def _rewrite_schedules(client: Client, report: KeyRewrite) -> None:
    """Encode the schedules of the namespace that have an old key again."""
    async for id, schedule in _walk_schedules(client):
        if not await _keys_in(client, payloads_of(schedule.schedule)) - {report.key, ""}:
            continue
        try:
            if await _rewrite_schedule(client, id, schedule):
                report.schedules += 1
            else:
                report.remaining.append(Remaining("schedule", id, _UNDECODED))
        except (RPCError, ValueError) as error:  # it was changed meanwhile, or a stored value is gone
            report.remaining.append(Remaining("schedule", id, f"it cannot be rewritten: {error}"))


async def _rewrite_schedule(client: Client, id: str, found: DescribeScheduleResponse) -> bool:
    """Encode a schedule's values again under the codec's newest key. Return whether the codec could decode them."""
    for payload in payloads_of(found.schedule):
        if not _key_of(payload) and not payload.external_payloads:  # Temporal never encrypts some values
            continue
        [value] = await client.data_converter.decode([payload], [RawValue])
        if _key_of(value.payload):
            return False
        [encoded] = await client.data_converter.encode([value])
        payload.CopyFrom(encoded)
    changed = UpdateScheduleRequest(
        namespace=client.namespace,
        schedule_id=id,
        schedule=found.schedule,
        conflict_token=found.conflict_token,
        identity=client.identity,
        request_id=str(uuid.uuid4()),
    )
    await client.workflow_service.update_schedule(changed)
    return True


async def _walk_schedules(client: Client) -> AsyncIterator[tuple[str, DescribeScheduleResponse]]:
    """Yield the id and the description of each schedule in the namespace."""
    async for each in await client.list_schedules():
        asked = DescribeScheduleRequest(namespace=client.namespace, schedule_id=each.id)
        try:
            yield each.id, await client.workflow_service.describe_schedule(asked)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise


async def _run_all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all of them, `AT_ONCE` at a time."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def run(one: Coroutine[Any, Any, None]) -> None:
        async with limit:
            await one

    async with asyncio.TaskGroup() as group:
        for one in work:
            group.create_task(run(one))


async def _old_keys(client: Client, report: KeyRewrite, each: Execution) -> set[str]:
    """Return the keys of an execution except the newest. Values that Temporal never encrypts have none."""
    return await _keys_of(client, each) - {report.key, ""}


async def _keys_of(client: Client, each: Execution) -> set[str]:
    handle: WorkflowHandle[Any, Any] = client.get_workflow_handle(each.id, run_id=each.run_id)
    try:
        history = await handle.fetch_history()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return set()
    return await _keys_in(client, (one for event in history.events for one in payloads_of(event)))


async def _keys_in(client: Client, payloads: Iterable[Payload]) -> set[str]:
    """Return the ids of the keys of payloads; `""` for an unencrypted one."""
    encoded = replace(client.data_converter, payload_codec=None)
    found: set[str | None] = set()
    for payload in payloads:
        if payload.external_payloads:
            found.add(await _key_of_stored(encoded, payload))
        elif payload.data:
            found.add(_key_of(payload))
    return {key for key in found if key is not None}


async def _key_of_stored(encoded: DataConverter, reference: Payload) -> str | None:
    """Return the key of a value in external storage; `None` for a value that is no longer stored."""
    if encoded.external_storage is None:
        raise RunError("some values are in external storage, which is not configured: set PERDURE_STORAGE")
    try:
        [stored] = await encoded.decode([reference], [RawValue])
    except Exception as error:  # each storage has its own errors
        if not is_lasting(error):
            raise
        return None
    return _key_of(stored.payload)


def _key_of(payload: Payload) -> str:
    return payload.metadata.get(_KEY_ID, b"").decode(errors="replace")
