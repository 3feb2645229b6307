"""Budgets that many runs share, with a worker and a server (R24.8)."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure, ToolContext, tool
from perdure.client.histories import replay_history
from perdure.hosting.connection import data_converter
from perdure.runs.ledger import ACCOUNTS_QUERY, ledger_id
from perdure.testing.scripted_model import ChatRequest, Turn
from tests.support import agent, harness, impatient
from tests.timeouts import HANG
from tests.workflows.test_resets import reset

DAILY = {"of": "tenant", "unit": "tokens", "sum": 2000, "per": "day", "share": 1000}


@tool(safe=True)
def look(name: str) -> str:
    """Return what is there."""
    return f"{name} is here"


LOOKER = Agent("looker", tools=[look])


def model(request: ChatRequest) -> Turn:
    """Look again and again, 1,000 tokens each time, until an output is wanted."""
    if "is available again from" in json.dumps(request.messages):
        return Turn({"calls": [], "output": "the best"}, usage=(900, 100))
    return Turn({"calls": [{"_tool": "look", "name": uuid.uuid4().hex}], "output": None}, usage=(900, 100))


async def outcome(run: Any) -> str:
    """How the run ended: the reason for its stop, or its failure."""
    try:
        await run.result()
    except Exception as error:
        return str(error)
    return str((await run.view()).stop_reason)


async def test_runs_at_once_cannot_pass_a_budget_together(time_skipping: WorkflowEnvironment) -> None:
    tenant, perdure = uuid.uuid4().hex, Perdure(time_skipping.client)
    async with harness(time_skipping.client, [look], model, budgets=[DAILY | {"sum": 5000}]) as it:
        runs = [await perdure.start(LOOKER, "look", tenant=tenant, task_queue=it.task_queue) for _ in range(4)]
        ends = await asyncio.gather(*map(outcome, runs))
        (account,) = await perdure.limits(tenant=tenant)
        views = [await run.view() for run in runs]
        for each in (runs[0].id, ledger_id(tenant)):
            await replay_history(await time_skipping.client.get_workflow_handle(each).fetch_history(), data_converter())
    assert account.used == sum(view.usage.tokens for view in views) == 5000
    assert "token_budget" in ends
    assert {view.output for end, view in zip(ends, views, strict=True) if end == "token_budget"} == {"the best"}
    assert all("is available again from" in end for end in ends if end != "token_budget")


async def test_a_spent_budget_refuses_a_run_and_is_free_the_next_day(time_skipping: WorkflowEnvironment) -> None:
    tenant, perdure = uuid.uuid4().hex, Perdure(time_skipping.client)
    async with harness(time_skipping.client, [look], model, budgets=[DAILY]) as it:

        async def play() -> str:
            return await outcome(await perdure.start(LOOKER, "look", tenant=tenant, task_queue=it.task_queue))

        assert await play() == "token_budget"
        refused = await play()
        assert f"budget of tenant {tenant}: 2,000 of 2,000 tokens a day are used or reserved." in refused
        assert "It is available again from 20" in refused
        assert "\n" not in refused
        assert len(it.model.requests) == 2
        await time_skipping.sleep(24 * 3600)
        ledger = time_skipping.client.get_workflow_handle(ledger_id(tenant))
        assert [each["used"] for each in await ledger.query(ACCOUNTS_QUERY, "2999-01-01")] == [0]
        assert await play() == "token_budget"
        assert [each.used for each in await perdure.limits(tenant=tenant)] == [2000]


@tool(safe=True)
async def hang() -> str:
    """Wait until it is cancelled."""
    await asyncio.Event().wait()
    return ""


async def test_failed_and_cancelled_runs_settle_what_they_have_used(time_skipping: WorkflowEnvironment) -> None:
    tenant, perdure = uuid.uuid4().hex, Perdure(time_skipping.client)
    hanging = Turn({"calls": [{"_tool": "hang"}], "output": None}, usage=(300, 50))
    script = [Turn("No.", status=400), hanging]
    budgets = [DAILY, DAILY | {"of": "sender", "per": "month"}, DAILY | {"of": "agent", "names": ["another"]}]
    async with harness(time_skipping.client, [look, hang], script, budgets=budgets) as it:

        async def used() -> dict[str, float]:
            return {each.title: each.used for each in await perdure.limits(tenant=tenant)}

        failed = await perdure.start(LOOKER, "look", tenant=tenant, sender="ann", task_queue=it.task_queue)
        assert "failed" in await outcome(failed)
        assert await used() == {f"budget of tenant {tenant}": 0, "budget of sender ann": 0}
        hanger = Agent("hanger", tools=[hang])
        run = await perdure.start(hanger, "wait", tenant=tenant, sender="bob", task_queue=it.task_queue)
        await it.until_answered(run.id)
        assert (await used())["budget of sender bob"] == 2000  # its Request, and one for its best answer
        await run.cancel()
        await outcome(run)
        assert await used() == {
            f"budget of tenant {tenant}": 350,
            "budget of sender ann": 0,
            "budget of sender bob": 350,
        }


async def test_a_delegate_counts_once_for_the_agent_of_the_outermost_run(
    time_skipping: WorkflowEnvironment,
) -> None:
    perdure, tenant = Perdure(time_skipping.client), uuid.uuid4().hex
    helper = Agent("helper", tools=[look])
    boss = Agent("boss", tools=[helper])
    budgets = [DAILY | {"of": "agent", "sum": 5000}, DAILY | {"unit": "dollars", "sum": 1, "share": 0.001}]
    helps = Turn({"calls": [{"_tool": "helper", "request": "a"}], "output": None}, usage=(900, 100))
    done = Turn({"calls": [], "output": "done"}, usage=(900, 100))
    prices = {"scripted": {"prompt": 1, "completion": 1}}
    async with harness(
        time_skipping.client,
        [look],
        [helps, done, done],
        budgets=budgets,
        prices=prices,
        fast_model="scripted",
        smart_model="scripted",
    ) as it:
        run = await perdure.start(boss, "help", tenant=tenant, task_queue=it.task_queue)
        await run.result()
        found = [(each.title, each.unit, each.used) for each in await perdure.limits(tenant=tenant)]
    assert found == [("budget of agent boss", "tokens", 3000), (f"budget of tenant {tenant}", "dollars", 0.003)]


@tool(safe=True)
def judge(ctx: ToolContext) -> str:
    """Ask a model of its own."""
    ctx.report_usage("scripted", prompt_tokens=200, completion_tokens=50)
    return "good"


async def test_what_a_tool_uses_of_a_model_counts_in_the_budget(time_skipping: WorkflowEnvironment) -> None:
    perdure, tenant = Perdure(time_skipping.client), uuid.uuid4().hex
    budgets = [DAILY | {"sum": 9000}, DAILY | {"unit": "dollars", "sum": 1, "share": 0.001}]
    prices = {"scripted": {"prompt": 1, "completion": 1}}
    asks = Turn({"calls": [{"_tool": "judge"}], "output": None}, usage=(900, 100))
    last = Turn({"calls": [{"_tool": "judge", "_outputPath": "†state.x"}], "output": "†state.x"}, usage=(900, 100))
    options: dict[str, Any] = {"prices": prices, "fast_model": "scripted", "smart_model": "scripted"}
    async with harness(time_skipping.client, [judge], [asks, last], budgets=budgets, **options) as it:
        run = await perdure.start(Agent("asker", tools=[judge]), "ask", tenant=tenant, task_queue=it.task_queue)
        await run.result()
        view = await run.view()
        found = {each.unit: each.used for each in await perdure.limits(tenant=tenant)}
    assert found == {"tokens": view.usage.tokens, "dollars": pytest.approx(view.usage.cost)}
    assert view.usage.tokens == 2500


async def test_the_tools_of_a_plan_before_the_first_request_count_with_that_request(
    time_skipping: WorkflowEnvironment,
) -> None:
    perdure, tenant = Perdure(time_skipping.client), uuid.uuid4().hex
    given = {"type": "plan", "plan": [{"_tool": "judge"}]}
    asker = Agent.of(agent("judge", context=[given], config={"start": "plan"}))
    done = Turn({"calls": [], "output": "done"}, usage=(900, 100))
    async with harness(time_skipping.client, [judge], [done], budgets=[DAILY | {"sum": 9000}]) as it:
        run = await perdure.start(asker, tenant=tenant, task_queue=it.task_queue)
        await run.result()
        (account,) = await perdure.limits(tenant=tenant)
    assert account.used == (await run.view()).usage.tokens == 1250


ITEMS: dict[str, Any] = {"_each": ["a", "b", "c"], "_as": "item"}
HELPS: dict[str, Any] = {"_tool": "helper", "request": "†item"}
LOOPS = {
    "a loop over a delegate": [{**HELPS, "_each": ITEMS["_each"]}],
    "a delegate and a tool in a body": [{"_tool": "_for", **ITEMS, "_body": [HELPS, {"_tool": "judge"}]}],
}
BOSS = Agent("boss", instructions="You are BOSS.", tools=[Agent("helper", tools=[look]), judge])


def boss_and_helpers(calls: Any, helper: Callable[[ChatRequest], Turn]) -> Callable[[ChatRequest], Turn]:
    """A model for BOSS, who makes these calls once, and for its helpers."""
    plans = [Turn({"calls": calls, "output": None}, usage=(900, 100))]

    def answer(request: ChatRequest) -> Turn:
        if "You are BOSS." not in json.dumps(request.messages):
            return helper(request)
        return plans.pop() if plans else Turn({"calls": [], "output": "done"}, usage=(900, 100))

    return answer


@pytest.mark.parametrize("loop", LOOPS)
async def test_what_iterations_use_counts_once_for_the_agent_of_the_outermost_run(
    time_skipping: WorkflowEnvironment, loop: str
) -> None:
    perdure, tenant = Perdure(time_skipping.client), uuid.uuid4().hex
    script = boss_and_helpers(LOOPS[loop], lambda _: Turn({"calls": [], "output": "done"}, usage=(900, 100)))
    budgets = [DAILY | {"of": "agent", "sum": 20_000}]
    async with harness(time_skipping.client, [look, judge], script, budgets=budgets) as it:
        run = await perdure.start(BOSS, "help", tenant=tenant, task_queue=it.task_queue)
        await run.result()
        view, (account,) = await run.view(), await perdure.limits(tenant=tenant)
        await replay_history(await time_skipping.client.get_workflow_handle(run.id).fetch_history(), data_converter())
    used = 2 * 1000 + 3 * (1000 + 250 * ("tool" in loop))  # BOSS, and each iteration
    assert (account.title, account.used, view.usage.tokens) == ("budget of agent boss", used, used)


@pytest.mark.parametrize("loop", LOOPS)
async def test_iterations_at_once_cannot_pass_a_budget_together(time_skipping: WorkflowEnvironment, loop: str) -> None:
    perdure, tenant = Perdure(time_skipping.client), uuid.uuid4().hex
    script = boss_and_helpers(LOOPS[loop], model)
    async with harness(time_skipping.client, [look, judge], script, budgets=[DAILY | {"sum": 9000}]) as it:
        run = await perdure.start(BOSS, "help", tenant=tenant, task_queue=it.task_queue)
        end = await outcome(run)
        view, (account,) = await run.view(), await perdure.limits(tenant=tenant)
    assert (end, view.output) == ("token_budget", "done")
    # No Request passes the sum. What a tool reports was not reserved: three calls of `judge` may.
    assert account.used == view.usage.tokens == 9000 + 3 * 250 * ("tool" in loop)


impatient_server = impatient(20)


async def test_a_run_that_continues_as_new_settles_each_request_once(impatient_server: WorkflowEnvironment) -> None:
    tenant, perdure = uuid.uuid4().hex, Perdure(impatient_server.client)
    async with harness(impatient_server.client, [look], model, budgets=[DAILY | {"sum": 6000, "per": "month"}]) as it:
        run = await perdure.start(LOOKER, "look", tenant=tenant, task_queue=it.task_queue)
        await run.result()
        handle = impatient_server.client.get_workflow_handle(run.id)
        execution = (await handle.describe()).raw_description.workflow_execution_info
        assert execution.first_run_id != execution.execution.run_id, "it did not continue as new"
        view, (account,) = await run.view(), await perdure.limits(tenant=tenant)
        await impatient_server.client.get_workflow_handle(ledger_id(tenant)).terminate()
    assert (view.usage.tokens, view.stop_reason) == (6000, "token_budget")
    assert (account.used, account.reservations) == (6000, 6)


async def test_a_dollar_budget_refuses_a_model_without_a_price(time_skipping: WorkflowEnvironment) -> None:
    perdure, budgets = Perdure(time_skipping.client), [DAILY | {"unit": "dollars"}]
    async with harness(time_skipping.client, [look], model, budgets=budgets, fast_model="own/one") as it:
        run = await perdure.start(LOOKER, "look", tenant=uuid.uuid4().hex, task_queue=it.task_queue)
        assert "the price of own/one is not known, so the budget of tenant" in await outcome(run)
    assert it.model.requests == []


async def test_a_run_that_is_reset_while_it_holds_a_reservation_counts_each_request_once(
    dev_server: WorkflowEnvironment,
) -> None:
    tenant, perdure = uuid.uuid4().hex, Perdure(dev_server.client)
    hanging = Turn({"calls": [{"_tool": "hang"}], "output": None}, usage=(300, 50))
    async with harness(
        dev_server.client, [hang], lambda _: hanging, budgets=[DAILY | {"sum": 5000, "per": "month"}]
    ) as it:
        run = await perdure.start(Agent("hanger", tools=[hang]), "wait", tenant=tenant, task_queue=it.task_queue)
        await it.until_answered(run.id)
        (held,) = await perdure.limits(tenant=tenant)
        await reset(dev_server, it.client.get_workflow_handle(run.id), 3)
        async with asyncio.timeout(HANG):
            while True:
                if len(it.model.requests) == 2:
                    break
                await asyncio.sleep(0.02)
        await it.until_answered(run.id)
        (again,) = await perdure.limits(tenant=tenant)
        assert (held.used, held.reservations) == (again.used, again.reservations) == (2000, 1)
        await run.cancel()
        await outcome(run)
        (account,) = await perdure.limits(tenant=tenant)
        assert (account.used, account.reservations) == (350, 1)
