"""Forks beside undo and standing approvals: what counts as done, and what a person decides again (R22.1, R23.3, R23.4)."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, tool
from perdure.errors import RunError
from perdure.testing import LocalRun, run_locally
from perdure.testing.scripted_model import ChatRequest

pytestmark = pytest.mark.asyncio

DID: list[tuple[str, Any]] = []
"""Each effect and each undo, as the tool's code saw it."""


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    DID.clear()


@tool(retries=0)
def cancel_order(order_id: str) -> str:
    """Cancel an order."""
    DID.append(("cancel", order_id))
    return "cancelled"


@tool(undo=cancel_order, undo_params={"order_id": "†result.id"}, retries=0)
def order(what: str) -> dict[str, Any]:
    """Order something."""
    DID.append(("order", what))
    return {"id": f"o-{what}"}


@tool(dangerous=True)
def pay(euros: float) -> str:
    """Pay."""
    DID.append(("pay", euros))
    return f"{euros:g} euros"


ORDERS: Any = {
    "calls": [
        {"_tool": "order", "what": "pear", "_outputPath": "†state.pear"},
        {"_tool": "order", "what": "fig", "_outputPath": "†state.fig"},
    ]
}
UNDO: Any = {"calls": [{"_tool": "undo", "calls": ["1.0"], "_outputPath": "†state.undone"}]}
DONE: Any = {"output": "done"}
buyer = Agent("buyer", instructions="You order fruit.", tools=[order])


async def test_a_call_that_was_undone_runs_again_in_a_fork() -> None:
    async with run_locally(buyer, model=[ORDERS, DONE, DONE]) as local:
        first = await local.run()
        run = local.perdure.get_run(first.run_id)
        await (await run.undo(to="1.1")).wait()
        assert DID[2:] == [("cancel", "o-fig")]
        fork = await run.fork("2")
        view = await fork.wait()
        assert [call.recorded for call in view.calls] == [True, False]
        assert DID[3:] == [("order", "fig")]
        assert [each.call for each in await fork.effects()] == ["1.1"]  # an undo of the fork leaves the other's pear
        assert [each.status for each in await run.effects()] == ["done", "undone"]


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_delegate_that_was_undone_in_part_is_answered_from_the_record_of_a_fork(depth: int) -> None:
    """Its payment cannot be undone, so no fork makes it again; also where a delegate of the delegate has made it."""
    clerk = Agent("clerk", instructions="You pay.", tools=[order, pay], approval={"ask": "never"})
    lead = Agent("lead", instructions="You lead.", tools=[clerk])
    boss = Agent("boss", instructions="You lead.", tools=[clerk if depth == 1 else lead])
    seen: dict[str, int] = {}

    def model(request: ChatRequest) -> Any:
        seen[request.run_id] = turn = seen.get(request.run_id, 0) + 1
        below = request.run_id.count("/")
        if turn > 1 or (below == 0 and request.run_id != next(iter(seen))):  # the fork begins with Request 2
            return DONE
        if below == depth:
            return {"calls": [{"_tool": "order", "what": "pear"}, {"_tool": "pay", "euros": 5}]}
        name = "clerk" if below == depth - 1 else "lead"
        return {"calls": [{"_tool": name, "request": "go", "_outputPath": "†state.done"}]}

    async with run_locally(boss, model=model) as local:
        first = await local.run()
        run = local.perdure.get_run(first.run_id)
        await (await run.undo()).wait()
        [effect] = await run.effects()
        fork = await run.fork("2")
        view = await fork.wait()
    assert (effect.status, effect.reason) == ("undone", "1 of its calls cannot be undone")
    assert [call.recorded for call in view.calls] == [True]
    assert sorted(name for name, _ in DID) == ["cancel", "order", "pay"]


async def test_what_a_run_undid_itself_stays_undone_behind_that_point_and_is_done_again_before_it() -> None:
    agent = Agent("buyer", instructions="You order fruit.", tools=[order, "undo"])
    async with run_locally(agent, model=[ORDERS, UNDO, DONE, DONE, UNDO, DONE]) as local:
        first = await local.run()
        run = local.perdure.get_run(first.run_id)
        assert DID[2:] == [("cancel", "o-pear")]
        behind = await (await run.fork("3")).wait()
        assert all(call.recorded for call in behind.calls)
        assert len(DID) == 3

        before = await run.fork("2")
        view = await before.wait()
        assert view.state["undone"] == first.state["undone"]
        assert DID[3:] == [("order", "pear"), ("cancel", "o-pear")]
        assert [(each.call, each.status) for each in await before.effects()] == [("1.0", "undone")]


async def test_a_run_that_failed_and_was_undone_begins_anew_in_a_fork() -> None:
    agent = Agent("buyer", instructions="You order fruit.", tools=[order], on_failure="undo", max_requests=1)
    async with run_locally(agent, model=[ORDERS, DONE]) as local:
        first = await (await local.start()).wait()
        assert first.status == "failed"
        assert sorted(DID[2:]) == [("cancel", "o-fig"), ("cancel", "o-pear")]
        fork = await local.perdure.get_run(first.run_id).fork("2", agent=buyer)
        await fork.wait()
        assert sorted(DID[4:]) == [("order", "fig"), ("order", "pear")]


async def test_an_undo_is_not_forked_and_is_no_procedure() -> None:
    async with run_locally(buyer, model=[ORDERS, DONE]) as local:
        first = await local.run()
        undo = await local.perdure.get_run(first.run_id).undo()
        await undo.wait()
        with pytest.raises(RunError, match=f"Fork the run that it undoes: {first.run_id}$"):
            await undo.fork("1")
        with pytest.raises(RunError, match=f"is an undo. Promote the run that it undoes: {first.run_id}$"):
            await undo.promote("cancels")


PROCEDURE: dict[str, Any] = {
    "name": "monthly",
    "config": {"start": "plan"},
    "context": [
        {"type": "system", "text": "You pay."},
        {"type": "tool", "tool": "pay"},
        {"type": "input", "schema": {"type": "object", "properties": {"euros": {"type": "number"}}}},
        {
            "type": "plan",
            "plan": [{"_tool": "pay", "euros": "†input.euros", "_outputPath": "†state.paid"}],
            "output": {"paid": "†state.paid"},
        },
    ],
    "metadata": {"procedure": {"version": 1, "digest": "sha256:of-somebody", "runs": ["r-1"]}},
}


@pytest.mark.parametrize("how", [{}, {"edits": {"0.0": {"euros": 500}}}, {"input": {"euros": 7}}])
async def test_a_fork_spends_no_standing_approval_and_a_person_decides(how: dict[str, Any]) -> None:
    agent = Agent.of(PROCEDURE)
    async with run_locally(tools=[pay]) as local:
        terms: dict[str, Any] = {"uses": 5, "until": "2999-12-31", "by": "ann"}
        await local.perdure.grant_standing_approval(agent, **terms)
        first = await local.run({"euros": 12}, agent=agent)
        first_run = local.perdure.get_run(first.run_id)
        fork = LocalRun(local.perdure.client, (await first_run.fork("0.0", **how)).id, agent, local.following)
        local.following.follow(fork.id)
        await fork.until_waiting("0.0")
        await fork.approve("0.0", by="bob")
        approval = (await fork.wait()).calls[0].approval
        assert approval is not None
        assert (approval.by, approval.via) == ("bob", "")
        [standing] = await local.perdure.standing_approvals()
        assert standing.used == 1
    assert len(DID) == (2 if how else 1)
