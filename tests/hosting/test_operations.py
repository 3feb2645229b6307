"""What whoever operates workers sees and may rely on: no worker, cancelled runs, what watching costs."""

from __future__ import annotations

import asyncio
import io
import uuid
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from rich.console import Console
from temporalio import workflow
from temporalio.client import Client, Interceptor, OutboundInterceptor, QueryWorkflowInput, WorkflowFailureError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from perdure import Agent, tool
from perdure.cli._run_view import print_run
from perdure.client.approvals import change_policy, decide
from perdure.client.perdure import Perdure
from perdure.client.run import watch_run
from perdure.errors import NoWorkerError
from perdure.gateway.guards import Guards
from perdure.pages._inbox import inbox_app
from perdure.plan import Approval
from perdure.runs.wire import AGENT_WORKFLOW, WAITING_NAMED, CallView, RunView
from perdure.testing.scripted_model import Turn
from tests.client.test_approval_lists import remove, removing, until_listed
from tests.support import DONE, Command, agent, harness, perdure, serving
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_decision_that_nobody_takes_changes_nothing_later(dev_server: WorkflowEnvironment) -> None:
    paid: list[int] = []

    @tool(dangerous=True, retries=0)
    def pay() -> None:
        paid.append(1)

    client, queue = dev_server.client, f"test-{uuid.uuid4().hex[:8]}"
    script = [{"calls": [{"_tool": "pay"}], "output": None}, DONE]
    async with harness(client, [pay], script, task_queue=queue) as it:
        run_id = (await it.start(agent("pay"))).id
        await it.until_waiting(run_id, "1.0")
    env = {"TEMPORAL_ADDRESS": client.service_client.config.target_host}
    command, changed = await asyncio.gather(
        perdure("approve", run_id, "1.0", env=env),
        change_policy(client, run_id, {"ask": "never"}),
        return_exceptions=True,
    )
    assert isinstance(command, Command)
    assert command.code == 1
    assert command.err == (
        f"perdure: nothing changed: no worker answers for '{run_id}'; send the decision again when a worker runs. "
        f"Start a worker on task queue '{queue}'\n"
    )
    assert isinstance(changed, NoWorkerError)
    assert "nothing changed: no worker answers" in str(changed)
    async with harness(client, [pay], [DONE], task_queue=queue) as it:
        await it.until_waiting(run_id, "1.0")
        assert paid == []
        await decide(client, run_id, {"call": "1.0", "decision": "approve"})
        await client.get_workflow_handle(run_id).result()
    assert paid == [1]


