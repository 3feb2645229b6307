"""Workers that end, and threads: what a deploy costs a run is nothing (R6.7, R12.1)."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import threading
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollActivityTaskQueueRequest
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment, WorkflowEnvironment

from perdure import Agent, Perdure, Run, ToolContext, ToolError, tool
from perdure.activities.active_executions import ActiveExecutions, report_begun
from perdure.activities.heartbeats import supervised_heartbeat
from perdure.activities.registry import Registry
from perdure.client.approvals import decide
from perdure.client.run_operations import AgentHandle, start_run
from perdure.plan import NOT_BEGUN
from perdure.runs.agent import parse_agent
from perdure.testing.scripted_model import ScriptedModel, Turn
from perdure.tools.decorator import ToolFunction, tool_function
from perdure.values.json import JsonObject
from tests.forked_cli import ForkedCli
from tests.support import DONE, agent, harness
from tests.timeouts import HANG
from tests.workflows.test_durability import Bell

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_as_many_sync_calls_run_at_once_as_the_worker_takes(dev_server: WorkflowEnvironment) -> None:
    together = threading.Barrier(30, timeout=HANG)

    @tool(retries=0)
    def meet() -> int:
        return together.wait() // 30

    calls = [{"_tool": "meet"}] * 30
    async with harness(dev_server.client, [meet], [{"calls": calls, "output": None}, DONE]) as it:
        view = await it.run(agent("meet"))
    assert Counter(call.status for call in view.calls) == {"done": 30}


async def test_a_thread_is_told_that_its_call_was_given_up(dev_server: WorkflowEnvironment) -> None:
    told: list[str] = []
    all_told = asyncio.Event()
    loop = asyncio.get_running_loop()

    def tell(what: str) -> None:
        told.append(what)
        if len(told) == 2:
            loop.call_soon_threadsafe(all_told.set)

    @tool(timeout=1, retries=0)
    def look(context: ToolContext) -> None:
        while not context.cancelled:
            threading.Event().wait(0.01)
        tell("looked")

    @tool(timeout=1, retries=0)
    def say(context: ToolContext) -> None:
        try:
            while True:
                context.progress("on it")
                threading.Event().wait(0.01)
        except ToolError as error:
            tell(error.code)

    calls = [{"_tool": "look"}, {"_tool": "say"}]
    async with harness(dev_server.client, [look, say], [{"calls": calls, "output": None}, DONE]) as it:
        view = await it.run(agent("look", "say"))
        await asyncio.wait_for(all_told.wait(), HANG)
    assert [call.error and call.error["code"] for call in view.calls] == ["timeout", "timeout"]
    assert sorted(told) == ["cancelled", "looked"]


@pytest.mark.parametrize("sync", [False, True])
async def test_a_call_cut_off_by_a_deploy_uses_up_no_retry_and_is_no_failure(
    dev_server: WorkflowEnvironment, sync: bool
) -> None:
    begun, attempts = asyncio.Event(), list[int]()
    loop = asyncio.get_running_loop()

    def begin(context: ToolContext) -> bool:
        attempts.append(context.attempt)
        loop.call_soon_threadsafe(begun.set)
        return context.attempt < 3

    async def wait_async(context: ToolContext) -> str:
        if begin(context):
            await asyncio.Event().wait()
        return context.idempotency_key

    def wait_sync(context: ToolContext) -> str:
        if begin(context):
            while not context.cancelled:
                threading.Event().wait(0.01)
            threading.Event().wait(30)
        return context.idempotency_key

    slow = tool(name="slow", retries=1)(wait_sync if sync else wait_async)
    queue, plan = f"test-{uuid.uuid4().hex[:8]}", {"calls": [{"_tool": "slow", "_outputPath": "†state.key"}]}
    async with harness(dev_server.client, [slow], [plan], task_queue=queue, grace=0.0) as it:
        handle = await it.start(agent("slow"))
        await begun.wait()
        await it.until_answered(handle.id)
    begun.clear()
    async with harness(dev_server.client, [slow], [], task_queue=queue, grace=0.0):
        await begun.wait()
    async with harness(dev_server.client, [slow], [DONE], task_queue=queue) as it:
        result = await handle.result()
    assert attempts == [1, 2, 3]
    assert [(call.status, call.attempts, call.error) for call in result.calls] == [("done", 3, None)]
    assert result.errors == []
    assert result.state["key"].startswith(f"{handle.id}/1.0:")


async def test_what_may_not_be_tried_again_is_told_as_cut_off(dev_server: WorkflowEnvironment) -> None:
    begun, paid = asyncio.Event(), list[int]()

    @tool(retries=0)
    async def pay() -> None:
        paid.append(1)
        begun.set()
        await asyncio.Event().wait()

    queue = f"test-{uuid.uuid4().hex[:8]}"
    async with harness(dev_server.client, [pay], [{"calls": [{"_tool": "pay"}]}], task_queue=queue, grace=0.0) as it:
        handle = await it.start(agent("pay"))
        await begun.wait()
        await it.until_answered(handle.id)
    async with harness(dev_server.client, [pay], [DONE], task_queue=queue):
        result = await handle.result()
    assert paid == [1]
    assert result.calls[0].error is not None
    assert result.calls[0].error["code"] == "Interrupted"
    assert "whether it took effect is not known" in result.calls[0].error["message"]


class EndsAtFirst(Registry):
    """Of a worker that hands over what it is about to begin the first time."""

    def __init__(self, underway: ActiveExecutions, *functions: Callable[..., Any]) -> None:
        super().__init__([function for each in functions if (function := tool_function(each)) is not None])
        self._underway, self.taken = underway, 0

    def get(self, name: str) -> ToolFunction | None:
        self.taken += 1
        if self.taken == 1:
            asyncio.get_running_loop().call_soon(self._underway.hand_over)
        return super().get(name)


async def test_what_is_cut_off_before_it_begins_is_begun_all_the_same(dev_server: WorkflowEnvironment) -> None:
    paid: list[int] = []

    @tool(retries=0)
    def pay(context: ToolContext) -> None:
        paid.append(context.attempt)

    underway = ActiveExecutions()
    tools = EndsAtFirst(underway, pay)
    script = [{"calls": [{"_tool": "pay"}], "output": None}, DONE]
    async with harness(dev_server.client, [], script, registry=tools, underway=underway) as it:
        view = await it.run(agent("pay"))
    assert (tools.taken, paid, view.errors) == (2, [1], [])


async def test_a_request_cut_off_by_a_deploy_is_asked_again(dev_server: WorkflowEnvironment) -> None:
    queue, gate = f"test-{uuid.uuid4().hex[:8]}", asyncio.Event()
    async with harness(dev_server.client, [], [Turn(DONE, gate=gate)], task_queue=queue, grace=0.0) as it:
        handle = await it.start(agent())
        await it.model.wait_for_request(1)
        gate_opener = asyncio.get_running_loop().call_later(5, gate.set)
    gate_opener.cancel()
    async with harness(dev_server.client, [], [DONE], task_queue=queue):
        result = await handle.result()
    assert (result.status, result.requests, result.errors) == ("completed", 1, [])


async def taken_and_lost(client: Client, queue: str) -> bytes:
    """Take a call from its queue, as a worker does that ends before it knows of it. Gives the task's token."""
    polled = await client.workflow_service.poll_activity_task_queue(
        PollActivityTaskQueueRequest(
            namespace=client.namespace, task_queue=TaskQueue(name=queue), identity="gone before it began"
        ),
        timeout=timedelta(seconds=HANG),
    )
    assert polled.task_token
    return polled.task_token


