"""A worker of a user's with Perdure by one line, and agents inside their workflows (R13.4, R13.5)."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio import activity
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import RawValue, SearchAttributeKey
from temporalio.contrib.opentelemetry import OpenTelemetryPlugin, create_tracer_provider
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Replayer, Worker

from perdure import Agent, Perdure, PerdurePlugin, activity_tool, tool
from perdure.client._run_lists import list_runs
from perdure.client.selection import Selection
from perdure.encryption import AesGcm
from perdure.errors import SettingsError, ToolDefinitionError
from perdure.runs.wire import AGENT_ATTRIBUTE
from perdure.testing.scripted_model import ScriptedModel, Turn
from perdure.workflows.versioning import WORKFLOWS
from tests.client.test_run_lists import until_found
from tests.docs.test_readme import DOCS, blocks, on_path, write
from tests.timeouts import HANG
from tests.user_workflows import SHOPPER, Minding, Order, Receipt, Shopping, price, ship

pytestmark = pytest.mark.asyncio(loop_scope="session")

BUY: dict[str, Any] = {
    "calls": [{"_tool": "price", "fruit": "†input.fruit", "_outputPath": "†state.one"}],
    "output": {"euros": "†state.one"},
}


def unique(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


def asking(model: ScriptedModel) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=model.base_url, api_key="scripted", max_retries=0, timeout=HANG)


async def connected(server: WorkflowEnvironment, *plugins: Any, **options: Any) -> Client:
    return await Client.connect(server.client.service_client.config.target_host, plugins=plugins, **options)


async def test_one_line_for_a_sandboxed_worker_that_has_workflows_a_codec_and_traces_of_its_own(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans, provider = InMemorySpanExporter(), create_tracer_provider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    converter = dataclasses.replace(DataConverter.default, payload_codec=AesGcm({"a": b"k" * 32}))
    queue, run_id = unique("shop"), unique("shopping")
    async with ScriptedModel([BUY]) as model:
        plugin = PerdurePlugin(agents=[SHOPPER], model=asking(model))
        tracing = OpenTelemetryPlugin(add_temporal_spans=True)
        client = await connected(dev_server, tracing, plugin, data_converter=converter)
        async with Worker(client, task_queue=queue, workflows=[Shopping], activities=[ship]):
            handle = await client.start_workflow(Shopping.run, Order(fruit="apple"), id=run_id, task_queue=queue)
            assert await handle.result() == "0.5 to Bern"
            [child] = [
                event.child_workflow_execution_started_event_attributes.workflow_execution.workflow_id
                async for event in handle.fetch_history_events()
                if event.HasField("child_workflow_execution_started_event_attributes")
            ]
            assert child.startswith(f"{run_id}/shopper-")
            assert await Perdure(client).get_run(child, SHOPPER).result() == Receipt(euros=0.5)
            found = (await client.get_workflow_handle(child).describe()).typed_search_attributes
            assert found.get(SearchAttributeKey.for_keyword(AGENT_ATTRIBUTE)) == "shopper"
            only = Selection("shopper", query=f"WorkflowId = '{child}'")
            await until_found(client, only, 1)
            [listed] = (await list_runs(client, only, size=2)).rows
            assert (listed.agent, listed.status) == ("shopper", "completed")
            assert listed.tokens  # what the page of costs adds up, by agent
    below = await dev_server.client.get_workflow_handle(child).fetch_history()
    inputs = below.events[0].workflow_execution_started_event_attributes.input.payloads
    assert [payload.metadata["encoding"] for payload in inputs] == [b"binary/encrypted"]
    names = {span.name for span in spans.get_finished_spans()}
    assert {"RunWorkflow:Shopping", "RunActivity:ship", "RunWorkflow:Agent", "RunActivity:price"} <= names
    for each in (handle, client.get_workflow_handle(child)):
        await Replayer(workflows=[Shopping], plugins=[plugin], data_converter=converter).replay_workflow(
            await each.fetch_history()
        )


async def test_a_plugin_of_the_worker_alone_also_serves_limited_queues_and_large_parameters(
    dev_server: WorkflowEnvironment,
) -> None:
    @tool
    async def count(text: str) -> int:
        """Count."""
        return len(text)

    counter = Agent("counter", tools=[count], output=int)
    text = "x" * 400_000
    plan = {"calls": [{"_tool": "count", "text": "†input", "_outputPath": "†state.n"}], "output": "†state.n"}
    queue = unique("shop")
    async with ScriptedModel([plan]) as model:
        plugin = PerdurePlugin([count], model=asking(model), tool_limits={"count": 6000.0})
        plain = await connected(dev_server)
        async with Worker(plain, task_queue=queue, workflows=[Shopping], activities=[ship], plugins=[plugin]):
            perdure = Perdure(plain, task_queue=queue)
            assert await perdure.run(counter, text, id=unique("count"), timeout=HANG) == len(text)


async def test_r10_3_a_clients_plugin_starts_one_worker_for_turns(dev_server: WorkflowEnvironment) -> None:
    queue = unique("shop")
    async with ScriptedModel([{"calls": [], "output": "Hello."}]) as model:
        plugin = PerdurePlugin(model=asking(model), session_runs=2)
        client = await connected(dev_server, plugin)

        async def pollers(name: str) -> int:
            request = DescribeTaskQueueRequest(
                namespace=client.namespace,
                task_queue=TaskQueue(name=name),
                task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
            )
            return len((await client.workflow_service.describe_task_queue(request)).pollers)

        async with Worker(client, task_queue=queue, workflows=[Shopping], activities=[ship]):
            session = Perdure(client, task_queue=queue).session(unique("ann"), agent=Agent("greeter"))
            assert await session.ask("Hello?", sender="ann", timeout=HANG) == "Hello."
            assert (await pollers(f"{queue}/runs"), await pollers(f"{queue}/runs/runs")) == (1, 0)


async def test_what_becomes_of_an_agent_is_told_the_workflow_by_errors(dev_server: WorkflowEnvironment) -> None:
    queue = unique("mind")
    broken = Turn("no", status=401)
    async with ScriptedModel([broken, broken, BUY]) as model:
        plugin = PerdurePlugin(agents=[SHOPPER], model=asking(model))
        client = await connected(dev_server, plugin)

        async def mind(how: str) -> Any:
            run_id = unique(how)
            handle = await client.start_workflow(Minding.run, how, id=run_id, task_queue=queue)
            return run_id, await handle.result()

        async with Worker(client, task_queue=queue, workflows=[Minding]):
            run_id, (status, words) = await mind("caught")
            assert status == "failed"
            assert words.startswith(f"the run '{run_id}/child' failed: Request 1 to ")
            with pytest.raises(WorkflowFailureError) as failed:
                await mind("through")
            assert isinstance(failed.value.cause, ApplicationError)
            assert failed.value.cause.type == "RunFailedError"
            run_id, [words] = await mind("taken")
            assert words == f"there is already a run '{run_id}/child'"


async def test_cancelling_the_workflow_cancels_the_agent_and_what_it_runs(dev_server: WorkflowEnvironment) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    @tool(name="price", retries=0)
    async def slow(fruit: str) -> float:
        """Never ends."""
        begun.set()
        assert fruit
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return 0.0

    queue, run_id = unique("cancel"), unique("cancelled")
    async with ScriptedModel([BUY]) as model:
        client = await connected(dev_server, PerdurePlugin([slow], model=asking(model)))
        async with Worker(client, task_queue=queue, workflows=[Minding]):
            handle = await client.start_workflow(Minding.run, "caught", id=run_id, task_queue=queue)
            await asyncio.wait_for(begun.wait(), HANG)
            await handle.cancel()
            with pytest.raises(WorkflowFailureError) as failed:
                await handle.result()
            assert isinstance(failed.value.cause, CancelledError)
            await asyncio.wait_for(ended.wait(), HANG)
            view = await Perdure(client).get_run(f"{run_id}/child").wait(timeout=HANG)
            assert view.status == "cancelled"


@activity.defn(name="price")
async def own_price() -> None:
    """Somebody else's."""


