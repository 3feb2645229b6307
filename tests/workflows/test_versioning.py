"""A release beside the one before it: runs stay with their version, and go on with the new one when they continue as new (R13.7)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from temporalio import worker
from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest
from temporalio.client import Client, Interceptor
from temporalio.common import WorkerDeploymentVersion
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Replayer, WorkerDeploymentConfig

from perdure import Agent, Perdure, PerdurePlugin, Run, RunError, Selection, hook, tool
from perdure.activities.transcripts import recall
from perdure.errors import SettingsError
from perdure.hooks import BeforeToolCall
from perdure.hosting._health import Health
from perdure.hosting._worker_parts import deployment
from perdure.hosting.settings import Settings
from perdure.hosting.worker import build_worker
from perdure.testing._local import QuickTasks
from perdure.testing.scripted_model import ChatRequest, ScriptedModel, Turn
from perdure.values.json import JsonObject
from perdure.workflows.agent import AgentWorkflow
from perdure.workflows.loops import LoopWorkflow
from tests.hosting.test_plugin import asking, unique
from tests.support import DONE, agent, logged, registry
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")


@tool(dangerous=True)
async def pay(euros: float) -> float:
    """Pay."""
    return euros


PAYER = Agent("payer", tools=[pay])
PAY = {"calls": [{"_tool": "pay", "euros": 2, "_outputPath": "†state.paid"}], "output": None}


class Changed(Interceptor, worker.Interceptor):
    """Another release of the workflows: they begin with a timer, which no history of the release before has."""

    def workflow_interceptor_class(self, _: Any) -> type[worker.WorkflowInboundInterceptor]:
        return Slower


class Slower(worker.WorkflowInboundInterceptor):
    async def execute_workflow(self, input: worker.ExecuteWorkflowInput) -> Any:
        await asyncio.sleep(0.01)
        return await super().execute_workflow(input)


async def make_current(client: Client, name: str, build: str) -> None:
    """As `temporal worker deployment set-current-version` does; the server knows the version once a worker of it polls."""
    wanted = SetWorkerDeploymentCurrentVersionRequest(
        namespace=client.namespace, deployment_name=name, build_id=build, identity="test"
    )
    async with asyncio.timeout(HANG):
        while True:
            try:
                await client.workflow_service.set_worker_deployment_current_version(wanted)
                return
            except RPCError:
                await asyncio.sleep(0.1)


async def offered(run: Run[Any]) -> Any:
    async for view in run.views():
        if view.waiting:
            return view.waiting[0]
    raise AssertionError("it ended")


async def offered_below(run: Run[Any], place: str) -> Any:
    """What waits in an iteration; nothing tells when to look."""
    async with asyncio.timeout(HANG):
        while True:
            with contextlib.suppress(RunError):
                for one in (await run.waiting_below())[0]:
                    if one.run_id.endswith(place):
                        return one
            await asyncio.sleep(0.1)


async def events(client: Client, run_id: str, execution: str | None = None) -> list[Any]:
    history = await client.get_workflow_handle(run_id, run_id=execution).fetch_history()
    return list(history.events)


def versions(history: list[Any]) -> set[str]:
    done = [event.workflow_task_completed_event_attributes for event in history]
    return {each.deployment_version.build_id for each in done if each.HasField("deployment_version")}


async def problem_of(asked: Awaitable[object]) -> RunError:
    with pytest.raises(RunError) as found:
        await asked
    return found.value


async def test_a_worker_that_cannot_replay_a_run_says_so_and_so_do_clients(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.client.run.END_TAKEN_WITHIN", HANG)
    queue, served = unique("queue"), dev_server.client
    old = Client(served.service_client, data_converter=served.data_converter, interceptors=[QuickTasks()])
    new = Client(old.service_client, data_converter=old.data_converter, interceptors=[Changed()])
    async with ScriptedModel([PAY], strict=False) as model:
        perdure = Perdure(old, task_queue=queue)
        run = await perdure.start(PAYER, id=unique("unlike"))
        async with build_worker(old, registry([pay]), model=asking(model), task_queue=queue):
            await offered(run)
        with logged("json") as log:
            worker_of_today = build_worker(new, registry([pay]), model=asking(model), task_queue=queue)
            health = Health(new, worker_of_today)
            async with worker_of_today:
                # Nothing is due in it, so no task of its has failed.
                waiting = [
                    str(await problem_of(asked))
                    for asked in (run.view(), run.approve("1.0"), run.waiting(), run.cancel())
                ]
                async with asyncio.timeout(HANG):
                    while True:
                        try:
                            await run.view()
                        except RunError as error:
                            if "no worker" not in (words := str(error)):
                                break
                while health.problem is not None:
                    await health.look()
                ready = health.response("GET /readyz HTTP/1.1").decode()
                told = [
                    str(await problem_of(asked)) for asked in (run.approve("1.0"), run.steer("hello"), run.waiting())
                ]
                async with asyncio.timeout(HANG):
                    while True:  # the server's index is late
                        listed = [each async for each in perdure.list_runs(Selection(query=f"WorkflowId = '{run.id}'"))]
                        if listed and listed[0].trouble:
                            break
                        await asyncio.sleep(0.1)
        await run.terminate()
    assert (
        listed[0].trouble == "its workflow tasks fail: WorkflowTaskFailed, WorkflowTaskFailedCauseNonDeterministicError"
    )
    assert words.startswith(f"{run.id!r} does not answer: a worker cannot replay {run.id!r}")
    for each in (words, *waiting):
        assert f"a worker cannot replay {run.id!r}" in each
        assert f"perdure terminate {run.id}" in each
    assert all("cannot replay" in each and "no worker" not in each for each in told), told
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    line = next(each for each in lines if each["message"] == "a run cannot be replayed by this worker")
    assert (line["run"], line["workflow"]) == (run.id, "Agent")
    assert "Nondeterminism error" in line["why"]
    # The place in the workflow's code where it left the history.
    assert "tests/workflows/test_versioning.py" in line["traceback"], line["traceback"]
    assert "in execute_workflow" in line["traceback"]
    assert "await asyncio.sleep(0.01)" in line["traceback"]
    assert "Failure {" not in log.getvalue()  # the SDK's debug output
    assert "200 OK" in ready
    assert f"the last {run.id}" in ready


async def test_two_releases_side_by_side_lose_no_run(dev_server: WorkflowEnvironment) -> None:
    name, queue = unique("release"), unique("queue")
    old = dev_server.client
    new = Client(old.service_client, data_converter=old.data_converter, interceptors=[Changed()])
    async with (
        AsyncExitStack() as stack,
        ScriptedModel(lambda request: DONE if "paid" in request.text else PAY) as model,
    ):
        perdure = Perdure(old, task_queue=queue)

        async with build_worker(old, registry([pay]), model=asking(model), task_queue=queue):
            earliest = await perdure.start(PAYER, id=unique("earliest"))
            begun_without = await offered(earliest)

        async def deploy(client: Client, build: str) -> None:
            options: dict[str, Any] = {"task_queue": queue, "deployment_name": name, "build_id": build}
            await stack.enter_async_context(build_worker(client, registry([pay]), model=asking(model), **options))
            await make_current(client, name, build)

        await deploy(old, "1")
        await earliest.approve(begun_without)
        assert await earliest.result(timeout=HANG) == {"ok": True}
        waiting = await perdure.start(PAYER, id=unique("waiting"))
        offer = await offered(waiting)
        first = (await waiting.handle.describe()).run_id
        await deploy(new, "2")
        fresh = await perdure.start(PAYER, id=unique("fresh"))
        await fresh.approve(await offered(fresh))
        await waiting.approve(offer)
        assert await fresh.result(timeout=HANG) == await waiting.result(timeout=HANG) == {"ok": True}
        before, after = await events(old, waiting.id, first), await events(old, waiting.id)
        beside = await events(old, fresh.id)
    assert before[-1].HasField("workflow_execution_continued_as_new_event_attributes")
    assert [versions(each) for each in (before, after, beside)] == [{"1"}, {"2"}, {"2"}]
    failed = [each for each in (*before, *after, *beside) if each.HasField("workflow_task_failed_event_attributes")]
    assert failed == []
    replayer = Replayer(
        workflows=[AgentWorkflow, LoopWorkflow], interceptors=[Changed()], data_converter=old.data_converter
    )
    history = await old.get_workflow_handle(waiting.id, run_id=first).fetch_history()
    replayed = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    assert "Nondeterminism" in repr(replayed.replay_failure)  # the change is one that no run would have survived


async def test_a_run_without_a_worker_of_its_version_names_that_version(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, queue, client = unique("release"), unique("queue"), dev_server.client
    async with ScriptedModel([PAY], strict=False) as model:
        options: dict[str, Any] = {"task_queue": queue, "deployment_name": name}
        async with build_worker(client, registry([pay]), model=asking(model), build_id="1", **options):
            await make_current(client, name, "1")
            run = await Perdure(client, task_queue=queue).start(PAYER, id=unique("pinned"))
            await offered(run)
        async with build_worker(client, registry([pay]), model=asking(model), build_id="2", **options):
            await make_current(client, name, "2")
            monkeypatch.setattr("perdure.queries._answers.TIMEOUT", timedelta(seconds=1))
            words = str(await problem_of(run.view()))
    await run.terminate()
    assert words.endswith(f"Start a worker on task queue {queue!r} with version '1' of deployment {name!r}")


async def test_a_run_whose_only_worker_has_a_version_that_is_not_current_names_the_command_that_makes_it_current(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, queue, client = unique("release"), unique("queue"), dev_server.client
    perdure = Perdure(client, task_queue=queue)
    monkeypatch.setattr("perdure.client.session_operations.ANSWERS_WITHIN", 1.0)

    async def find_problems(run: Run[Any]) -> list[str]:
        session = perdure.session(unique("desk"), agent=PAYER)
        asked = (
            run.view(),
            run.approve("1.0"),
            run.result(timeout=0.01),
            anext(run.events()),
            session.send("a", sender="b"),
        )
        return [str(await problem_of(each)) for each in asked]

    def command(build: str) -> str:
        return f"set-current-version --deployment-name {name} --build-id {build}"

    async with ScriptedModel(lambda request: DONE if "paid" in request.text else PAY) as model:
        options: dict[str, Any] = {"task_queue": queue, "deployment_name": name}
        async with build_worker(client, registry([pay]), model=asking(model), build_id="1", **options):
            run = await perdure.start(PAYER, id=unique("early"))
            async with asyncio.timeout(HANG):
                while True:  # the server learns of the worker's version
                    if "not current" in str(await problem_of(run.view())):
                        break
                    await asyncio.sleep(0.1)
            problems = await find_problems(run)
            assert not await perdure.has_worker()
            await make_current(client, name, "1")
            await offered(run)
            async with build_worker(client, registry([pay]), model=asking(model), build_id="2", **options):
                await run.view()  # its own version is current
            assert await perdure.has_worker()
            await run.approve("1.0")
            assert await run.result(timeout=HANG) == {"ok": True}
    assert all(each.endswith(command("1")) for each in problems), problems


async def test_a_call_loses_no_attempt_while_its_run_cannot_answer(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call asks its run for large values before it begins, and for the room for a large result after it has ended."""
    monkeypatch.setattr("perdure.values.limits.ATTEMPTS", 1)
    queue, far, opened, made = unique("queue"), unique("far"), asyncio.Event(), []

    @tool
    def make(size: int) -> str:
        return "x" * size

    @tool
    def measure(text: str) -> int:
        return len(text)

    @tool
    async def make_much() -> str:
        made.append(1)
        await opened.wait()
        return "x" * 300_000

    def far_tool(name: str, *required: str, **more: Any) -> JsonObject:
        properties = {each: {"type": "string"} for each in required}
        return {"name": name, "properties": properties, "required": [*required], "_taskQueue": far, **more}

    document = agent(
        "make", far_tool("measure", "text"), far_tool("make_much", _retries=0), far_tool("recall", "what", _retries=0)
    )
    plan = {
        "calls": [
            {"_tool": "make", "size": 100_000, "_outputPath": "†state.text"},
            {"_tool": "measure", "text": "†state.text", "_outputPath": "†state.size"},
            {"_tool": "make_much", "_outputPath": "†state.much"},
            {"_tool": "recall", "what": "1.0", "_outputPath": "†state.read"},
        ],
        "output": "†state.size",
    }
    old, tools = dev_server.client, registry([make, measure, make_much, recall])
    new = Client(old.service_client, data_converter=old.data_converter, interceptors=[Changed()])
    async with ScriptedModel([plan]) as model:
        run = await Perdure(old, task_queue=queue).start(Agent.of(document), id=unique("claims"))

        def serve(client: Client, task_queue: str) -> Any:
            return build_worker(client, tools, model=asking(model), task_queue=task_queue)

        async def wait_for(*numbers: int) -> None:
            """Wait until the calls with these numbers are the pending ones, and the run's task has failed."""
            async with asyncio.timeout(HANG):
                while True:
                    found = (await run.handle.describe()).raw_description
                    pending = {each.activity_id for each in found.pending_activities}
                    if pending == {f"1.{number}" for number in numbers} and found.pending_workflow_task.attempt > 1:
                        return
                    await asyncio.sleep(0.05)

        async with serve(old, queue):
            async for view in run.views():
                if [call.status for call in view.calls] == ["done", "running", "running", "running"]:
                    break
        async with serve(old, far):
            async with serve(new, queue):
                await wait_for(2)  # `measure` and `recall` have failed, because the run's only worker cannot replay it
                opened.set()
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(3):
                        await wait_for()
            async with serve(old, queue):
                view = await run.wait(HANG)
    assert (view.status, view.output, len(made)) == ("completed", 100_000, 1)
    assert [(call.status, call.attempts) for call in view.calls] == [("done", 1)] * 4


