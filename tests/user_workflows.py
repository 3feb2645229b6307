"""Workflows and activities of a user's: nothing here says anything of the sandbox."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import nexusrpc
import nexusrpc.handler
from pydantic import BaseModel
from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError

import perdure.workflow
from perdure import Agent, RunExistsError, RunFailedError, tool


class Order(BaseModel):
    fruit: str
    count: int = 1


class Receipt(BaseModel):
    euros: float


@dataclass
class Address:
    street: str
    town: str = "Bern"


@tool(safe=True)
async def price(fruit: str) -> float:
    """What one costs."""
    return 0.5 if fruit == "apple" else 0.75


SHOPPER = Agent("shopper", instructions="You shop.", tools=[price], input=Order, output=Receipt)


@activity.defn
async def ship(address: Address) -> str:
    """Send the parcel.

    Args:
        address: Where it goes.
    """
    return f"to {address.town}"


@workflow.defn
class Shopping:
    """A user's workflow: an activity of theirs, and an agent."""

    @workflow.run
    async def run(self, order: Order) -> str:
        where = await workflow.execute_activity(ship, Address("Main"), start_to_close_timeout=timedelta(seconds=10))
        receipt = await perdure.workflow.run_agent(SHOPPER, order)
        assert isinstance(receipt, Receipt)
        return f"{receipt.euros:g} {where}"


CLERK = Agent("clerk", instructions="I am old.").with_candidate(
    Agent("clerk", instructions="I am new."), tenants=["acme"]
)


@workflow.defn
class Asking:
    """A workflow with an agent of two versions."""

    @workflow.run
    async def run(self, tenant: str) -> Any:
        return await perdure.workflow.run_agent(CLERK, tenant=tenant)


@workflow.defn
class Minding:
    """What can become of a child, told by its errors; `how`: `caught`, `taken`, or anything else to let them through."""

    @workflow.run
    async def run(self, how: str) -> list[Any]:
        run_id = f"{workflow.info().workflow_id}/child"
        if how == "taken":
            first = asyncio.create_task(perdure.workflow.run_agent(SHOPPER, {"fruit": "apple"}, id=run_id))
            await workflow.wait([first])
        try:
            return [await perdure.workflow.run_agent(SHOPPER, {"fruit": "apple"}, id=run_id)]
        except RunExistsError as error:
            return [str(error)]
        except RunFailedError as error:
            if how != "caught":
                raise
            return [error.view.status, str(error)]


@activity.defn(name="charge")
async def charge(euros: float, account: str = "main", note: str | None = None) -> dict[str, Any]:
    """Take the money."""
    attempt = activity.info().attempt
    if account == "shaky" and attempt == 1:
        raise RuntimeError("not yet")
    if account == "closed":
        raise ApplicationError("nobody has it", 42, type="no_account", non_retryable=True)
    if account == "slow":
        await asyncio.Event().wait()
    return {"euros": euros, "account": account, "note": note, "attempt": attempt}


@workflow.defn
class Delivery:
    """Bring it."""

    @workflow.run
    async def run(self, number: int, wait: bool = False) -> str:
        if wait:
            await asyncio.Event().wait()
        if number == 13:
            raise ApplicationError("not on that day", type="unlucky")
        return f"brought {number}"


@nexusrpc.service(name="stock")
class Stock:
    left: nexusrpc.Operation[Order, int]


@nexusrpc.handler.service_handler(service=Stock)
class StockHandler:
    @nexusrpc.handler.sync_operation
    async def left(self, _: nexusrpc.handler.StartOperationContext, order: Order) -> int:
        if order.fruit == "none":
            raise nexusrpc.HandlerError("no such fruit", type=nexusrpc.HandlerErrorType.NOT_FOUND)
        if order.fruit == "exotic":
            await asyncio.sleep(1)
        return 10 - order.count


@activity.defn
async def scan(how: str) -> Any:
    """What Temporal can carry and no plan can."""
    if how == "loud":
        raise ApplicationError("x" * 1_000_000, type="y" * 100_000, non_retryable=True)
    deep: Any = 1
    for _ in range(150):
        deep = [deep]
    return {"bytes": b"\xff\x00", "none": None, "deep": deep}[how]
