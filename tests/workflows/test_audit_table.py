"""The audit log in a table of PostgreSQL (R24.4), against a real server of Debian's package `postgresql`."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from temporalio.testing import WorkflowEnvironment

from perdure.activities.audit import AuditTable
from perdure.runs.audit import AuditBatch, AuditLine, AuditLog, entry
from tests.support import DONE, agent, harness, perdure
from tests.timeouts import HANG
from tests.workflows.test_audit import decide, plan, remove

pytestmark = pytest.mark.asyncio(loop_scope="session")
PROGRAMS = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)
AT = "2026-11-26T12:00:00.000+00:00"


class Database:
    """A server of its own, which can be stopped and started again."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self._folder, self._programs = folder, programs
        self.password = secrets.token_hex(8)
        self.address = f"postgresql://auditor@/postgres?host={folder}"  # a socket: no port that another may take
        self._user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None  # the server refuses root
        if self._user is not None:
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)
        phrase = folder / "password"
        phrase.write_text(self.password)
        phrase.chmod(0o644)
        self._run("initdb", "-U", "auditor", "-A", "scram-sha-256", f"--pwfile={phrase}", "-E", "UTF8", "--no-locale")

    def _run(self, program: str, *arguments: str) -> None:
        one: dict[str, int] = {} if self._user is None else {"user": self._user.pw_uid, "group": self._user.pw_gid}
        command = [str(self._programs / program), "-D", str(self._folder / "data"), *arguments]
        with (self._folder / f"{program}.log").open("a") as log:
            subprocess.run(command, check=True, cwd=self._folder, stdout=log, stderr=log, **one)  # type: ignore[call-overload]

    def start(self) -> None:
        options = f"-c listen_addresses= -c unix_socket_directories={self._folder} -c fsync=off"
        self._run("pg_ctl", "-w", "-t", str(HANG), "-l", str(self._folder / "server.log"), "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-w", "-t", str(HANG), "-m", "immediate", "stop")

    async def execute(self, *statements: str) -> None:
        connection = await asyncpg.connect(self.address, password=self.password)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    async def lines(self) -> list[str]:
        connection = await asyncpg.connect(self.address, password=self.password)
        try:
            return [row["line"] for row in await connection.fetch("SELECT line FROM perdure_audit ORDER BY number")]
        finally:
            await connection.close()


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    if PROGRAMS is None:
        pytest.skip("no PostgreSQL: its programs are Debian's package postgresql")
    folder = Path(tempfile.mkdtemp(prefix="perdure-postgres-"))
    try:
        found = Database(folder, PROGRAMS)
        found.start()
        try:
            yield found
        finally:
            found.stop()
    finally:
        shutil.rmtree(folder)


@pytest.fixture
async def table(database: Database) -> AuditTable:
    await database.execute("DROP TABLE IF EXISTS perdure_audit", "DROP FUNCTION IF EXISTS perdure_audit_is_append_only")
    return AuditTable(database.address, database.password)


def lines(count: int) -> list[AuditLine]:
    log = AuditLog()
    log.record(AuditBatch(entries=[entry("decision", AT, f"key {each}", {"by": "änn\0"}) for each in range(count)]))
    return log.state.pending


async def test_a_database_that_is_away_gets_all_lines_when_it_is_back_and_the_command_verifies_them(
    time_skipping: WorkflowEnvironment, database: Database, table: AuditTable
) -> None:
    await table.append([])  # creates the table
    database.stop()
    script = [plan("/a"), plan("/b"), DONE]
    sink: dict[str, Any] = {"audit": database.address, "audit_token": database.password}
    async with harness(time_skipping.client, [remove], script, **sink) as it:
        handle = await it.start(agent("remove"))
        await decide(it, handle.id, "1.0")
        await decide(it, handle.id, "2.0")
        await handle.result()
        database.start()
        async with asyncio.timeout(HANG):
            while len(found := await database.lines()) < 2:
                await time_skipping.sleep(60)
    assert [json.loads(each)["entry"]["data"]["call"] for each in found] == ["1.0", "2.0"]
    environment = {"PERDURE_AUDIT_TOKEN": database.password}
    whole = await perdure("audit", "verify", database.address, env=environment)
    assert (whole.code, whole.out[:41]) == (0, "lines 1 to 2 are complete and unchanged; "), whole.err
    refused = await perdure("audit", "verify", database.address, env={"PERDURE_AUDIT_TOKEN": "wrong"})
    assert (refused.code, "password authentication failed" in refused.err) == (1, True)
    assert len(refused.err.splitlines()) == 1


async def test_an_attempt_whose_answer_was_lost_is_repeated_without_a_second_row(table: AuditTable) -> None:
    every = lines(5)
    await table.append(every[:3])
    await table.append(every)
    await table.append(every[2:4])
    assert (await table.verify())[:2] == (1, 5)
    with pytest.raises(Exception, match=r"postgres ends with line 5, which line 6 does not follow"):
        await table.append([every[4].model_copy(update={"number": 6, "previous": "another"})])


async def test_two_workers_that_append_at_once_leave_each_line_once(table: AuditTable) -> None:
    every = lines(4)
    await table.append(every[:1])
    answers = await asyncio.gather(*(table.append(every) for _ in range(6)), return_exceptions=True)
    assert None in answers
    assert (await table.verify())[:2] == (1, 4)


async def test_a_row_cannot_be_changed_and_what_the_owner_forces_shows(database: Database, table: AuditTable) -> None:
    await table.append(lines(3))
    changes = ["UPDATE perdure_audit SET line = ''", "DELETE FROM perdure_audit", "TRUNCATE perdure_audit"]
    for change in changes:
        with pytest.raises(asyncpg.RaiseError, match="perdure_audit is append-only"):
            await database.execute(change)
    off = "ALTER TABLE perdure_audit DISABLE TRIGGER ALL"
    await database.execute(off, "UPDATE perdure_audit SET line = replace(line, 'key 1', 'key 9')")
    changed = await perdure("audit", "verify", database.address, env={"PGPASSWORD": database.password})
    assert (changed.code, "postgres: row 2 (number 2) was changed" in changed.err) == (1, True)
    await database.execute("DELETE FROM perdure_audit WHERE number = 2")
    removed = await perdure("audit", "verify", database.address, env={"PGPASSWORD": database.password})
    assert (removed.code, "row 2 has the number 3, and 2 is expected" in removed.err) == (1, True)


async def test_an_auditor_who_may_only_append_and_read_can_write_to_a_table_that_exists(
    database: Database, table: AuditTable
) -> None:
    await table.append([])
    await database.execute(
        f"CREATE ROLE writer LOGIN PASSWORD '{database.password}'", "GRANT SELECT, INSERT ON perdure_audit TO writer"
    )
    await AuditTable(database.address.replace("auditor@", "writer@"), database.password).append(lines(2))
    assert (await table.verify()).last == 2


@pytest.mark.usefixtures("table")
async def test_a_database_without_the_table_is_named(database: Database) -> None:
    told = await perdure("audit", "verify", database.address, env={"PGPASSWORD": database.password})
    assert (told.code, "/postgres has no table perdure_audit" in told.err) == (1, True)


@pytest.mark.parametrize("address", ["postgresql://h:abc/x", "postgresql://[::1/x", "postgres://h/x?sslmode=odd"])
async def test_an_address_that_is_none_is_refused_in_one_line(address: str) -> None:
    told = await perdure("audit", "verify", address)
    assert (told.code, told.err.count("\n"), "PostgreSQL" in told.err) == (1, 1, True)
