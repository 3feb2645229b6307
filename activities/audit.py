"""The audit log's sinks: a file, an HTTP collector, and OpenTelemetry logs."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx2
from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.queries import client
from perdure.activities.secrets import masked, masked_value
from perdure.errors import JsonError
from perdure.queries import record_entries
from perdure.runs.audit import (
    AUDIT_ACTIVITY,
    WRITE_AUDIT_ACTIVITY,
    AuditBatch,
    AuditLine,
)
from perdure.values.json import JsonObject, dumps, loads

_ANSWERS_WITHIN: Final = 20.0
"""Seconds for a collector."""
_BLOCK: Final = 1_000_000
"""Bytes of the end of a file that are read: many times the longest line."""


@activity.defn(name=AUDIT_ACTIVITY)
async def audit(batch: AuditBatch) -> None:
    """Send a run's entries to the audit workflow. A repeated attempt adds no line: the keys are the same."""
    clean = AuditBatch.model_validate(masked_value(batch.as_json()))
    await record_entries(client(), activity.info().task_queue, clean)


class AuditWriter:
    """The sink of a worker. `sink`: `file:PATH`, an address of an HTTP collector, or `otel`; `None`: there is none."""

    def __init__(self, sink: str | None, token: str | None = None) -> None:
        self._sink = sink
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}

    @activity.defn(name=WRITE_AUDIT_ACTIVITY)
    async def write(self, lines: list[AuditLine]) -> None:
        """Write lines to the sink. What fails is tried again, until the sink has them."""
        if self._sink is None:
            raise ApplicationError("this worker has no audit sink: give all workers of the queue the setting audit")
        if self._sink.startswith("file:"):
            try:
                await asyncio.to_thread(append_lines, Path(self._sink.removeprefix("file:")), lines)
            except OSError as error:
                raise ApplicationError(f"{self._sink}: {error.strerror or error}") from None
        elif self._sink == "otel":
            await self._post(_logs_address(), "application/json", dumps(otlp_body(lines)))
        else:
            body = "".join(f"{line.text()}\n" for line in lines)
            await self._post(self._sink, "application/x-ndjson", body)

    async def _post(self, address: str, kind: str, body: str) -> None:
        host = httpx2.URL(address).host
        headers = {**self._headers, "content-type": kind, "user-agent": "perdure"}
        try:
            async with httpx2.AsyncClient(timeout=_ANSWERS_WITHIN) as http:
                answer = await http.post(address, headers=headers, content=body.encode())
        except (httpx2.HTTPError, UnicodeError) as error:
            raise ApplicationError(f"{host} cannot be reached: {masked(str(error)) or type(error).__name__}") from None
        if not 200 <= answer.status_code < 300:
            raise ApplicationError(f"{host} answered with status {answer.status_code}")
        if kind == "application/json" and (refused := _rejected(answer.text)):
            raise ApplicationError(f"{host} has rejected {refused} records")


def append_lines(path: Path, lines: Sequence[AuditLine]) -> None:
    """Append those lines that the file does not have, and return when the disk has them.

    An attempt that was broken off may have written some, the last of them in part: the rest is appended. Raises
    `ApplicationError` where the file ends with another line than the one before: another worker writes to another file.
    """
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o640)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        size = os.fstat(handle).st_size
        end = os.pread(handle, _BLOCK, max(0, size - _BLOCK))
        whole, _, torn = end.rpartition(b"\n")
        last = _line(whole.rpartition(b"\n")[2].decode(errors="replace"))
        number = 0 if last is None else last.number
        missing = [line for line in lines if line.number > number]
        if not missing:
            return
        if whole and last is None:
            raise ApplicationError(f"the last line of {path} is not one of an audit log")
        if last is not None and (missing[0].number, missing[0].previous) != (number + 1, last.digest):
            raise ApplicationError(f"{path} ends with line {number}, which line {missing[0].number} does not follow")
        text = "".join(f"{line.text()}\n" for line in missing).encode(errors="surrogatepass")
        if not text.startswith(torn):
            raise ApplicationError(f"{path} ends with part of a line, which line {number + 1} does not complete")
        rest = memoryview(text)[len(torn) :]
        while rest:
            rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def _line(text: str) -> AuditLine | None:
    try:
        return AuditLine.model_validate(loads(text))
    except (JsonError, ValueError):
        return None


def _logs_address() -> str:
    """Return where OpenTelemetry's logs go, by its environment variables."""
    if own := os.environ.get("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"):
        return own
    return f"{os.environ.get('OTEL_EXPORTER_OTLP_ENDPOINT', 'http://localhost:4318').rstrip('/')}/v1/logs"


def otlp_body(lines: Sequence[AuditLine]) -> JsonObject:
    """Return lines as log records of OTLP/HTTP in JSON; the body of a record is the line's text."""
    records: list[Any] = []
    for line in lines:
        said = {"number": line.number, "key": line.entry.key, "action": line.entry.action, "digest": line.digest}
        attributes: list[Any] = [
            {"key": f"perdure.audit.{name}", "value": {"stringValue": str(value)}} for name, value in said.items()
        ]
        nanoseconds = round(datetime.fromisoformat(line.entry.at).timestamp() * 1000) * 1_000_000
        record = {"timeUnixNano": str(nanoseconds), "severityNumber": 9, "severityText": "INFO"}
        records.append(record | {"body": {"stringValue": line.text()}, "attributes": attributes})
    service: Any = {"attributes": [{"key": "service.name", "value": {"stringValue": "perdure"}}]}
    scope: Any = {"scope": {"name": "perdure.audit"}, "logRecords": records}
    return {"resourceLogs": [{"resource": service, "scopeLogs": [scope]}]}


def _rejected(text: str) -> int:
    """Return the number of records that a collector has not taken, as its answer names it."""
    try:
        answer = loads(text)
    except JsonError:
        return 0
    part = answer.get("partialSuccess") if isinstance(answer, dict) else None
    found = part.get("rejectedLogRecords", 0) if isinstance(part, dict) else 0
    return int(found) if isinstance(found, int | str) and str(found).isdecimal() else 0
