"""Perdure from Python: runs are started, found, followed and decided with types, and what goes wrong says what to do (R13.3)."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import pickle
import subprocess
import sys
import threading
import uuid
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, assert_type

import pytest
from pydantic import BaseModel
from temporalio import workflow
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from perdure import (
    Agent,
    DecisionRefusedError,
    Event,
    NoWorkerError,
    OutputError,
    Perdure,
    Run,
    RunEndedError,
    RunError,
    RunExistsError,
    RunFailedError,
    RunNotFoundError,
    RunTimeoutError,
    ServerError,
    tool,
)
from perdure.approvals.requests import WaitingEntry
from perdure.client.selection import Selection
from perdure.client.session import Session
from perdure.errors import DecisionError, InputError, MessageRefusedError, ProtocolError
from perdure.hosting import process
from perdure.hosting.server import embedded_server, free_port
from perdure.runs.wire import AGENT_WORKFLOW
from perdure.sessions.wire import Receipt as MessageReceipt
from perdure.testing.scripted_model import Turn
from tests.support import ROOT, harness
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Order(BaseModel):
    fruit: str
    count: int = 1


class Receipt(BaseModel):
    euros: float


@tool(safe=True)
def price(fruit: str) -> float:
    """What one costs."""
    return 0.5 if fruit == "apple" else 0.75


@tool(dangerous=True)
def pay(euros: float) -> Receipt:
    """Pay."""
    return Receipt(euros=euros)


SHOPPER = Agent("shopper", instructions="You shop.", tools=[price, pay], input=Order, output=Receipt)
BUY: dict[str, Any] = {
    "calls": [
        {"_tool": "price", "fruit": "†input.fruit", "_outputPath": "†state.one"},
        {"_tool": "pay", "euros": "†state.one", "_outputPath": "†state.receipt"},
    ],
    "output": None,
}
PAID: dict[str, Any] = {"calls": [], "output": "†state.receipt"}


def unique(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


async def test_a_run_is_started_approved_and_answers_with_its_type(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [price, pay], [BUY, PAID]) as it:
        perdure = Perdure(dev_server.client, task_queue=it.task_queue)
        run = await perdure.start(SHOPPER, Order(fruit="apple"), id=unique("api"))
        assert_type(run, Run[Receipt])
        seen: list[Event] = []
        async for event in run.events():
            seen.append(event)
            match event:
                case Event(topic="approval", phase="start", data=offer):
                    assert (offer["call"], offer["tool"], offer["params"]) == ("1.1", "pay", {"euros": 0.5})
                    assert [one.run_id for one in (await run.waiting_below())[0]] == [run.id]
                    waits = rf"has not ended after 0\.01 s: it waits for a decision: perdure approvals {run.id}"
                    with pytest.raises(RunTimeoutError, match=waits):
                        await run.result(timeout=0.01)
                    await run.edit(event, {"euros": 0.4}, by="Ann", reason="a discount")
                case _:
                    pass
        receipt = await run.result()
        assert_type(receipt, Receipt)
        assert receipt == Receipt(euros=0.4)
        view = await run.view()
        assert view == await run.wait()
        assert [exchange.request.number for exchange in await run.exchanges()] == [1, 2]
        assert await run.value("output") == '{"euros":0.4}'
        again = perdure.get_run(run.id, SHOPPER)
        assert_type(await again.result(), Receipt)
        assert await perdure.get_run(run.id).result() == {"euros": 0.4}
    told = [(event.topic, event.phase) for event in seen]
    assert [each for each in told if each[0] == "lifecycle"] == [("lifecycle", "start"), ("lifecycle", "end")]
    assert [event.data["call"] for event in seen if (event.topic, event.phase) == ("tool", "end")] == ["1.0", "1.1"]
    [settled] = [event.data for event in seen if (event.topic, event.phase) == ("approval", "end")]
    assert (settled["decision"], settled["by"], settled["reason"]) == ("edit", "Ann", "a discount")
    assert [event.data["number"] for event in seen if (event.topic, event.phase) == ("request", "end")] == [1, 2]
    assert view.state["receipt"] == {"euros": 0.4}


async def in_the_list(perdure: Perdure, run_id: str) -> WaitingEntry:
    """What waits in a run as the list has it: the server's index is a moment late, and nothing tells when to look."""
    async with asyncio.timeout(HANG):
        while True:
            for one in (await perdure.approvals()).waiting:
                if one.run_id == run_id:
                    return one.entry
            await asyncio.sleep(0.1)


