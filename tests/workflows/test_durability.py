"""The worker is killed with SIGKILL, the server restarted: the run goes on, and each side effect happened once (R6.7)."""

from __future__ import annotations

import asyncio
import json
import os
import random
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import TimeoutType
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from perdure.client.run_operations import AgentHandle, start_run
from perdure.hosting.server import embedded_server, free_port
from perdure.runs.agent import parse_agent
from perdure.runs.wire import REQUEST_ACTIVITY, RunResult
from perdure.testing.scripted_model import ChatRequest, ScriptedModel, Turn
from tests.forked_cli import ForkedCli, ForkedWorker
from tests.support import DONE, agent
from tests.workflows.test_streaming import chaos_round

pytestmark = pytest.mark.asyncio(loop_scope="session")

CALLS: list[dict[str, Any]] = [
    {"_tool": "note", "text": "one", "_outputPath": "†state.a"},
    {"_tool": "note", "text": "two", "_outputPath": "†state.b"},
    {"_tool": "note", "text": "{†state.a} and {†state.b}", "_outputPath": "†state.c"},
]
TEXT = json.dumps({"calls": CALLS, "output": None}, ensure_ascii=False, separators=(",", ":"))


class Bell:
    """Tools ring it when they have begun and wait for its answer."""

    def __init__(self) -> None:
        self.rings: list[str] = []
        self.quiet = False
        self._changed = asyncio.Condition()
        self._answer = asyncio.Event()

    async def __aenter__(self) -> Bell:
        self._server = await asyncio.start_server(self._ring, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.answer()
        self._server.close()

    async def _ring(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readline()).decode().strip()
        async with self._changed:
            self.rings.append(line)
            self._changed.notify_all()
        if self.quiet:
            await self._answer.wait()
        writer.write(b"\n")
        writer.close()

    def answer(self) -> None:
        """Let all go on who rang while it was quiet, and who ring from now on."""
        self.quiet = False
        self._answer.set()

    async def wait_for(self, count: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.rings) >= count)


class Site:
    """A run with its model, its bell, and a worker process that can be killed and started again."""

    def __init__(self, client: Client, address: str, model: ScriptedModel, bell: Bell, folder: Path) -> None:
        self.client, self.model, self.bell, self.folder = client, model, bell, folder
        self._address = address
        self._queue = f"kill-{uuid.uuid4().hex[:8]}"
        self._worker: ForkedWorker | None = None

    async def start_worker(self) -> None:
        arguments = [self._address, self._queue, self.model.base_url, str(self.bell.port), str(self.folder)]
        self._worker = await ForkedCli.worker(*arguments)

    async def wait_for_death(self) -> None:
        assert self._worker is not None
        await self._worker.wait()

    async def kill(self) -> None:
        assert self._worker is not None
        await self._worker.kill()

    async def start_run(self, tool: str = "note", **more: Any) -> AgentHandle:
        document = agent(tool, **more)
        return await start_run(self.client, parse_agent(document), document, run_id=self._queue, task_queue=self._queue)

    def effects(self) -> list[str]:
        """The side effects that happened, by call id."""
        log = self.folder / "effects.log"
        return sorted(line.split("/")[1].partition(":")[0] for line in log.read_text().split()) if log.exists() else []


@asynccontextmanager
async def site(server: WorkflowEnvironment, script: Any, folder: Path) -> AsyncIterator[Site]:
    address = server.client.service_client.config.target_host
    async with ScriptedModel(script) as model, Bell() as bell:
        it = Site(server.client, address, model, bell, folder)
        await it.start_worker()
        try:
            yield it
        finally:
            await it.kill()


async def finish(handle: AgentHandle) -> RunResult:
    return await handle.result()


POINTS = {
    "before the first call": (0, 0),
    "between calls": (TEXT.index('},{"_tool"') + 2, 1),
    "in the middle of a call": (TEXT.index('"two"'), 1),
    "after the last call": (TEXT.index('],"output"'), 3),
    "in output": (len(TEXT) - 2, 3),
}


