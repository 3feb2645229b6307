"""The audit log's sinks: a file, an HTTP collector, OpenTelemetry logs, and a table of PostgreSQL."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx2
from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.queries import client
from perdure.activities.secrets import mask_text, mask_value
from perdure.errors import AuditError, JsonError, SettingsError
from perdure.queries import record_entries
from perdure.runs.audit import (
    AUDIT_ACTIVITY,
    DATABASES,
    WRITE_AUDIT_ACTIVITY,
    AuditBatch,
    AuditLine,
    VerifiedChain,
    verify_chain,
)
from perdure.values.json import JsonObject, dumps, loads
from perdure.values.limits import MAX_PAYLOAD

if TYPE_CHECKING:
    from asyncpg import Connection, Record

_LOG: Final = logging.getLogger("perdure.audit")
_ANSWERS_WITHIN: Final = 20.0
"""Seconds for a collector, and for a statement of a database."""
_BLOCK: Final = 2 * MAX_PAYLOAD
"""Bytes of the end of a file that are read: a line, and part of another."""
_TABLE: Final = """
CREATE TABLE perdure_audit (number bigint PRIMARY KEY, line text NOT NULL, written_at timestamptz NOT NULL DEFAULT now());
CREATE FUNCTION perdure_audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'perdure_audit is append-only'; END $$;
CREATE TRIGGER perdure_audit_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON perdure_audit
    FOR EACH STATEMENT EXECUTE FUNCTION perdure_audit_is_append_only();
"""
_PAGE: Final = 1000
"""Rows of the table that are read at once."""


@activity.defn(name=AUDIT_ACTIVITY)
async def audit(batch: AuditBatch) -> None:
    """Send a run's entries to the audit workflow. A repeated attempt adds no line: the keys are the same."""
    clean = AuditBatch.model_validate(mask_value(batch.as_json()))
    await record_entries(client(), activity.info().task_queue, clean)


class AuditWriter:
    """The sink of a worker.

    `sink`: `file:PATH`, an address of an HTTP collector or of PostgreSQL, or `otel`; `None`: there is none. `token`:
    the collector's bearer token, or the database's password.
    """

    def __init__(self, sink: str | None, token: str | None = None) -> None:
        self._sink = sink
        self._table = AuditTable(sink, token) if sink is not None and sink.startswith(DATABASES) else None
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}

    @activity.defn(name=WRITE_AUDIT_ACTIVITY)
    async def write(self, lines: list[AuditLine]) -> None:
        """Write lines to the sink. A failure is logged, and Temporal retries until the sink has the lines."""
        try:
            await self._write(lines)
        except ApplicationError as error:
            _LOG.warning("lines from %s on could not be written; retrying: %s", lines[0].number, error.message)
            raise

    async def _write(self, lines: Sequence[AuditLine]) -> None:
        if self._sink is None:
            raise ApplicationError("this worker has no audit log: set audit for all workers of the queue")
        if self._table is not None:
            try:
                await self._table.append(lines)
            except AuditError as error:
                raise ApplicationError(str(error)) from None
        elif self._sink.startswith("file:"):
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
            raise ApplicationError(
                f"{host} cannot be reached: {mask_text(str(error)) or type(error).__name__}"
            ) from None
        if not 200 <= answer.status_code < 300:
            raise ApplicationError(f"{host} answered with status {answer.status_code}")
        if kind == "application/json" and (refused := _rejected(answer.text)):
            raise ApplicationError(f"{host} has rejected {refused} records")


def append_lines(path: Path, lines: Sequence[AuditLine]) -> None:
    """Append those lines that the file does not have, and return when the disk has them.

    An interrupted attempt may have written some, and the last one in part: the rest is appended. Raises
    `ApplicationError` if the file does not end with the previous line: another worker writes to another file.
    """
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o640)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        size = os.fstat(handle).st_size
        end = os.pread(handle, _BLOCK, max(0, size - _BLOCK))
        whole, _, torn = end.rpartition(b"\n")
        last = _line(whole.rpartition(b"\n")[2].decode(errors="replace"))
        if whole and last is None:
            raise ApplicationError(f"the last line of {path} is not a line of an audit log")
        if last is not None and (known := _newest_known(lines, last)) is not None:
            there = last if last.number == known.number else _find_line(path, known.number)
            _check_same(known, there, str(path))
        if not (missing := _missing(lines, last, str(path))):
            return
        text = "".join(f"{line.text()}\n" for line in missing).encode(errors="surrogatepass")
        if not text.startswith(torn):
            raise ApplicationError(f"{path} ends with part of a line, which line {missing[0].number} does not complete")
        rest = memoryview(text)[len(torn) :]
        while rest:
            rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def _find_line(path: Path, number: int) -> AuditLine | None:
    """Return the file's line with this number. A reset of the audit workflow sends lines of long ago again."""
    with path.open(encoding="utf-8", errors="replace") as texts:
        return next((line for text in texts if (line := _line(text)) is not None and line.number == number), None)


