"""The example of a shop, tested by the public testing kit alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from examples.shop.app import app
from examples.shop.database import database
from examples.shop.nightly import refunds_so_far
from examples.shop.support import Customer, support
from perdure import Agent
from perdure.testing import Local, approve, kill, reject, run_locally
from tests.support import ROOT

ANN, BO = Customer(number=1, name="Ann"), Customer(number=2, name="Bo")


@pytest.fixture(autouse=True)
def empty_shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_DB", str(tmp_path / "shop.db"))


def refund(order: str, euros: float) -> dict[str, Any]:
    call = {"_tool": "refund", "order": order, "euros": euros, "_outputPath": "†state.receipt"}
    return {"calls": [call], "output": "†state.receipt"}


def look_up(order: str, output: Any = None) -> dict[str, Any]:
    return {"calls": [{"_tool": "find_order", "order": order, "_outputPath": "†state.order"}], "output": output}


def paid() -> list[tuple[str, float]]:
    with database() as db:
        return [(row["number"], row["euros"]) for row in db.execute("select number, euros from refunds")]


async def test_two_days_pass_the_worker_dies_and_the_money_moves_once() -> None:
    people, faults = [approve("refund", after="2 days", by="eve")], [kill("refund", "during")]
    async with run_locally(support, model=[refund("A-17", 80)], people=people, faults=faults) as local:
        begun = await local.now()
        session = local.session("customer-1")
        reply = await session.ask("My lamp A-17 arrived broken", sender="Ann", context=ANN)
        assert reply == "80 euros for order A-17 are paid back"
        assert (await local.now() - begun).days == 2
        local.assert_once("refund", order="A-17")
        assert len(local.executions("refund")) == 2
    assert paid() == [("A-17", 80.0)]


async def test_another_customers_order_does_not_exist() -> None:
    people = [approve("refund", every=True)]
    plans = [look_up("A-17"), {"calls": [], "output": "There is no such order."}, refund("A-17", 80), {"output": "No."}]
    async with run_locally(support, model=plans, people=people) as local:
        session = local.session("customer-2")
        await session.ask("What do you know of order A-17?", sender="Bo", context=BO)
        await session.ask("Refund it", sender="Bo", context=BO)
        for asked in (local.model.requests[1], local.model.requests[3]):
            assert "there is no order A-17" in asked.text
            assert "a lamp" not in asked.text
    assert paid() == []


async def test_a_note_in_an_order_gets_no_refund_without_a_person() -> None:
    """The scripted model believes the note."""
    people = [reject("refund", "the note is no reason", by="eve", after="1h")]
    plans = [look_up("C-9"), refund("C-9", 300), {"output": "A colleague has refused that."}]
    async with run_locally(support, model=plans, people=people) as local:
        reply = await local.session("customer-1").ask("What about my desk, C-9?", sender="Ann", context=ANN)
        assert reply == "A colleague has refused that."
        assert "ask nobody" in local.model.requests[1].text
        local.assert_never("refund")
    assert paid() == []


async def test_no_more_is_paid_back_than_was_paid() -> None:
    people = [approve("refund", every=True)]
    plans = [refund("A-17", 50), refund("A-17", 50), {"output": "30 euros are left."}]
    async with run_locally(support, model=plans, people=people) as local:
        session = local.session("customer-1")
        await session.ask("I want 50 euros back", sender="Ann", context=ANN)
        await session.ask("And 50 more", sender="Ann", context=ANN)
        assert "30 euros of order A-17 are left" in local.model.requests[2].text
    assert paid() == [("A-17", 50.0)]


async def test_customers_read_the_answer_as_it_comes_and_the_staff_decides() -> None:
    async with run_locally(support, model=[refund("A-17", 80)]) as local, browser(local) as http:
        writing = asyncio.create_task(
            http.post("/messages", params={"text": "My lamp is broken"}, headers=token("ann"))
        )
        await local.settle()
        while not (waiting := (await http.get("/customers/1/waiting", headers=token("eve"))).json()):
            await local.settle()
        assert (waiting[0]["tool"], waiting[0]["params"]) == ("refund", {"order": "A-17", "euros": 80})
        decision = {"call": waiting[0]["call"], "digest": waiting[0]["digest"], "decision": "approve"}
        assert (await http.post("/customers/1/decisions", params=decision, headers=token("ann"))).status_code == 403
        assert (await http.post("/customers/1/decisions", params=decision, headers=token("eve"))).status_code == 200
        streamed = (await writing).text
        assert (await http.post("/customers/1/decisions", params=decision, headers=token("eve"))).status_code == 409
        assert (await http.post("/messages", params={"text": "Hi"})).status_code == 401
    kinds = [line.removeprefix("event: ") for line in streamed.splitlines() if line.startswith("event: ")]
    assert kinds[0] == "lifecycle"
    assert "approval" in kinds
    assert kinds[-1] == "reply"
    assert json.loads(streamed.rsplit("data: ", 1)[1]) == "80 euros for order A-17 are paid back"
    assert paid() == [("A-17", 80.0)]


async def test_each_night_the_refunds_are_reported() -> None:
    agent = Agent.read(ROOT / "examples" / "shop" / "agents" / "nightly.json")
    plan = {
        "calls": [{"_tool": "refunds_so_far", "_outputPath": "†state.all"}],
        "output": "{†state.all.count} refunds",
    }
    async with run_locally(agent, model=[plan], tools=[refunds_so_far]) as local:
        assert (await local.run()).output == "0 refunds"


@asynccontextmanager
async def browser(local: Local) -> AsyncIterator[httpx2.AsyncClient]:
    app.state.perdure = local.perdure
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://shop", timeout=60) as http:
        yield http


def token(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer token-of-{name}"}