@pytest.mark.soak  # `test_chaos` kills one at a random point
async def test_the_worker_is_killed_while_the_model_writes(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    """All points at once: each waits five seconds for the server to miss the worker."""
    async with asyncio.TaskGroup() as group:
        for name, (point, released) in POINTS.items():
            (tmp_path / name).mkdir()
            group.create_task(killed_while_writing(dev_server, tmp_path / name, point, released), name=name)


async def killed_while_writing(server: WorkflowEnvironment, folder: Path, point: int, released: int) -> None:
    gate = asyncio.Event()
    again = {"calls": CALLS, "output": None}
    script = [Turn(TEXT, gate=gate, gate_after=point), *([again] if not released else []), DONE]
    async with site(server, script, folder) as it:
        handle = await it.start_run()
        await it.model.wait_for_request(1)
        if released:
            await it.bell.wait_for(released)
        await it.kill()
        gate.set()
        await it.start_worker()
        result = await finish(handle)
        it.model.check()
        requests = [each for each in await activities(handle) if each.name == REQUEST_ACTIVITY]
    assert result.status == "completed"
    # The server itself gives the Request to the next worker, five seconds after the last heartbeat.
    assert (requests[0].attempts, requests[0].heartbeat, requests[0].ended) == (2, 5.0, "completed")
    assert it.effects() == [f"1.{n}" for n in range(released or 3)]
    assert [error["error"]["code"] for error in result.errors] == (["interrupted"] if released else [])


async def killed_during_calls(it: Site, tool: str, begun: int) -> tuple[RunResult, list[ActivityRecord]]:
    """Kill the worker while so many calls of a tool work; return the run's result, and the activities of the tool."""
    it.bell.quiet = True
    handle = await it.start_run(tool)
    await it.bell.wait_for(begun)
    await answered(it.client, handle.id)
    await it.kill()
    it.bell.answer()
    await it.start_worker()
    result = await finish(handle)
    return result, [each for each in await activities(handle) if each.name == tool]


async def test_the_worker_is_killed_during_a_tool(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with site(dev_server, [{"calls": CALLS, "output": {"ok": True}}], tmp_path) as it:
        result, calls = await killed_during_calls(it, "note", 2)
    assert (result.status, result.state["c"]) == ("completed", "one and two")
    assert it.effects() == ["1.0", "1.1", "1.2"]
    assert [call.attempts > 1 for call in result.calls[:2]] == [True, True]
    lost = [(each.id, each.heartbeat) for each in calls if each.ended == "lost"]
    assert {"1.0", "1.1"} <= {id for id, _ in lost}
    assert {each.heartbeat for each in calls} == {1.0}


@pytest.mark.soak  # the suite waits for a heartbeat of one second
async def test_a_call_whose_worker_is_killed_goes_to_another_after_ten_seconds_of_silence(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    call = {"_tool": "plain", "text": "one", "_outputPath": "†state.a"}
    async with site(dev_server, [{"calls": [call], "output": {"ok": True}}], tmp_path) as it:
        result, calls = await killed_during_calls(it, "plain", 1)
    assert (result.status, result.calls[0].attempts) == ("completed", 2)
    assert [(each.attempts, each.heartbeat, each.ended) for each in calls] == [
        (1, 10.0, "lost"),
        (1, 10.0, "completed"),
    ]


@dataclass
class ActivityRecord:
    """One activity, as the history has it."""

    id: str
    name: str
    heartbeat: float
    """Its heartbeat timeout in seconds."""
    attempts: int = 0
    ended: str = ""
    """`completed`, or `lost` where its heartbeat timeout passed."""


async def activities(handle: AgentHandle) -> list[ActivityRecord]:
    """Return the run's activities in the order in which they were scheduled."""
    found: dict[int, ActivityRecord] = {}
    for event in (await handle.fetch_history()).events:
        scheduled = event.activity_task_scheduled_event_attributes
        started, completed = (
            event.activity_task_started_event_attributes,
            event.activity_task_completed_event_attributes,
        )
        timed_out = event.activity_task_timed_out_event_attributes
        if scheduled.activity_id:
            seconds = scheduled.heartbeat_timeout.ToTimedelta().total_seconds()
            found[event.event_id] = ActivityRecord(scheduled.activity_id, scheduled.activity_type.name, seconds)
        elif started.scheduled_event_id:
            found[started.scheduled_event_id].attempts = started.attempt
        elif completed.scheduled_event_id:
            found[completed.scheduled_event_id].ended = "completed"
        elif timed_out.scheduled_event_id:
            kind = timed_out.failure.timeout_failure_info.timeout_type
            found[timed_out.scheduled_event_id].ended = "lost" if kind == TimeoutType.TIMEOUT_TYPE_HEARTBEAT else "late"
    return list(found.values())


async def answered(client: Client, run_id: str) -> None:
    """Return once the history has the result of a Request."""
    requests: set[int] = set()
    handle = client.get_workflow_handle(run_id)
    async for event in handle.fetch_history_events(wait_new_event=True):
        if event.activity_task_scheduled_event_attributes.activity_type.name == REQUEST_ACTIVITY:
            requests.add(event.event_id)
        if event.activity_task_completed_event_attributes.scheduled_event_id in requests:
            return


@pytest.mark.parametrize(
    "recorded",
    [True, pytest.param(False, marks=pytest.mark.soak)],
    ids=["the answer is recorded", "the model still writes"],
)
async def test_the_worker_is_killed_between_a_tools_end_and_its_report(
    dev_server: WorkflowEnvironment, tmp_path: Path, recorded: bool
) -> None:
    """An answer that the worker had not reported is lost with it: a second Request is asked for the rest. The tool's effect is not."""
    text = json.dumps({"calls": [CALLS[0] | {"die": True}, *CALLS[1:]], "output": {"ok": True}}, ensure_ascii=False)
    gate = asyncio.Event()
    turn = Turn(text, gate=gate, gate_after=len(text) if recorded else text.index('"two"'))
    rest = {
        "calls": [{"_tool": "note", "text": "{†state.a}, and the rest", "_outputPath": "†state.c"}],
        "output": {"ok": True},
    }
    async with site(dev_server, [turn] if recorded else [turn, rest], tmp_path) as it:
        it.bell.quiet = True
        if recorded:
            gate.set()
        handle = await it.start_run()
        await it.bell.wait_for(2 if recorded else 1)
        if recorded:
            await answered(it.client, handle.id)
        it.bell.answer()
        await it.wait_for_death()
        gate.set()
        await it.start_worker()
        result = await finish(handle)
        it.model.check()
    assert result.calls[0].attempts == 2
    assert (result.status, result.state["c"]) == ("completed", "one and two" if recorded else "one, and the rest")
    assert it.effects() == (["1.0", "1.1", "1.2"] if recorded else ["1.0", "2.0"])
    assert [error["error"]["code"] for error in result.errors] == ([] if recorded else ["interrupted"])


async def test_the_server_is_restarted(tmp_path: Path) -> None:
    port, db = free_port(), str(tmp_path / "temporal.db")
    (tmp_path / "effects").mkdir()
    async with ScriptedModel([{"calls": CALLS, "output": {"ok": True}}]) as model, Bell() as bell:
        bell.quiet = True
        async with embedded_server(port=port, db=db, ui=False) as server:
            it = Site(server.client, f"127.0.0.1:{port}", model, bell, tmp_path / "effects")
            await it.start_worker()
            handle = await it.start_run()
            await bell.wait_for(2)
            await answered(it.client, handle.id)
        async with embedded_server(port=port, db=db, ui=False) as server:
            bell.answer()
            try:
                result = await server.client.get_workflow_handle(handle.id, result_type=RunResult).result()
            finally:
                await it.kill()
    assert (result.status, result.state["c"]) == ("completed", "one and two")
    assert it.effects() == ["1.0", "1.1", "1.2"]


async def killed_round(server: WorkflowEnvironment, chance: random.Random, folder: Path) -> list[str]:
    """One random schedule in which the worker dies at any character of the model's answer, or while tools run."""
    calls = [{"_tool": "note", "text": f"{n}", "_outputPath": f"†state.s{n}"} for n in range(chance.randrange(1, 5))]
    text = json.dumps({"calls": calls, "output": None}, ensure_ascii=False)
    gate, point = asyncio.Event(), chance.randrange(len(text))

    def script(asked: ChatRequest) -> Turn | dict[str, Any]:
        return Turn(text, gate=gate, gate_after=point) if not asked.text.count("# plan") else DONE

    async with site(server, script, folder) as it:
        handle = await it.start_run()
        await it.model.wait_for_characters(1, point)
        if chance.random() < 0.5 and '},{"_tool"' in text[:point]:
            await it.bell.wait_for(1)
        await it.kill()
        gate.set()
        await it.start_worker()
        result = await finish(handle)
    ran = sorted(call.id for call in result.calls if call.status == "done")
    problems = [] if result.status == "completed" else [f"ended as {result.status}: {result.error}"]
    return problems if it.effects() == ran else [*problems, f"effects {it.effects()}, calls {ran}"]


@pytest.mark.parametrize("count", [10, pytest.param(50, marks=pytest.mark.soak)])
async def test_chaos(dev_server: WorkflowEnvironment, tmp_path: Path, count: int) -> None:
    """Random streams, whole, cut or refused, with stray deliveries, and workers killed: each call ran once."""
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(10**6))
    print(f"chaos seed {seed}")
    schedules = [random.Random(f"{seed}-{number}") for number in range(count)]
    for start in range(0, count, 10):
        killed, *others = schedules[start : start + 10]
        folder = tmp_path / str(start)
        folder.mkdir()
        rounds = [killed_round(dev_server, killed, folder)]
        rounds += [chaos_round(dev_server, chance) for chance in others]
        problems = await asyncio.gather(*rounds)
        assert problems == [[]] * 10, f"CHAOS_SEED={seed}, schedules from {start}"
