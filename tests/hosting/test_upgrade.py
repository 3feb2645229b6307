"""The way of docs/upgrading.md from 0.1.0 to 0.2.0, with workers and clients of both: what 0.1.0 has begun goes on."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import tarfile
import uuid
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure, tool
from perdure.errors import MessageRefusedError
from perdure.testing.scripted_model import ChatRequest, ScriptedModel
from tests.support import harness
from tests.timeouts import HANG

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.soak]

RELEASE = "39a1c7df"
"""The commit of 0.1.0."""
ROOT = Path(__file__).parents[2]
TOOLS = '''
from perdure import tool


@tool(dangerous=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount} in 0.1.0"
'''
PAYER: dict[str, Any] = {
    "name": "payer",
    "context": [{"type": "system", "text": "Pay."}, {"type": "tool", "tool": "pay"}],
    "schema": {"type": "object"},
}
ECHO: dict[str, Any] = {
    "name": "echo",
    "context": [{"type": "system", "text": "Answer."}],
    "schema": {"type": "string"},
}


@tool(dangerous=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount} in 0.2.0"


def answer(request: ChatRequest) -> Any:
    """Pay, and then end; or repeat how many messages of users the conversation has."""
    if '"pay"' not in request.text and "paid" not in request.text and "Answer." in request.text:
        return {"calls": [], "output": f"{sum(part in request.text for part in ('one', 'two', 'three'))} known"}
    if "paid" in request.text:
        return {"calls": [], "output": {"done": True}}
    return {"calls": [{"_tool": "pay", "amount": 7, "_outputPath": "†state.receipt"}], "output": None}


def install(folder: Path) -> Path:
    """Return the folder of 0.1.0's programs, in an environment of their own. Skip where the commit or a registry is not there."""
    archive = subprocess.run(["git", "archive", RELEASE], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"this checkout has no commit {RELEASE}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
    pip: list[str | Path] = [folder / "env/bin/pip", "install", "-q", "-c", "constraints.txt", "-e", "."]
    if subprocess.run(pip, cwd=folder, check=False).returncode:
        pytest.skip("0.1.0 cannot be installed here")
    return folder / "env/bin"


async def test_what_0_1_0_has_begun_goes_on_with_workers_of_0_2_0(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    given = os.environ.get("RELEASED_PROGRAMS")  # `env/bin` of an earlier play
    programs = Path(given) if given else await asyncio.to_thread(install, tmp_path)
    folder, queue = programs.parents[1], f"upgrade-{uuid.uuid4().hex[:8]}"
    (folder / "old_tools.py").write_text(TOOLS, encoding="utf-8")
    for document in (PAYER, ECHO):
        (folder / f"{document['name']}.json").write_text(json.dumps(document), encoding="utf-8")
    client = dev_server.client
    run_id, key = f"{queue}-run", f"{queue}-ann"
    async with ScriptedModel(answer, strict=False) as model, AsyncExitStack() as ends:
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")},
            "TEMPORAL_ADDRESS": client.service_client.config.target_host,
            "PERDURE_TASK_QUEUE": queue,
            "OPENAI_BASE_URL": model.base_url,
            "OPENAI_API_KEY": "scripted",
            "PYTHONPATH": str(folder),
        }

        async def old(*words: str) -> str:
            """Return what a command of 0.1.0 prints."""
            process = await asyncio.create_subprocess_exec(
                programs / "perdure", *words, cwd=folder, env=env, stdout=-1, stderr=-1
            )
            out, problem = await asyncio.wait_for(process.communicate(), HANG)
            assert process.returncode == 0, problem.decode()
            return out.decode().strip()

        def old_worker() -> Any:
            words = ("worker", "--tools", "old_tools")
            return asyncio.create_subprocess_exec(programs / "perdure", *words, cwd=folder, env=env, stderr=-3)

        worker = await old_worker()
        ends.callback(lambda: worker.returncode is None and worker.kill())
        await old("run", "payer.json", "--id", run_id, "--no-wait")
        assert await old("agent", key, "one", "--agent", "echo.json", "--sender", "ann", "--id", "1") == "1 known"
        perdure = Perdure(client, task_queue=queue)
        session = perdure.session(key, agent=Agent.of(ECHO))
        with pytest.raises(MessageRefusedError):  # as the page says: workers go first
            await session.send("two", sender="ann")
        async with harness(client, [pay], answer, task_queue=queue) as it:
            await it.until_waiting(run_id, "1.0")  # workers of both serve the queue
            worker.terminate()
            await asyncio.wait_for(worker.wait(), HANG)
            receipt = await session.send("one", sender="ann", id="1", rights=["*"])
            assert await session.reply(receipt, HANG) == "1 known"  # the message of before: nothing runs
            assert await session.ask("two", sender="ann", timeout=HANG, rights=["*"]) == "2 known"
            run = perdure.get_run(run_id)
            await run.approve("1.0", by="ann")
            await run.result(HANG)
            assert (await run.view()).state == {"receipt": "paid 7 in 0.2.0"}
            assert [entry["type"] for entry in await session.read_entries()] == ["message", "run", "reply"] * 2
