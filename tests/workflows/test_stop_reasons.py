"""When a run stops, each reason with its own test (R9.5, R9.6)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.testing import WorkflowEnvironment

from perdure import Perdure, RunRefusedError, hook, tool
from perdure.hooks import BeforeToolCall
from perdure.models.usage import Price, RunUsage, Usage
from perdure.runs import limits
from perdure.runs.agent import Situation
from perdure.testing.scripted_model import ChatRequest, Turn, refusal
from tests.support import DONE, agent, check_replays, harness, impatient, perdure
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

LOOK: dict[str, Any] = {"calls": [{"_tool": "look", "at": "it"}], "output": None}
BEST: dict[str, Any] = {"output": {"ok": False}}
PRICES = {"gpt-4o-mini": {"prompt": 1.0, "completion": 10.0}, "gpt-4o": {"prompt": 10.0, "completion": 100.0}}


@tool(safe=True)
def look(at: str) -> str:
    return at


@tool(safe=True, retries=0)
async def sleep(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slept"


@tool
def task_complete(summary: str, success: bool) -> dict[str, Any]:
    return {"summary": summary, "success": success}


def looks(request: ChatRequest) -> dict[str, Any]:
    """Looks at another thing each time, and gives its best when it may not look any more."""
    if "No more calls can be made" in request.text:
        return BEST
    return {"calls": [{"_tool": "look", "at": f"thing {request.number}"}], "output": None}


async def test_output(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [look], [LOOK, DONE]) as it:
        view = await it.run(agent("look"))
    assert (view.status, view.stop_reason, view.requests) == ("completed", "output", 2)


async def test_answer_in_plain_text(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [look], [LOOK, Turn("It is fine.")]) as it:
        it.model.dialect = "tools"
        view = await it.run(agent("look", config={"dialect": "tools"}))
    assert (view.status, view.stop_reason, view.output) == ("completed", "answer", "It is fine.")


async def test_a_text_is_put_into_the_form_that_the_schema_asks_for(dev_server: WorkflowEnvironment) -> None:
    schema = {"type": "object", "properties": {"fine": {"type": "boolean"}}, "required": ["fine"]}
    script = [LOOK, Turn("It is fine."), Turn('{"output": {"fine": true}}')]
    async with harness(dev_server.client, [look], script) as it:
        it.model.dialect = "tools"
        view = await it.run(agent("look", config={"dialect": "tools"}, schema=schema))
        last = it.model.requests[2]
    assert (view.status, view.stop_reason, view.output, view.errors) == ("completed", "output", {"fine": True}, [])
    assert "tools" not in last.body
    assert last.body["response_format"]["type"] == "json_schema"
    assert {"role": "assistant", "content": "It is fine."} in last.messages


async def test_task_complete(dev_server: WorkflowEnvironment) -> None:
    complete = {
        "calls": [{"_tool": "look", "at": "it"}, {"_tool": "task_complete", "summary": "Did it.", "success": True}]
    }
    async with harness(dev_server.client, [look, task_complete], [complete]) as it:
        view = await it.run(agent("look", "task_complete"))
    assert (view.status, view.stop_reason) == ("completed", "task_complete")
    assert view.output == {"summary": "Did it.", "success": True}
    assert [call.status for call in view.calls] == ["done", "done"]


@pytest.mark.parametrize("dialect", ["solution", "tools", "script"])
async def test_stuck(dialect: str, dev_server: WorkflowEnvironment) -> None:
    script = [LOOK, LOOK, LOOK, LOOK, Turn("I am stuck.") if dialect == "tools" else BEST]
    async with harness(dev_server.client, [look], script) as it:
        it.model.dialect = dialect
        view = await it.run(agent("look", config={"dialect": dialect}))
        told, last = it.model.requests[3:]
    assert "Your last 3 answers asked for the same." in told.text
    assert "try another approach" not in it.model.requests[2].text
    assert (view.status, view.stop_reason, view.requests) == ("completed", "stuck", 5)
    assert "the last 3 answers asked for the same" in last.text
    assert "tools" not in last.body


async def test_an_agent_that_tries_something_else_when_told_goes_on(dev_server: WorkflowEnvironment) -> None:
    other = {"calls": [{"_tool": "look", "at": "another"}], "output": None}
    async with harness(dev_server.client, [look], [LOOK, LOOK, LOOK, other, LOOK, DONE]) as it:
        view = await it.run(agent("look"))
        told = [request.text.count("try another approach") for request in it.model.requests]
    assert (view.stop_reason, view.requests) == ("output", 6)
    assert told == [0, 0, 0, 1, 1, 1]


async def test_stuck_after_is_the_agents_to_say(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [look], [LOOK, LOOK, LOOK, BEST]) as it:
        view = await it.run(agent("look", config={"stuck_after": 2}))
    assert (view.stop_reason, view.requests) == ("stuck", 4)


async def test_max_requests(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [look], looks) as it:
        view = await it.run(agent("look", config={"max_requests": 4}))
        assert ["No more calls can be made" in each.text for each in it.model.requests] == [False, False, False, True]
    assert (view.status, view.stop_reason, view.requests, view.output) == (
        "completed",
        "max_requests",
        4,
        {"ok": False},
    )


FILTERED = {"error": {"message": "The prompt was filtered.", "code": "content_filter", "status": 400}}


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        (refusal("I cannot help with that."), "I cannot help with that."),
        (Turn("I would begin with", finish_reason="content_filter"), "I would begin with"),
        (Turn("", finish_reason="content_filter: SAFETY"), "the server's content filter withheld the answer"),
        (Turn(raw=[json.dumps(FILTERED)], status=400, media_type="application/json"), "The prompt was filtered."),
    ],
)
@pytest.mark.parametrize("dialect", ["solution", "tools"])
async def test_r20_2_a_refusal_ends_the_run_after_one_more_request(
    dialect: str, turn: Turn, words: str, dev_server: WorkflowEnvironment
) -> None:
    async with harness(dev_server.client, [look], [turn, turn, DONE]) as it:
        it.model.dialect = dialect
        view = await it.run(agent("look", config={"dialect": dialect}))
        run = Perdure(dev_server.client).get_run(view.run_id)
        with pytest.raises(RunRefusedError, match="refused"):
            await run.result()
        events = [event async for event in run.events()]
    assert (view.status, view.requests, view.error, view.stop_reason) == ("refused", 2, words, None)
    assert [error["error"]["code"] for error in view.errors] == ["refusal", "refusal"]
    assert events[-1].data["status"] == "refused"
    assert events[-1].data["error"] == words


async def test_r20_2_show_prints_a_refusal_with_the_models_words(dev_server: WorkflowEnvironment) -> None:
    """It printed "because you refused", which are words for the model."""
    no = refusal("I will not help.")
    async with harness(dev_server.client, [look], [no, no]) as it:
        view = await it.run(agent("look"))
        env = {"TEMPORAL_ADDRESS": it.client.service_client.config.target_host}
        shown = await perdure("show", view.run_id, env=env)
        found = json.loads((await perdure("show", view.run_id, "--json", env=env)).out)
        feedback = it.model.requests[1].text
    assert shown.code == 0, shown.err
    assert "  because the model refused: I will not help.\n" in shown.out
    assert "you refused" not in shown.out
    assert f"run {view.run_id} refused\nI will not help.\n" in shown.out
    assert (found["status"], found["error"]) == ("refused", "I will not help.")
    assert "you refused: I will not help." in feedback


async def test_r20_2_a_refusal_is_asked_about_once_more(dev_server: WorkflowEnvironment) -> None:
    no = refusal("No.")
    async with harness(dev_server.client, [look], [no, LOOK, no, DONE]) as it:
        view = await it.run(agent("look"))
    assert (view.status, view.requests) == ("completed", 4)


async def test_r20_2_a_refused_last_request_is_no_limit(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [look], [LOOK, refusal("No."), refusal("No.")]) as it:
        view = await it.run(agent("look", config={"max_requests": 2}))
        only = await it.run(agent("look", config={"max_requests": 1}))
    assert [(each.status, each.error) for each in (view, only)] == [("refused", "No.")] * 2


@pytest.mark.parametrize("answer", [LOOK | {"output": {"ok": True}}, LOOK])
async def test_a_run_that_may_ask_once_asks_once(answer: dict[str, Any], dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [look], [answer]) as it:
        view = await it.run(agent("look", config={"max_requests": 1}))
        it.model.check()
    assert (view.requests, [call.status for call in view.calls]) == (1, ["done"])
    if answer["output"] is not None:
        assert (view.status, view.stop_reason, view.output) == ("completed", "output", {"ok": True})
    else:
        assert (view.status, view.stop_reason) == ("failed", "max_requests")
        assert view.error == "the run may ask 1 times, and none of its answers was an output"


async def test_token_budget(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [look], looks) as it:
        view = await it.run(agent("look", config={"token_budget": 2000}))
        prompts = it.model.prompt_tokens
    assert (view.status, view.stop_reason) == ("completed", "token_budget")
    assert view.usage.prompt_tokens == prompts
    before_last = view.usage.tokens - view.log[-1].usage.tokens
    assert before_last >= 2000 > before_last - view.log[-2].usage.tokens


async def test_cost_budget_and_usage_by_model(dev_server: WorkflowEnvironment) -> None:
    config = {"cost_budget": 0.02, "prices": PRICES}
    async with harness(dev_server.client, [look], looks) as it:
        view = await it.run(agent("look", config=config))
        description = await it.client.get_workflow_handle(view.run_id).describe()
    assert (view.status, view.stop_reason) == ("completed", "cost_budget")
    usage = view.usage
    assert set(usage.by_model) == {"gpt-4o-mini", "gpt-4o"}
    for model, price in PRICES.items():
        used = usage.by_model[model]
        cost = (used.prompt_tokens * price["prompt"] + used.completion_tokens * price["completion"]) / 1e6
        assert used.cost == pytest.approx(cost)
    assert usage.cost == pytest.approx(sum(each.cost or 0 for each in usage.by_model.values()))
    assert usage.cost == pytest.approx(sum(request.cost or 0 for request in view.log))
    assert (await description.memo())["usage"] == usage.as_json()


async def test_a_cost_budget_without_prices_refuses_the_run(dev_server: WorkflowEnvironment) -> None:
    config = {"cost_budget": 1, "models": {"fast": "llama", "smart": "gpt-4o"}}
    async with harness(dev_server.client, [look], []) as it:
        view = await it.run(agent("look", config=config))
    assert view.status == "failed"
    assert view.error == (
        "config.cost_budget needs the price of 'llama': give it in config.prices, or in PERDURE_PRICES for the worker"
    )


async def test_no_known_price_is_no_cost(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [look], [DONE]) as it:
        view = await it.run(agent("look", config={"models": {"fast": "llama"}}))
    assert (view.usage.cost, view.usage.by_model["llama"].cost) == (None, None)


async def test_deadline(dev_server: WorkflowEnvironment) -> None:
    """A tool runs at the deadline, or the model writes, or an approved call runs. The three runs share the waiting time."""
    reached = await asyncio.gather(*(run(dev_server) for run in (_in_a_tool, _in_an_answer, _once_approved)))
    assert reached == ["deadline"] * 3


async def _in_a_tool(dev_server: WorkflowEnvironment) -> str | None:
    calls = [
        {"_tool": "look", "at": "it", "_outputPath": "†state.seen"},
        {"_tool": "sleep", "seconds": 60, "_outputPath": "†state.slept"},
        {"_tool": "look", "at": "†state.slept"},
    ]
    async with harness(dev_server.client, [look, sleep], [{"calls": calls}, BEST]) as it:
        view = await it.run(agent("look", "sleep", config={"deadline": 3}))
        last = it.model.requests[1].text
    assert (view.status, view.stop_reason, view.output, view.requests) == ("completed", "deadline", {"ok": False}, 2)
    assert [call.status for call in view.calls] == ["done", "failed", "skipped"]
    assert view.calls[1].error == {"code": "deadline", "message": f"cancelled, because {DEADLINE}"}
    assert DEADLINE in last
    return view.stop_reason


async def slow_choice(situation: Situation) -> str:
    """A worker's own policy that takes its time at the second Request."""
    await asyncio.sleep(6 if situation.number == 2 else 0)
    return "fast"