def _newest_known(lines: Sequence[AuditLine], last: AuditLine) -> AuditLine | None:
    """Return the newest of the lines that a sink with this last line should have; `None`: it has none of them."""
    return next((line for line in reversed(lines) if line.number <= last.number), None)


def _check_same(line: AuditLine, there: AuditLine | None, place: str) -> None:
    """Raise `ApplicationError` unless the sink's line of the same number is this line."""
    if there is None or there.digest != line.digest:
        raise ApplicationError(
            f"{place} has another log: its line {line.number} is not line {line.number} of this one. "
            "Use another place, or move it away"
        )


def _missing(lines: Sequence[AuditLine], last: AuditLine | None, place: str) -> list[AuditLine]:
    """Return the lines that are missing in a sink that ends with `last`. Raises `ApplicationError` for a gap."""
    number = 0 if last is None else last.number
    missing = [line for line in lines if line.number > number]
    if missing and last is not None and (missing[0].number, missing[0].previous) != (number + 1, last.digest):
        raise ApplicationError(f"{place} ends with line {number}, which line {missing[0].number} does not follow")
    return missing


class AuditTable:
    """The table `perdure_audit` of a PostgreSQL database: it accepts new rows, and rejects changes and deletions.

    `address`: `postgresql://user@host/database`. `password`: by default that of `PGPASSWORD` or of `~/.pgpass`. Raises
    `SettingsError` where the package `asyncpg` is missing.
    """

    def __init__(self, address: str, password: str | None = None) -> None:
        self._address, self._password = address, password
        self._name = f"PostgreSQL {address.partition('?')[0].partition('://')[2].rpartition('@')[2]}".strip()
        try:
            import asyncpg  # noqa: F401
        except ImportError:
            raise SettingsError("audit needs the package asyncpg: pip install 'perdure[postgres]'") from None

    async def append(self, lines: Sequence[AuditLine]) -> None:
        """Append the lines that the table does not have, in one transaction; create the table if it does not exist.

        Raises `AuditError` if the database is unavailable or rejects the lines. If two workers append at once, one is
        rejected: each number is unique. Raises `ApplicationError` if the table does not end with the previous line.
        """
        async with self._transaction() as database:
            await database.execute("SET LOCAL synchronous_commit = on")
            if not await self._exists(database):
                await database.execute(_TABLE)
            found = await database.fetchval("SELECT line FROM perdure_audit ORDER BY number DESC LIMIT 1")
            last = None if found is None else _line(found)
            if found is not None and last is None:
                raise ApplicationError(f"the last row of {self._name} is not a line of an audit log")
            if last is not None and (known := _newest_known(lines, last)) is not None:
                there = await database.fetchval("SELECT line FROM perdure_audit WHERE number = $1", known.number)
                _check_same(known, None if there is None else _line(there), self._name)
            rows = [(line.number, line.text()) for line in _missing(lines, last, self._name)]
            await database.executemany("INSERT INTO perdure_audit (number, line) VALUES ($1, $2)", rows)

    async def verify(self, before: VerifiedChain | None = None) -> VerifiedChain:
        """Return the chain of the table's lines, after those of `before`.

        Raises `AuditError` if the database is unavailable, has no such table, or a line was changed or is missing.
        """
        chain, count = before or VerifiedChain(), 0
        async with self._transaction() as database:
            if not await self._exists(database):
                raise AuditError(f"{self._name} has no table perdure_audit")
            cursor = await database.cursor("SELECT line FROM perdure_audit ORDER BY number")
            while rows := await cursor.fetch(_PAGE):
                chain = verify_chain([row["line"] for row in rows], chain, source=f"{self._name}: row", start=count + 1)
                count += len(rows)
        return chain

    async def _exists(self, database: Connection[Record]) -> bool:
        return await database.fetchval("SELECT to_regclass('perdure_audit')") is not None

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[Connection[Record]]:
        import asyncpg

        try:
            database = await asyncpg.connect(
                self._address,
                password=self._password,
                timeout=_ANSWERS_WITHIN,
                command_timeout=_ANSWERS_WITHIN,
                statement_cache_size=0,  # a pooler may give each transaction another connection
            )
            try:
                async with database.transaction():
                    yield database
            finally:
                await database.close(timeout=_ANSWERS_WITHIN)
        except AuditError:
            raise
        except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            words = " ".join(mask_text(str(error)).split())  # the server's hint is on a separate line
            raise AuditError(f"{self._name}: {words or type(error).__name__}") from None


def _line(text: str) -> AuditLine | None:
    try:
        return AuditLine.model_validate(loads(text))
    except (JsonError, ValueError):
        return None


def _logs_address() -> str:
    """Return the address of OpenTelemetry's logs from its environment variables."""
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
    """Return the number of rejected records in a collector's answer."""
    try:
        answer = loads(text)
    except JsonError:
        return 0
    part = answer.get("partialSuccess") if isinstance(answer, dict) else None
    found = part.get("rejectedLogRecords", 0) if isinstance(part, dict) else 0
    return int(found) if isinstance(found, int | str) and str(found).isdecimal() else 0
