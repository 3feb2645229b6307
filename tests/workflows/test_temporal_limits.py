"""Limits of Temporal: histories that grow, values that are too large, cancellation (R6.8 to R6.10)."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from perdure.client.run_operations import AgentHandle, read_value
from perdure.testing.scripted_model import ChatRequest, Turn
from perdure.values.json import loads
from perdure.values.limits import MAX_PAYLOAD, MAX_VIEWED
from tests.support import DONE, agent, answered, harness, impatient
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")


impatient_server = impatient(100)


@tool
def echo(value: Any) -> Any:
    """Give it back."""
    return value


def steps(count: int) -> Any:
    """A model that makes ten calls at each of `count` Requests, and then an output."""

    def answer(asked: ChatRequest) -> dict[str, Any]:
        n = asked.number
        if n > count:
            return DONE
        calls = [
            {"_tool": "echo", "value": f"{n}.{i}", "_outputPath": "†state.log", "_outputMethod": "push"}
            for i in range(9)
        ]
        return {"calls": [*calls, {"_tool": "echo", "value": n, "_outputPath": "†state.last"}], "output": None}

    return answer


async def test_r6_8_a_long_run_continues_as_new_with_nothing_lost(impatient_server: WorkflowEnvironment) -> None:
    config = {"max_requests": 40}
    async with harness(impatient_server.client, [echo], steps(8)) as it:
        handle = await it.start(agent("echo", config=config))
        result = await handle.result()
        view = await it.view(handle.id)
        earliest: Any = loads(await answered(lambda: read_value(it.client, handle.id, "1.9")))
        first = await it.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id).fetch_history()
        last = await it.client.get_workflow_handle(handle.id).fetch_history()
    assert first.events[-1].HasField("workflow_execution_continued_as_new_event_attributes")
    assert max(len(first.events), len(last.events)) < 250
    assert (earliest["params"], earliest["result"]) == ({"value": 1}, 1), "the execution that knows it whole is asked"
    assert (result.status, result.requests, len(result.calls)) == ("completed", 9, 80)
    assert (result.state["last"], len(result.state["log"])) == (8, 72)
    assert set(result.state["log"]) == {f"{n}.{i}" for n in range(1, 9) for i in range(9)}
    assert {call.status for call in view.calls} == {"done"}
    assert [call.id for call in result.calls[:2]] == ["1.0", "1.1"]
    assert sum(result.usage.by_model[model].requests for model in result.usage.by_model) == 9
    assert len(view.writes) == 80


async def executions(client: Client, handle: AgentHandle) -> list[tuple[int, int]]:
    """Events and bytes of each execution of the run."""
    found: list[tuple[int, int]] = []
    run_id = handle.first_execution_run_id
    while run_id:
        execution = client.get_workflow_handle(handle.id, run_id=run_id)
        info = (await execution.describe()).raw_description.workflow_execution_info
        found.append((info.history_length, info.history_size_bytes))
        last = (await execution.fetch_history()).events[-1]
        run_id = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return found


@pytest.mark.soak
async def test_r6_8_three_hundred_requests_and_three_thousand_calls(dev_server: WorkflowEnvironment) -> None:
    memory: dict[int, int] = {}
    answer, before = steps(300), list[ChatRequest]()

    def watched(asked: ChatRequest) -> dict[str, Any]:
        while before:
            before.pop().body.clear()  # the model keeps all Requests: 60 MB
        before.append(asked)
        if asked.number % 50 == 0:
            gc.collect()
            memory[asked.number] = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
        solution: dict[str, Any] = answer(asked)
        for call in solution["calls"]:
            call["_outputPath"], call["_outputMethod"] = "†state.last", "set"
        return solution

    # An answer that comes late on a busy machine would be asked for again, and the script be one ahead.
    async with harness(dev_server.client, [echo], watched, model_timeout=60) as it:
        handle = await it.start(agent("echo", config={"max_requests": 400, "deadline": 3600}))
        result = await handle.result()
        sizes = await executions(it.client, handle)
    assert (result.status, result.requests, len(result.calls)) == ("completed", 301, MAX_VIEWED)
    assert [call.id for call in result.calls] == [f"{n}.{i}" for n in range(101, 301) for i in range(10)]
    assert {call.status for call in result.calls} == {"done"}
    assert any("of 3,000 are shown" in words for words in result.cut), result.cut
    assert len(sizes) > 1
    assert max(events for events, _ in sizes) < 10_000
    assert max(size for _, size in sizes) < 10_000_000
    # Model, client and test live in the same process and keep what they saw: some 10 MB. A leak of histories is far more.
    assert memory[300] - memory[50] < 80e6, memory


# Copies of all pages in each Request would take 40 MB and 6.5 MB.
@pytest.mark.parametrize(("count", "limit"), [(20, 1_000_000), pytest.param(100, 15_000_000, marks=pytest.mark.soak)])
async def test_r6_8_history_does_not_grow_with_the_square_of_the_requests(
    dev_server: WorkflowEnvironment, count: int, limit: int
) -> None:
    @tool
    def page(n: int) -> str:
        """A page of 8 KB."""
        return f"{n}".rjust(8000, ".")

    def answer(asked: ChatRequest) -> dict[str, Any]:
        call = {"_tool": "page", "n": asked.number, "_outputPath": "†state.pages", "_outputMethod": "push"}
        return {"calls": [call], "output": None} if asked.number <= count else DONE

    async with harness(dev_server.client, [page], answer, model_timeout=30) as it:
        handle = await it.start(agent("page", config={"max_requests": 120}))
        result = await handle.result()
        sizes = await executions(it.client, handle)
        shown = len(it.model.requests[-1].text)
    assert (result.status, result.requests) == ("completed", count + 1)
    assert shown > 8_000 * count
    assert len(sizes) == 1, "it was not continued as new"
    assert sizes[0][1] < limit


@pytest.mark.parametrize("count", [120, pytest.param(500, marks=pytest.mark.soak)])
async def test_a_plan_of_five_hundred_calls_in_one_request(dev_server: WorkflowEnvironment, count: int) -> None:
    calls = [
        {"_tool": "echo", "value": n if n < 50 else f"†state.s{n - 50}", "_outputPath": f"†state.s{n}"}
        for n in range(count)
    ]
    async with harness(dev_server.client, [echo], [{"calls": calls, "output": {"ok": True}}], chunk=4000) as it:
        view = await it.run(agent("echo"))
    assert (view.status, len(view.calls), {call.status for call in view.calls}) == ("completed", count, {"done"})
    assert view.state[f"s{count - 1}"] == (count - 1) % 50


async def test_r6_9_a_result_that_is_too_large_is_a_clear_error(dev_server: WorkflowEnvironment) -> None:
    @tool
    def large(size: int) -> str:
        """Return much."""
        return "x" * size

    calls = [
        {"_tool": "large", "size": MAX_PAYLOAD + 1, "_outputPath": "†state.too"},
        {"_tool": "large", "size": MAX_PAYLOAD // 2, "_outputPath": "†state.half"},
        {"_tool": "echo", "value": ["†state.half", "†state.half", "†state.half"]},
    ]
    async with harness(dev_server.client, [large, echo], [{"calls": calls, "output": {"ok": True}}]) as it:
        view = await it.run(agent("large", "echo"))
    assert [call.status for call in view.calls] == ["failed", "done", "invalid"]
    codes = [error["error"]["code"] for error in view.errors]
    assert codes == ["result_too_large", "params_too_large"]
    assert f"the result of large has {MAX_PAYLOAD + 3:,} bytes" in view.errors[0]["error"]["message"]
    assert view.calls[0].attempts == 1


async def test_r18_1_a_result_that_no_workflow_could_read_is_its_calls_own_error(
    dev_server: WorkflowEnvironment,
) -> None:
    @tool
    def odd(kind: str) -> Any:
        """Return something odd."""
        nested: Any = 0
        for _ in range(200):
            nested = [nested]
        return {"deep": nested, "digits": 10**5000, "half": "\ud800", "fine": 10**3000}[kind]

    kinds = ["deep", "digits", "half", "fine"]
    calls = [{"_tool": "odd", "kind": kind, "_outputPath": f"†state.{kind}"} for kind in kinds]
    async with harness(dev_server.client, [odd], [{"calls": calls, "output": None}, DONE]) as it:
        view = await it.run(agent("odd"))
    assert view.status == "completed"
    assert [call.status for call in view.calls] == [*["failed"] * 3, "done"]
    assert [call.attempts for call in view.calls[:3]] == [1] * 3
    assert [error["error"]["code"] for error in view.errors] == ["not_json"] * 3
    assert view.state == {"fine": 10**3000}


async def test_r6_10_cancelling_stops_the_model_and_the_tools(dev_server: WorkflowEnvironment) -> None:
    stopped: dict[str, asyncio.Event] = {"tool": asyncio.Event()}
    started = asyncio.Event()

    @tool(timeout=600)
    async def wait(after: int) -> None:
        """Wait for ever."""
        assert after == 1
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped["tool"].set()
            raise

    gate = asyncio.Event()
    calls = [
        {"_tool": "echo", "value": 1, "_outputPath": "†state.done"},
        {"_tool": "wait", "after": "†state.done"},
        {"_tool": "echo", "value": 2},
    ]
    turn = Turn({"calls": calls, "output": None}, gate=gate, gate_after=125)
    async with harness(dev_server.client, [echo, wait], [turn], model_timeout=600) as it:
        handle = await it.start(agent("echo", "wait"))
        await asyncio.wait_for(started.wait(), HANG)
        await handle.cancel()
        await asyncio.wait_for(stopped["tool"].wait(), HANG)
        await asyncio.wait_for(it.model.wait_for_disconnect(1), HANG)
        view = await it.view(handle.id)
    assert (view.status, view.state) == ("cancelled", {"done": 1})
    assert [call.status for call in view.calls][:2] == ["done", "unknown"], (
        "what ran was cancelled with it, and may have had its effect (R10.6)"
    )
