"""What a Temporal user has already as tools: activities, workflows and Nexus operations, with approvals, retries and cancellation (R13.6)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from temporalio.api.nexus.v1 import EndpointSpec, EndpointTarget
from temporalio.api.operatorservice.v1 import CreateNexusEndpointRequest
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from perdure import Agent, Perdure, PerdurePlugin, Run, RunFailedError, activity_tool, nexus_tool, workflow_tool
from perdure.client.histories import replay_history
from perdure.runs.wire import RunView
from perdure.testing import run_locally
from perdure.testing.scripted_model import ScriptedModel
from perdure.values.json import dumps
from tests.hosting.test_plugin import asking, connected, unique
from tests.support import DONE
from tests.timeouts import HANG
from tests.user_workflows import Delivery, Stock, StockHandler, charge, scan, ship
from tests.workflows.test_resets import temporal

pytestmark = pytest.mark.asyncio(loop_scope="session")

SHIP = activity_tool(ship, safe=True)
CHARGE = activity_tool(charge, dangerous=True)
PAY = activity_tool("charge", name="pay", input={"type": "number"}, retries=0, safe=True)
DELIVER = workflow_tool(Delivery, name="deliver", id="delivery-{number}", safe=True)
SCAN = activity_tool(scan, safe=True)
AGENT = Agent("keeper", tools=[SHIP, CHARGE, PAY, DELIVER, SCAN, "left"])


@asynccontextmanager
async def shop(server: WorkflowEnvironment, *script: Any) -> AsyncIterator[tuple[Perdure, Client]]:
    queue = endpoint = unique("shop")
    left = nexus_tool(Stock.left, service=Stock, endpoint=endpoint, safe=True, timeout=10)
    async with ScriptedModel(list(script)) as model:
        client = await connected(server, PerdurePlugin([left], agents=[AGENT], model=asking(model)))
        target = EndpointTarget(worker=EndpointTarget.Worker(namespace="default", task_queue=queue))
        await client.operator_service.create_nexus_endpoint(
            CreateNexusEndpointRequest(spec=EndpointSpec(name=endpoint, target=target))
        )
        async with Worker(
            client,
            task_queue=queue,
            workflows=[Delivery],
            activities=[ship, charge, scan],
            nexus_service_handlers=[StockHandler()],
        ):
            yield Perdure(client, task_queue=queue), client


async def until_waiting(run: Run[Any]) -> RunView:
    async for view in run.views():
        if view.waiting:
            return view
    raise AssertionError("it ended")


def plan(*calls: dict[str, Any], output: Any = None) -> dict[str, Any]:
    return {"calls": list(calls), "output": output}


async def test_each_kind_runs_as_what_it_is_and_gives_its_result(dev_server: WorkflowEnvironment) -> None:
    number = abs(hash(unique("n")))
    calls = plan(
        {"_tool": "ship", "street": "Main", "_outputPath": "†state.ship"},
        {"_tool": "charge", "euros": 2.5, "note": "quick", "_outputPath": "†state.charge"},
        {"_tool": "pay", "input": 3, "_outputPath": "†state.pay"},
        {"_tool": "deliver", "number": number, "_outputPath": "†state.deliver"},
        {"_tool": "left", "fruit": "apple", "count": 3, "_outputPath": "†state.left"},
        output={name: f"†state.{name}" for name in ("ship", "charge", "pay", "deliver", "left")},
    )
    async with shop(dev_server, calls) as (perdure, client):
        run = await perdure.start(AGENT, id=unique("keeper"))
        view = await until_waiting(run)
        assert [offer.tool for offer in view.waiting] == ["charge"]
        await run.approve(view.waiting[0])
        assert await run.result(timeout=HANG) == {
            "ship": "to Bern",
            "charge": {"euros": 2.5, "account": "main", "note": "quick", "attempt": 1},
            "pay": {"euros": 3, "account": "main", "note": None, "attempt": 1},
            "deliver": f"brought {number}",
            "left": 7,
        }
        child = await client.get_workflow_handle(f"delivery-{number}").describe()
        assert (child.workflow_type, child.parent_id) == ("Delivery", run.id)
        kinds = {
            event.activity_task_scheduled_event_attributes.activity_type.name
            async for event in run.handle.fetch_history_events()
            if event.HasField("activity_task_scheduled_event_attributes")
        }
        assert {"ship", "charge"} <= kinds


async def test_more_operations_than_the_server_takes_at_once_fail_no_workflow_task(
    dev_server: WorkflowEnvironment,
) -> None:
    """The server takes 30, and refuses the whole workflow task for one more."""
    calls = [{"_tool": "left", "fruit": "exotic", "count": n, "_outputPath": f"†state.n{n}"} for n in range(40)]
    async with shop(dev_server, plan(*calls, output="†state")) as (perdure, _):
        run = await perdure.start(AGENT, id=unique("keeper"))
        assert len(await run.result(timeout=HANG)) == 40
        events = [event async for event in run.handle.fetch_history_events()]
        assert not [event for event in events if event.HasField("workflow_task_failed_event_attributes")]


async def test_what_fails_or_is_tried_again_is_the_call_s_own(dev_server: WorkflowEnvironment) -> None:
    calls = plan(
        {"_tool": "charge", "euros": 1, "account": "closed", "_outputPath": "†state.a"},
        {"_tool": "charge", "euros": 1, "account": "shaky", "_outputPath": "†state.b"},
        {"_tool": "deliver", "number": 13, "_outputPath": "†state.c"},
        {"_tool": "left", "fruit": "none", "_outputPath": "†state.d"},
    )
    async with shop(dev_server, calls, DONE) as (perdure, _):
        run = await perdure.start(AGENT, id=unique("keeper"), approval={"ask": "never"})
        async for view in run.views():
            for offer in view.waiting:
                await run.approve(offer)
        view = await run.view()
        assert view.status == "completed"
        assert [(call.tool, (call.error or {}).get("code")) for call in view.calls] == [
            ("charge", "no_account"),
            ("charge", None),
            ("deliver", "unlucky"),
            ("left", "HandlerError"),
        ]


async def test_what_no_plan_can_carry_ends_the_call(dev_server: WorkflowEnvironment) -> None:
    hows = ("bytes", "deep", "loud", "none")
    calls = plan(*({"_tool": "scan", "how": how, "_outputPath": f"†state.{how}"} for how in hows))
    async with shop(dev_server, calls, DONE) as (perdure, _):
        run = await perdure.start(AGENT, id=unique("keeper"))
        view = await run.wait(timeout=HANG)
        assert view.status == "completed", view.error
        errors = [call.error or {"code": None, "message": ""} for call in view.calls]
        assert [str(error["code"])[:8] for error in errors] == ["not_json", "not_json", "y" * 8, "None"]
        assert [error["message"][:10] for error in errors] == ["the result", "the result", "x" * 10, ""]
        assert all(len(dumps(error)) < 30_000 for error in errors)


async def test_cancelling_a_run_cancels_what_it_calls(dev_server: WorkflowEnvironment) -> None:
    number = abs(hash(unique("n")))
    calls = plan({"_tool": "deliver", "number": number, "wait": True, "_outputPath": "†state.c"})
    async with shop(dev_server, calls) as (perdure, client):
        run = await perdure.start(AGENT, id=unique("keeper"))
        child = await until_started(client, f"delivery-{number}")
        await run.cancel()
        assert (await run.wait(timeout=HANG)).status == "cancelled"
        status = (await client.get_workflow_handle(child.id).describe()).status
        assert status is not None
        assert status.name == "CANCELED"


async def test_r7_2_a_workflow_that_was_open_at_a_reset_is_cancelled_before_it_starts_anew(
    dev_server: WorkflowEnvironment,
) -> None:
    number = abs(hash(unique("n")))
    waits = plan({"_tool": "deliver", "number": number, "wait": True, "_outputPath": "†state.c"})
    brings = plan({"_tool": "deliver", "number": number, "_outputPath": "†state.c"}, output="†state.c")
    async with shop(dev_server, waits, brings) as (perdure, client), asyncio.timeout(HANG):
        run = await perdure.start(AGENT, id=unique("keeper"))
        child = await until_started(client, f"delivery-{number}")
        where = ("--workflow-id", run.id, "--type", "FirstWorkflowTask", "--reason", "try again")
        await temporal(dev_server, "reset", *where)
        assert await run.result() == f"brought {number}"
        former = await client.get_workflow_handle(child.id, run_id=child.run_id).describe()
        replayed = await replay_history(await run.handle.fetch_history(), client.data_converter, run.id)
    assert (former.status, replayed.problem) == (WorkflowExecutionStatus.CANCELED, None)


async def test_r7_2_a_workflow_that_had_ended_at_a_reset_runs_again_under_its_id(
    dev_server: WorkflowEnvironment,
) -> None:
    number = abs(hash(unique("n")))
    brings = plan({"_tool": "deliver", "number": number, "_outputPath": "†state.c"}, output="†state.c")
    async with shop(dev_server, brings, brings) as (perdure, client), asyncio.timeout(HANG):
        run = await perdure.start(AGENT, id=unique("keeper"))
        assert await run.result() == f"brought {number}"
        first = await client.get_workflow_handle(f"delivery-{number}").describe()
        where = ("--workflow-id", run.id, "--type", "FirstWorkflowTask", "--reason", "try again")
        await temporal(dev_server, "reset", *where)
        assert await run.result() == f"brought {number}"
        second = await client.get_workflow_handle(f"delivery-{number}").describe()
    completed = WorkflowExecutionStatus.COMPLETED
    assert (first.status, second.status, first.run_id == second.run_id) == (completed, completed, False)


async def test_a_workflow_of_somebody_else_keeps_its_id(dev_server: WorkflowEnvironment) -> None:
    number = abs(hash(unique("n")))
    calls = plan({"_tool": "deliver", "number": number, "_outputPath": "†state.c"})
    async with shop(dev_server, calls, DONE) as (perdure, client), asyncio.timeout(HANG):
        theirs = await client.start_workflow("nobody", id=f"delivery-{number}", task_queue="nowhere")
        run = await perdure.start(AGENT, id=unique("keeper"))
        view = await run.wait()
        status = (await theirs.describe()).status
        await theirs.terminate()
    error = view.calls[0].error or {}
    assert (error["code"], status) == ("id_taken", WorkflowExecutionStatus.RUNNING)
    assert f"there is already a workflow 'delivery-{number}' that is running" in error["message"]


async def until_started(client: Client, workflow_id: str) -> WorkflowExecutionDescription:
    async with asyncio.timeout(HANG):
        while True:
            with contextlib.suppress(RPCError):
                return await client.get_workflow_handle(workflow_id).describe()
            await asyncio.sleep(0.05)


async def test_an_endpoint_that_is_not_there_is_a_refusal_and_no_task_that_fails_for_ever(
    dev_server: WorkflowEnvironment,
) -> None:
    left = nexus_tool(Stock.left, service=Stock, endpoint="nowhere", safe=True)
    agent = Agent("lost", tools=[left])
    client = await connected(dev_server, PerdurePlugin(agents=[agent]))
    queue = unique("lost")
    async with Worker(client, task_queue=queue):
        with pytest.raises(RunFailedError, match="tool 'left': the server has no Nexus endpoint 'nowhere'"):
            await Perdure(client, task_queue=queue).run(agent, timeout=HANG)


async def test_a_test_fakes_them_like_any_tool(dev_server: WorkflowEnvironment) -> None:
    calls = plan(
        {"_tool": "deliver", "number": 7, "_outputPath": "†state.a"},
        {"_tool": "left", "fruit": "apple", "_outputPath": "†state.b"},
        output=["†state.a", "†state.b"],
    )
    left = nexus_tool(Stock.left, service=Stock, endpoint="nowhere", safe=True)
    agent = Agent("keeper", tools=[DELIVER, left])
    fakes = {"deliver": "brought", "left": lambda fruit: len(fruit)}
    async with run_locally(agent, model=[calls], fakes=fakes, server=dev_server) as local:
        assert (await local.run()).output == ["brought", 5]