async def test_a_deadline_while_the_model_is_chosen_asks_no_second_last_request(
    dev_server: WorkflowEnvironment,
) -> None:
    config = {"deadline": 5, "models": {"policy": "tests.workflows.test_stop_reasons:slow_choice"}}
    document, named = agent("look", config=config, schema={"type": "object"}), ["tests.workflows.test_stop_reasons"]
    async with (
        harness(dev_server.client, [look], [LOOK, BEST], named=named) as one,
        harness(dev_server.client, [look], [LOOK, {"output": 5}], named=named) as other,
    ):
        fits, fails = await asyncio.gather(one.run(document), other.run(document))
        complaints = other.model.complaints
    assert (fits.status, fits.stop_reason, fits.requests, fits.output) == ("completed", "deadline", 2, {"ok": False})
    assert (fails.status, fails.stop_reason, fails.requests, complaints) == ("failed", "deadline", 2, [])


async def test_an_outage_of_all_workers_at_the_deadline_is_no_work(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker was there for an hour: all runs with the default deadline of ten minutes had ended when one came back."""
    monkeypatch.setattr(limits, "OUTAGE", 1.0)
    begun, may_end = asyncio.Event(), asyncio.Event()

    @tool
    async def work(at: str) -> str:
        """Work until it may end."""
        begun.set()
        await may_end.wait()
        return at

    plan = {"calls": [{"_tool": "work", "at": "it", "_outputPath": "†state.done"}], "output": {"done": "†state.done"}}
    async with harness(dev_server.client, [work], [plan]) as it:
        run = await it.start(agent("work", config={"deadline": 5}))
        await begun.wait()
    async for event in run.fetch_history_events(wait_new_event=True):
        if event.HasField("timer_fired_event_attributes"):
            break
    missed = event.event_time.ToDatetime(UTC)
    while True:
        if datetime.now(UTC) - missed > timedelta(seconds=1.5):
            break
        await asyncio.sleep(0.02)
    may_end.set()
    async with harness(dev_server.client, [work], [], task_queue=it.task_queue) as it:
        result = await run.result()
        view = await it.view(run.id)
    assert (result.status, result.stop_reason, result.output) == ("completed", "output", {"done": "it"})
    assert view.worked < 5
    await check_replays(await run.fetch_history())


eager_server = impatient(5)


async def test_r18_4_the_clock_goes_on_over_continue_as_new(eager_server: WorkflowEnvironment) -> None:
    def naps(request: ChatRequest) -> dict[str, Any]:
        if "No more calls can be made" in request.text:
            return BEST
        return {"calls": [{"_tool": "sleep", "seconds": 0.6 + request.number / 1000}], "output": None}

    async with harness(eager_server.client, [sleep], naps) as it:
        view = await it.run(agent("sleep", config={"deadline": 2}))
        first = await it.client.get_workflow_handle(view.run_id).describe()
    assert first.run_id != first.raw_description.workflow_execution_info.first_run_id
    assert (view.status, view.stop_reason) == ("completed", "deadline")
    assert view.requests <= 5
    naps_taken = sum(call.params["seconds"] for call in view.calls if call.status == "done")
    assert max(2, naps_taken) <= view.worked


DEADLINE = "the run has worked for 3 s, which is its deadline"


async def _in_an_answer(dev_server: WorkflowEnvironment) -> str | None:
    gate = asyncio.Event()
    text = '{"calls":[{"_tool":"look","at":"it","_outputPath":"†state.seen"},{"_tool":"look","at":"†state.seen"}]}'
    first = Turn(text, gate=gate, gate_after=text.index(",{"))
    async with harness(dev_server.client, [look], [first, BEST], model_timeout=30) as it:
        view = await it.run(agent("look", config={"deadline": 10}))  # the first call ends before
        await it.model.wait_for_disconnect(1)
        last = it.model.requests[1].text
    assert (view.status, view.stop_reason, view.requests) == ("completed", "deadline", 2)
    assert (view.calls[0].status, view.errors[-1]["error"]["code"]) == ("done", "interrupted")
    assert "the run has worked for 10 s, which is its deadline" in last
    return view.stop_reason


async def test_a_last_answer_that_does_not_fit_fails_and_says_which_limit(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [look], [LOOK, LOOK, LOOK, LOOK, {"output": 5}]) as it:
        view = await it.run(agent("look", schema={"type": "object"}))
    assert (view.status, view.stop_reason) == ("failed", "stuck")
    assert view.error == "the last 3 answers asked for the same, and the last answer was not a valid output"


@tool(dangerous=True)
def remove(what: str) -> str:
    return what


async def test_r9_5_waiting_for_a_person_is_not_work(time_skipping: WorkflowEnvironment) -> None:
    config = {"deadline": 30, "approval": {"timeout": 3 * 86400, "on_timeout": "approve"}}
    async with harness(time_skipping.client, [remove], [{"calls": [{"_tool": "remove", "what": "it"}]}, DONE]) as it:
        view = await it.run(agent("remove", config=config))
    assert (view.status, view.stop_reason, view.calls[0].status) == ("completed", "output", "done")
    assert view.worked < 30


@hook("before_tool_call", tools=["remove"])
def looked_at(_: BeforeToolCall) -> None:
    """See what waits for a person then."""


async def test_r9_5_a_call_that_a_hook_sees_waits_for_its_person_longer_than_the_deadline(
    time_skipping: WorkflowEnvironment,
) -> None:
    """The clock did not pause behind a hook: the run ended while it waited, once without the call."""
    removed: list[str] = []

    @tool(name="remove", dangerous=True)
    def removes(what: str) -> None:
        removed.append(what)

    calls = [{"_tool": "remove", "what": "it"}, {"_tool": "remove", "what": "that"}]
    async with harness(time_skipping.client, [removes, looked_at], [{"calls": calls}, DONE]) as it:
        handle = await it.start(agent("remove", config={"deadline": 600}))
        await it.until_waiting(handle.id, "1.0", "1.1")
        await time_skipping.sleep(5 * 3600)
        run = Perdure(it.client).get_run(handle.id)
        await run.approve("1.0")
        await it.until_waiting(handle.id, "1.1")
        await time_skipping.sleep(5 * 3600)
        await run.approve("1.1")
        await asyncio.wait_for(handle.result(), HANG)
        view = await it.view(handle.id)
        it.model.check()
    assert (view.status, view.stop_reason) == ("completed", "output")
    assert removed == ["it", "that"]
    assert view.worked < 600


@pytest.mark.parametrize("order", list(permutations(range(3))))
async def test_r9_5_in_whatever_order_nothing_but_the_runs_own_work_counts(
    order: tuple[int, ...], time_skipping: WorkflowEnvironment, tmp_path: Path
) -> None:
    """A call that a hook sees before a person, a sleep and a delegate that waits for a person, one after another."""
    below = child(approval={"timeout": 3 * 86400, "on_timeout": "approve"})
    below["context"] = [{"type": "tool", "tool": "remove"}, {"type": "system", "text": "You are the child."}]
    (tmp_path / "child.json").write_text(json.dumps(below))
    waits: list[dict[str, Any]] = [
        {"_tool": "remove", "what": "it"},
        {"_tool": "sleep_until", "seconds": 2 * 86400},
        {"_tool": "helper", "task": "go", "_outputPath": "†state.h"},
    ]
    calls = [waits[n] | ({"_after": [f"1.{place - 1}"]} if place else {}) for place, n in enumerate(order)]

    def answer(request: ChatRequest) -> Any:
        if "the child" in request.text:
            return DONE if "# plan" in request.text else {"calls": [{"_tool": "remove", "what": "it"}]}
        return DONE if "# plan" in request.text else {"calls": calls}

    config = {"deadline": 60, "approval": {"timeout": 3 * 86400, "on_timeout": "approve"}}
    async with harness(time_skipping.client, [remove, looked_at], answer, agents=tmp_path) as it:
        view = await it.run(agent("remove", "sleep_until", HELPER, config=config))
    assert (view.status, view.stop_reason) == ("completed", "output")
    assert [call.status for call in view.calls] == ["done"] * 3
    assert view.worked < 60


async def _once_approved(dev_server: WorkflowEnvironment) -> str | None:
    plan = {"calls": [{"_tool": "sleep", "seconds": 30}]}
    config = {"deadline": 3, "approval": {"ask": "always"}}
    async with harness(dev_server.client, [sleep], [plan, BEST]) as it:
        handle = await it.start(agent("sleep", config=config))
        await it.until_waiting(handle.id, "1.0")
        await Perdure(it.client).get_run(handle.id).approve("1.0")
        result = await asyncio.wait_for(handle.result(), HANG)
    assert (result.status, result.stop_reason) == ("completed", "deadline")
    return result.stop_reason


def child(**config: Any) -> dict[str, Any]:
    return {"name": "child", "config": config, "context": [{"type": "tool", "tool": "look"}], "schema": True}


def family(request: ChatRequest) -> dict[str, Any]:
    """The parent hands on; the child looks until it may not."""
    if "helper" in request.text:
        done = '"helper"' in request.text.split("# plan", 1)[-1] and "# plan" in request.text
        return DONE if done else {"calls": [{"_tool": "helper", "task": "look", "_outputPath": "†state.h"}]}
    return looks(request)


HELPER: dict[str, Any] = {"name": "helper", "_delegate": "child", "properties": {"task": {"type": "string"}}}


async def test_r9_6_a_parents_budget_binds_its_delegates(dev_server: WorkflowEnvironment, tmp_path: Any) -> None:
    (tmp_path / "child.json").write_text(json.dumps(child()))
    async with harness(dev_server.client, [look], family, agents=tmp_path) as it:
        view = await it.run(agent(HELPER, config={"token_budget": 2500}))
        below = await it.view(f"{view.run_id}/1.0")
    assert (below.status, below.stop_reason) == ("completed", "token_budget")
    assert view.usage.tokens - view.log[-1].usage.tokens <= 2500  # its last Request came out of its share, too
    # The child's tokens count for its parent, by model.
    own = sum(request.usage.tokens for request in view.log)
    assert view.usage.tokens == own + below.usage.tokens


async def test_usage_adds_up_by_model() -> None:
    usage, prices = RunUsage(), {"a": Price(prompt=1, completion=2)}
    usage.count("a", Usage(prompt_tokens=1_000_000, completion_tokens=500_000), prices)
    assert usage.cost == pytest.approx(2.0)
    usage.count("b", Usage(prompt_tokens=1), prices)
    assert [usage.cost, *(each.cost for each in usage.by_model.values())] == [None, 2.0, None]
    both = RunUsage()
    both.include(usage)
    both.include(usage)
    assert both.by_model["a"].requests == 2
    assert both.tokens == 2 * usage.tokens


async def test_r9_5_nor_is_a_delegates_waiting_for_one(time_skipping: WorkflowEnvironment, tmp_path: Any) -> None:
    document = {
        "name": "child",
        "config": {"approval": {"timeout": 3 * 86400, "on_timeout": "approve"}},
        "context": [{"type": "tool", "tool": "remove"}],
        "schema": True,
    }
    (tmp_path / "child.json").write_text(json.dumps(document))
    helper = {"_tool": "helper", "task": "go", "_outputPath": "†state.h"}
    script = [{"calls": [helper]}, {"calls": [{"_tool": "remove", "what": "it"}]}, DONE, DONE]
    async with harness(time_skipping.client, [remove], script, agents=tmp_path) as it:
        view = await it.run(agent(HELPER, config={"deadline": 30}))
        below = await it.view(f"{view.run_id}/1.0")
    assert (view.status, view.stop_reason, view.calls[0].status) == ("completed", "output", "done")
    assert (below.stop_reason, below.calls[0].status) == ("output", "done")
    assert below.worked <= view.worked < 30


async def test_a_spent_budget_starts_no_delegate(dev_server: WorkflowEnvironment, tmp_path: Any) -> None:
    (tmp_path / "child.json").write_text(json.dumps(child()))
    calls = [
        {"_tool": "helper", "task": "first", "_outputPath": "†state.a"},
        {"_tool": "helper", "task": "†state.a", "_outputPath": "†state.b"},
    ]

    def answer(request: ChatRequest) -> dict[str, Any]:
        if "helper" not in request.text:
            return looks(request) | ({"output": "seen"} if "No more calls" in request.text else {})
        return BEST if "No more calls" in request.text else {"calls": calls}

    async with harness(dev_server.client, [look], answer, agents=tmp_path) as it:
        view = await it.run(agent(HELPER, config={"token_budget": 2000}))
        names = [run.id async for run in it.client.list_workflows(f"WorkflowId STARTS_WITH '{view.run_id}/'")]
    assert (view.stop_reason, [call.status for call in view.calls[:2]]) == ("token_budget", ["done", "failed"])
    assert (view.calls[1].error or {})["code"] == "token_budget"
    assert f"{view.run_id}/1.1" not in names


async def test_r9_5_a_delegates_deadline_is_kept_by_the_run_above(
    dev_server: WorkflowEnvironment, tmp_path: Any
) -> None:
    slow = child(deadline=1.5) | {"context": [{"type": "tool", "tool": "sleep"}]}
    (tmp_path / "child.json").write_text(json.dumps(slow))
    calls = [{"_tool": "helper", "task": "go"}, {"_tool": "helper", "task": "go", "_each": [1, 2]}]

    def answer(request: ChatRequest) -> dict[str, Any]:
        if "helper" in request.text:
            return DONE if "# plan" in request.text else {"calls": calls}
        return BEST if "No more calls" in request.text else {"calls": [{"_tool": "sleep", "seconds": 60}]}

    async with harness(dev_server.client, [sleep], answer, agents=tmp_path) as it:
        view = await it.run(agent(HELPER))
        below = [await it.view(f"{view.run_id}/{name}") for name in ("1.0", "1.1/0", "1.1/1")]
    assert [(each.stop_reason, each.output) for each in below] == [("deadline", {"ok": False})] * 3
    assert all(1.4 < each.worked < 50 for each in below)


FORTY: dict[str, list[dict[str, Any]]] = {
    "calls": [{"_tool": "helper", "task": f"part {n}"} for n in range(40)],
    "each": [{"_tool": "helper", "task": "parts", "_each": list(range(40)), "_parallel": 40}],
}


@pytest.mark.parametrize("kind", FORTY)
async def test_r18_7_forty_delegates_at_once_share_a_budget(
    kind: str, dev_server: WorkflowEnvironment, tmp_path: Any
) -> None:
    (tmp_path / "child.json").write_text(json.dumps(child()))

    def answer(request: ChatRequest) -> dict[str, Any]:
        if "helper" not in request.text:
            return looks(request)
        return BEST if "No more calls" in request.text or "# plan" in request.text else {"calls": FORTY[kind]}

    async with harness(dev_server.client, [look], answer, agents=tmp_path) as it:
        view = await it.run(agent(HELPER, config={"token_budget": 5000}))
        prompts = it.model.prompt_tokens
        first = await it.view(f"{view.run_id}/1.0{'/0' if kind == 'each' else ''}")
    assert (view.status, view.usage.prompt_tokens) == ("completed", prompts)
    last = view.log[-1].usage.tokens  # the Request for the best answer comes on top of every budget
    below = view.usage.tokens - sum(request.usage.tokens for request in view.log)
    # What runs at once may go beyond it by less than one Request each, and two fit in at once.
    assert view.usage.tokens - last < 5000 + 2 * max(request.usage.tokens for request in first.log)
    assert below > 0
    assert "token_budget" in str(view.errors)


async def test_r18_7_a_delegate_that_fails_settles_too(dev_server: WorkflowEnvironment, tmp_path: Any) -> None:
    (tmp_path / "child.json").write_text(json.dumps(child() | {"schema": {"type": "object"}}))

    def answer(request: ChatRequest) -> dict[str, Any]:
        if "helper" in request.text:
            return BEST if "# plan" in request.text else {"calls": FORTY["calls"][:3]}
        return {"output": 5} if "No more calls" in request.text else looks(request)

    async with harness(dev_server.client, [look], answer, agents=tmp_path) as it:
        view = await it.run(agent(HELPER, config={"token_budget": 12_000}))
        prompts = it.model.prompt_tokens
    assert [(call.status, (call.error or {}).get("code")) for call in view.calls] == [("failed", "LimitReached")] * 3
    assert view.usage.prompt_tokens == prompts
    below = view.usage.tokens - sum(request.usage.tokens for request in view.log)
    assert 8_000 < below < 18_000


@pytest.mark.parametrize(
    "stopped", [pytest.param("deadline", marks=pytest.mark.soak), "cancelled", "child cancelled", "child terminated"]
)
async def test_r9_6_what_was_used_below_counts_however_it_was_stopped(
    stopped: str, dev_server: WorkflowEnvironment, tmp_path: Any
) -> None:
    """Of a delegate and of an iteration that have asked once, and then wait for a person."""
    (tmp_path / "child.json").write_text(json.dumps(child() | {"context": [{"type": "tool", "tool": "remove"}]}))
    helper = {"_tool": "helper", "task": "go"}
    calls = [helper, helper | {"_each": [1]}, {"_tool": "sleep", "seconds": 60}]

    def answer(request: ChatRequest) -> dict[str, Any]:
        if "helper" not in request.text:
            return {"calls": [{"_tool": "remove", "what": "it"}]}
        return BEST if "No more calls" in request.text or "# plan" in request.text else {"calls": calls}

    config = {"deadline": 8} if stopped == "deadline" else {}
    async with harness(dev_server.client, [remove, sleep], answer, agents=tmp_path) as it:
        handle = await it.start(agent(HELPER, "sleep", config=config))
        below = [f"{handle.id}/1.0", f"{handle.id}/1.1/0"]
        for each in below:
            await it.until_waiting(each, "1.0")
        if stopped == "cancelled":
            await handle.cancel()
        elif stopped != "deadline":
            for each in below:
                one = it.client.get_workflow_handle(each)
                await (one.cancel() if stopped == "child cancelled" else one.terminate())
            async with asyncio.timeout(HANG):
                while [call.status for call in (await it.view(handle.id)).calls][:2] != ["failed"] * 2:
                    pass
            await handle.cancel()
        with contextlib.suppress(WorkflowFailureError):
            await asyncio.wait_for(handle.result(), HANG)
        view = await it.view(handle.id)
        used = it.model.prompt_tokens
        statuses = [(await it.view(each)).status for each in below]
    assert sum(usage.requests for usage in view.usage.by_model.values()) == (4 if stopped == "deadline" else 3)
    assert view.usage.prompt_tokens == used
    assert statuses == ["terminated" if stopped == "child terminated" else "cancelled"] * 2


async def test_r6_3_with_a_budget_a_delegate_starts_while_the_model_writes(
    dev_server: WorkflowEnvironment, tmp_path: Any
) -> None:
    (tmp_path / "child.json").write_text(json.dumps(child()))
    begun, gate, whole = asyncio.Event(), asyncio.Event(), asyncio.Event()
    plan = {"calls": [{"_tool": "helper", "task": f"part {n}"} for n in range(2)], "output": None}

    def answer(request: ChatRequest) -> Any:
        if "helper" not in request.text:
            begun.set()
            return Turn(DONE, gate=whole)
        text = json.dumps(plan)
        return DONE if "# plan" in request.text else Turn(plan, gate=gate, gate_after=text.index("part 1") - 20)

    async with harness(dev_server.client, [look], answer, agents=tmp_path) as it:
        handle = await it.start(agent(HELPER, config={"token_budget": 80_000}))
        await asyncio.wait_for(begun.wait(), HANG)
        gate.set()
        async with asyncio.timeout(HANG):
            while (await it.view(handle.id)).log[0].status != "done":
                pass
        whole.set()
        result = await asyncio.wait_for(handle.result(), HANG)
        inputs = [await _budgets(it.client, f"{handle.id}/1.{n}") for n in range(2)]
    assert [call.status for call in result.calls] == ["done", "done"]
    # The first began with an eighth, and was told of its half when the answer was whole.
    assert inputs[0][0] == 10_000
    assert inputs[0][1:] == inputs[1][-1:]
    assert 35_000 < inputs[0][1] < 40_000


async def _budgets(client: Client, run_id: str) -> list[int]:
    """The tokens that a run was given at its start, and those of which it was told later."""
    events = (await client.get_workflow_handle(run_id).fetch_history()).events
    told = [event.workflow_execution_signaled_event_attributes for event in events]
    payloads = [signal.input.payloads[0] for signal in told if signal.signal_name == "budget"]
    given = json.loads(events[0].workflow_execution_started_event_attributes.input.payloads[0].data)
    return [given["budget"]["tokens"], *(json.loads(payload.data)["tokens"] for payload in payloads)]
