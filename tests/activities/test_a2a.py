"""Agents of others as tools, by a real gateway's A2A (R21.4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from a2a.types import ListTasksRequest, TaskState
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from temporalio.client import Client as Temporal
from temporalio.testing import ActivityEnvironment, WorkflowEnvironment

from perdure import Agent, Media, Perdure, ToolContext, ToolError, a2a_tool
from perdure.activities.registry import Registry
from perdure.client.run import Run
from perdure.client.selection import Selection
from perdure.errors import ToolDefinitionError
from perdure.hosting.connection import data_converter
from perdure.testing import kill, run_locally
from perdure.testing.scripted_model import Script
from perdure.tools.decorator import ToolFunction
from tests.gateway.support import bearer, some_name
from tests.gateway.test_a2a import WAITS, Agents, agents, user
from tests.gateway.test_agui import EVERYTHING, PAYS, SHOPPER
from tests.support import Harness, harness, serving, storage_fixture
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")
storage = storage_fixture()
ASKS: list[Any] = [
    {"calls": [{"_tool": "shopper", "message": "Shoes, please.", "_outputPath": "†state.shoes"}]},
    {"calls": [], "output": "{†state.shoes}"},
]


def shopper(it: Agents, agent: str = "shopper", **options: Any) -> ToolFunction:
    url = f"{it.served.address}/a2a/{agent}"
    return a2a_tool("shopper", url, description="Buys shoes.", headers=bearer(it.tokens[0]), **options)


@asynccontextmanager
async def asking(client: Temporal, it: Agents, script: Script, agent: str = "shopper") -> AsyncIterator[Harness]:
    """A worker of its own, whose agent has the other gateway's as a tool."""
    async with harness(client, [], script, registry=Registry([shopper(it, agent)])) as asker:
        yield asker


def desk() -> Agent[Any]:
    return Agent("desk", instructions="You sell.", tools=["shopper"])


async def begun(client: Temporal, asker: Harness) -> Run[Any]:
    return await Perdure(client, task_queue=asker.task_queue).start(desk(), "Shoes.")