async def test_a_decision_that_is_refused_says_why_and_lists_tell_what_waits(dev_server: WorkflowEnvironment) -> None:
    for_ever = Turn(PAID, gate=asyncio.Event())
    async with harness(dev_server.client, [price, pay], [BUY, for_ever], model_timeout=60) as it:
        perdure = Perdure(dev_server.client, task_queue=it.task_queue)
        run = await perdure.start(SHOPPER, {"fruit": "pear"}, id=unique("api"), approval={"ask": "unsafe"})
        await it.until_waiting(run.id, "1.1")
        [offer] = await run.waiting()
        with pytest.raises(DecisionRefusedError, match=r"nothing changed: .*'1.7'"):
            await run.approve("1.7")
        with pytest.raises(DecisionRefusedError, match=r"nothing changed: .*euros"):
            await run.edit("1.1", {"euros": "much"})
        with pytest.raises(DecisionRefusedError, match="nothing changed: "):
            await run.approve(offer.model_copy(update={"digest": "of something else"}))
        with pytest.raises(DecisionRefusedError, match="nothing changed: the policy is not valid"):
            await run.policy(ask="sometimes")  # type: ignore[arg-type]
        assert (await run.policy(tools={"price": "always"}))["ask"] == "unsafe"
        listed = await in_the_list(perdure, run.id)
        await run.reject(listed, reason="too dear")
        with pytest.raises(DecisionRefusedError):
            await run.reject(listed)
        await run.cancel()
        with pytest.raises(RunFailedError, match=f"the run '{run.id}' was cancelled") as failed:
            await run.result()
        assert failed.value.view.calls[1].status == "rejected"
        assert str(pickle.loads(pickle.dumps(failed.value))) == str(failed.value)
        with pytest.raises(RunEndedError, match=f"{run.id} has already ended: cancelled"):
            await run.terminate()
        with pytest.raises(RunEndedError, match="has ended"):
            await run.approve("1.1")
    found = {
        one.id: one.status async for one in perdure.list_runs(Selection(query=f"WorkflowId = '{run.id}'"), limit=1)
    }
    assert found in ({run.id: "cancelled"}, {run.id: "running"})  # late, as said
    with pytest.raises(RunError, match="is not one of running"):
        await perdure.count_runs(Selection(status="lost"))


