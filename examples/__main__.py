"""`python -m examples NAME`: run an example on this machine, with a scripted model in place of a real one.

With your own model: `perdure dev --tools examples.NAME.tools` with `PERDURE_AGENTS=examples/NAME/agents`, and
`perdure run examples/NAME/agents/NAME.json --input …`.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from rich.console import Console

from perdure.activities.registry import load_tools
from perdure.authoring.files import read_agent
from perdure.cli.errors import one_line_errors
from perdure.cli.render import print_run
from perdure.client.runs import fetch_run, start_run
from perdure.hosting.server import embedded_server
from perdure.hosting.worker import build_worker
from perdure.run.wire import DECIDE, WAITING_QUERY, RunView, WaitingView
from perdure.testing.scripted_model import ScriptedModel

NAMES = ("refund", "fleet", "producer")


async def play(client: Any, name: str) -> RunView:
    """Run the example against a server; whatever waits for a person is approved."""
    folder = Path(__file__).parent / name / "agents"
    script = importlib.import_module(f"examples.{name}.model")
    agent, document = read_agent(str(folder / f"{name}.json"))
    registry = load_tools([f"examples.{name}.tools"])
    queue = f"example-{name}"
    async with ScriptedModel(script.SCRIPT) as model:
        asking = AsyncOpenAI(base_url=model.base_url, api_key="scripted", max_retries=0)
        async with build_worker(client, registry, task_queue=queue, model=asking, agents=folder):
            handle = await start_run(client, agent, document, script.INPUT, has_input=True, task_queue=queue)
            ended = asyncio.ensure_future(handle.result())
            while not ended.done():
                waiting: list[WaitingView] = await handle.query(WAITING_QUERY, result_type=list[WaitingView])
                for offer in waiting:
                    decision = {"call": offer.call, "decision": "approve", "by": "the example", "digest": offer.digest}
                    await handle.execute_update(DECIDE, decision)
                await asyncio.wait([ended], timeout=0.1)
            await ended
            return await fetch_run(client, handle.id)


async def main(name: str) -> None:
    async with embedded_server(ui=False) as server:
        print_run(Console(), await play(server.client, name))


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in NAMES:
        raise SystemExit(f"usage: python -m examples {'|'.join(NAMES)}")
    with one_line_errors():
        asyncio.run(main(sys.argv[1]))
