"""Tools on another machine: a second worker process on a task queue of its own (R12.5)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from tests.cli.test_session_commands import commands
from tests.forked_cli import ForkedCli
from tests.support import DONE, ROOT, Harness, agent, harness
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")


@tool
def shout(text: str) -> str:
    return text.upper()


def read_file(queue: str, **more: Any) -> dict[str, Any]:
    """The definition of a tool whose code is only there."""
    properties = {"path": {"type": "string"}}
    return {"name": "read_file", "properties": properties, "required": ["path"], "_taskQueue": queue, **more}


PLAN = {
    "calls": [
        {"_tool": "read_file", "path": "note.txt", "_outputPath": "†state.note"},
        {"_tool": "shout", "text": "†state.note", "_outputPath": "†state.loud"},
    ]
}


@asynccontextmanager
async def laptop(address: str, queue: str, folder: Path) -> AsyncIterator[None]:
    """`perdure worker --tools-only` in a process of its own."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("TEMPORAL_", "PERDURE_"))}
    arguments = ["worker", "--tools-only", "--task-queue", queue, "--files", str(folder)]
    process = await asyncio.create_subprocess_exec(
        *(*await ForkedCli.command(), *arguments),
        env=env | {"TEMPORAL_ADDRESS": address},
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        assert process.stderr is not None
        ready = await asyncio.wait_for(process.stderr.readline(), HANG)
        assert b"task queue" in ready
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def test_r12_5_an_agent_uses_both_places_in_one_plan(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("from the laptop")
    queue, address = f"laptop-{uuid.uuid4().hex[:6]}", dev_server.client.service_client.config.target_host
    async with laptop(address, queue, tmp_path), harness(dev_server.client, [shout], [PLAN, DONE]) as it:
        view = await it.run(agent("shout", read_file(queue)))
    assert view.state == {"note": "from the laptop", "loud": "FROM THE LAPTOP"}
    assert [call.status for call in view.calls] == ["done", "done"]


async def until_unserved(it: Harness, run_id: str) -> str:
    """What `show` says of the first call once it says that no worker takes it."""
    async with asyncio.timeout(HANG):
        while True:
            view = await it.view(run_id)
            if view.calls and view.calls[0].reason:
                return view.calls[0].reason
            await asyncio.sleep(0.2)  # it is a matter of time by definition


async def test_a_queue_that_nobody_serves_is_said_and_ends_in_an_error(dev_server: WorkflowEnvironment) -> None:
    queue = f"nobody-{uuid.uuid4().hex[:6]}"
    async with harness(dev_server.client, [shout], [PLAN, PLAN, DONE]) as it:
        waits = await it.start(agent("shout", read_file(queue)))
        said = await until_unserved(it, waits.id)
        shown = await commands(dev_server)("show", waits.id)
        await waits.cancel()
        view = await it.run(agent("shout", read_file(queue, _queueTimeout=1)))
    assert said == f"no worker has started it yet on task queue {queue!r}"
    assert said in " ".join(shown.out.split())
    message = f"no worker of task queue {queue!r} started read_file within 1 s"
    assert view.calls[0].error == {"code": "no_worker", "message": message}
    assert [call.status for call in view.calls] == ["failed", "skipped"]
    assert view.calls[0].attempts == 0


async def test_a_tool_without_code_anywhere_is_still_refused(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [shout], []) as it:
        view = await it.run(agent({"name": "x", "_activity": "none"}))
    assert view.status == "failed"
    assert "needs the activity 'none'" in (view.error or "")
