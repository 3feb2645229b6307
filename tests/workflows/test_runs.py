"""The two loops on real servers: errors, retries, limits, time, replay (sections 6 and 12)."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from datetime import timedelta
from typing import Any

import pytest
from rich.console import Console
from temporalio.client import WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from perdure import Perdure, ToolContext, ToolError, branch, tool
from perdure.activities.registry import Registry
from perdure.cli._console import wait_line
from perdure.cli._run_view import run_table
from perdure.client.run_operations import FROM_HISTORY
from perdure.client.selection import ListedRun, Selection
from perdure.runs.wire import REFUSED, RunView
from perdure.testing.scripted_model import Fault, Turn
from perdure.tools.invocation import idempotency_key
from tests.support import DONE, Harness, agent, check_replays, harness
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(retries=0)
def divide(a: float, b: float) -> float:
    """Divide."""
    return a / b


@tool(retries=40, timeout=10)
def stubborn(context: ToolContext) -> int:
    """Fails until its 40th attempt."""
    if context.attempt < 40:
        raise ConnectionError(f"attempt {context.attempt}")
    return context.attempt


@tool
async def weather(city: str) -> Any:
    """Sunny in Berlin alone."""
    return branch("†state.sunny", city) if city == "Berlin" else branch("†state.rainy", city)


async def test_an_hour_of_retries_takes_a_second(time_skipping: WorkflowEnvironment) -> None:
    script = [{"calls": [{"_tool": "stubborn", "_outputPath": "†state.n"}], "output": {"ok": True}}]
    virtual = await time_skipping.get_current_time()
    async with harness(time_skipping.client, [stubborn], script) as it:
        view = await it.run(agent("stubborn", config={"deadline": 7200}))
    assert (view.status, view.state, view.calls[0].attempts) == ("completed", {"n": 40}, 40)
    assert (await time_skipping.get_current_time() - virtual).total_seconds() > 3000


async def test_r12_1_typed_tools_resolve_references_and_run_in_parallel(dev_server: WorkflowEnvironment) -> None:
    calls = [
        {"_tool": "add", "a": 1, "b": 2, "_outputPath": "†state.x"},
        {"_tool": "add", "a": "†state.x", "b": "†state.x", "_outputPath": "†state.y"},
    ]
    async with harness(dev_server.client, [add], [{"calls": calls, "output": None}, DONE]) as it:
        view = await it.run(agent("add"))
        it.model.check()
    assert (view.status, view.state, view.stop_reason) == ("completed", {"x": 3, "y": 6}, "output")


async def test_r6_6_a_failure_and_a_structural_error_reach_the_model_together(dev_server: WorkflowEnvironment) -> None:
    calls = [
        {"_tool": "divide", "a": 1, "b": 0},
        {"_tool": "divide", "a": "one", "b": 1},
        {"_tool": "divide", "a": 4, "b": 2},
    ]
    async with harness(dev_server.client, [divide], [{"calls": calls, "output": None}, DONE]) as it:
        view = await it.run(agent("divide"))
        prompt = it.model.requests[1].text
    assert [call.status for call in view.calls] == ["failed", "invalid", "done"]
    assert [error["error"]["code"] for error in view.errors] == ["ZeroDivisionError", "invalid_call"]
    assert "division by zero" in prompt
    assert '$.a is \\"one\\"' in prompt
    assert '"result":2.0' in prompt
    assert [request.model for request in view.log] == ["gpt-4o-mini", "gpt-4o"]


async def test_r12_4_a_branch_is_chosen_by_the_tool(dev_server: WorkflowEnvironment) -> None:
    path = "†state.sunny || †state.rainy"
    calls = [{"_tool": "weather", "city": "Hamburg", "_outputPath": path}]
    async with harness(dev_server.client, [weather], [{"calls": calls, "output": {"ok": True}}]) as it:
        view = await it.run(agent("weather"))
    assert view.state == {"rainy": "Hamburg"}


async def test_r2_3_bad_input_is_refused_by_the_workflow_too(dev_server: WorkflowEnvironment) -> None:
    from perdure.runs.wire import AGENT_WORKFLOW, RunInput

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    document = agent(context=[{"type": "input", "schema": schema}])
    async with harness(dev_server.client, [], []) as it:
        handle = await it.client.start_workflow(
            AGENT_WORKFLOW,
            RunInput(agent=document, input={"n": "x"}, has_input=True),
            id="refused",
            task_queue=it.task_queue,
        )
        with pytest.raises(Exception, match="Workflow execution failed"):
            await handle.result()
        view = await it.view("refused")
    assert (view.status, view.error) == (
        "failed",
        'the input breaks its schema: $.n is "x", but must fit {"type": "integer"}',
    )
    assert it.model.requests == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Turn("Sure! I will look into it."), "not valid JSON"),
        (Turn(""), "the answer was empty"),
        (Turn('{"calls": [{"_tool": "add", "a": 1', finish_reason="length"), "cut off"),
        (Turn("[1, 2]"), "expected an object"),
        (Turn('{"calls": {"_tool": "add"}, "output": null}'), "must be an array"),
        (Turn('{"calls": [17, null], "output": null}'), "is not a call"),
        (Turn('{"calls": [], "output": NaN}'), "not valid JSON"),
    ],
)
async def test_what_is_no_solution_becomes_an_error_message(
    dev_server: WorkflowEnvironment, answer: Turn, words: str
) -> None:
    async with harness(dev_server.client, [add], lambda asked: answer if asked.number == 1 else DONE) as it:
        view = await it.run(agent("add"))
        assert words in it.model.requests[1].text
    assert view.status == "completed"
    assert len(view.errors) in (1, 2)


async def test_r6_5_an_output_that_never_fits_ends_at_the_limit(dev_server: WorkflowEnvironment) -> None:
    document = agent(schema={"type": "integer"}, config={"max_requests": 2})
    async with harness(dev_server.client, [], [{"calls": [], "output": "no"}] * 2) as it:
        view = await it.run(document)
        it.model.check()
        assert "No more calls can be made" in it.model.requests[1].text
    assert view.status == "failed"
    assert "may ask 2 times" in str(view.error)
    assert view.requests == 2


async def test_r9_5_a_limit_gives_one_last_request_without_tools(dev_server: WorkflowEnvironment) -> None:
    again = {"calls": [{"_tool": "add", "a": 1, "b": 1}], "output": None}
    async with harness(dev_server.client, [add], [again, {"calls": [], "output": "so far"}]) as it:
        view = await it.run(agent("add", config={"max_requests": 2}))
        last = it.model.requests[1].body["response_format"]["json_schema"]["schema"]
    assert (view.status, view.output, view.stop_reason) == ("completed", "so far", "max_requests")
    assert list(last["properties"]) == ["output"]


async def test_r9_7_rate_limits_are_waited_for_and_server_errors_retried(time_skipping: WorkflowEnvironment) -> None:
    script: list[Any] = [Turn("slow down", status=429, headers={"retry-after": "1800"}), Turn("oops", status=503), DONE]
    before = await time_skipping.get_current_time()
    async with harness(time_skipping.client, [], script) as it:
        view = await it.run(agent(config={"deadline": 7200}))
        it.model.check()
    assert (view.status, view.stop_reason) == ("completed", "output")
    assert (await time_skipping.get_current_time() - before).total_seconds() >= 1800


async def took(it: Harness, view: RunView) -> float:
    """Seconds from the run's start to its end, as the server counts them."""
    found = await it.client.get_workflow_handle(view.run_id).describe()
    assert found.close_time is not None
    return (found.close_time - found.start_time).total_seconds()