@pytest.mark.parametrize("timeout", [60, 1])
async def test_a_call_that_is_lost_on_its_way_to_a_worker_is_carried_out_once(
    dev_server: WorkflowEnvironment, timeout: float
) -> None:
    """A server gives a call to a poll that a draining worker has just given up. Also where an attempt has no longer than a worker has to give a sign of life."""
    queue, paid = f"lost-{uuid.uuid4().hex[:8]}", list[int]()

    @tool(retries=0, heartbeat=1, timeout=timeout, task_queue=queue)
    def pay(context: ToolContext) -> None:
        paid.append(context.attempt)

    async with harness(dev_server.client, [pay], [{"calls": [{"_tool": "pay"}]}, DONE]) as it:
        handle = await it.start(agent("pay"))
        await taken_and_lost(dev_server.client, queue)
        async with harness(dev_server.client, [pay], [], task_queue=queue, tools_only=True):
            result = await handle.result()
    assert (paid, result.errors) == ([1], [])
    assert [(call.status, call.attempts) for call in result.calls] == [("done", 1)]


async def test_a_lost_worker_uses_up_no_retry_and_what_may_have_begun_is_not_begun_again(
    dev_server: WorkflowEnvironment,
) -> None:
    queue, tried, paid = f"lost-{uuid.uuid4().hex[:8]}", list[int](), list[int]()

    @tool(retries=1, heartbeat=1, task_queue=queue)
    def look(context: ToolContext) -> None:
        tried.append(context.attempt)
        if len(tried) == 1:
            raise OSError("a failure of its own")

    @tool(retries=0, heartbeat=1, task_queue=queue)
    def pay(context: ToolContext) -> None:
        paid.append(context.attempt)

    calls = [{"_tool": "look"}, {"_tool": "pay"}]
    async with harness(dev_server.client, [look, pay], [{"calls": calls}, DONE]) as it:
        handle = await it.start(agent("look", "pay"))
        async with asyncio.timeout(HANG):  # what is taken first waits for a sign of life from then on
            while [call.status for call in (await it.view(handle.id)).calls] != ["running"] * 2:
                pass
        tokens = await asyncio.gather(*(taken_and_lost(dev_server.client, queue) for _ in calls))
        for token in tokens:  # each has begun, as far as anybody knows
            await dev_server.client.get_async_activity_handle(task_token=token).heartbeat({"begun": 1})
        async with harness(dev_server.client, [look, pay], [], task_queue=queue, tools_only=True):
            result = await handle.result()
    assert (tried, paid) == ([2, 3], [])
    assert [(call.status, call.attempts) for call in result.calls] == [("done", 3), ("failed", 1)]
    assert result.calls[1].error is not None
    assert result.calls[1].error["code"] == "WorkerLost"
    assert "whether it took effect is not known" in result.calls[1].error["message"]


