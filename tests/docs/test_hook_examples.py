"""The worked examples of hooks: redaction, a budget and an audit log, on SQLite and on a PostgreSQL of the test's own (R10.17)."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from examples.__main__ import play
from examples.hooks import database
from examples.hooks.audit import came_of_it
from examples.hooks.budget import at_the_end, within_budget
from examples.hooks.redaction import without
from perdure.hooks import AfterToolCall, AgentEnd, BeforeToolCall, Refused
from perdure.values.json import Json
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

SENT = "Sent to Ann (a…@example.com): two lamps for the price of one. Ann paid by card ending in 1881."
ROWS = "select what, call, tool, detail from audit order by call, what"


def program(name: str) -> str | None:
    """Where a program of PostgreSQL's is, also where Debian puts it out of the way."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    return shutil.which(name) or (str(found[0]) if found else None)


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The address of a PostgreSQL that is started for these tests, in a folder of its own, on a socket alone."""
    initdb, server = program("initdb"), program("postgres")
    if initdb is None or server is None:
        pytest.skip("this machine has no PostgreSQL (initdb and postgres)")
    as_user: list[str] = []
    folder = Path(tempfile.mkdtemp(prefix="perdure-pg-"))
    user = getpass.getuser()
    if os.geteuid() == 0:  # it refuses to run as root
        setpriv, user = shutil.which("setpriv"), "nobody"
        if setpriv is None:
            pytest.skip("PostgreSQL does not run as root, and this machine has no setpriv to run it as somebody else")
        as_user = [setpriv, "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        shutil.chown(folder, "nobody", "nogroup")
    data = folder / "data"
    try:
        make = [*as_user, initdb, "-D", str(data), "-U", "perdure", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(make, check=True, capture_output=True, cwd="/")
        run = [*as_user, server, "-D", str(data), "-k", str(folder), "-c", "listen_addresses=", "-c", "fsync=off"]
        process = subprocess.Popen(run, stderr=subprocess.PIPE, text=True, cwd="/")
        try:
            assert process.stderr is not None
            said = next((line for line in process.stderr if "ready to accept connections" in line), None)
            assert said is not None, f"PostgreSQL as {user} did not begin"
            yield f"postgresql://perdure@/postgres?host={folder}"
        finally:
            process.terminate()
            process.communicate(timeout=HANG)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def kept(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each of the two, empty."""
    where = str(tmp_path / "hooks.sqlite")
    if request.param == "postgresql":
        pytest.importorskip("asyncpg", reason="pip install 'perdure[postgres]'")
        where = request.getfixturevalue("postgres")
    monkeypatch.setenv("HOOKS_DATABASE", where)
    return where


@asynccontextmanager
async def emptied() -> AsyncIterator[None]:
    with contextlib.suppress(Exception):
        await database.run(("delete from audit", ()), ("delete from spent", ()))
    yield


async def rows(sql: str = ROWS) -> list[tuple[Any, ...]]:
    return await database.run((sql, ()))


async def test_the_example_runs_with_its_hooks(dev_server: WorkflowEnvironment, kept: str) -> None:
    async with emptied():
        view = await play("hooks", dev_server)
        found = await rows()
        spent = await rows("select run, dollars from spent")
    assert (view.status, view.output) == ("completed", SENT)
    assert [row[:3] for row in found] == [
        ("asked", "1.0", "find_customer"),
        ("done", "1.0", "find_customer"),
        ("asked", "1.1", "send_offer"),
        ("done", "1.1", "send_offer"),
    ]
    assert "4012" not in str(found)
    assert [(run, dollars > 0) for run, dollars in spent] == [(view.run_id, True)]
    assert kept


async def test_a_budget_that_is_used_up_refuses_every_call(
    dev_server: WorkflowEnvironment, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUDGET_DOLLARS", "0")
    async with emptied():
        view = await play("hooks", dev_server)
        assert view.output == "Nothing was sent: today's budget is used up."
        assert await rows() == []  # nothing was about to be made
        call = BeforeToolCall(run_id="r-1", tenant="acme", at="2026-11-22T10:00:00", cost=2.0)
        monkeypatch.setenv("BUDGET_DOLLARS", "5")
        assert await within_budget(call) is None
        assert await within_budget(call) is None  # called again it counts once
        assert await within_budget(call.model_copy(update={"run_id": "r-2", "tenant": "other"})) is None
        said = await within_budget(call.model_copy(update={"run_id": "r-3", "cost": 3.5}))
        assert said == Refused(
            "the budget of acme for today is used up: 5.5000 of 5.00 dollars. Give your best answer without tools."
        )
        await at_the_end(AgentEnd(run_id="r-3", tenant="acme", at=call.at, cost=3.5, above=["boss"]))  # a delegate's
        assert await within_budget(call.model_copy(update={"at": "2026-11-23T00:00:00", "run_id": "r-4"})) is None
        assert isinstance(await within_budget(call.model_copy(update={"cost": None})), Refused)
    assert kept


async def test_the_log_has_each_row_once_however_often_and_by_whom_it_is_written(kept: str) -> None:
    event = AfterToolCall(key="r/1.0/after_tool_call", run_id="r", call="1.0", tool="pay", result={"iban": "DE 'x'"})
    async with emptied():
        await asyncio.gather(*(came_of_it(event) for _ in range(8)))
        assert await rows() == [("done", "1.0", "pay", '{"iban":"DE \'x\'"}')]
    assert kept


async def test_redaction_leaves_nothing_and_keeps_the_shape() -> None:
    value: dict[str, Json] = {
        "a": ["call 4012 8888 8888 1881 or ann.lee+x@mail.example.org"],
        "n": 4012888888881881,
        "k@b.com": None,
    }
    assert without(value) == {
        "a": ["call card ending in 1881 or a…@mail.example.org"],
        "n": 4012888888881881,
        "k…@b.com": None,
    }