async def test_r20_5_a_provider_that_is_away_for_long_is_waited_for(time_skipping: WorkflowEnvironment) -> None:
    script: list[Any] = [*[Turn("overloaded", status=503)] * 30, DONE]
    async with harness(time_skipping.client, [], script) as it:
        view = await it.run(agent(config={"deadline": 500}))
        it.model.check()
        events = [event async for event in Perdure(it.client).get_run(view.run_id).events(topics=["request"])]
        assert 600 < await took(it, view) < 3600
    assert (view.status, view.stop_reason, view.wait) == ("completed", "output", None), "waiting is no work"
    assert view.worked < 500
    (said,) = [str(event.data["reason"]) for event in events if event.phase == "update"]
    assert re.fullmatch(r"waiting for gpt-4o-mini: 503 since \d\d:\d\d UTC", said)


@pytest.mark.parametrize(("patience", "attempts"), [(0, 1), (5, 4), (60, 8)])
async def test_r20_5_how_long_is_the_agents_to_say(
    time_skipping: WorkflowEnvironment, patience: float, attempts: int
) -> None:
    async with harness(time_skipping.client, [], [Turn("overloaded", status=503)] * 20, model_patience=7200) as it:
        view = await it.run(agent(config={"model_patience": patience}))
        asked = len(it.model.requests)
        assert patience <= await took(it, view) < 3600  # of the worker's 7,200
    assert view.status == "failed"
    assert "the model's server answered 503: overloaded" in str(view.error)
    assert asked in (attempts, attempts + 1)