async def test_what_cannot_be_started_or_found_is_an_error_of_its_own(dev_server: WorkflowEnvironment) -> None:
    perdure = Perdure(dev_server.client, task_queue=unique("nobody"))
    with pytest.raises(InputError, match=r"the input breaks its schema: \$ lacks \"fruit\"|fruit"):
        await perdure.start(SHOPPER, {})
    circular: list[Any] = []
    circular.append(circular)
    for odd, words in (
        (object(), "cannot be written as JSON"),
        (circular, "cannot be written as JSON: Circular reference"),
        ({"\ud800": 1}, "has an unpaired surrogate"),
        ("\ud800", "has an unpaired surrogate"),
        (b"\xff", "has bytes that are not UTF-8 text"),
    ):
        with pytest.raises(InputError, match=f"^the input {words}"):
            await perdure.start(SHOPPER, {"fruit": odd})
        with pytest.raises(InputError, match=f"^the context {words}"):
            await perdure.start(SHOPPER, {"fruit": "apple"}, context={"customer": odd})
        with pytest.raises(MessageRefusedError, match=f"^the context {words}"):
            await perdure.session(unique("api")).send("Hello", sender="ann", context={"customer": odd})
        with pytest.raises(InputError, match=f"^the input {words}"):
            await perdure.get_run("none").fork("1", input=odd)
    with pytest.raises(DecisionError, match="the policy is not valid"):
        await perdure.start(SHOPPER, {"fruit": "apple"}, approval={"ask": "?"})  # type: ignore[arg-type]
    for id, said in (
        ("", "is empty"),
        (" ", "is empty"),
        ("a\nb", "invisible characters"),
        ("a" * 1001, "1,001 bytes"),
    ):
        with pytest.raises(RunError, match=said):
            await perdure.start(SHOPPER, {"fruit": "apple"}, id=id)
    run = await perdure.start(SHOPPER, {"fruit": "apple"}, id=unique("api"))
    with pytest.raises(DecisionRefusedError, match="the message is not valid") as refused:
        await run.steer("\ud800")
    assert str(refused.value).encode()
    with pytest.raises(RunExistsError, match=f"there is already a run '{run.id}'"):
        await perdure.start(SHOPPER, {"fruit": "apple"}, id=run.id)
    assert not await perdure.has_worker()
    with pytest.raises(
        RunTimeoutError, match=f"no worker takes its tasks; .* Start a worker on task queue '{perdure.task_queue}'"
    ):
        await run.result(timeout=0.01)
    await run.terminate("nobody will come")
    for timeout in (None, 0):
        with pytest.raises(RunFailedError, match="was terminated"):
            await run.result(timeout)
    for asked in (perdure.get_run("no-such-run").result, perdure.get_run("no-such-run").view):
        with pytest.raises(RunNotFoundError, match="there is no run 'no-such-run' in namespace 'default'"):
            await asked()
    for asking in (perdure.get_run("no-such-run").events, perdure.get_run("no-such-run").views):
        with pytest.raises(RunNotFoundError):
            await anext(asking())
    with pytest.raises(RunNotFoundError):
        await perdure.get_run("no-such-run").cancel()


@workflow.defn
class Another:
    @workflow.run
    async def run(self) -> str:
        await asyncio.sleep(0)
        return "done"


async def test_a_workflow_of_anybody_else_is_no_run(dev_server: WorkflowEnvironment) -> None:
    id, queue = unique("another"), unique("another")
    client = dev_server.client
    asked = Perdure(client).get_run(id)
    words = f"'{id}' is a Another workflow, not a run of an agent"
    await client.start_workflow("Another", id=id, task_queue=queue)
    for ask in (asked.cancel, asked.terminate, asked.view):
        with pytest.raises(RunNotFoundError, match=words):
            await ask()
    async with Worker(client, task_queue=queue, workflows=[Another], workflow_runner=UnsandboxedWorkflowRunner()):
        with pytest.raises(RunNotFoundError, match=words):
            await asked.result()


async def test_what_connect_is_given_goes_before_the_settings(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    address = dev_server.client.service_client.config.target_host
    (tmp_path / "temporal.toml").write_text(
        f'[profile.here]\naddress = "{address}"\nnamespace = "theirs"\n', encoding="utf-8"
    )
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "temporal.toml"))
    monkeypatch.setenv("PERDURE_TASK_QUEUE", "theirs")
    perdure = await Perdure.connect(profile="here", namespace="ours")
    assert (perdure.client.namespace, perdure.task_queue) == ("ours", "theirs")
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{free_port()}")
    assert (await Perdure.connect(address, task_queue="ours")).task_queue == "ours"


