"""A long conversation and many turns: a chat of 209,000 tokens, and 100 calls with results of 5 KB (sdk-python issue 1890)."""

from __future__ import annotations

import time
import uuid
from typing import Any, Final

from temporalio.client import WorkflowFailureError

from benchmarks.common import bench_server, executions, loop_worker, model_process, perdure_worker
from benchmarks.latency import work_tool
from perdure.client.run_operations import start_run
from perdure.runs.agent import parse_agent
from perdure.testing.scripted_model import TOKEN, ChatRequest, Turn
from perdure.values.json import JsonObject

TOKENS, CALLS, RESULT = 209_000, 100, 5 * 1024
CHAT: Final = ("what was said in the long conversation before " * (TOKENS * TOKEN // 46 + 1))[: TOKENS * TOKEN]


def plans(asked: ChatRequest) -> dict[str, Any]:
    """Return a Solution of one call, and at last the output."""
    if asked.number > CALLS:
        return {"calls": [], "output": "done"}
    return {"calls": [{"_tool": "work", "ms": 0, "x": asked.number, "size": RESULT}], "output": None}


def native(asked: ChatRequest) -> Turn:
    """Return the same as native calls."""
    if asked.number > CALLS:
        return Turn("done")
    return Turn(tool_calls=[("work", f'{{"ms":0,"x":{asked.number},"size":{RESULT}}}')])


async def conversation() -> str:
    """Return a table of the Requests that each engine reaches, and of its histories."""
    lines = [
        "| engine | Requests | MB of history | MB of the longest execution | events | executions | seconds | ended |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    async with bench_server() as server:
        client = server.client

        async def row(name: str, run_id: str, begun: float, ended: str) -> None:
            seconds = time.monotonic() - begun
            found = await executions(client, run_id)
            events, sizes = (list(column) for column in zip(*found, strict=True))
            lines.append(
                f"| {name} | {{requests}} | {sum(sizes) / 1e6:.2f} | {max(sizes) / 1e6:.2f} | {sum(events)} | {len(found)} "
                f"| {seconds:.0f} | {ended} |"
            )

        for dialect in ("solution", "tools"):
            with model_process(native if dialect == "tools" else plans) as url:
                async with perdure_worker(client, [work_tool], url) as queue:
                    context: list[JsonObject] = [{"role": "user", "content": CHAT}, {"type": "tool", "tool": "work"}]
                    config = {"max_requests": CALLS + 5, "dialect": dialect, "stuck_after": CALLS}
                    document: Any = {"name": "chat", "config": config, "context": context, "schema": {"type": "string"}}
                    begun = time.monotonic()
                    handle = await start_run(client, parse_agent(document), document, task_queue=queue)
                    result = await handle.result()
                    await row(f"Perdure, {dialect}", handle.id, begun, f"{result.status}: {result.stop_reason}")
                    lines[-1] = lines[-1].format(requests=result.requests)
                    print(lines[-1], flush=True)
        with model_process(native) as url:
            async with loop_worker(client, url) as queue:
                run_id, begun = uuid.uuid4().hex, time.monotonic()
                ended = "completed"
                try:
                    await client.execute_workflow("ReActLoop", CHAT, id=run_id, task_queue=queue)
                except WorkflowFailureError as error:
                    ended = str(error.cause)
                history = await client.get_workflow_handle(run_id).fetch_history()
                asked = sum(
                    event.activity_task_scheduled_event_attributes.activity_type.name == "ask"
                    for event in history.events
                )
                await row("loop", run_id, begun, ended)
                lines[-1] = lines[-1].format(requests=asked)
    return "\n".join(lines)
