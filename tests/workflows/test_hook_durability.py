"""Hooks over lost and other workers, new messages, continue-as-new, loops of many parts and tools elsewhere (R10.17)."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, hook, refuse, tool
from perdure.approvals.requests import STEER
from perdure.client.run_operations import start_run
from perdure.hooks import AfterToolCall, AgentEnd, BeforeAgentStart, BeforeToolCall
from perdure.hosting.worker import build_worker
from perdure.runs.agent import parse_agent
from perdure.testing.scripted_model import ChatRequest, Turn
from tests.support import DONE, agent, harness, impatient, registry
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

sent: list[str] = []


@tool
def send(text: str) -> str:
    """Send a text."""
    sent.append(text)
    return f"sent {text}"


ONE: dict[str, Any] = {"calls": [{"_tool": "send", "text": "hello", "_outputPath": "†state.sent"}], "output": None}


@pytest.fixture(autouse=True)
def _nothing_sent() -> None:
    sent.clear()


async def other(server: WorkflowEnvironment) -> Client:
    """A client of another identity: a worker of its own, as the server sees it."""
    client = server.client
    return await Client.connect(
        client.service_client.config.target_host,
        namespace=client.namespace,
        identity=f"other-{uuid.uuid4().hex[:6]}",
        data_converter=client.data_converter,
    )


async def test_a_hook_whose_worker_is_lost_is_called_again_by_the_same_key(dev_server: WorkflowEnvironment) -> None:
    keys: list[str] = []
    began, goes_on = asyncio.Event(), asyncio.Event()

    @hook("before_tool_call")
    async def guard(event: BeforeToolCall) -> None:
        keys.append(event.key)
        began.set()
        if len(keys) == 1:
            await goes_on.wait()

    async with harness(dev_server.client, [send, guard], [ONE, DONE], grace=0.0, cached_workflows=0) as it:
        handle = await it.start(agent("send"))
        await asyncio.wait_for(began.wait(), HANG)
        await it.until_answered(handle.id)
    queue = it.task_queue
    async with harness(dev_server.client, [send, guard], [DONE], task_queue=queue, cached_workflows=0):
        await handle.result()
        goes_on.set()
    assert keys == [f"{handle.id}/1.0/before_tool_call"] * 2
    assert sent == ["hello"]


async def test_a_hook_that_this_worker_lacks_is_found_on_another(dev_server: WorkflowEnvironment) -> None:
    called: list[str] = []

    @hook("before_tool_call")
    def guard(event: BeforeToolCall) -> BeforeToolCall:
        called.append(event.key)
        return event.changed(params={"text": "checked"})

    @hook("after_tool_call")
    def redacts(event: AfterToolCall) -> AfterToolCall:
        return event.changed(result="redacted")

    started, gate = asyncio.Event(), asyncio.Event()

    @hook("before_agent_start")
    def begins(_: BeforeAgentStart) -> None:
        started.set()

    # The first worker has recorded the hooks of the run when one without them is there beside it, as in a deploy.
    functions, script = [send, guard, redacts, begins], [Turn(ONE, gate=gate), DONE]
    async with harness(dev_server.client, functions, script, cached_workflows=0) as it:
        handle = await it.start(agent("send"))
        await asyncio.wait_for(started.wait(), HANG)
        without = build_worker(
            await other(dev_server),
            registry([send]),
            task_queue=it.task_queue,
            cached_workflows=0,
            model=it.model.client(),
        )
        async with without:
            gate.set()
            result = await handle.result()
    assert called == [f"{handle.id}/1.0/before_tool_call"]
    assert result.state == {"sent": "redacted"}
    assert set(sent) == {"checked"}


async def test_a_new_message_while_a_hook_works_holds_the_call(dev_server: WorkflowEnvironment) -> None:
    began, goes_on = asyncio.Event(), asyncio.Event()
    called: list[str] = []

    @hook("before_tool_call", tools=["send"])
    async def slow(event: BeforeToolCall) -> None:
        called.append(event.call)
        if len(called) == 1:
            began.set()
            await goes_on.wait()

    shown: list[str] = []

    def script(request: ChatRequest) -> dict[str, Any]:
        shown.append(request.text)
        if len(shown) == 1:
            return ONE
        return {"calls": [{"_tool": "keep", "calls": ["1.0"]}], "output": None} if len(shown) == 2 else DONE

    async with harness(dev_server.client, [send, slow], script) as it:
        handle = await it.start(agent("send", config={"approval": {"ask": "never"}}))
        await asyncio.wait_for(began.wait(), HANG)
        await it.client.get_workflow_handle(handle.id).signal(
            STEER, {"id": "m1", "text": "only the first", "sender": "ann"}
        )
        async with asyncio.timeout(HANG):
            while len(shown) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        before = list(sent)
        goes_on.set()
        result = await handle.result()
    assert '"held"' in shown[1]
    assert (before, sent) == ([], ["hello"])  # nothing that was held was made before it was kept
    assert [(call.id, call.status) for call in result.calls if call.tool == "send"] == [("1.0", "done")]
    assert called == ["1.0"]


impatient_server = impatient(20)


async def test_a_run_that_goes_on_as_new_keeps_its_hooks_and_begins_and_ends_once(
    impatient_server: WorkflowEnvironment,
) -> None:
    seen: Counter[str] = Counter()

    @hook("before_agent_start")
    def begins(event: BeforeAgentStart) -> BeforeAgentStart:
        seen[event.key.rpartition("/")[2]] += 1
        return event.changed(input={"text": "another"})

    @hook("before_tool_call")
    def looks(event: BeforeToolCall) -> None:
        seen[event.call] += 1

    @hook("agent_end")
    def ends(event: AgentEnd) -> None:
        seen[event.status] += 1

    def script(request: ChatRequest) -> dict[str, Any]:
        calls = [{"_tool": "send", "text": "†input.text"}]
        return {"calls": calls, "output": None} if request.number <= 4 else DONE

    where = {"type": "input", "schema": {"type": "object"}}
    async with harness(impatient_server.client, [send, begins, looks, ends], script, cached_workflows=0) as it:
        handle = await it.start(agent("send", context=[where]), {"text": "one"})
        await handle.result()
        described = await it.client.get_workflow_handle(handle.id).describe()
    assert described.run_id != handle.first_execution_run_id
    assert sent == ["another"] * 4
    assert seen == {"before_agent_start": 1, "1.0": 1, "2.0": 1, "3.0": 1, "4.0": 1, "completed": 1}


async def test_a_worker_of_tools_alone_calls_what_the_run_recorded_and_its_own(dev_server: WorkflowEnvironment) -> None:
    elsewhere = f"laptop-{uuid.uuid4().hex[:8]}"

    @tool(task_queue=elsewhere)
    def read(path: str) -> str:
        """Read a file."""
        return f"{path} holds 4711 and 0815"

    @hook("after_tool_call")
    def first(event: AfterToolCall) -> AfterToolCall:
        return event.changed(result=str(event.result).replace("4711", "…"))

    @hook("after_tool_call", tools=["read"])
    def second(event: AfterToolCall) -> AfterToolCall:
        return event.changed(result=f"{str(event.result).replace('0815', '…')} ({event.agent}, {event.call})")

    plan = [{"calls": [{"_tool": "read", "path": "note", "_outputPath": "†state.note"}], "output": None}, DONE]
    tools_only = build_worker(
        dev_server.client, registry([read, first, second]), task_queue=elsewhere, tools_only=True, grace=0.0
    )
    async with harness(dev_server.client, [read, first], plan) as it, tools_only:
        view = await it.run(agent("read"))
    assert view.state == {"note": "note holds … and … (test, 1.0)"}


async def test_each_of_many_items_and_a_delegate_has_its_hooks(time_skipping: WorkflowEnvironment) -> None:
    seen: list[tuple[str, str]] = []
    begun: list[tuple[str, list[str]]] = []

    @hook("before_tool_call", tools=["send"])
    def looks(event: BeforeToolCall) -> Any:
        seen.append((event.tenant, event.params["text"]))
        return refuse("not 7") if event.params["text"] == "7" else None

    @hook("before_agent_start")
    def begins(event: BeforeAgentStart) -> None:
        begun.append((event.agent, event.above))

    items = [str(number) for number in range(120)]
    call = {"_tool": "send", "text": "†item", "_each": items, "_outputPath": "†state.sent"}
    async with harness(time_skipping.client, [send, looks, begins], [{"calls": [call]}, DONE]) as it:
        view = await it.run(agent("send"))
    assert sorted(text for _, text in seen) == sorted(items)
    assert len(sent) == 119
    assert view.state["sent"][7]["error"]["code"] == "refused_by_hook"
    seen.clear()
    begun.clear()
    below = Agent("helper", instructions="Help.", tools=[send]).document()
    asked: list[int] = []

    def script(_: ChatRequest) -> dict[str, Any]:
        asked.append(1)
        if len(asked) == 1:
            return {"calls": [{"_tool": "help"}], "output": None}
        return ONE if len(asked) == 2 else DONE

    async with harness(time_skipping.client, [send, looks, begins], script) as it:
        document = agent({"name": "help", "_delegate": "helper"})
        handle = await start_run(
            it.client,
            parse_agent(document),
            document,
            task_queue=it.task_queue,
            delegates={"helper": below},
            tenant="acme",
        )
        await handle.result()
    assert seen == [("acme", "hello")]
    assert begun == [("test", []), ("helper", ["test"])]
