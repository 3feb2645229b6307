"""Records the history of the demo's run, which `tests/test_replay.py` replays.

    .venv/bin/python scripts/record_history.py

Record anew only before a release, or when the demo's script changes: a history that no longer replays is a finding.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from rich.console import Console

from activities.registry import load_tools
from cli.demo import TASK
from cli.files import read_agent
from cli.runs import start_run
from cli.server import embedded_server
from demo.script import SCRIPT
from demo.scripted_model import ScriptedModel
from demo.workspace import fill
from perdure.runs import WAITING_QUERY
from worker import build_worker

TARGET = Path(__file__).parents[1] / "tests" / "histories" / "demo.json"


def without_traces(history: Any) -> Any:
    """Stack traces name the folders of this machine, and no replay reads them."""
    if isinstance(history, list):
        return [without_traces(item) for item in history]
    if not isinstance(history, dict):
        return history
    return {key: without_traces(value) for key, value in history.items() if key != "stackTrace"}


async def main() -> None:
    """Run the demo's agent once, and write its history down."""
    agent, document = read_agent("agents/devops.json")
    with tempfile.TemporaryDirectory(prefix="perdure-demo-") as folder:
        fill(Path(folder))
        async with ScriptedModel(SCRIPT) as model, embedded_server(ui=False) as server:
            asking = AsyncOpenAI(base_url=model.base_url, api_key="scripted", max_retries=0)
            async with build_worker(server.client, load_tools(["demo.tools"]), model=asking):
                run_input = {"request": TASK, "folder": folder}
                handle = await start_run(server.client, agent, document, run_input, has_input=True, run_id="demo")
                while not (await handle.query(WAITING_QUERY)):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                await handle.signal("approve", {"call": "1.2", "by": "Ann"})
                await handle.result()
                history = json.loads((await handle.fetch_history()).to_json())
                TARGET.write_text(json.dumps(without_traces(history), indent=1) + "\n", encoding="utf-8")
    Console().print(f"{TARGET.name}: {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    asyncio.run(main())
