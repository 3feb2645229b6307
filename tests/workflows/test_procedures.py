"""Procedures on a real server: a run is promoted, and its plan runs again without a model (R23.3)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, ToolError, hook, tool
from perdure.agents.files import write_procedure
from perdure.errors import RunError, SettingsError
from perdure.hooks import BeforeToolCall
from perdure.testing import run_locally

pytestmark = pytest.mark.asyncio(loop_scope="session")

DID: list[tuple[Any, ...]] = []


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    DID.clear()


@tool(safe=True)
def find(customer: str) -> dict[str, Any]:
    """Find a customer."""
    return {"id": customer.lower(), "mail": f"{customer}@example.com"}


@tool(retries=0)
def refund(customer: str, euros: float) -> str:
    """Pay money back."""
    DID.append(("refund", customer, euros))
    if euros > 100:
        raise ToolError("too_much", "at most 100")
    return f"paid {euros:g}"


@tool(retries=0)
def mail(to: str, text: str) -> str:
    """Send a mail."""
    DID.append(("mail", to, text))
    return "sent"


SHOP = Agent("shop", instructions="You refund.", tools=[find, refund, mail])


def refunds(customer: str = "Ann", euros: float = 30) -> list[dict[str, Any]]:
    return [
        {
            "calls": [
                {"_tool": "find", "customer": customer, "_outputPath": "†state.who"},
                {"_tool": "refund", "customer": "†state.who.id", "euros": euros, "_outputPath": "†state.paid"},
            ]
        },
        {
            "calls": [{"_tool": "mail", "to": "†state.who.mail", "text": "Your money: {†state.paid}"}],
            "output": {"paid": "†state.paid"},
        },
    ]


async def test_a_promoted_call_has_the_parameters_with_which_it_was_made() -> None:
    @hook("before_tool_call", tools=["refund"])
    def at_most(event: BeforeToolCall) -> BeforeToolCall:
        return event.changed(params={"customer": "†ann", "euros": min(5, event.params["euros"])})

    async with run_locally(SHOP, model=refunds(), hooks=[at_most]) as local:
        view = await local.run({"request": "Refund Ann."})
        run = local.perdure.get_run(view.run_id)
        made = await run.promote("refunds", parameters={"euros": "1.1.euros"})
    assert made.inputs == {"euros": 5}
    plan = next(each["plan"] for each in made.agent["context"] if each["type"] == "plan")
    assert (plan[1]["customer"], plan[1]["euros"]) == ("††ann", "†input.euros")


async def test_a_promoted_run_makes_the_same_calls_with_other_inputs_and_no_model() -> None:
    async with run_locally(SHOP, model=refunds()) as local:
        view = await local.run({"request": "Refund Ann."})
        run = local.perdure.get_run(view.run_id)
        made = await run.promote("refunds", parameters={"euros": "1.1.euros", "customer": "1.0.customer"})
        assert made.inputs == {"euros": 30, "customer": "Ann"}
        assert made.frozen == {}
        schema = next(each["schema"] for each in made.agent["context"] if each["type"] == "input")
        assert schema["properties"]["euros"]["type"] == "number"
        assert schema["required"] == ["euros", "customer"]
        before = [*DID]
        DID.clear()
        again = await local.run(made.inputs, agent=Agent.of(made.agent))
        assert (again.status, again.requests, again.output) == ("completed", 0, {"paid": "paid 30"})
        assert before == DID
        DID.clear()
        other = await local.run({"euros": 12, "customer": "Bob"}, agent=Agent.of(made.agent))
        assert (other.status, other.output) == ("completed", {"paid": "paid 12"})
        assert DID == [("refund", "bob", 12), ("mail", "Bob@example.com", "Your money: paid 12")]
        for places, words in (
            ("1.1.customer", "not a literal"),
            ("1.1.dollars", "is not the path of a literal"),
            ("4.0.x", "is not a call"),
            ("1.1._tool", "only a parameter"),
            ("euros", "R.N.PATH"),
        ):
            with pytest.raises(RunError, match=words):
                await run.promote("refunds", parameters={"x": places})


async def test_a_procedure_that_leaves_its_plan_comes_back_to_the_model() -> None:
    async with run_locally(SHOP, model=[*refunds(), {"calls": [], "output": {"paid": "nothing"}}]) as local:
        view = await local.run({"request": "Refund Ann."})
        made = await local.perdure.get_run(view.run_id).promote("refunds", parameters={"euros": "1.1.euros"})
        DID.clear()
        again = await local.run({"euros": 500}, agent=Agent.of(made.agent))
        assert (again.status, again.output, again.requests) == ("completed", {"paid": "nothing"}, 1)
        assert DID == [("refund", "ann", 500)]


async def test_runs_of_one_shape_propose_the_literals_in_which_they_differ() -> None:
    async with run_locally(SHOP, model=[*refunds(), *refunds("Bob", 12), {"calls": [], "output": 1}]) as local:
        ids = [(await local.run({"request": "Refund."})).run_id for _ in range(3)]
        run = local.perdure.get_run(ids[0])
        made = await run.promote("refunds", like=[ids[1]])
        assert made.places == {"customer": ["1.0.customer"], "euros": ["1.1.euros"]}
        assert made.runs == ids[:2]
        with pytest.raises(RunError, match="no calls"):
            await run.promote("refunds", like=[ids[2]])


async def test_a_procedure_is_a_tool_of_other_agents() -> None:
    async with run_locally(SHOP, model=refunds()) as local:
        view = await local.run({"request": "Refund Ann."})
        made = await local.perdure.get_run(view.run_id).promote("refunds", parameters={"euros": "1.1.euros"})
    DID.clear()
    boss = Agent("boss", tools=[Agent.of(made.agent)])
    plan = {"calls": [{"_tool": "refunds", "euros": 7, "_outputPath": "†state.done"}], "output": "†state.done.paid"}
    async with run_locally(boss, model=[plan], tools=[find, refund, mail]) as local:
        assert (await local.run({"request": "Go."})).output == "paid 7"
    assert DID == [("refund", "ann", 7), ("mail", "Ann@example.com", "Your money: paid 7")]


async def test_a_run_with_a_failed_call_is_refused_and_one_with_a_branch_keeps_it(tmp_path: Path) -> None:
    branch = {"_tool": "refund", "customer": "a", "euros": 500, "_outputPath": "†state.paid || †state.why"}
    plans = [
        {"calls": [{"_tool": "refund", "customer": "a", "euros": 500}]},
        {"calls": [], "output": "not paid"},
        {
            "calls": [
                branch,
                {"_tool": "mail", "to": "a", "text": "{†state.paid}"},
                {"_tool": "mail", "to": "b", "text": "{†state.why.message}"},
            ],
            "output": "†state.why.message || †state.paid",
        },
    ]
    async with run_locally(SHOP, model=plans) as local:
        failed = await local.run({"request": "Go."})
        with pytest.raises(RunError, match=r"1\.0 refund failed without a branch"):
            await local.perdure.get_run(failed.run_id).promote("p")
        DID.clear()
        branched = await local.run({"request": "Go."})
        assert branched.status == "completed"
        made = await local.perdure.get_run(branched.run_id).promote("p", parameters={"euros": "1.0.euros"})
        DID.clear()
        paid = await local.run({"euros": 5}, agent=Agent.of(made.agent))
        assert (paid.status, paid.requests, paid.output) == ("completed", 0, "paid 5")
        assert DID == [("refund", "a", 5), ("mail", "a", "paid 5")]
    written, path = write_procedure(made, tmp_path)
    assert (written.version, json.loads(path.read_text())["metadata"]["procedure"]["digest"]) == (1, made.digest)
    assert write_procedure(made, tmp_path)[0].version == 1
    other = made.model_copy(update={"digest": "sha256:other"})
    with pytest.raises(SettingsError, match="--replace"):
        write_procedure(other, tmp_path)
    assert write_procedure(other, tmp_path, replace=True)[0].version == 2
    path.write_text("[]")
    with pytest.raises(SettingsError, match="not a procedure"):
        write_procedure(other, tmp_path, replace=True)
