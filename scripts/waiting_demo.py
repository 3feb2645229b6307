"""The demo's run as far as the call that waits for a person: what the scripts beside this one look at and write down."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from openai import AsyncOpenAI
from temporalio.testing import WorkflowEnvironment

from perdure.activities.registry import load_tools
from perdure.agents.files import read_agent
from perdure.cli.demo import TASK
from perdure.client.run_operations import AgentHandle, start_run
from perdure.demo.scenario import SCRIPT, write_files
from perdure.hosting.server import embedded_server
from perdure.hosting.worker import build_worker
from perdure.runs.wire import WAITING_QUERY
from perdure.testing.scripted_model import ScriptedModel
from perdure.values.json import JsonObject


@asynccontextmanager
async def waiting_demo(run_id: str) -> AsyncIterator[tuple[WorkflowEnvironment, AgentHandle]]:
    """A server with the run in it, its worker at work for as long as the context lasts."""
    agent, document = read_agent("perdure/demo/agents/devops.json")
    with tempfile.TemporaryDirectory(prefix="perdure-demo-") as folder:
        write_files(Path(folder))
        async with ScriptedModel(SCRIPT, strict=False) as model, embedded_server(ui=False) as server:
            asking = AsyncOpenAI(base_url=model.base_url, api_key="scripted", max_retries=0)
            async with build_worker(server.client, load_tools(["perdure.demo.tools"]), model=asking):
                run_input: JsonObject = {"request": TASK, "folder": folder}
                handle = await start_run(server.client, agent, document, run_input, has_input=True, run_id=run_id)
                while not (await handle.query(WAITING_QUERY)):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                yield server, handle