async def test_any_client_will_do_and_delegates_in_python_come_along(dev_server: WorkflowEnvironment) -> None:
    """A client of the user's own, with the SDK's converter; the delegate's file is in no folder of the worker's."""
    address = dev_server.client.service_client.config.target_host
    adder = Agent("adder", instructions="You are ADDER.", input=Order, output=int)
    boss = Agent("boss", instructions="You are BOSS.", tools=[adder], output=list[Receipt])

    def script(asked: Any) -> dict[str, Any]:
        if "You are ADDER." in asked.text:
            return {"calls": [], "output": 3}
        if "# plan" in asked.text:
            return {"calls": [], "output": [{"euros": "†state.sum"}]}
        return {"calls": [{"_tool": "adder", "fruit": "pear", "_outputPath": "†state.sum"}], "output": None}

    async with harness(dev_server.client, [], script) as it:
        perdure = Perdure(await Client.connect(address), task_queue=it.task_queue)
        answer = await perdure.run(boss, timeout=HANG)
        assert_type(answer, list[Receipt])
        assert answer == [Receipt(euros=3)]


class Even(BaseModel):
    number: int

    def model_post_init(self, _: Any) -> None:
        if self.number % 2:
            raise ValueError("odd")


async def test_an_output_that_is_not_of_its_type_and_a_run_that_fails(dev_server: WorkflowEnvironment) -> None:
    odd = Agent("odd", output=Even)
    refused = Turn("no", status=401)
    async with harness(dev_server.client, [], [{"calls": [], "output": {"number": 3}}, refused]) as it:
        perdure = await Perdure.connect(
            dev_server.client.service_client.config.target_host, namespace="default", task_queue=it.task_queue
        )
        with pytest.raises(OutputError, match="the output does not match the agent's output type: odd"):
            await perdure.run(odd)
        with pytest.raises(RunFailedError, match=r"the run 'odd-.*' failed: ") as failed:
            await perdure.run(odd)
        assert (failed.value.view.status, failed.value.view.requests) == ("failed", 1)


async def test_a_namespace_that_is_not_there_is_told_and_not_that_a_run_is_not(dev_server: WorkflowEnvironment) -> None:
    perdure = await Perdure.connect(dev_server.client.service_client.config.target_host, namespace="nowhere")
    for asked in (
        perdure.get_run("any").view(),
        perdure.start(SHOPPER, {"fruit": "apple"}),
        perdure.count_runs(Selection()),
    ):
        with pytest.raises(
            ServerError, match=r"the namespace 'nowhere' does not exist at .*: check TEMPORAL_NAMESPACE"
        ):
            await asked


async def test_no_server_is_one_clear_error() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(ServerError, match=f"no Temporal server answers at {address}"):
        await Perdure.connect(address)


async def test_what_is_wrong_before_a_request_is_one_clear_error() -> None:
    address = f"127.0.0.1:{free_port()}"
    perdure = await Perdure.connect(address, lazy=True)
    with pytest.raises(ProtocolError, match="before has no time zone: use"):
        await perdure.erase(before=datetime(2030, 1, 31))
    with pytest.raises(ProtocolError, match=r"the session's rules are not valid: must be .* at \$\.cap"):
        perdure.session("ann", cap=0)
    with pytest.raises(RunError, match="is not a valid key"):
        await perdure.start(SHOPPER, {"fruit": "apple"}, key="")
    with pytest.raises(ServerError, match=f"at {address}"):  # of tasks that read runs at once
        await perdure.what_if(policy={"ask": "always"})


async def test_r19_10_a_client_connects_when_it_is_used_and_again_after_the_server_was_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("perdure.queries._answers.TIMEOUT", timedelta(seconds=1))
    address = f"127.0.0.1:{(port := free_port())}"
    lazy = await Perdure.connect(address, lazy=True)
    waits = asyncio.create_task(Perdure.connect(address, wait=HANG))
    try:
        for _ in range(2):
            with pytest.raises(ServerError, match=f"at {address}"):
                await lazy.get_run("any").view()
            async with embedded_server(port=port, ui=False), asyncio.timeout(HANG):
                for perdure in (lazy, await waits):
                    with pytest.raises(RunNotFoundError):
                        await until_answered(perdure)
    finally:
        waits.cancel()


