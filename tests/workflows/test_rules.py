"""Rules of runs, as an application meets them (R23.1, R23.2): no run breaks one, whatever its model plans."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure, ToolError, hook, tool, workflow_tool
from perdure.client.histories import replay_history
from perdure.errors import DecisionRefusedError
from perdure.hooks import BeforeToolCall
from perdure.hosting.connection import data_converter
from perdure.rules import Rule, at_most, count_at_most, followed_by, needs, never_after, only_from, precedes
from perdure.runs.ledger import LEDGER_WORKFLOW, ledger_id
from perdure.testing import LocalRun, run_locally
from perdure.testing.scripted_model import ChatRequest, Turn
from perdure.values.json import JsonObject
from perdure.values.limits import MAX_ID
from tests.support import DONE, agent, check_replays, harness, impatient
from tests.timeouts import HANG
from tests.workflows.test_durability import CALLS, answered, site
from tests.workflows.test_resets import reset

pytestmark = pytest.mark.asyncio(loop_scope="session")

begun: list[tuple[str, Any]] = []


@pytest.fixture(autouse=True)
def nothing_begun() -> None:
    begun.clear()


@tool(safe=True)
def fraud_check(customer: str) -> bool:
    """Whether the customer may have money back."""
    begun.append(("fraud_check", customer))
    if customer == "mallory":
        raise ValueError("mallory is known")
    return True


@tool
def refund(customer: str, euros: float) -> str:
    """Pay money back."""
    begun.append(("refund", euros))
    return f"{euros:g} euros for {customer}"


@tool
def send_mail(to: str) -> str:
    """Send a mail."""
    begun.append(("send_mail", to))
    return f"sent to {to}"


@tool(safe=True, untrusted=True)
def read_mail() -> str:
    """Read a mail of somebody."""
    return "IBAN 666"


@tool(safe=True)
def look(at: str) -> str:
    """Look at a shop."""
    return at


TOOLS: list[Any] = [fraud_check, refund, send_mail, read_mail]


def rules(*these: Any) -> dict[str, Any]:
    return {"rules": [each.model_dump(mode="json", exclude_defaults=True) for each in these]}


def pays(euros: Any, customer: str = "ann", **more: Any) -> dict[str, Any]:
    return {"_tool": "refund", "customer": customer, "euros": euros, **more}


def checks(customer: str = "ann") -> dict[str, Any]:
    return {"_tool": "fraud_check", "customer": customer, "_outputPath": "†state.checked"}


def plan(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"calls": list(calls), "output": None}


def refunds() -> list[Any]:
    return [euros for name, euros in begun if name == "refund"]


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"rules": [only_from("refund.custmer", "trusted")]}, "rules[0]"),
        ({"approval": {"tools": {"refund": {"when": {"required": ["custmer"]}}}}}, "approval.tools.refund.when"),
    ],
)
async def test_r23_1_a_run_whose_rule_names_no_parameter_of_its_tool_is_refused(
    options: dict[str, Any], place: str
) -> None:
    named = Agent("a", instructions="x", tools=["refund"], **options)  # the worker alone knows the tool's parameters
    named.check_policy()
    async with run_locally(named, tools=[refund], model=[]) as local:
        wrong = f'failed: $.config.{place}: "custmer" is not a known parameter of refund; did you mean "customer"?'
        with pytest.raises(AssertionError, match=re.escape(wrong)):
            await local.run("Pay.")
    assert not begun


async def test_a_plan_that_breaks_a_rule_on_some_path_is_an_error_and_the_model_plans_again(
    time_skipping: WorkflowEnvironment,
) -> None:
    document = agent("fraud_check", "refund", config=rules(precedes("fraud_check", "refund", same="customer")))
    script = [plan(pays(50)), plan(checks(), pays(50, _after=["2.0"])), DONE]
    async with harness(time_skipping.client, TOOLS, script) as it:
        view = await it.run(document)
        said = json.dumps([request.messages for request in it.model.requests])
    assert view.status == "completed"
    first = view.calls[0]
    assert (first.status, (first.error or {})["code"]) == ("invalid", "rule_broken")
    assert "1.0 refund begins" in (first.error or {})["message"]
    assert "1.0 refund can begin although no call of fraud_check is done" in said
    assert begun == [("fraud_check", "ann"), ("refund", 50.0)]


async def test_a_call_whose_check_has_failed_does_not_run_and_no_branch_takes_it(
    time_skipping: WorkflowEnvironment,
) -> None:
    rule = precedes("fraud_check", "refund", same="customer")
    script = [
        plan(checks("mallory") | {"_outputPath": "†state.checked || †state.no"}),
        plan(pays(50, "mallory", _outputPath="†state.paid || †state.failed")),
        DONE,
    ]
    async with harness(time_skipping.client, TOOLS, script) as it:
        view = await it.run(agent("fraud_check", "refund", config=rules(rule)))
    assert [call.status for call in view.calls] == ["failed", "invalid"]
    assert "failed" not in view.state
    assert refunds() == []


async def test_sums_and_counts_hold_over_requests_and_over_values_that_are_only_known_at_the_call(
    time_skipping: WorkflowEnvironment,
) -> None:
    config = rules(at_most("refund.euros", 100), count_at_most("send_mail", 2))
    script = [
        plan(pays(60), {"_tool": "send_mail", "to": "a"}),
        plan(
            pays("†state.amount"),
            {"_tool": "_for", "_each": "†state.names", "_body": [{"_tool": "send_mail", "to": "†item"}]},
        ),
        plan(pays(40)),
        plan(pays(0.01)),
        DONE,
    ]
    state = {"type": "state", "state": {"amount": 41, "names": ["b", "c"]}}
    async with harness(time_skipping.client, TOOLS, script) as it:
        view = await it.run(agent("refund", "send_mail", context=[state], config=config))
    assert view.status == "completed"
    assert refunds() == [60, 40]
    assert len([name for name, _ in begun if name == "send_mail"]) == 2
    errors = [(call.error or {}).get("message", "") for call in view.calls]
    assert any("would be 101; the limit is 100" in each for each in errors), errors


async def test_of_calls_that_start_at_once_no_more_begin_than_the_sum_allows(
    time_skipping: WorkflowEnvironment,
) -> None:
    script = [plan(*(pays("†state.amount") for _ in range(6))), DONE]
    state = {"type": "state", "state": {"amount": 30}}
    async with harness(time_skipping.client, TOOLS, script) as it:
        view = await it.run(agent("refund", context=[state], config=rules(at_most("refund.euros", 100))))
    assert refunds() == [30, 30, 30]
    assert [call.status for call in view.calls].count("invalid") == 3


async def test_of_calls_that_start_at_once_a_person_is_asked_about_those_beyond_the_sum(
    time_skipping: WorkflowEnvironment,
) -> None:
    config = rules(at_most("refund.euros", 100, otherwise="ask")) | {"approval": {"ask": "never"}}
    script = [plan(*(pays("†state.amount") for _ in range(5))), DONE]
    state = {"type": "state", "state": {"amount": 30}}
    async with harness(time_skipping.client, TOOLS, script) as it:
        handle = await it.start(agent("refund", context=[state], config=config))
        await it.until_waiting(handle.id, "1.3", "1.4")
        run = Perdure(time_skipping.client).get_run(handle.id)
        shown = await run.waiting()
        assert all("would be 120; the limit is 100" in each.reason for each in shown)
        await run.approve("1.3")
        await run.reject("1.4")
        result = await handle.result()
        await check_replays(await handle.fetch_history())
    assert refunds() == [30] * 4
    assert [call.status for call in result.calls] == ["done"] * 4 + ["rejected"]


async def test_a_person_can_allow_only_what_the_rule_leaves_to_people(dev_server: WorkflowEnvironment) -> None:
    config = rules(at_most("refund.euros", 100, otherwise="ask"), count_at_most("refund", 3)) | {
        "approval": {"ask": "never", "tools": {"refund": "never"}}
    }
    script = [plan(pays(90)), plan(pays(20)), plan(pays(30)), plan(pays(1)), DONE]
    async with harness(dev_server.client, TOOLS, script) as it:
        handle = await it.start(agent("refund", config=config))
        run = Perdure(dev_server.client).get_run(handle.id)
        await it.until_waiting(handle.id, "2.0")
        (request,) = await run.waiting()
        assert "the sum of refund.euros would be 110; the limit is 100" in request.reason
        await run.approve(request, by="bob")
        await it.until_waiting(handle.id, "3.0")
        await run.reject("3.0", reason="enough", by="bob")
        await it.until_waiting(handle.id, "4.0")
        await run.approve("4.0", by="bob")
        await handle.result()
    assert refunds() == [90, 20, 1]


async def test_an_edit_of_a_person_does_not_break_a_rule(dev_server: WorkflowEnvironment) -> None:
    config = rules(at_most("refund.euros", 100)) | {"approval": {"tools": {"refund": "always"}}}
    async with harness(dev_server.client, TOOLS, [plan(pays(50)), DONE]) as it:
        handle = await it.start(agent("refund", config=config))
        await it.until_waiting(handle.id, "1.0")
        run = Perdure(dev_server.client).get_run(handle.id)
        with pytest.raises(DecisionRefusedError, match="would be 500; the limit is 100"):
            await run.edit("1.0", {"euros": 500})
        await run.edit("1.0", {"euros": 99})
        await handle.result()
    assert refunds() == [99]


async def test_a_client_s_call_in_the_place_of_another_has_its_hooks_and_counts(
    dev_server: WorkflowEnvironment,
) -> None:
    @hook("before_tool_call", tools=["pay"])
    def double(event: BeforeToolCall) -> BeforeToolCall:
        return event.changed(params={"euros": event.params["euros"] * 2})

    pay = {"name": "pay", "properties": {"euros": {"type": "number"}}, "_activity": "perdure.client"}
    config = rules(at_most("pay.euros", 100)) | {"approval": {"tools": {"send_mail": "always"}}}
    mails = plan({"_tool": "send_mail", "to": "ann"}, {"_tool": "send_mail", "to": "bob"})
    async with harness(dev_server.client, [*TOOLS, double], [mails, DONE]) as it:
        handle = await it.start(agent("send_mail", pay, config=config))
        run = Perdure(dev_server.client).get_run(handle.id)
        await it.until_waiting(handle.id, "1.0", "1.1")
        await run.replace("1.0", {"_tool": "pay", "euros": 30}, by="bob")
        async with asyncio.timeout(HANG):
            while True:
                if (await it.view(handle.id)).calls[0].params == {"euros": 60}:
                    break
                await asyncio.sleep(0.02)
        with pytest.raises(DecisionRefusedError, match="would be 110; the limit is 100"):
            await run.replace("1.1", {"_tool": "pay", "euros": 50})
        await run.replace("1.1", {"_tool": "pay", "euros": 30})
        await run.answer("1.0", "paid")
        result = await handle.result()
    assert [call.status for call in result.calls] == ["done", "invalid"]
    assert "would be 120; the limit is 100" in (result.calls[1].error or {})["message"]


async def test_an_approval_allows_only_the_broken_rules_that_its_request_names(dev_server: WorkflowEnvironment) -> None:
    """Another call has begun since the request, so the second one breaks a rule that the person has not seen."""
    config = rules(at_most("refund.euros", 100, otherwise="ask")) | {"approval": {"tools": {"refund": "always"}}}
    state = {"type": "state", "state": {"amount": 60}}
    script = [plan(pays("†state.amount"), pays("†state.amount", "bob")), DONE]
    async with harness(dev_server.client, TOOLS, script) as it:
        handle = await it.start(agent("refund", context=[state], config=config))
        await it.until_waiting(handle.id, "1.0", "1.1")
        run = Perdure(dev_server.client).get_run(handle.id)
        shown = {each.call: each for each in await run.waiting()}
        await run.approve(shown["1.1"])
        await it.until_waiting(handle.id, "1.0")
        async with asyncio.timeout(HANG):
            while True:
                if refunds() == [60]:
                    break
                await asyncio.sleep(0.02)
        with pytest.raises(DecisionRefusedError, match=r"now also breaks a rule: .* would be 120; the limit is 100"):
            await run.approve(shown["1.0"])
        (again,) = await run.waiting()
        assert "would be 120; the limit is 100" in again.reason
        await run.approve(again)
        await handle.result()
        await check_replays(await handle.fetch_history())
    assert refunds() == [60, 60]


@pytest.mark.parametrize("loop", [{"_each": [1, 2, 3]}, {"_until": "†output == 'never'", "_max": 3}])
async def test_each_run_of_a_loop_over_a_delegate_counts(loop: dict[str, Any]) -> None:
    clerk = Agent("clerk", instructions="You say a word.")
    boss = Agent("boss", tools=[clerk], rules=[count_at_most("clerk", 2)])
    script = plan({"_tool": "clerk", "request": "Speak.", "_outputPath": "†state.all", **loop})
    async with run_locally(boss, model=[script, DONE]) as local:
        view = await local.run("Let them speak.")
    assert view.calls[0].error is not None
    assert "the rule count_at_most(clerk, 2" in view.calls[0].error["message"]


@pytest.mark.parametrize("items", [[], ["ann"], ["ann"] * 101])
@pytest.mark.parametrize("first", ["fraud_check", "clerk"])
async def test_only_a_done_iteration_of_a_loop_precedes(first: str, items: list[str]) -> None:
    """The items of a tool run inside the run, or in a child workflow if there are many. Each item of an agent is a run."""
    clerk = Agent("clerk", instructions="You say a word.")
    boss = Agent("boss", instructions="You pay.", tools=[fraud_check, refund, clerk], rules=[precedes(first, "refund")])
    params = {"customer": "†item"} if first == "fraud_check" else {"request": "Speak."}
    items = items[: 101 if first == "fraud_check" else 1]
    loop = {"_tool": first, **params, "_each": items, "_outputPath": "†state.checks"}

    def answer(request: ChatRequest) -> Any:
        is_first = "You pay." in request.messages[0]["content"] and len(request.messages) < 4
        return plan(loop, pays(5, _after=["1.0"])) if is_first else DONE

    async with run_locally(boss, model=answer) as local:
        await local.run("Pay ann.")
    assert refunds() == ([5] if items else [])


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    ("rule", "paid"), [(precedes("clerk", "refund"), [5]), (never_after("refund", "clerk", event="done"), [])]
)
async def test_an_iteration_is_done_although_its_loop_fails_later(rule: Rule, paid: list[int], fails: bool) -> None:
    """The condition never holds, or the second iteration fails."""
    clerk = Agent("clerk", instructions="You say a word.", output={"type": "string", "pattern": "^a"})
    boss = Agent("boss", instructions="You pay.", tools=[refund, clerk], rules=[rule])
    loop = {"_tool": "clerk", "request": "Speak.", "_until": "†output == 'never'", "_max": 2}
    plans = iter([plan(loop), plan(pays(5)), DONE, DONE])
    words = iter(["a", *(["b"] * 9 if fails else ["a"])])

    def answer(request: ChatRequest) -> Any:
        is_boss = "You pay." in request.messages[0]["content"]
        return next(plans) if is_boss else {"calls": [], "output": next(words)}

    async with run_locally(boss, model=answer) as local:
        view = await local.run("Pay ann.")
    assert (view.calls[0].error or {})["code"] == ("iteration_failed" if fails else "max_iterations")
    assert refunds() == paid


@pytest.mark.parametrize("end", ["cancelled", "terminated", "run cancelled"])
@pytest.mark.parametrize("done", [0, 1])
async def test_an_iteration_of_a_loop_that_does_not_end_by_itself_counts(
    dev_server: WorkflowEnvironment, end: str, done: int
) -> None:
    """One iteration is done, or none; the next one runs when its loop ends. Of a terminated loop it may still return."""
    working = asyncio.Event()

    @tool(retries=0)
    async def write(n: int) -> str:
        """Write, and in the last iteration wait."""
        if n < done:
            return "written"
        working.set()
        await asyncio.sleep(HANG)
        return "late"

    rules: list[Rule] = [never_after("refund", "clerk", event="done"), precedes("clerk", "send_mail")]
    clerk = Agent("clerk", instructions="You write.", tools=[write])
    lead = Agent("lead", instructions="You lead.", tools=[clerk])
    boss = Agent("boss", instructions="You pay.", tools=[lead, refund, send_mail], rules=rules)
    loop = {"_tool": "clerk", "request": "go", "_each": [*range(done + 1)], "_parallel": 1}
    seen: dict[str, int] = {}

    def model(request: ChatRequest) -> Any:
        seen[request.run_id] = turn = seen.get(request.run_id, 0) + 1
        match request.run_id.count("/"), turn:
            case 0, 1:
                return plan({"_tool": "lead", "request": "go"})
            case 0, 2:
                return plan(pays(5), {"_tool": "send_mail", "to": "ann"})
            case 1, 1:
                return plan(loop)
            case 3, 1:
                return plan({"_tool": "write", "n": int(request.run_id.rpartition("/")[2])})
        return DONE

    async with run_locally(boss, tools=TOOLS, model=model, server=dev_server) as local:
        run = await local.start("go")
        await asyncio.wait_for(working.wait(), HANG)
        handle = dev_server.client.get_workflow_handle(f"{run.id}/1.0" + ("/1.0" if end != "run cancelled" else ""))
        await (handle.terminate() if end == "terminated" else handle.cancel())
        await run.wait()
    paid, sent = not done and end != "terminated", bool(done)
    assert {name for name, _ in begun} == {
        name for name, is_allowed in (("refund", paid), ("send_mail", sent)) if is_allowed
    }


@pytest.mark.parametrize(
    ("carried_out", "paid", "mailed"), [(True, False, True), (None, False, False), (False, True, False)]
)
async def test_a_failed_call_that_may_have_taken_effect_counts_as_done_and_failed(
    time_skipping: WorkflowEnvironment, carried_out: bool | None, paid: bool, mailed: bool
) -> None:
    """`never_after` assumes the worst case, and `precedes` relies on nothing that is unknown."""

    @tool(retries=0)
    def book() -> str:
        """Book, and lose the confirmation."""
        raise ToolError("no_confirmation", "the hotel sent no confirmation", carried_out=carried_out)

    document = agent(
        "book",
        "refund",
        "send_mail",
        config=rules(never_after("refund", "book", event="done"), precedes("book", "send_mail")),
    )
    script = [plan({"_tool": "book"}), plan(pays(5), {"_tool": "send_mail", "to": "ann"}), DONE]
    async with harness(time_skipping.client, [*TOOLS, book], script) as it:
        await it.run(document)
    assert {name for name, _ in begun} == {*(["refund"] if paid else []), *(["send_mail"] if mailed else [])}


async def test_two_calls_that_wait_for_people_cannot_both_use_what_is_left(dev_server: WorkflowEnvironment) -> None:
    config = rules(at_most("refund.euros", 100)) | {"approval": {"tools": {"refund": "always"}}}
    state = {"type": "state", "state": {"amount": 60}}
    script = [plan(pays("†state.amount"), pays("†state.amount", "bob")), DONE]
    async with harness(dev_server.client, TOOLS, script) as it:
        handle = await it.start(agent("refund", context=[state], config=config))
        await it.until_waiting(handle.id, "1.0", "1.1")
        run = Perdure(dev_server.client).get_run(handle.id)
        await run.approve("1.1")
        with pytest.raises(DecisionRefusedError, match="would be 120; the limit is 100"):
            await run.approve("1.0")
        await run.reject("1.0")
        result = await handle.result()
    assert refunds() == [60]
    assert sorted(call.status for call in result.calls) == ["done", "rejected"]


async def test_values_of_others_and_people_without_a_role(time_skipping: WorkflowEnvironment) -> None:
    config = rules(only_from("send_mail.to", "trusted"), needs("finance", "refund"))
    script = [
        plan(
            {"_tool": "read_mail", "_outputPath": "†state.mail"}, {"_tool": "send_mail", "to": "†state.mail"}, pays(5)
        ),
        plan({"_tool": "send_mail", "to": "†input.to"}),
        DONE,
    ]
    context = [{"type": "input", "schema": {"properties": {"to": {"type": "string"}}}}]
    async with harness(time_skipping.client, TOOLS, script) as it:
        view = await it.run(agent("read_mail", "send_mail", "refund", context=context, config=config), {"to": "me"})
    assert begun == [("send_mail", "me")]
    assert "send_mail.to comes from read_mail (written by others)" in (view.calls[1].error or {})["message"]


async def test_runs_below_keep_the_rules_and_their_calls_count_together() -> None:
    clerk = Agent("clerk", tools=[send_mail, fraud_check])
    boss = Agent(
        "boss",
        tools=[clerk, send_mail, refund],
        rules=[count_at_most("send_mail", 3), precedes("fraud_check", "refund")],
    )

    def model(request: ChatRequest) -> Any:
        outer = "clerk" in {
            each["function"]["name"] for each in request.body.get("tools", [])
        } or '"clerk"' in json.dumps(request.body)
        seen[request.run_id] = seen.get(request.run_id, 0) + 1
        turn = seen[request.run_id]
        if outer and turn == 1:
            mine = [{"_tool": "clerk", "request": f"write {n}"} for n in range(3)]
            return plan(*mine, {"_tool": "send_mail", "to": "last"}, pays(1, _after=["1.0", "1.1", "1.2"]))
        if outer and turn == 2:
            return plan(pays(2))
        if not outer and turn == 1:
            return plan({"_tool": "send_mail", "to": "x"}, {"_tool": "send_mail", "to": "y"}, checks())
        return {"calls": [], "output": "done"}

    seen: dict[str, int] = {}
    async with run_locally(boss, model=model) as local:
        view = await local.run("write")
    assert view.status == "completed"
    assert len([name for name, _ in begun if name == "send_mail"]) == 3
    assert refunds() == [1, 2]


async def test_more_than_100_items_count_together(time_skipping: WorkflowEnvironment) -> None:
    loop = {"_tool": "_for", "_each": "†state.people", "_body": [{"_tool": "send_mail", "to": "†item"}]}
    state = {"type": "state", "state": {"people": [f"p{n}" for n in range(150)]}}
    script = [plan({"_tool": "send_mail", "to": "first"}), plan(loop), plan({"_tool": "send_mail", "to": "last"}), DONE]
    async with harness(time_skipping.client, TOOLS, script) as it:
        view = await it.run(agent("send_mail", context=[state], config=rules(count_at_most("send_mail", 121))))
    assert view.status == "completed"
    assert len(begun) == 121


async def test_a_worker_adds_its_rules_to_those_of_every_agent(time_skipping: WorkflowEnvironment) -> None:
    floor = [{"rule": "count_at_most", "of": "send_mail", "count": 1}]
    script = [plan({"_tool": "send_mail", "to": "a"}), plan({"_tool": "send_mail", "to": "b"}), DONE]
    async with harness(time_skipping.client, TOOLS, script, rules=floor) as it:
        view = await it.run(agent("send_mail", config=rules(count_at_most("send_mail", 9))))
    assert begun == [("send_mail", "a")]
    assert view.calls[1].status == "invalid"


async def test_a_failed_backup_forbids_the_deletion(time_skipping: WorkflowEnvironment) -> None:
    rule = never_after("send_mail", "fraud_check", event="failed")
    mail = {"_tool": "send_mail", "to": "a"}
    script = [
        plan(checks("mallory"), mail | {"_after": ["ended 1.0"]}),  # on some path it would break the rule
        plan(mail),
        DONE,
    ]
    async with harness(time_skipping.client, TOOLS, script) as it:
        view = await it.run(agent("fraud_check", "send_mail", config=rules(rule)))
    assert [call.status for call in view.calls] == ["failed", "invalid", "invalid"]
    assert "1.0 fraud_check fails → 1.1 send_mail begins" in (view.calls[1].error or {})["message"]
    assert "a call of fraud_check has failed" in (view.calls[2].error or {})["message"]


impatient_server = impatient(20)


async def test_a_run_that_continues_as_new_knows_what_has_happened(impatient_server: WorkflowEnvironment) -> None:
    script = [*(plan(pays(10)) for _ in range(8)), DONE]
    async with harness(impatient_server.client, TOOLS, script) as it:
        handle = await it.start(agent("refund", config=rules(at_most("refund.euros", 50)) | {"stuck_after": 20}))
        await handle.result()
        first = [each async for each in impatient_server.client.list_workflows(f"WorkflowId = '{handle.id}'")]
    assert len(first) > 1, "it did not continue as new"
    assert refunds() == [10] * 5


async def test_the_runs_of_a_session_count_together() -> None:
    clerk = Agent(
        "clerk", tools=[refund], rules=[at_most("refund.euros", 100, per="session"), count_at_most("refund", 1)]
    )
    turns = [plan(pays(60)), {"calls": [], "output": "a"}, plan(pays(50)), plan(pays(40)), {"calls": [], "output": "b"}]
    async with run_locally(clerk, model=turns) as local:
        session = local.session("ann")
        await session.ask("pay 60", sender="ann")
        await session.ask("pay 50", sender="ann")
    assert refunds() == [60, 40]


async def test_a_fork_of_a_session_has_its_rule_record(dev_server: WorkflowEnvironment) -> None:
    clerk = Agent("clerk", tools=[refund], rules=[at_most("refund.euros", 100, per="session")])
    turns = [plan(pays(60)), DONE, plan(pays(50)), plan(pays(40)), DONE]
    async with run_locally(clerk, model=turns, server=dev_server) as local:
        perdure = Perdure(dev_server.client, task_queue=local.perdure.task_queue)
        session = perdure.session(uuid.uuid4().hex, agent=clerk)
        await session.ask("pay 60", sender="ann")
        await (await session.fork("1")).ask("pay 50", sender="ann")
    assert refunds() == [60, 40]


@pytest.mark.parametrize("per", ["session", "tenant/day"])
async def test_what_was_undone_still_counts(per: Any, dev_server: WorkflowEnvironment) -> None:
    @tool
    def take_back(euros: float) -> str:
        """Take a payment back."""
        begun.append(("take_back", euros))
        return "taken back"

    @tool(undo=take_back)
    def refund(customer: str, euros: float) -> str:
        """Pay money back."""
        begun.append(("refund", euros))
        return f"{euros:g} euros for {customer}"

    clerk = Agent("clerk", tools=[refund], rules=[at_most("refund.euros", 100, per=per)], output=str)
    over: dict[str, Any] = {"calls": [], "output": "over"}
    async with run_locally(
        clerk, model=[plan(pays(60)), over, plan(pays(60)), over], tools=[take_back], server=dev_server
    ) as local:
        session = local.session(uuid.uuid4().hex, tenant=uuid.uuid4().hex)
        receipt = await session.send("pay 60", sender="ann")
        await session.reply(receipt)
        assert receipt.run_id is not None
        undo = await Perdure(dev_server.client, task_queue=local.perdure.task_queue).get_run(receipt.run_id).undo()
        assert (await undo.wait()).status == "completed"
        await session.ask("pay 60", sender="ann")
    assert begun == [("refund", 60), ("take_back", 60)]


@pytest.mark.parametrize("end", ["cancelled", "terminated"])
async def test_the_calls_of_a_session_s_run_count_however_it_ends(dev_server: WorkflowEnvironment, end: str) -> None:
    clerk = Agent(
        "clerk",
        tools=[refund, send_mail],
        rules=[at_most("refund.euros", 100, per="session")],
        approval={"tools": {"send_mail": "always"}},
    )
    turns = [plan(pays(60)), plan({"_tool": "send_mail", "to": "ann"}), plan(pays(50)), plan(pays(40)), DONE]
    async with run_locally(clerk, model=turns, server=dev_server) as local:
        session = local.session(uuid.uuid4().hex)
        await session.send("pay 60", sender="ann")
        run = await session.run()
        assert isinstance(run, LocalRun)
        await run.until_waiting("2.0")
        if end == "cancelled":
            await run.cancel()
        else:
            await dev_server.client.get_workflow_handle(run.id).terminate()
        plain = Perdure(dev_server.client, task_queue=local.perdure.task_queue)
        await plain.session(session.key, agent=clerk).ask("pay 50", sender="ann")
    assert refunds() == [60, 40]


async def test_what_was_done_before_a_reset_still_counts(dev_server: WorkflowEnvironment) -> None:
    asks = {"_tool": "send_mail", "to": "ann"}
    config = rules(at_most("refund.euros", 100)) | {"approval": {"tools": {"send_mail": "always"}}}
    script = [plan(pays(60)), plan(asks), plan(pays(50)), plan(pays(40)), DONE]
    async with harness(dev_server.client, TOOLS, script) as it:
        handle = await it.start(agent("refund", "send_mail", config=config))
        await it.until_waiting(handle.id, "2.0")
        await reset(dev_server, handle, 4)
        latest = dev_server.client.get_workflow_handle(handle.id)
        await latest.result()
        view = await it.view(handle.id)
    assert refunds() == [60, 40]
    assert [call.status for call in view.calls] == ["invalid", "done"]
    assert "would be 110; the limit is 100" in (view.calls[0].error or {})["message"]


async def test_runs_of_a_tenant_at_once_cannot_pass_a_sum_together(dev_server: WorkflowEnvironment) -> None:
    tenant = uuid.uuid4().hex
    clerk = Agent("clerk", tools=[refund], rules=[at_most("refund.euros", 100, per="tenant/day")])
    perdure = Perdure(dev_server.client)

    def model(request: ChatRequest) -> Any:
        return DONE if "_status" in json.dumps(request.messages) else plan(pays(30))

    async with harness(dev_server.client, TOOLS, model) as it:
        tenants = [tenant, tenant, f"{tenant}-2", tenant, tenant, tenant]
        started = [await perdure.start(clerk, "pay", tenant=each, task_queue=it.task_queue) for each in tenants]
        for run in started:
            await run.result()
        views = [await run.view() for run in started]
        assert [account.as_json() for account in await perdure.limits(tenant=tenant)] == [
            {
                "title": 'at_most(refund.euros, sum=100, per="tenant/day")',
                "unit": "",
                "period": "day",
                "since": datetime.now(UTC).date().isoformat(),
                "used": 90.0,
                "limit": 100.0,
                "reservations": 3,
            }
        ]
        assert [account.used for account in await perdure.limits(tenant=f"{tenant}-2")] == [30.0]
        assert await perdure.limits(tenant=f"{tenant}-3") == []
        ledger = dev_server.client.get_workflow_handle(ledger_id(tenant))
        await replay_history(await ledger.fetch_history(), data_converter())
        await replay_history(
            await dev_server.client.get_workflow_handle(started[0].id).fetch_history(), data_converter()
        )
        for each in (tenant, f"{tenant}-2"):
            await dev_server.client.get_workflow_handle(ledger_id(each)).terminate()
    assert len(refunds()) == 4
    refused = [call.error or {} for view in views for call in view.calls if call.status == "invalid"]
    assert len(refused) == 2
    assert "120 would be used this day; the limit is 100" in refused[0]["message"]


@pytest.mark.parametrize("end", ["dropped", "cancelled"])
async def test_a_call_that_never_begins_gives_back_what_it_has_reserved(
    dev_server: WorkflowEnvironment, end: str
) -> None:
    tenant, gate = uuid.uuid4().hex, asyncio.Event()
    clerk = Agent("clerk", tools=[refund], rules=[at_most("refund.euros", 100, per="tenant/day")])
    perdure, away = Perdure(dev_server.client), f"test-{uuid.uuid4().hex[:8]}"
    ledger = ledger_id(tenant)
    await dev_server.client.start_workflow(LEDGER_WORKFLOW, {"tenant": tenant}, id=ledger, task_queue=away)
    script = [plan(pays(60)), Turn(plan({"_tool": "keep", "drop": ["1.0"]}), gate=gate), DONE, plan(pays(100)), DONE]

    async def until_used(amount: float) -> None:
        """Return once so much is used: only a look shows that."""
        async with asyncio.timeout(HANG):
            while True:
                if [account.used for account in await perdure.limits(tenant=tenant)] == [amount]:
                    return
                await asyncio.sleep(0.02)

    async with harness(dev_server.client, TOOLS, script) as it:
        run = await perdure.start(clerk, "pay", tenant=tenant, task_queue=it.task_queue)
        await it.until_answered(run.id)
        await run.steer("Do not pay!")
        await asyncio.wait_for(it.model.wait_for_request(2), HANG)
        async with harness(dev_server.client, TOOLS, [], task_queue=away):
            await until_used(60)
            if end == "cancelled":
                await run.cancel()
            gate.set()
            view = await run.wait()
            await until_used(0)
            if end == "dropped":
                later = await perdure.start(clerk, "pay", tenant=tenant, task_queue=it.task_queue)
                await later.result()
        await replay_history(await dev_server.client.get_workflow_handle(run.id).fetch_history(), data_converter())
        await dev_server.client.get_workflow_handle(ledger).terminate()
    assert [call.status for call in view.calls if call.id == "1.0"] == ["skipped"]
    assert refunds() == ([100] if end == "dropped" else [])


async def test_a_call_that_fails_before_it_begins_uses_nothing_of_a_sum_over_runs(
    dev_server: WorkflowEnvironment,
) -> None:
    tenant, perdure = uuid.uuid4().hex, Perdure(dev_server.client)
    ship: Any = workflow_tool("Ship", name="ship", id="ship-{input}", input={"type": "string"})
    clerk = Agent("clerk", tools=[ship], rules=[count_at_most("ship", 1, per="tenant/day")])
    async with harness(dev_server.client, [ship], [plan({"_tool": "ship", "input": "7" * MAX_ID}), DONE]) as it:
        run = await perdure.start(clerk, "ship", tenant=tenant, task_queue=it.task_queue)
        view = await run.wait()
        assert [account.used for account in await perdure.limits(tenant=tenant)] == [0]
        await dev_server.client.get_workflow_handle(ledger_id(tenant)).terminate()
    assert [(call.error or {})["code"] for call in view.calls] == ["id_too_long"]


async def test_a_ledger_continues_as_new_with_its_accounts(impatient_server: WorkflowEnvironment) -> None:
    tenant = uuid.uuid4().hex
    clerk = Agent("clerk", tools=[refund], rules=[at_most("refund.euros", 100, per="tenant/month")], stuck_after=20)
    perdure = Perdure(impatient_server.client)
    script = [*(plan(pays(20)) for _ in range(8)), DONE]
    async with harness(impatient_server.client, TOOLS, script) as it:
        run = await perdure.start(clerk, "pay", tenant=tenant, task_queue=it.task_queue)
        await run.result()
        (account,) = await perdure.limits(tenant=tenant)
        handle = impatient_server.client.get_workflow_handle(ledger_id(tenant))
        assert (await handle.describe()).raw_description.workflow_execution_info.first_run_id != (
            await handle.describe()
        ).run_id, "it did not continue as new"
        await handle.terminate()
    assert (account.used, account.reservations, account.period) == (100, 5, "month")
    assert refunds() == [20] * 5


async def test_a_killed_worker_s_calls_count_once(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    more = {"_tool": "note", "text": "four"}
    script = [{"calls": CALLS, "output": None}, {"calls": [more], "output": None}, DONE]
    async with site(dev_server, script, tmp_path) as it:
        it.bell.quiet = True
        handle = await it.start_run(config=rules(count_at_most("note", 3)))
        await it.bell.wait_for(2)
        await answered(it.client, handle.id)
        await it.kill()
        it.bell.answer()
        await it.start_worker()
        result = await handle.result()
    assert [(call.status, call.attempts > 1) for call in result.calls[:2]] == [("done", True)] * 2
    assert [call.status for call in result.calls[2:]] == ["done", "invalid"]
    assert it.effects() == ["1.0", "1.1", "1.2"]


async def test_a_call_that_a_message_holds_does_not_count_once_it_is_dropped(
    time_skipping: WorkflowEnvironment,
) -> None:
    working, go = asyncio.Event(), asyncio.Event()

    @tool(safe=True)
    async def wait() -> str:
        """Wait."""
        working.set()
        await go.wait()
        return "over"

    def model(request: ChatRequest) -> Any:
        if request.number == 1:
            return plan({"_tool": "wait", "_outputPath": "†state.over"}, pays(60, "ann", _after=["1.0"]))
        if request.number == 2:
            go.set()
            return plan({"_tool": "keep", "drop": ["1.1"]})
        return plan(pays(100, "eve"), pays(1, "eve")) if request.number == 3 else {"calls": [], "output": {"ok": True}}

    async with harness(time_skipping.client, [*TOOLS, wait], model) as it:
        handle = await it.start(agent("wait", "refund", config=rules(at_most("refund.euros", 100))))
        await asyncio.wait_for(working.wait(), HANG)
        await Perdure(it.client).get_run(handle.id).steer("Wait, pay bob!")
        result = await handle.result()
    assert result.status == "completed"
    assert refunds() == [100]
    refused = [call.params for call in result.calls if call.status == "invalid"]
    assert {"customer": "eve", "euros": 1} in refused


async def test_a_delegate_that_a_message_holds_uses_what_other_calls_have_left_of_a_rule(
    dev_server: WorkflowEnvironment,
) -> None:
    """It waits for its share of the budget. Before its start others use its rules, so it starts with their record."""
    thinks, mailed, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @tool
    async def post(to: str) -> str:
        """Send a letter."""
        begun.append(("post", to))
        mailed.set()
        return to

    boss = Agent(
        "boss",
        instructions="You are BOSS.",
        tools=[
            Agent("thinker", instructions="You are THINKER."),
            Agent("clerk", instructions="You are CLERK.", tools=[post]),
            post,
        ],
        rules=[count_at_most("post", 2)],
        token_budget=4500,
        stream=False,  # shares of a budget depend on which calls are known
    )

    def model(request: ChatRequest) -> Turn:
        who = next(each for each in ("THINKER", "CLERK", "BOSS") if f"You are {each}." in json.dumps(request.messages))
        seen[who] = turn = seen.get(who, 0) + 1
        done = {"calls": [], "output": "done"}
        if who == "THINKER":
            thinks.set()
            return Turn(done, usage=(1, 1), gate=go)
        if who == "CLERK":
            letters = plan({"_tool": "post", "to": "b"}, {"_tool": "post", "to": "c"})
            return Turn(letters if turn == 1 else done, usage=(1, 1))
        if turn == 1:
            both = plan({"_tool": "thinker", "request": "think"}, {"_tool": "clerk", "request": "write"})
            return Turn(both, usage=(1000, 1))
        if turn == 2:
            return Turn(plan({"_tool": "post", "to": "a"}), usage=(1, 1))
        keep = {"_tool": "keep", "calls": ["1.1"]}
        return Turn({3: plan(), 4: plan(keep)}.get(turn, done), usage=(1, 1))

    seen: dict[str, int] = {}
    async with harness(dev_server.client, [*TOOLS, post], model) as it:
        run = await Perdure(it.client, task_queue=it.task_queue).start(boss, "write")
        await asyncio.wait_for(thinks.wait(), HANG)
        await run.steer("Write to a too!")
        await asyncio.wait_for(mailed.wait(), HANG)
        go.set()
        await run.wait()
        view = await run.view()
    assert [call.status for call in view.calls] == ["done"] * 4
    assert begun == [("post", "a"), ("post", "b")]


async def test_what_a_terminated_delegate_has_done_counts(dev_server: WorkflowEnvironment) -> None:
    working = asyncio.Event()

    @tool(safe=True)
    async def hang() -> str:
        """Wait."""
        working.set()
        await asyncio.sleep(HANG)
        return "over"

    clerk = Agent("clerk", tools=[send_mail, hang])
    boss = Agent(
        "boss", tools=[clerk, send_mail, refund], rules=[count_at_most("send_mail", 2), at_most("refund.euros", 9)]
    )
    mail = {"_tool": "send_mail", "to": "x"}

    def model(request: ChatRequest) -> Any:
        if "hang" in json.dumps(request.body) and '"clerk"' not in json.dumps(request.body):
            return plan(mail, {"_tool": "hang", "_after": ["1.0"]})
        seen[request.run_id] = turn = seen.get(request.run_id, 0) + 1
        return {1: plan({"_tool": "clerk", "request": "write"}), 2: plan(mail, mail, pays(9))}.get(
            turn, {"calls": [], "output": "done"}
        )

    seen: dict[str, int] = {}
    async with harness(dev_server.client, [*TOOLS, hang], model) as it:
        run = await Perdure(it.client, task_queue=it.task_queue).start(boss, "write")
        await asyncio.wait_for(working.wait(), HANG)
        await it.client.get_workflow_handle(f"{run.id}/1.0").terminate()
        await run.wait()
        view = await run.view()
    assert [call.status for call in view.calls] == ["failed", "done", "invalid", "done"]
    assert "the calls of send_mail would be 3; the limit is 2" in (view.calls[2].error or {})["message"]
    assert sorted(map(str, begun)) == ["('refund', 9.0)", "('send_mail', 'x')", "('send_mail', 'x')"]


async def test_the_open_part_of_a_terminated_loop_counts(dev_server: WorkflowEnvironment) -> None:
    working = asyncio.Event()

    @tool(safe=True)
    async def look(at: int) -> str:
        """Look."""
        if at == 50:
            working.set()
            await asyncio.sleep(HANG)
        return "seen"

    boss = Agent("boss", tools=[look], rules=[count_at_most("look", 110)])
    loop = {"_tool": "look", "_each": [*range(101)], "_parallel": 1, "at": "†item"}
    more = {"_tool": "look", "_each": [*range(60, 80)], "at": "†item"}
    async with harness(dev_server.client, [look], [{"calls": [loop]}, {"calls": [more]}, DONE]) as it:
        run = await Perdure(it.client, task_queue=it.task_queue).start(boss, "look")
        await asyncio.wait_for(working.wait(), HANG)
        await it.client.get_workflow_handle(f"{run.id}/1.0").terminate()
        await run.wait()
        view = await run.view()
    assert [(call.id, call.status) for call in view.calls][:1] == [("1.0", "failed")]
    assert {call.status for call in view.calls[1:]} == {"invalid"}
    assert "the limit is 110" in json.dumps([call.error for call in view.calls[1:]])


async def test_a_call_that_has_to_follow_is_in_the_plan_and_no_message_drops_it(
    time_skipping: WorkflowEnvironment,
) -> None:
    working, go = asyncio.Event(), asyncio.Event()

    @tool
    async def close_shop(shop: str) -> str:
        """Close a shop."""
        begun.append(("close_shop", shop))
        working.set()
        await go.wait()
        return "closed"

    @tool
    def open_shop(shop: str) -> str:
        """Open a shop."""
        begun.append(("open_shop", shop))
        return "open"

    close = {"_tool": "close_shop", "shop": "north", "_outputPath": "†state.closed"}

    def model(request: ChatRequest) -> Any:
        if request.number == 1:
            return plan(close)
        if request.number == 2:
            return plan(close, {"_tool": "open_shop", "shop": "north", "_after": ["ended 2.0"]})
        go.set()
        return plan({"_tool": "keep", "drop": ["2.1"]}) if request.number == 3 else DONE

    document = agent("close_shop", "open_shop", config=rules(followed_by("close_shop", "open_shop", same="shop")))
    async with harness(time_skipping.client, [close_shop, open_shop], model) as it:
        handle = await it.start(document)
        await asyncio.wait_for(working.wait(), HANG)
        await Perdure(it.client).get_run(handle.id).steer("Wait!")
        result = await handle.result()
    assert begun == [("close_shop", "north"), ("open_shop", "north")]
    first = result.calls[0]
    assert (first.status, (first.error or {})["code"]) == ("invalid", "rule_broken")
    assert "has no call of open_shop that always starts after 1.0 close_shop" in (first.error or {})["message"]


async def test_no_edit_takes_away_a_call_that_has_to_follow(dev_server: WorkflowEnvironment) -> None:
    @tool
    def close_shop(shop: str) -> str:
        """Close a shop."""
        begun.append(("close_shop", shop))
        return "closed"

    @tool
    def open_shop(shop: str, hour: int = 8) -> str:
        """Open a shop."""
        begun.append(("open_shop", f"{shop} at {hour}"))
        return "open"

    calls: list[JsonObject] = [
        {"_tool": "close_shop", "shop": "north"},
        {"_tool": "open_shop", "shop": "north", "_after": ["ended 1.0"]},
    ]
    config = rules(followed_by("close_shop", "open_shop", same="shop")) | {
        "approval": {"tools": {"open_shop": "always"}}
    }
    async with harness(dev_server.client, [close_shop, open_shop, look], [plan(*calls), DONE]) as it:
        handle = await it.start(agent("close_shop", "open_shop", "look", config=config))
        await it.until_waiting(handle.id, "1.1")
        run = Perdure(dev_server.client).get_run(handle.id)
        required = r"cannot be changed so: followed_by\(close_shop, open_shop.* requires it"
        with pytest.raises(DecisionRefusedError, match=required):
            await run.edit("1.1", {"shop": "south"})
        with pytest.raises(DecisionRefusedError, match=required):
            await run.replace("1.1", {"_tool": "look", "at": "north"})
        await run.edit("1.1", {"hour": 9})
        await handle.result()
    assert begun == [("close_shop", "north"), ("open_shop", "north at 9")]


async def test_an_operators_cancellation_leaves_the_sums_of_a_tenant(dev_server: WorkflowEnvironment) -> None:
    """A batch that cancels all open workflows ended the ledger, and the next one began at nothing."""
    tenant = uuid.uuid4().hex
    clerk = Agent("clerk", tools=[refund], rules=[at_most("refund.euros", 30, per="tenant/month")])
    perdure = Perdure(dev_server.client)
    async with harness(dev_server.client, TOOLS, [plan(pays(20)), DONE, plan(pays(20)), DONE, DONE]) as it:
        await (await perdure.start(clerk, "pay", tenant=tenant, task_queue=it.task_queue)).wait()
        ledger = dev_server.client.get_workflow_handle(ledger_id(tenant))
        await ledger.cancel()
        await (await perdure.start(clerk, "pay", tenant=tenant, task_queue=it.task_queue)).wait()
        (account,) = await perdure.limits(tenant=tenant)
        await check_replays(await ledger.fetch_history())
        await ledger.terminate()
    assert account.used == 20
    assert refunds() == [20]