async def test_who_follows_a_run_without_a_worker_is_told(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.queries._answers.TIMEOUT", timedelta(seconds=1))
    nobody, document = Perdure(dev_server.client, task_queue=f"nobody-{uuid.uuid4().hex[:8]}"), agent()
    run = await nobody.start(Agent.of(document))
    with pytest.raises(NoWorkerError, match=r"no worker answers for .*. Start a worker on task queue 'nobody-"):
        await anext(run.events())
    await run.terminate()


async def test_a_cancelled_run_has_no_running_calls(dev_server: WorkflowEnvironment) -> None:
    started = asyncio.Event()

    @tool
    async def hang() -> None:
        started.set()
        await asyncio.Event().wait()

    calls = [{"_tool": "hang", "_outputPath": "†state.a"}, {"_tool": "hang", "_after": ["1.0"]}]
    async with harness(dev_server.client, [hang], [{"calls": calls, "output": None}], chunk=10_000) as it:
        handle = await it.start(agent("hang"))
        await started.wait()
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        view = await it.view(handle.id)
    assert view.status == "cancelled"
    assert [(call.status, call.error, call.reason) for call in view.calls] == [
        ("unknown", None, "the run was cancelled while it ran: whether it took effect is not known"),
        ("skipped", None, "the run was cancelled"),
    ]


@pytest.mark.parametrize(
    ("status", "said"),
    [("waiting", "1.0 waits for a person: perdure approve r 1.0"), ("skipped", "1.0 the run was cancelled")],
)
async def test_show_asks_nobody_to_decide_what_waits_no_longer(status: str, said: str) -> None:
    offered = Approval(requested_at="2026-01-01T00:00:00Z")
    reason = "the run was cancelled" if status == "skipped" else None
    call = CallView(id="1.0", tool="pay", params={}, status=status, reason=reason, approval=offered)
    view = RunView(run_id="r", calls=[call])
    console = Console(record=True, width=120, file=io.StringIO())
    print_run(console, view)
    shown = console.export_text()
    assert said in shown
    assert ("perdure approve" in shown) == (status == "waiting")


class CountingQueries(Interceptor):
    def __init__(self) -> None:
        self.count = 0

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        counting = self

        class Outbound(OutboundInterceptor):
            async def query_workflow(self, input: QueryWorkflowInput) -> Any:
                counting.count += 1
                return await super().query_workflow(input)

        return Outbound(next)


async def test_watching_a_run_that_waits_asks_it_once(dev_server: WorkflowEnvironment) -> None:
    gate = asyncio.Event()
    counting = CountingQueries()
    client = Client(
        dev_server.client.service_client,
        namespace=dev_server.client.namespace,
        data_converter=dev_server.client.data_converter,
        interceptors=[counting],
    )
    async with harness(dev_server.client, [], [Turn(DONE, gate=gate)]) as it:
        handle = await it.start(agent())
        await it.model.wait_for_request(1)
        last = None
        async for view in watch_run(client, handle.id):
            last = view
            if view.log and not gate.is_set():
                await asyncio.sleep(2)  # in which a look follows the other, and nothing happens
                assert (
                    counting.count <= 6
                )  # the run and its events, and again for the signal that somebody watches; late, each once more
                gate.set()
    assert last is not None
    assert last.status == "completed"


async def test_a_worker_that_goes_by_cpu_and_memory_works(dev_server: WorkflowEnvironment) -> None:
    tuned: dict[str, Any] = {
        "target_cpu": 1.0,
        "target_memory": 1.0,
        "activity_pollers": "auto",
        "workflow_pollers": 2,
        "threads": 2,
    }
    async with harness(dev_server.client, [], [DONE], **tuned) as it:
        assert (await it.run(agent())).status == "completed"


async def test_an_inbox_page_that_stands_open_asks_no_run(dev_server: WorkflowEnvironment) -> None:
    counting = CountingQueries()
    client = Client(
        dev_server.client.service_client,
        namespace=dev_server.client.namespace,
        data_converter=dev_server.client.data_converter,
        interceptors=[counting],
    )
    paths = [f"/{n}" for n in range(WAITING_NAMED + 2)]
    unlisted = f"0.{len(paths) - 1}"
    async with harness(dev_server.client, [remove], []) as it:
        handle = await it.start(removing(*paths))
        await until_listed(dev_server.client, {handle.id})
        async with serving(inbox_app(Perdure(client), Guards(None))) as url, httpx2.AsyncClient(timeout=HANG) as http:
            page = {"run": handle.id, "call": unlisted}
            assert "data-gone" not in (await http.get(f"{url}/list", params=page)).text
            await decide(dev_server.client, handle.id, {"call": unlisted, "decision": "reject"})
            await decide(dev_server.client, handle.id, {"call": "0.0", "decision": "reject"})
            await decide(dev_server.client, handle.id, {"call": "0.1", "decision": "reject"})
            async with asyncio.timeout(HANG):  # the index is a moment late
                while True:
                    if "data-gone" in (await http.get(f"{url}/list", params=page)).text:
                        break
                    await asyncio.sleep(0.05)
        assert counting.count == 0
        await handle.terminate()


@workflow.defn(name=AGENT_WORKFLOW, sandboxed=False)
class Broken:
    """A run whose every task fails."""

    @workflow.run
    async def run(self, _: Any) -> Any:
        raise RuntimeError("a fault of the engine's")


@pytest.mark.parametrize("word", ["cancel", pytest.param("show", marks=pytest.mark.soak)])  # which waits ten seconds
async def test_r18_10_commands_say_that_the_tasks_of_a_run_fail_why_and_what_to_do(
    dev_server: WorkflowEnvironment, word: str
) -> None:
    client, queue = dev_server.client, f"broken-{uuid.uuid4().hex[:8]}"
    env = {"TEMPORAL_ADDRESS": client.service_client.config.target_host}
    async with Worker(client, task_queue=queue, workflows=[Broken]), asyncio.timeout(HANG):
        run = await Perdure(client, task_queue=queue).start(Agent(name="broken", instructions="Plan."), "x")
        async with aclosing(run.troubles()) as troubles:
            async for _ in troubles:
                break
        command = await perdure(word, run.id, env=env)
        await run.terminate()
    assert (command.code, command.out) == (1, "")
    assert "its workflow tasks fail" in command.err
    assert "a fault of the engine's" in command.err
    assert f"perdure terminate {run.id}" in command.err