async def test_r20_5_how_long_is_the_workers_to_say(time_skipping: WorkflowEnvironment) -> None:
    async with harness(time_skipping.client, [], [Turn("overloaded", status=503)] * 9, model_patience=0) as it:
        view = await it.run(agent())
        assert (view.status, len(it.model.requests)) == ("failed", 1)


async def test_r20_5_no_fallback_waits_for_a_pause_that_another_models_server_asks_for(
    time_skipping: WorkflowEnvironment,
) -> None:
    slow = Turn("slow down", status=429, headers={"retry-after": "1800"})
    async with harness(time_skipping.client, [], [slow, DONE]) as it:
        view = await it.run(agent(config={"models": {"fast": "a", "smart": "a", "fallback": ["b"]}}))
        assert [each.body["model"] for each in it.model.requests] == ["a", "b"]
        assert await took(it, view) < 1800
    async with harness(time_skipping.client, [], [slow, Turn("no such key", status=401), DONE]) as it:
        view = await it.run(agent(config={"models": {"fast": "a", "smart": "a", "fallback": ["b"]}}))
        assert [each.body["model"] for each in it.model.requests] == ["a", "b", "a"]
        assert await took(it, view) >= 1800
    assert view.status == "completed"


async def test_r20_5_lists_and_show_say_what_a_run_waits_for(dev_server: WorkflowEnvironment) -> None:
    slow = Turn("slow down", status=429, headers={"retry-after": "1800"})
    async with harness(dev_server.client, [], [slow]) as it:
        handle = await it.start(agent())
        perdure = Perdure(it.client, task_queue=it.task_queue)
        async with asyncio.timeout(HANG):
            while (view := await it.view(handle.id)).wait is None:
                await it.model.wait_for_request(1)
        assert re.fullmatch(r"waiting for gpt-4o-mini: 429 since \d\d:\d\d", view.wait.text())
        printed = io.StringIO()
        Console(file=printed, width=100, color_system=None).print(run_table(view, 100))
        assert wait_line(view.wait) in printed.getvalue()
        mine = Selection(query=f"WorkflowId = '{handle.id}'")
        rows: list[ListedRun] = []
        async with asyncio.timeout(HANG):
            while not any(row.wait for row in rows):
                rows = (await perdure.page_of_runs(mine, size=1)).rows
        assert rows[0].wait == view.wait
        await handle.cancel()
        with contextlib.suppress(WorkflowFailureError):
            await handle.result()
        assert (await it.view(handle.id)).wait is None


async def test_a_stream_that_breaks_off_is_asked_again(dev_server: WorkflowEnvironment) -> None:
    script: list[Any] = [Turn(DONE, fault=Fault("cut", after=8)), DONE]
    async with harness(dev_server.client, [], script) as it:
        view = await it.run(agent())
        it.model.check()
    assert (view.status, view.requests, view.errors) == ("completed", 1, [])


FAILS = {
    "silent": Turn(DONE, fault=Fault("silent")),
    "hung": Turn(DONE, fault=Fault("hang", after=10)),
    "body cut off": Turn(DONE, fault=Fault("cut", after=10)),
    "500": Turn("oops", status=500),
}


async def test_r6_7_a_server_that_fails_before_the_first_call_is_asked_again(dev_server: WorkflowEnvironment) -> None:
    """All failures at once: for some, the run waits three seconds for an answer."""
    async with asyncio.TaskGroup() as group:
        for name, turn in FAILS.items():
            for stream in (True, False):
                group.create_task(asked_again(dev_server, turn, stream), name=f"{name}, {stream=}")


async def asked_again(server: WorkflowEnvironment, turn: Turn, stream: bool) -> None:
    # An answer that a slow machine is late with would be asked for again, too.
    patience = 3 if turn.fault is not None and turn.fault.kind != "cut" else HANG
    async with harness(server.client, [], [turn, DONE], model_timeout=patience) as it:
        view = await it.run(agent(config={"stream": stream}))
        it.model.check()
    assert (view.status, view.requests, view.errors) == ("completed", 1, [])


@pytest.mark.parametrize(("status", "words"), [(401, "401"), (400, "400"), (404, "404")])
async def test_r9_7_authentication_and_bad_requests_are_not_retried(
    dev_server: WorkflowEnvironment, status: int, words: str
) -> None:
    async with harness(dev_server.client, [], [Turn("no such thing", status=status)]) as it:
        view = await it.run(agent())
        it.model.check()
    assert view.status == "failed"
    assert words in str(view.error)
    assert "no such thing" in str(view.error)