async def test_what_its_server_does_not_take_any_more_does_not_begin(dev_server: WorkflowEnvironment) -> None:
    queue = f"lost-{uuid.uuid4().hex[:8]}"
    document = agent({"name": "ring", "_taskQueue": queue, "_retries": 0, "properties": {}})
    async with harness(dev_server.client, [], [{"calls": [{"_tool": "ring"}]}]) as it:
        handle = await it.start(document)
        token = await taken_and_lost(dev_server.client, queue)
        await handle.terminate()
    here = ActivityEnvironment(client=dev_server.client)
    once = RetryPolicy(maximum_attempts=1)
    here.info = dataclasses.replace(here.info, task_token=token, retry_policy=once)

    async def begin() -> None:
        async with supervised_heartbeat():
            await report_begun()

    with pytest.raises(ApplicationError, match="it was not started") as refused:
        await here.run(begin)
    assert refused.value.type == NOT_BEGUN


async def test_no_tool_s_own_failure_is_taken_for_its_worker_s(dev_server: WorkflowEnvironment) -> None:
    tried: list[str] = []

    @tool(retries=2)
    def fail(code: str) -> None:
        tried.append(code)
        raise ToolError(code, "my own")

    codes = ["Interrupted", "NotBegun", "WorkerLost", "NoSuchTool"]
    calls = [{"_tool": "fail", "code": code} for code in codes]
    async with harness(dev_server.client, [fail], [{"calls": calls, "output": None}, DONE]) as it:
        view = await it.run(agent("fail"))
    assert sorted(tried) == sorted(codes)
    assert [call.error and call.error["code"] for call in view.calls] == [f"tool.{code}" for code in codes]