@activity.defn(dynamic=True)
async def anything(args: Sequence[RawValue]) -> None:
    """Whatever comes."""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (own_price, "the worker has an activity 'price' and a tool of that name: rename one of them"),
        (anything, "the worker already has a dynamic activity"),
    ],
)
async def test_activities_that_would_be_taken_for_tools_are_refused(
    dev_server: WorkflowEnvironment, function: Callable[..., Any], said: str
) -> None:
    plugin = PerdurePlugin([price])
    with pytest.raises(SettingsError, match=said):
        Worker(dev_server.client, task_queue="none", activities=[function], plugins=[plugin])


async def test_what_the_plugin_cannot_use_is_one_line(dev_server: WorkflowEnvironment) -> None:
    with pytest.raises(ToolDefinitionError, match="is not a tool: give a function, or decorate one with @tool"):
        PerdurePlugin([object()])
    with pytest.raises(ToolDefinitionError, match="the worker has no tool 'gone'"):
        PerdurePlugin(agents=[Agent("lost", tools=["gone"])])
    limited = PerdurePlugin([activity_tool(ship)], tool_limits={"ship": 60.0})
    with pytest.raises(SettingsError, match="ship cannot be limited: its calls run on other workers"):
        Worker(dev_server.client, task_queue="none", plugins=[limited])
    with pytest.raises(TypeError, match="'approval' is not a setting; did you mean 'approval_flo"):
        PerdurePlugin(approval="always")


async def test_a_replayer_with_the_plugin_replays_all_workflows_of_perdure() -> None:
    config = Replayer(workflows=[Shopping], plugins=[PerdurePlugin()]).config(active_config=True)
    assert {Shopping, *WORKFLOWS} == set(config["workflows"])


async def test_the_page_on_embedding_is_python_that_runs(
    dev_server: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, *blocks("python", DOCS["embedding.md"]))
    with on_path(tmp_path):
        working, tools = map(importlib.import_module, ("working", "tools"))
        assert [function.name for function in tools.seller.functions] == ["send", "invoice", "order", "left"]
        plan = {
            "calls": [{"_tool": "price", "fruit": "†input.fruit", "_outputPath": "†state.one"}],
            "output": "†state.one",
        }
        async with ScriptedModel([plan]) as model:
            monkeypatch.setenv("OPENAI_BASE_URL", model.base_url)
            monkeypatch.setenv("OPENAI_API_KEY", "scripted")
            assert (
                await working.main(dev_server.client.service_client.config.target_host, unique("order"))
                == "sent for 0.5"
            )