async def test_r12_3_a_tool_error_is_final_unless_it_says_otherwise(dev_server: WorkflowEnvironment) -> None:
    attempts: list[int] = []

    @tool(retries=2)
    def flaky(final: bool, context: ToolContext) -> str:
        """Fails once."""
        attempts.append(context.attempt)
        if context.attempt == 1:
            raise ToolError("busy", "not now", retry=not final)
        return context.idempotency_key

    calls = [{"_tool": "flaky", "final": False, "_outputPath": "†state.key"}, {"_tool": "flaky", "final": True}]
    async with harness(dev_server.client, [flaky], [{"calls": calls, "output": None}, DONE]) as it:
        view = await it.run(agent("flaky"))
    assert [(call.status, call.attempts) for call in view.calls] == [("done", 2), ("failed", 1)]
    assert view.state == {"key": idempotency_key(view.run_id, "1.0", "flaky", {"final": False})}
    assert view.errors[0]["error"] == {"code": "busy", "message": "not now"}


async def test_no_retries_means_that_a_dangerous_call_runs_once(dev_server: WorkflowEnvironment) -> None:
    attempts: list[int] = []

    @tool(dangerous=True, retries=0)
    def pay(context: ToolContext) -> str:
        """Fails."""
        attempts.append(context.attempt)
        raise OSError("the line was cut")

    async with harness(dev_server.client, [pay], [{"calls": [{"_tool": "pay"}], "output": None}, DONE]) as it:
        view = await it.run(agent("pay", config={"approval": {"ask": "never"}}))
    assert attempts == [1]
    assert [(call.status, call.attempts) for call in view.calls] == [("failed", 1)]


async def test_a_run_replays_and_passes_without_a_workflow_cache(dev_server: WorkflowEnvironment) -> None:
    calls = [{"_tool": "add", "a": n, "b": 1, "_outputPath": f"†state.s{n}"} for n in range(5)]
    calls.append({"_tool": "add", "a": "†state.s0", "b": "†state.s4", "_outputPath": "†state.sum"})
    script: list[Any] = [{"calls": calls, "output": None}, {"calls": [{"_tool": "nope"}], "output": None}, DONE]
    async with harness(dev_server.client, [add], script, cached_workflows=0) as it:
        handle = await it.start(agent("add"))
        result = await handle.result()
        history = await handle.fetch_history()
    assert (result.status, result.state["sum"]) == ("completed", 6)
    await check_replays(history)


async def test_while_a_request_is_asked_the_calls_before_it_are_listed_once(dev_server: WorkflowEnvironment) -> None:
    gate = asyncio.Event()
    script = [{"calls": [{"_tool": "add", "a": 1, "b": 2}], "output": None}, Turn('{"output":{}}', gate=gate)]
    async with harness(dev_server.client, [add], script) as it:
        handle = await it.start(agent("add"))
        await it.model.wait_for_request(2)
        view = await it.view(handle.id)
        gate.set()
        await handle.result()
    assert [call.id for call in view.calls] == ["1.0"]


async def test_a_run_that_has_ended_is_shown_from_its_history_where_no_worker_answers(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harness(dev_server.client, [add], [DONE]) as it:
        answered = await it.run(agent("add"))
    monkeypatch.setattr("perdure.queries._answers.TIMEOUT", timedelta(seconds=1))
    view = await it.view(answered.run_id)
    assert (answered.trouble, view.trouble) == ("", FROM_HISTORY)
    assert (view.status, view.output) == ("completed", DONE["output"])
    printed = io.StringIO()
    Console(file=printed, width=200).print(run_table(view, 200))
    assert FROM_HISTORY in printed.getvalue()


class UnreadableRegistry(Registry):
    """The registry of a worker that cannot prepare a run."""

    def definitions(self) -> Any:
        raise OSError("the disk is away")


async def test_a_worker_that_cannot_prepare_a_run_ends_it_with_the_reason(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.workflows.preparation.PREPARING", RetryPolicy(maximum_attempts=2))
    async with harness(dev_server.client, [], [DONE], registry=UnreadableRegistry([]), sandboxed=False) as it:
        run = await it.start(agent())
        with pytest.raises(WorkflowFailureError) as failure:
            await run.result()
    assert isinstance(failure.value.cause, ApplicationError)
    assert failure.value.cause.type == REFUSED
    assert "the disk is away" in str(failure.value.cause)
