"""The end of a process whose worker cannot put a run out of its memory (R12.9)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from perdure.client.run_operations import start_run
from perdure.hosting.connection import data_converter
from perdure.hosting.server import free_port
from perdure.runs.agent import parse_agent
from tests.forked_cli import ForkedCli
from tests.support import agent
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

STUCK = """
import sys, time
from perdure import tool
from perdure.hosting import worker_group
from perdure.values._formula_functions import FUNCTIONS

def for_ever(*_):
    print("stuck", file=sys.stderr, flush=True)
    while True:
        try:
            time.sleep(3600)
        except BaseException:
            pass

FUNCTIONS["abs"] = for_ever
worker_group.LEAVES_AFTER = 1.0

@tool
def nothing() -> None:
    '''Do nothing.'''
"""


@asynccontextmanager
async def process(folder: Path, words: list[str], env: dict[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """Perdure as a process of its own, in which no formula with `abs` comes to its end."""
    (folder / "stuck.py").write_text(STUCK, encoding="utf-8")
    started = await asyncio.create_subprocess_exec(
        *await ForkedCli.command(),
        *words,
        *("--tools", "stuck", "--grace", "1"),
        cwd=folder,
        env={**os.environ, **env, "OPENAI_API_KEY": "none"},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            started.kill()
        await started.wait()


async def until(process: asyncio.subprocess.Process, words: str) -> None:
    assert process.stderr is not None
    while words not in (line := (await asyncio.wait_for(process.stderr.readline(), HANG)).decode()):
        assert line, f"it has ended without {words!r}"


async def start_stuck(client: Client, queue: str) -> str:
    let = {"_tool": "_let", "value": {"_expr": "abs(1)"}, "_outputPath": "†state.x"}
    document = agent(context=[{"type": "plan", "plan": [let]}], config={"start": "plan"})
    run_id = f"test-{uuid.uuid4().hex[:8]}"
    handle = await start_run(client, parse_agent(document), document, run_id=run_id, task_queue=queue)
    return handle.id


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    """Return the exit code after SIGTERM, and the runs that the process reports as left to other workers."""
    process.terminate()
    _, errors = await asyncio.wait_for(process.communicate(), HANG)
    (line,) = [line for line in errors.decode().splitlines() if "could not be evicted; other" in line]
    return process.returncode, line.partition("other workers continue them: ")[2]


async def test_a_worker_leaves_although_a_run_cannot_be_evicted(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    queue = f"stuck-{uuid.uuid4().hex[:8]}"
    env = {"TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host}
    async with process(tmp_path, ["worker", "--task-queue", queue], env) as worker:
        await until(worker, "started")
        run_id = await start_stuck(dev_server.client, queue)
        await until(worker, "stuck")
        assert await ended(worker) == (1, run_id)
    await dev_server.client.get_workflow_handle(run_id).terminate()


async def test_dev_leaves_with_its_server_although_a_run_cannot_be_evicted(tmp_path: Path) -> None:
    port = free_port()
    words = ["dev", "--gateway-port", "0", "--port", str(port), "--ui-port", str(free_port()), "--task-queue", "stuck"]
    async with process(tmp_path, words, {}) as dev:
        await until(dev, "started")
        client = await Client.connect(f"localhost:{port}", data_converter=data_converter())
        run_id = await start_stuck(client, "stuck")
        await until(dev, "stuck")
        assert await ended(dev) == (1, run_id)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