class NotesRefusals(Registry):
    """A worker's tools as they are before a deployment."""

    def __init__(self) -> None:
        other = tool_function(tool(name="other")(lambda: 1))
        assert other is not None
        super().__init__([other])
        self.refused = asyncio.Event()

    def get(self, name: str) -> ToolFunction | None:
        if name == "pay":
            self.refused.set()
        return super().get(name)


async def test_a_tool_that_one_worker_lacks_is_waited_for(dev_server: WorkflowEnvironment) -> None:
    paid: list[int] = []

    @tool(dangerous=True, retries=0)
    def pay(context: ToolContext) -> None:
        paid.append(context.attempt)

    queue, without = f"test-{uuid.uuid4().hex[:8]}", NotesRefusals()
    async with harness(dev_server.client, [pay], [{"calls": [{"_tool": "pay"}]}], task_queue=queue) as it:
        handle = await it.start(agent("pay"))
        await it.until_waiting(handle.id, "1.0")
    async with harness(dev_server.client, [], [], task_queue=queue, registry=without):
        await decide(dev_server.client, handle.id, {"call": "1.0", "decision": "approve"})
        await without.refused.wait()
        async for view in Run(dev_server.client, handle.id).views():
            if view.calls[0].reason is not None:
                break
        shown = (await Run(dev_server.client, handle.id).view()).calls[0]
    assert shown.reason == "this worker has no tool 'pay'; the call waits for a worker that has it"
    async with harness(dev_server.client, [pay], [DONE], task_queue=queue):
        result = await handle.result()
    assert paid == [1]
    assert result.calls[0].reason is None
    assert [(call.status, call.attempts) for call in result.calls] == [("done", 1)]
    assert result.errors == []


async def test_a_tool_that_its_runs_own_worker_lacks_is_asked_of_others(dev_server: WorkflowEnvironment) -> None:
    """Both live: what the one takes up eagerly would come back to it for as long as it lives."""
    paid: list[int] = []

    @tool
    def pay(context: ToolContext) -> None:
        paid.append(context.attempt)

    class Lacks(Registry):
        def get(self, name: str) -> None: ...

    client, function = dev_server.client, tool_function(pay)
    assert function is not None
    other = await Client.connect(client.service_client.config.target_host, data_converter=client.data_converter)
    script: list[JsonObject] = [{"calls": [{"_tool": "pay"}]}, DONE]
    async with harness(client, [], script, registry=Lacks([function]), activity_pollers=1) as it:
        handle = await it.start(agent("pay"))
        async with harness(other, [pay], [], task_queue=it.task_queue, tools_only=True, activity_pollers=20):
            result = await asyncio.wait_for(handle.result(), HANG)
    assert (paid, result.errors) == ([1], [])