async def until(fulfilled: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG):
        while True:
            if fulfilled():
                return
            await asyncio.sleep(0.05)


async def test_a_request_and_a_hook_lose_nothing_while_their_run_cannot_answer(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model is asked again, and a hook is called, by a worker that cannot replay the run: their input is in the run."""
    monkeypatch.setattr("perdure.values.limits.ATTEMPTS", 1)
    queue, seen = unique("queue"), list[int]()

    @tool
    def measure(text: str) -> int:
        return len(text)

    @hook("before_tool_call")
    async def guard(event: BeforeToolCall) -> None:
        seen.append(len(event.params["text"]))
        if len(seen) == 1:
            await asyncio.Event().wait()  # until its worker ends

    plan = {
        "calls": [{"_tool": "measure", "text": "x" * 100_000, "_outputPath": "†state.size"}],
        "output": "†state.size",
    }
    old, tools = dev_server.client, registry([measure, guard])
    new = Client(old.service_client, data_converter=old.data_converter, interceptors=[Changed()])
    document = agent("measure", config={"models": {"fallback": ["backup-1"]}})
    async with ScriptedModel([Turn("Please try again in 5s.", status=429), plan]) as model:
        run = await Perdure(old, task_queue=queue).start(Agent.of(document), id=unique("claims"))

        def serve(client: Client) -> Any:
            return build_worker(client, tools, model=asking(model), task_queue=queue, grace=0.5)

        async def cannot_answer() -> None:
            """Wait until the activity has failed, because the run's only worker cannot replay it, and the run's task has failed too."""
            async with asyncio.timeout(HANG):
                while True:
                    found = (await run.handle.describe()).raw_description
                    if not found.pending_activities and found.pending_workflow_task.attempt > 1:
                        return
                    await asyncio.sleep(0.05)

        async with serve(old):
            await until(lambda: bool(model.requests))
        async with serve(new):
            await cannot_answer()
        async with serve(old):
            await until(lambda: bool(seen))
        async with serve(new):
            await cannot_answer()
        async with serve(old):
            view = await run.wait(HANG)
        asked = {request.model for request in model.requests}
    assert (view.status, view.output, seen, len(asked)) == ("completed", 100_000, [100_000] * 2, 1), view


@pytest.mark.soak
async def test_a_loop_goes_on_with_the_current_version_between_two_iterations(dev_server: WorkflowEnvironment) -> None:
    name, queue = unique("release"), unique("queue")
    old = dev_server.client
    new = Client(old.service_client, data_converter=old.data_converter, interceptors=[Changed()])
    loop = {"_tool": "payer", "_each": [1, 2, 3], "_parallel": 1, "request": "pay", "_outputPath": "†state.all"}
    everybody = Agent("everybody", instructions="ALL.", tools=[PAYER])

    def answers(request: ChatRequest) -> Any:
        if "ALL." in request.text:
            return {"calls": [loop], "output": "†state.all"}
        return DONE if "paid" in request.text else PAY

    async with AsyncExitStack() as stack, ScriptedModel(answers) as model:
        perdure = Perdure(old, task_queue=queue)
        run = await perdure.start(everybody, id=unique("everybody"))
        for client, build in ((old, "1"), (new, "2")):
            options: dict[str, Any] = {"task_queue": queue, "deployment_name": name, "build_id": build}
            await stack.enter_async_context(build_worker(client, registry([pay]), model=asking(model), **options))
            await make_current(old, name, build)
            if build == "1":
                first = await offered_below(run, "/1.0/0")
        await perdure.get_run(first.run_id).approve(first.request)
        for place in ("/1.0/1", "/1.0/2"):  # a server takes a moment to tell workers that another version is current
            later = await offered_below(run, place)
            await perdure.get_run(later.run_id).approve(later.request)
        assert await run.result(timeout=HANG) == [{"ok": True}] * 3
        after, last = [await events(old, run_id) for run_id in (f"{run.id}/1.0", f"{run.id}/1.0/2")]
        started = after[0].workflow_execution_started_event_attributes
        before = await events(old, f"{run.id}/1.0", started.continued_execution_run_id)
    assert [versions(each) for each in (before, after, last)] == [{"1"}, {"2"}, {"2"}]
    failed = [each for each in (*before, *after, *last) if each.HasField("workflow_task_failed_event_attributes")]
    assert failed == []


async def test_a_worker_that_only_names_its_version_takes_runs_without_one(dev_server: WorkflowEnvironment) -> None:
    client, queue = dev_server.client, unique("queue")
    named = WorkerDeploymentConfig(WorkerDeploymentVersion("theirs", "7"), use_worker_versioning=False)
    async with worker.Worker(client, task_queue=queue, plugins=[PerdurePlugin()], deployment_config=named):
        perdure = Perdure(client, task_queue=queue)
        async with asyncio.timeout(HANG):
            while not await perdure.has_worker():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert await perdure.has_worker()


async def test_half_a_version_is_none() -> None:
    with pytest.raises(SettingsError, match="deployment_name and build_id: set both"):
        deployment(Settings(build_id="1"))


async def test_a_user_s_versioned_worker_pins_perdure_s_runs_whatever_its_default(
    dev_server: WorkflowEnvironment,
) -> None:
    client, version = dev_server.client, WorkerDeploymentVersion(deployment_name="theirs", build_id="7")
    theirs = WorkerDeploymentConfig(version, use_worker_versioning=True)  # each workflow has to say how it moves
    made = worker.Worker(client, task_queue="none", plugins=[PerdurePlugin(build_id="1")], deployment_config=theirs)
    assert made.config(active_config=True)["deployment_config"] is theirs
    with pytest.raises(ValueError, match="versioning behavior"):
        worker.Worker(client, task_queue="none", workflows=[AgentWorkflow], deployment_config=theirs)
    ours = worker.Worker(client, task_queue="none", plugins=[PerdurePlugin(deployment_name="ours", build_id="1")])
    found = ours.config(active_config=True)["deployment_config"]
    assert found is not None
    assert found.version.to_canonical_string() == "ours.1"
