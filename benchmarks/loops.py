"""What a long loop costs: a delegate that needs no model, once per item (R8.7)."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from temporalio.client import Client

from benchmarks.common import bench_server, executions
from perdure import tool
from perdure.activities.registry import Registry
from perdure.client.run_operations import start_run
from perdure.hosting.worker import build_worker
from perdure.runs.agent import parse_agent
from perdure.tools.decorator import tool_function
from perdure.values.json import JsonObject

SIZES = (100, 1000, 10_000)
CHILD: dict[str, Any] = {
    "name": "child",
    "context": [
        {"type": "tool", "tool": "touch"},
        {"type": "input"},
        {
            "type": "plan",
            "plan": [{"_tool": "touch", "n": "†input.item", "_outputPath": "†state.n"}],
            "output": "†state.n",
        },
    ],
}


@tool
async def touch(n: int) -> int:
    """Give a number back."""
    return n


async def loops() -> str:
    """Iterations per second, and the longest history, over more and more iterations."""
    lines = [
        "| iterations | seconds | iterations / s | executions of the loop | events of the longest |",
        "|--:|--:|--:|--:|--:|",
    ]
    function = tool_function(touch)
    assert function is not None
    with tempfile.TemporaryDirectory() as folder:
        _save(Path(folder))
        async with (
            bench_server() as server,
            build_worker(server.client, Registry([function]), task_queue="loops", agents=Path(folder)),
        ):
            for size in (SIZES[0], *SIZES):  # the first one warms up
                lines.append(await _line(server.client, size))
                print(lines[-1], flush=True)
    return "\n".join([*lines[:2], *lines[3:]])


def _save(folder: Path) -> None:
    (folder / "child.json").write_text(json.dumps(CHILD), encoding="utf-8")


async def _line(client: Client, size: int) -> str:
    call = {"_tool": "each", "_each": list(range(size)), "_outputPath": "†state.all"}
    context = [
        {"type": "tool", "tool": {"name": "each", "_delegate": "child"}},
        {"type": "plan", "plan": [call], "output": "†state.all"},
    ]
    document: JsonObject = {"name": "bench", "context": context}
    begun = time.monotonic()
    handle = await start_run(client, parse_agent(document), document, task_queue="loops")
    result = await handle.result()
    seconds = time.monotonic() - begun
    assert result.output == list(range(size))
    found = await executions(client, f"{handle.id}/0.0")
    return f"| {size} | {seconds:.1f} | {size / seconds:.0f} | {len(found)} | {max(events for events, _ in found)} |"