async def test_a_turn_is_handed_over_at_once_and_another_worker_holds_the_place(
    dev_server: WorkflowEnvironment,
) -> None:
    """A run that waits for a person is no work of its worker."""

    @tool(dangerous=True)
    def pay() -> str:
        return "paid"

    document, queue = agent("pay"), f"test-{uuid.uuid4().hex[:8]}"
    perdure = Perdure(dev_server.client, task_queue=queue)
    first, second = (perdure.session(f"{queue}-{n}", agent=Agent.of(document)) for n in range(2))
    options: dict[str, Any] = {"task_queue": queue, "session_runs": 1}
    async with AsyncExitStack() as ending:
        script = [{"calls": [{"_tool": "pay"}]}]
        it = await ending.enter_async_context(harness(dev_server.client, [pay], script, grace=2 * HANG, **options))
        receipt = await first.send("pay", sender="ann")
        assert receipt.run_id is not None
        await it.until_waiting(receipt.run_id, "1.0")
        async with asyncio.timeout(HANG):
            await ending.aclose()
    async with harness(dev_server.client, [pay], [DONE, DONE], **options):
        async with asyncio.timeout(HANG):
            while not any(  # noqa: ASYNC110
                each.attempt > 1 and each.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
                for each in (await first.handle.describe()).raw_description.pending_activities
            ):
                await asyncio.sleep(0.05)
        waits = await second.send("hello", sender="bob")
        assert (await second.show()).status == "waiting"
        await decide(dev_server.client, receipt.run_id, {"call": "1.0", "decision": "approve"})
        for session, each in ((first, receipt), (second, waits)):
            await session.reply(each, HANG)


class NotesLacking(Registry):
    """The registry of a worker that says when it was looked into."""

    looked: asyncio.Event

    def definitions(self) -> dict[str, JsonObject]:
        self.looked.set()
        return super().definitions()


async def test_a_run_that_begins_where_its_tool_is_lacking_goes_to_a_worker_that_has_it(
    dev_server: WorkflowEnvironment,
) -> None:
    paid: list[int] = []

    @tool
    def pay(context: ToolContext) -> None:
        paid.append(context.attempt)

    @tool
    def other() -> None: ...

    old, queue, looked = dev_server.client, f"test-{uuid.uuid4().hex[:8]}", asyncio.Event()
    function = tool_function(other)
    assert function is not None
    without = NotesLacking([function])
    without.looked = looked
    address, converter = old.service_client.config.target_host, old.data_converter
    new = await Client.connect(address, identity="new", data_converter=converter)
    async with harness(old, [], [], task_queue=queue) as it:
        alone = await it.run(agent("pay"))
    assert alone.status == "failed"
    async with harness(new, [pay], [DONE], task_queue=queue) as it:
        await it.run(agent("pay"))
    async with harness(old, [], [], task_queue=queue, registry=without) as it:
        handle = await it.start(agent("pay"))
        await looked.wait()
    async with harness(new, [pay], [{"calls": [{"_tool": "pay"}]}, DONE], task_queue=queue):
        result = await handle.result()
    assert (paid, result.errors) == ([1], [])


TOOLS = """
import os, socket, threading
from perdure import ToolContext, tool

@tool(retries=0)
def ring(seconds: float, context: ToolContext) -> str:
    with open("effects.log", "a") as log:
        log.write(context.idempotency_key + "\\n")
    with socket.create_connection(("127.0.0.1", int(os.environ["BELL"]))) as bell:
        bell.sendall(f"{context.call_id}\\n".encode())
        bell.recv(1)
    threading.Event().wait(seconds)
    return context.idempotency_key
"""


@dataclass
class Deployment:
    """Worker processes as whoever deploys them starts and stops them."""

    folder: Path
    queue: str
    env: dict[str, str]
    started: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def start(self) -> asyncio.subprocess.Process:
        command = [*await ForkedCli.command(), "worker", "--tools", "ringing", "--task-queue", self.queue]
        process = await asyncio.create_subprocess_exec(
            *command, cwd=self.folder, env={**os.environ, **self.env}, stderr=asyncio.subprocess.PIPE
        )
        self.started.append(process)
        assert "4 tools" in await self.line(process)
        while "connected" not in (said := await self.line(process)):
            assert said, "it has ended"  # or tells of a run that waited for it
        return process

    async def line(self, process: asyncio.subprocess.Process) -> str:
        assert process.stderr is not None
        return (await asyncio.wait_for(process.stderr.readline(), HANG)).decode()

    async def stop(self, process: asyncio.subprocess.Process) -> None:
        """End it as a deployment does, and see that it ends in order."""
        process.terminate()
        _, said = await asyncio.wait_for(process.communicate(), HANG)
        assert (process.returncode, b"Traceback" in said) == (0, False), said.decode()

    def effects(self) -> Counter[str]:
        """How often each idempotency key made its effect."""
        log = self.folder / "effects.log"
        return Counter(log.read_text().split()) if log.exists() else Counter()