async def test_another_agent_is_a_tool(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    client = dev_server.client
    script = [{"calls": [], "output": "Red shoes, size 42."}]
    async with agents(client, tmp_path, script) as it, asking(client, it, ASKS) as asker:
        view = await (await begun(client, asker)).wait(HANG)
        assert (view.status, view.output) == ("completed", "Red shoes, size 42.")
        assert "Shoes, please." in it.it.model.requests[0].text
        (call,) = view.calls
        assert call.status == "done"
        assert any(name.startswith("!") for name in view.met), "the result counts as written by others"


@pytest.mark.parametrize("moment", ["before", "during", "after"])
async def test_a_worker_dies_in_a_call(
    dev_server: WorkflowEnvironment, tmp_path: Path, moment: Literal["before", "during", "after"]
) -> None:
    # The other agent is asked once: its task, and the id of the message, are the same for each attempt.
    name = f"shopper-{moment}"  # no other test's tasks are listed: a task whose worker has left holds the list up
    answer = {"calls": [], "output": "Red shoes."}
    async with agents(dev_server.client, tmp_path, lambda _: answer, documents=[SHOPPER | {"name": name}]) as it:
        asker = Agent("desk", instructions="You sell.", tools=[shopper(it, name, retries=3)], output=str)
        async with run_locally(asker, model=ASKS, faults=[kill("shopper", moment)]) as local:
            view = await local.run("Shoes.")
        assert (view.status, view.output) == ("completed", "Red shoes."), view.error
        tasks = await (await it.client(agent=name)).list_tasks(ListTasksRequest())
        assert [task.status.state for task in tasks.tasks] == [TaskState.TASK_STATE_COMPLETED]
        assert len(it.it.model.requests) == 1


async def test_data_is_the_result(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
    documents, script = [SHOPPER | {"schema": schema}], [{"calls": [], "output": {"size": 42}}]
    client = dev_server.client
    asks = [ASKS[0], {"calls": [], "output": "size {†state.shoes.size}"}]
    async with agents(client, tmp_path, script, documents=documents) as it, asking(client, it, asks) as asker:
        assert (await (await begun(client, asker)).wait(HANG)).output == "size 42"


@pytest.mark.usefixtures("storage")
async def test_files_go_to_another_agent_and_come_back(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    client = await Temporal.connect(
        dev_server.client.service_client.config.target_host, data_converter=data_converter()
    )
    photo, shoe = Media(data=b"GIF89a\0foot", name="foot.gif"), Media(data=b"GIF89a\0shoe", name="shoe.gif")
    await Perdure(client).save_media(shoe, tenant=EVERYTHING[0])
    call = {"_tool": "shopper", "message": "Shoes.", "files": ["†input.photo"], "_outputPath": "†state.shoes"}
    asks: list[Any] = [{"calls": [call]}, {"calls": [], "output": "†state.shoes"}]
    agent = Agent("desk", instructions="You sell.", tools=["shopper"], input=dict[str, Any])
    script = [{"calls": [], "output": f"These: {shoe.value.line}"}]
    async with agents(client, tmp_path, script) as it, asking(client, it, asks) as asker:
        perdure = Perdure(client, task_queue=asker.task_queue)
        words, file = await perdure.run(agent, {"photo": photo})
        assert (await perdure.load_media(file)).read() == b"GIF89a\0shoe"
        assert words == f"These: {shoe.value.line}"
        assert photo.value.line in it.it.model.requests[0].text


async def test_a_task_that_asks_is_one_clear_error(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    """The error names the question and the task, with which the tool is called again."""
    client = dev_server.client
    task = ""

    def answers(request: Any) -> Any:
        nonlocal task
        if "input_required" not in request.text:
            return ASKS[0]
        task = request.text.split("task '")[1].split("'")[0]
        return {"calls": [{"_tool": "shopper", "message": "approve", "task": task, "_outputPath": "†state.done"}]} | (
            {"output": "{†state.done}"}
        )

    async with agents(client, tmp_path, PAYS) as it, asking(client, it, answers) as asker:
        view = await (await begun(client, asker)).wait(HANG)
        (error,) = [call.error for call in view.calls if call.error]
        assert error["code"] == "input_required"
        assert "shopper asks: pay amount 5" in error["message"]
        assert (view.output, task.count("/")) == ("paid 5", 1)


async def test_a_call_that_is_cancelled_cancels_the_task(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    client = dev_server.client
    async with agents(client, tmp_path, WAITS) as it, asking(client, it, ASKS, "waiter") as asker:
        run = await begun(client, asker)
        async for event in run.events(topics=["tool", "assistant"]):
            if (event.topic, event.phase) == (
                "tool",
                "update",
            ):  # it reports progress: the other agent's task has begun
                break
        tasks = Selection(agent="waiter", tenant="acme", status="running")
        found = await its_task(it, tasks)
        await run.cancel()
        assert (await found.wait(HANG)).status == "cancelled"


async def its_task(it: Agents, tasks: Selection) -> Run[Any]:
    """The one task of the other agent, once the server's index has it."""
    async with asyncio.timeout(HANG):
        while True:
            async for row in it.served.gateway.perdure.list_runs(tasks):
                return it.served.gateway.perdure.get_run(row.id)
            await asyncio.sleep(0.1)


async def test_the_next_attempt_goes_on_with_the_task(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    script = [{"calls": [], "output": "Red shoes."}]
    async with agents(dev_server.client, tmp_path, script) as it:
        first = await it.send(user("Shoes."))
        environment = ActivityEnvironment()
        environment.info = replace(environment.info, attempt=2, heartbeat_details=[{"task": first.task.id}])
        context = ToolContext("shopper", {}, {}, "1.0", "key")
        result = await environment.run(shopper(it).function, "Shoes.", context)
        assert (result, len(it.it.model.requests)) == ("Red shoes.", 1)


async def test_refusals_are_one_line(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    context = ToolContext("shopper", {}, {}, "1.0", some_name("key"))

    async def problem(tool: ToolFunction, **params: Any) -> ToolError:
        with pytest.raises(ToolError) as raised:
            await ActivityEnvironment().run(tool.function, "Shoes.", context, **params)
        return raised.value

    async with agents(dev_server.client, tmp_path, []) as it:
        nobody = await problem(a2a_tool("shopper", f"{it.served.address}/a2a/shopper", description="Sells."))
        assert (nobody.code, "401" in str(nobody)) == ("not_reachable", True)
        none = await problem(shopper(it), task="none")
        assert (none.code, str(none)) == ("tool_failed", "tool_failed: shopper: the task does not exist")
    for wrong in ("shop.example", "ftp://shop.example"):
        with pytest.raises(ToolDefinitionError, match="is not the address of an agent: write https://HOST/PATH"):
            a2a_tool("shopper", wrong, description="Sells.")


async def test_a_card_that_leads_elsewhere_gets_no_headers() -> None:
    called: list[str] = []

    async def card(request: Request) -> Response:
        called.append(request.url.path)
        interface = {"url": "http://elsewhere.example/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        about = {"name": "clerk", "description": "d", "version": "1", "skills": [], "capabilities": {}}
        modes = {"defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"]}
        return JSONResponse({**about, **modes, "supportedInterfaces": [interface]})

    app = Starlette(routes=[Route("/.well-known/agent-card.json", card)])
    async with serving(app) as address:
        tool = a2a_tool("clerk", address, description="Sells.", headers=bearer("secret"))
        with pytest.raises(ToolError, match=r"has the URL of another host: http://elsewhere\.example/a2a") as raised:
            await ActivityEnvironment().run(tool.function, "Shoes.", ToolContext("clerk", {}, {}, "1.0", "key"))
    assert (raised.value.code, called) == ("not_allowed", ["/.well-known/agent-card.json"])