async def test_r19_10_every_first_use_of_a_lazy_client_says_that_no_server_answers() -> None:
    address = f"127.0.0.1:{free_port()}"
    receipt = MessageReceipt.model_validate(
        {
            "run_id": "session-x/1",
            "message_id": "m",
            "position": 0,
            "accepted_at": "",
            "done": "started",
            "sender": "ann",
        }
    )
    uses: dict[str, Callable[[Run[Any], Session], Awaitable[Any]]] = {
        "troubles": lambda run, _: anext(run.troubles()),
        "waits": lambda run, _: anext(run.waits()),
        "events": lambda run, _: anext(run.events()),
        "result": lambda run, _: run.result(),
        "ask": lambda _, session: session.ask("hello", sender="ann"),
        "knows": lambda _, session: session.knows("m", sender="ann"),
        "reply": lambda _, session: session.reply("m"),
        "stream": lambda _, session: anext(session.stream(receipt)),
        "wait": lambda _, session: session.wait("m"),
        "waiting below": lambda _, session: session.waiting_below(),
    }

    async def check(use: Callable[[Run[Any], Session], Awaitable[Any]]) -> None:
        lazy = await Perdure.connect(address, lazy=True)
        with pytest.raises(ServerError, match=f"at {address}"):
            await use(lazy.get_run("any"), lazy.session("any", agent=Agent("a", instructions="Help.")))

    await asyncio.wait_for(asyncio.gather(*map(check, uses.values())), HANG)


async def until_answered(perdure: Perdure) -> None:
    """Ask until the server answers: a connection that was lost comes back after a pause."""
    while True:
        with contextlib.suppress(ServerError):
            await perdure.get_run("any").view()
        await asyncio.sleep(0.05)


async def test_a_process_ends_when_threads_of_the_sdk_have_left_the_interpreter() -> None:
    at_work, done, left = _thread.allocate_lock(), _thread.allocate_lock(), threading.Event()
    at_work.acquire()
    done.acquire()

    def stranger() -> None:
        at_work.release()
        done.acquire()

    def leave() -> None:
        process._settle()
        left.set()

    _thread.start_new_thread(stranger, ())
    at_work.acquire()
    threading.Thread(target=leave).start()
    assert not left.wait(3 * process.PAUSE)
    done.release()
    assert left.wait(10)


@pytest.mark.soak
async def test_a_script_ends_cleanly_after_a_connection_that_failed() -> None:
    """Without a wait about one in ten is aborted: the SDK's thread that told of the failure has not left the interpreter yet."""
    code = (
        "import asyncio\nfrom perdure import Perdure, ServerError\n"
        "async def main():\n try:\n  await Perdure.connect('127.0.0.1:1')\n except ServerError: print('told')\n"
        "asyncio.run(main())"
    )
    for _ in range(40):
        script = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        out, _ = await script.communicate()
        assert (out, script.returncode) == (b"told\n", 0)


@workflow.defn(name=AGENT_WORKFLOW, sandboxed=False)
class Broken:
    """A run whose every task fails."""

    @workflow.run
    async def run(self, _: Any) -> Any:
        raise RuntimeError("a fault of the engine's")


async def test_r18_10_a_run_whose_tasks_fail_says_so(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.queries._answers.TIMEOUT", timedelta(seconds=1))
    queue = f"broken-{uuid.uuid4().hex[:8]}"
    async with Worker(dev_server.client, task_queue=queue, workflows=[Broken]):
        perdure = Perdure(dev_server.client, task_queue=queue)
        run = await perdure.start(Agent(name="broken", instructions="Plan."), "x")
        said: list[str] = []
        async with asyncio.timeout(HANG), aclosing(run.troubles()) as troubles:
            async for words in troubles:
                said.append(words)
                break
        with pytest.raises(NoWorkerError) as shown:
            await run.view()
        with pytest.raises(RunError) as cancelled:
            await run.cancel()
        with pytest.raises(RunTimeoutError) as waited:
            await run.result(timeout=0.1)
        for words in (*said, str(shown.value), str(cancelled.value), str(waited.value)):
            assert "its workflow tasks fail" in words
            assert "a fault of the engine's" in words
            assert f"perdure terminate {run.id}" in words
        await run.terminate()