@asynccontextmanager
async def deployment(
    server: WorkflowEnvironment, folder: Path, model: ScriptedModel, bell: Bell
) -> AsyncIterator[Deployment]:
    (folder / "ringing.py").write_text(TOOLS, encoding="utf-8")
    env = {
        "TEMPORAL_ADDRESS": server.client.service_client.config.target_host,
        "OPENAI_BASE_URL": model.base_url,
        "OPENAI_API_KEY": "scripted",
        "BELL": str(bell.port),
        "PERDURE_GRACE": "30",
    }
    site = Deployment(folder, f"deploy-{uuid.uuid4().hex[:8]}", env)
    try:
        yield site
    finally:
        for process in site.started:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def ringing(*seconds: float) -> dict[str, Any]:
    """An agent whose plan is given; the model only ends it."""
    calls = [{"_tool": "ring", "seconds": each, "_outputPath": f"†state.r{n}"} for n, each in enumerate(seconds)]
    return agent("ring", context=[{"type": "plan", "plan": calls}], config={"start": "plan"})


async def start(server: WorkflowEnvironment, site: Deployment, document: dict[str, Any]) -> AgentHandle:
    run_id = f"test-{uuid.uuid4().hex[:8]}"
    return await start_run(server.client, parse_agent(document), document, run_id=run_id, task_queue=site.queue)


async def test_sigterm_drains_and_tells_what_it_waits_for(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with Bell() as bell, ScriptedModel([DONE]) as model, deployment(dev_server, tmp_path, model, bell) as site:
        bell.quiet = True
        old = await site.start()
        handle = await start(dev_server, site, ringing(0))
        await bell.wait_for(1)
        old.terminate()
        said = await site.line(old)
        while "draining" not in said:
            said = await site.line(old)
        new = await site.start()
        bell.answer()
        result = await handle.result()
        assert await asyncio.wait_for(old.wait(), HANG) == 0
        await site.stop(new)  # an idle one
    assert said[24:] == (
        f" INFO worker: draining: accepts no new work, waiting up to 30 s for ring 0.0 of {handle.id}; send the signal again to hand over now\n"
    )
    assert [(call.status, call.attempts) for call in result.calls] == [("done", 1)]
    assert list(site.effects().values()) == [1]


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_a_rolling_restart_under_load_fails_no_call_and_makes_no_effect_twice(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    runs, rounds = 20, 3
    async with (
        Bell() as bell,
        ScriptedModel(lambda _: DONE) as model,
        deployment(dev_server, tmp_path, model, bell) as site,
    ):
        workers = [await site.start(), await site.start()]
        handles = []
        for _ in range(rounds):
            for place in range(len(workers)):
                handles += [await start(dev_server, site, ringing(0, 0.5, 1.5, 0.2)) for _ in range(runs // 2)]
                await bell.wait_for(len(bell.rings) + 1)
                stopping = asyncio.create_task(site.stop(workers[place]))
                workers[place] = await site.start()
                await stopping
        results = await asyncio.gather(*(handle.result() for handle in handles))
        for worker in workers:
            await site.stop(worker)
    assert {result.status for result in results} == {"completed"}
    assert [result.errors for result in results if result.errors] == []
    assert Counter((call.status, call.attempts) for result in results for call in result.calls) == {
        ("done", 1): 4 * len(handles)
    }
    assert site.effects() == Counter({key: 1 for result in results for key in result.state.values()})
