"""Calls that several people must approve, as an application meets them (R24.6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure, tool
from perdure.cli._run_view import decision_commands
from perdure.errors import DecisionRefusedError, MessageRefusedError
from perdure.testing import approve, edit, run_locally
from perdure.testing.scripted_model import ChatRequest
from tests.gateway.support import some_name
from tests.gateway.test_api import served, until
from tests.support import DONE, agent, harness
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

TWO = {"by": 2, "roles": ["finance"], "not": "requester"}
POLICY: Any = {"tools": {"refund": TWO}, "on_timeout": "approve", "timeout": 86_400}


@tool(dangerous=True)
def refund(order: str, euros: int) -> str:
    """Pay an order back."""
    return f"{euros} euros for {order}"


@tool
def cancel(fruit: str) -> str:
    """Cancel an order."""
    return f"no {fruit}"


@tool(undo=cancel)
def order(fruit: str) -> str:
    """Order fruit."""
    return fruit


PLAN = [
    {"calls": [{"_tool": "refund", "order": "A-1", "euros": 50, "_outputPath": "†state.paid"}], "output": None},
    DONE,
]


async def test_a_call_waits_for_two_people_with_the_role(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [refund], PLAN) as it:
        perdure = Perdure(dev_server.client)
        handle = await it.start(agent("refund", config={"approval": POLICY}))
        await it.until_waiting(handle.id, "1.0")
        run = perdure.get_run(handle.id)
        with pytest.raises(DecisionRefusedError, match="needs the role finance, which eve does not have"):
            await run.approve("1.0", by="eve")
        with pytest.raises(
            DecisionRefusedError, match="a run can only add approvals to a quorum: leave out the rule of refund"
        ):
            await run.policy(tools={"refund": "never"})
        (request,) = await run.waiting()
        assert (request.missing, request.roles) == ("2 approvals with the role finance", ["finance"])
        assert decision_commands("R", request) == "perdure approve R 1.0 --role finance\nperdure reject R 1.0"
        await run.approve(request, by="bob", roles=["finance"])
        (request,) = await run.waiting()
        assert ([each.by for each in request.approvers], request.missing) == (
            ["bob"],
            "1 more approval with the role finance",
        )
        assert "approved by bob; needs 1 more approval" in request.sentence
        listed = [row for row in (await perdure.approvals(size=1000)).waiting if row.run_id == handle.id]
        assert [(row.entry.sentence, row.entry.roles) for row in listed] == [(request.sentence, ["finance"])]
        with pytest.raises(DecisionRefusedError, match="bob has already approved it"):
            await run.approve(request, by="bob", roles=["finance"])
        done = await run.decide({"decision": "approve", "by": "cleo", "roles": ["finance"]}, request)
        assert "missing" not in done
        result = await handle.result()
    approval = result.calls[0].approval
    assert approval is not None
    assert (approval.by, [each.by for each in approval.approvers]) == ("bob and cleo", ["bob", "cleo"])
    assert result.state == {"paid": "50 euros for A-1"}


async def test_the_timeout_rejects_what_one_person_has_approved(time_skipping: WorkflowEnvironment) -> None:
    async with harness(time_skipping.client, [refund], PLAN) as it:
        handle = await it.start(agent("refund", config={"approval": POLICY}))
        await it.until_waiting(handle.id, "1.0")
        await handle.signal("approve", {"call": "1.0", "by": "bob", "roles": ["finance"]})
        result = await handle.result()
    assert [call.status for call in result.calls] == ["rejected"]


async def test_people_of_the_testing_kit_approve_a_call_of_a_delegate_that_one_of_them_has_edited(
    time_skipping: WorkflowEnvironment,
) -> None:
    clerk = Agent("clerk", tools=[refund], approval=POLICY)
    boss = Agent("boss", tools=[clerk])
    delegated = {
        "calls": [{"_tool": "clerk", "request": "Pay A-1 back.", "_outputPath": "†state.clerk"}],
        "output": None,
    }

    def model(request: ChatRequest) -> Any:
        is_first = request.run_id not in seen
        seen.add(request.run_id)
        return (PLAN[0] if "/" in request.run_id else delegated) if is_first else DONE

    seen: set[str] = set()
    people = [
        approve("refund", by="bob", roles=["finance"]),
        edit("refund", {"euros": 20}, by="cleo", roles=["finance"]),
        approve("refund", by="bob", roles=["finance"], after="2h"),
    ]
    async with run_locally(boss, model=model, people=people, server=time_skipping) as local:
        run = await local.start("Pay A-1 back.")
        view = await run.wait()
        assert view.status == "completed", view.errors
        paid = await local.perdure.get_run(f"{run.id}/1.0").view()
    (call,) = paid.calls
    assert call.approval is not None
    assert (call.approval.decision, call.approval.by) == ("edit", "cleo and bob")
    assert paid.state == {"paid": "20 euros for A-1"}


async def test_the_gateway_takes_names_and_roles_from_tokens(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    desk = agent("refund", name="desk", config={"approval": POLICY})
    who: list[Any] = [
        ("acme", name, ["*"], None, None, [] if name == "eve" else ["finance"])
        for name in ("ann", "bob", "cleo", "eve")
    ]
    async with served(dev_server, tmp_path, PLAN, desk, tools=[refund], who=who) as (front, it, (ann, bob, cleo, eve)):
        run = until(await front.http.post("/v1/runs", json={"agent": "desk"}, headers=ann), 201)["runId"]
        await it.until_waiting(run, "1.0")

        async def decide(headers: dict[str, str], status: int = 200, **more: Any) -> Any:
            body = {"call": "1.0", "decision": "approve", **more}
            return until(await front.http.post(f"/v1/runs/{run}/decisions", json=body, headers=headers), status)

        assert "ann requested the call, so another person must approve it" in (await decide(ann, 409))["detail"]
        assert "which eve does not have" in (await decide(eve, 409))["detail"]
        await decide(eve, 422, roles=["finance"])  # no body names roles
        assert (await decide(bob))["missing"] == "1 more approval with the role finance, not by ann"
        assert "missing" not in await decide(cleo)
        assert until(await front.http.get(f"/v1/runs/{run}/wait", headers=ann))["status"] == "ok"


async def test_a_session_takes_the_roles_of_who_decides(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [refund], PLAN) as it:
        desk = Agent("desk", tools=[refund], approval=POLICY)
        session = Perdure(dev_server.client, task_queue=it.task_queue).session(some_name(), agent=desk)
        receipt = await session.send("Pay A-1 back.", sender="ann")
        run = receipt.run_id or ""
        await it.until_waiting(run, "1.0")
        decision = {"call": "1.0", "decision": "approve", "roles": ["finance"], "by": "zoe"}
        with pytest.raises(MessageRefusedError, match="which eve does not have"):
            await session.decide(decision, sender="eve", rights=["approve"])
        with pytest.raises(MessageRefusedError, match="ann requested the call"):
            await session.decide(decision, sender="ann", rights=["approve"], roles=["finance"])
        assert "missing" in await session.decide(decision, sender="bob", rights=["approve"], roles=["finance"])
        await session.decide(decision, sender="cleo", rights=["approve"], roles=["finance"])
        await session.reply(receipt)
        view = await Perdure(dev_server.client).get_run(run).view()
    assert view.calls[0].approval is not None
    assert view.calls[0].approval.by == "bob and cleo"


async def test_who_steers_a_run_of_a_session_has_requested_what_it_plans(dev_server: WorkflowEnvironment) -> None:
    """Also in a delegate that begins after it, and where an approval of theirs came before."""
    clerk = Agent("clerk", tools=[refund], approval=POLICY)
    desk = Agent("desk", tools=[clerk, refund], approval=POLICY)
    kept = {"_tool": "keep", "calls": ["1.0"]}
    delegated = {"calls": [kept, {"_tool": "clerk", "request": "Pay.", "_outputPath": "†state.clerk"}], "output": None}
    outer, inner = [PLAN[0], delegated, DONE], [PLAN[0], DONE]

    def model(request: ChatRequest) -> Any:
        return (outer if "Pay A-1 back." in request.text else inner).pop(0)

    async with harness(dev_server.client, [refund], model) as it:
        perdure = Perdure(dev_server.client, task_queue=it.task_queue)
        session = perdure.session(some_name(), agent=desk)
        receipt = await session.send("Pay A-1 back.", sender="ann")
        above = perdure.get_run(receipt.run_id or "")
        await it.until_waiting(above.id, "1.0")
        await above.approve("1.0", by="bob", roles=["finance"])
        await session.send("To me, please.", sender="Bob", mode="steer")
        below = perdure.get_run(f"{above.id}/2.1")
        await it.until_waiting(below.id, "1.0")
        for run in (above, below):
            request = next(each for each in await run.waiting() if each.call == "1.0")
            assert request.missing == "2 approvals with the role finance, not by ann or Bob"
            for name in ("ann", "bob"):
                with pytest.raises(DecisionRefusedError, match=f"{name} (requested|has already approved) "):
                    await run.approve("1.0", by=name, roles=["finance"])
            for name in ("cleo", "dora"):
                await run.approve("1.0", by=name, roles=["finance"])
        await session.reply(receipt, timeout=HANG)


async def test_who_requests_an_undo_or_has_sent_its_run_a_message_does_not_approve_it(
    time_skipping: WorkflowEnvironment,
) -> None:
    """Also in the undo of a delegate's run."""
    clerk = Agent("clerk", tools=[order], approval={"tools": {"cancel": {"by": 1, "not": "requester"}}})
    boss = Agent("boss", tools=[clerk])
    ordered = {"calls": [{"_tool": "order", "fruit": "pear"}], "output": None}
    delegated = {"calls": [{"_tool": "clerk", "request": "Order."}], "output": None}

    outer, inner = [delegated, DONE], [ordered, DONE]

    def model(request: ChatRequest) -> Any:
        return (outer if "Order a pear." in request.text else inner).pop(0)

    async with harness(time_skipping.client, [order, cancel], model) as it:
        perdure = Perdure(it.client, task_queue=it.task_queue)
        run = await perdure.start(boss, {"request": "Order a pear."}, sender="ann")
        await run.wait()
        undo = await run.undo(by="bob")
        below = perdure.get_run(f"{run.id}/1.0.undo-1")
        await it.until_waiting(below.id, "0.0")
        for name in ("ann", "bob"):
            with pytest.raises(DecisionRefusedError, match=f"{name} requested the call"):
                await below.approve("0.0", by=name)
        await below.approve("0.0", by="cleo")
        assert (await undo.wait()).status == "completed"


async def test_who_has_sent_a_run_a_message_does_not_approve_in_its_fork(time_skipping: WorkflowEnvironment) -> None:
    desk = Agent("desk", tools=[refund], approval={"tools": {"refund": {"by": 1, "not": "requester"}}})
    async with harness(time_skipping.client, [refund], [*PLAN, DONE]) as it:
        perdure = Perdure(it.client, task_queue=it.task_queue)
        session = perdure.session(some_name(), agent=desk)
        first = await session.send("Pay A-1 back.", sender="ann", mode="collect")
        await session.send("To me, please.", sender="bob", mode="collect")
        run = perdure.get_run(first.run_id or "")
        await it.until_waiting(run.id, "1.0")
        fork = await run.fork("1.0", id=some_name())
        await it.until_waiting(fork.id, "1.0")
        for each in (run, fork):
            for name in ("ann", "bob"):
                with pytest.raises(DecisionRefusedError, match=f"{name} requested the call"):
                    await each.approve("1.0", by=name)
            await each.approve("1.0", by="cleo")
        assert (await fork.wait()).status == "completed"
        await session.reply(first)
