"""The agent at the desk, and its tools. A tool reads the orders of the customer who asks, and of nobody else."""

from __future__ import annotations

import sqlite3
from typing import Any

from pydantic import BaseModel

from examples.shop.database import database
from perdure import Agent, ToolContext, ToolError, tool


class Customer(BaseModel):
    """Who asks, as the application has verified it. No model reads or changes it."""

    number: int
    name: str


@tool(safe=True)
def find_order(order: str, context: ToolContext[Customer]) -> dict[str, Any]:
    """Find one of the customer's orders by its number."""
    with database() as db:
        return dict(_order_of(db, context.context, order))


@tool(dangerous=True)
def refund(order: str, euros: float, context: ToolContext[Customer]) -> str:
    """Pay the customer back, for one of their orders."""
    if euros <= 0:
        raise ToolError("no_amount", "euros must be above 0")
    with database() as db:
        price = _order_of(db, context.context, order)["euros"]
        others = "select coalesce(sum(euros), 0) from refunds where number = ? and key != ?"
        (paid,) = db.execute(others, (order, context.idempotency_key)).fetchone()
        if euros > price - paid:
            raise ToolError("too_much", f"{price - paid:g} euros of order {order} are left")
        # A second attempt of this call has the same key, and changes nothing.
        db.execute("insert or ignore into refunds values (?, ?, ?)", (context.idempotency_key, order, euros))
    return f"{euros:g} euros for order {order} are paid back"


def _order_of(db: sqlite3.Connection, customer: Customer, order: str) -> sqlite3.Row:
    """Return an order of this customer. Another customer's order does not exist here."""
    found: sqlite3.Row | None = db.execute(
        "select number, item, euros, note from orders where number = ? and customer = ?", (order, customer.number)
    ).fetchone()
    if found is None:
        raise ToolError("unknown_order", f"there is no order {order}")
    return found


support = Agent(
    "support",
    instructions="You work at the support desk of a shop. Answer in a sentence.",
    tools=[find_order, refund],
    context=Customer,
    output=str,
)
