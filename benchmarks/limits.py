"""CPU and bytes of the largest workflow task at the default limits (R18.2, R18.5).

Each run is made on a dev server, and its history replayed with every task's CPU time and its commands measured.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails

from benchmarks.common import model_process, perdure_worker
from perdure import tool
from perdure.client.run_operations import start_run
from perdure.hosting.connection import data_converter
from perdure.hosting.server import embedded_server
from perdure.runs.agent import parse_agent
from perdure.testing.scripted_model import ChatRequest
from perdure.values.json import JsonObject
from perdure.workflows.agent import AgentWorkflow

DONE: dict[str, Any] = {"calls": [], "output": {"ok": True}}


@tool
def make(size: int) -> str:
    """Make a text."""
    return "x" * size


@tool
async def nothing(x: Any = None) -> int:
    """Do nothing."""
    del x
    return 1


@tool(approval="always")
async def risky(text: str) -> int:
    """Needs a person."""
    return len(text)


def independent(count: int, _: ChatRequest) -> dict[str, Any]:
    return {
        "calls": [{"_tool": "nothing", "_outputPath": f"†state.s{n}"} for n in range(count)],
        "output": {"ok": True},
    }


def asked(count: int, request: ChatRequest) -> dict[str, Any]:
    calls = [{"_tool": "risky", "text": "x" * 1000} for _ in range(count)]
    return {"calls": calls, "output": None} if request.number == 1 else DONE


def read(size: int, readers: int, _: ChatRequest) -> dict[str, Any]:
    calls: list[dict[str, Any]] = [{"_tool": "make", "size": size, "_outputPath": "†state.text"}]
    calls += [{"_tool": "nothing", "x": "†state.text", "_outputPath": f"†state.n{n}"} for n in range(readers)]
    return {"calls": calls, "output": {"ok": True}}


def done(_: ChatRequest) -> dict[str, Any]:
    return DONE


def tools(count: int) -> list[dict[str, Any]]:
    words = " ".join(f"word{n}" for n in range(1000))
    schema = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(10)}, "_activity": "nothing"}
    return [{"name": f"tool{n}", "description": f"{n} {words}", **schema} for n in range(count)]


CASES: list[tuple[str, Callable[[ChatRequest], Any], list[Any], str]] = [
    ("500 calls at once", functools.partial(independent, 500), ["nothing"], "a second for every 50"),
    ("499 approvals that time out together", functools.partial(asked, 499), ["risky"], "2 s of CPU in one, for ever"),
    ("10 KB read by 450 calls", functools.partial(read, 10_000, 450), ["make", "nothing"], "terminated, above 4 MiB"),
    (
        "1.9 MB read by 450 calls",
        functools.partial(read, 1_899_000, 450),
        ["make", "nothing"],
        "terminated, above 4 MiB",
    ),
    ("200 tools of 9 KB", done, tools(200), "hung at its first task, a marker of 2.1 MB"),
]
"""Each with what was before limits held as sums."""


class MeasuringRunner(UnsandboxedWorkflowRunner):
    """Takes down CPU seconds and bytes of every task."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[tuple[float, int]] = []

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        instance = super().create_instance(det)
        activate = instance.activate

        def measured(act: WorkflowActivation) -> WorkflowActivationCompletion:
            begun = time.thread_time()
            completion = activate(act)
            self.tasks.append((time.thread_time() - begun, completion.ByteSize()))
            return completion

        vars(instance)["activate"] = measured
        return instance


async def _histories(client: Client, id: str, run_id: str | None) -> list[WorkflowHistory]:
    """Of all executions of a run that may have gone on as new."""
    found = []
    while run_id:
        found.append(await client.get_workflow_handle(id, run_id=run_id).fetch_history())
        run_id = found[-1].events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return found


async def limits() -> str:
    """CPU and bytes of the largest task of each case."""
    rows = []
    async with embedded_server(ui=False) as server:
        for name, script, offered, before in CASES:
            document: JsonObject = {
                "name": "limits",
                "config": {"approval": {"timeout": 5}, "stream": False},
                "context": [{"type": "system", "text": "Plan."}, *({"type": "tool", "tool": tool} for tool in offered)],
                "schema": True,
            }
            with model_process(script) as url:
                async with perdure_worker(server.client, [make, nothing, risky], url) as queue:
                    handle = await start_run(server.client, parse_agent(document), document, task_queue=queue)
                    begun = time.monotonic()
                    await handle.result()
                    took = time.monotonic() - begun
                    histories = await _histories(server.client, handle.id, handle.first_execution_run_id)
            runner = MeasuringRunner()
            replayer = Replayer(workflows=[AgentWorkflow], workflow_runner=runner, data_converter=data_converter())
            for history in histories:
                await replayer.replay_workflow(history)
            cpu, size = max(each for each, _ in runner.tasks), max(each for _, each in runner.tasks)
            total = sum(each.ByteSize() for history in histories for each in history.events)
            rows.append(
                f"| {name} | {before} | {took:.1f} | {len(runner.tasks)} | {cpu * 1e3:.0f} | {size / 1e3:.0f} | {total / 1e6:.1f} |"
            )
    head = (
        "| what | before | seconds | tasks | CPU ms of the largest | KB of the largest | MB of history |\n"
        "|---|---|--:|--:|--:|--:|--:|\n"
    )
    return head + "\n".join(rows)
