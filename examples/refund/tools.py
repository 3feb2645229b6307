"""A shop's back office, in memory."""

from __future__ import annotations

from typing import Any

from perdure import ToolContext, ToolError, tool

ORDERS: dict[str, dict[str, Any]] = {
    "A-17": {"customer": "ann@example.com", "euros": 80.0, "days": 12, "opened": True},
    "B-4": {"customer": "bo@example.com", "euros": 20.0, "days": 3, "opened": False},
}
PAID: dict[str, str] = {}
"""Receipt by idempotency key: paying twice under one key pays once."""


@tool(safe=True)
def find_order(order: str) -> dict[str, Any]:
    """Look an order up: customer, euros, days since delivery, and whether it was opened."""
    if order not in ORDERS:
        raise ToolError("no_such_order", f"there is no order {order}")
    return ORDERS[order]


@tool(safe=True)
def check_policy(order: dict[str, Any]) -> dict[str, Any]:
    """What the policy allows: all within 14 days, nine tenths of it if opened."""
    if order["days"] > 14:
        raise ToolError("too_late", f"delivered {order['days']} days ago, and 14 is the most")
    return {"euros": order["euros"] * (0.9 if order["opened"] else 1.0)}


@tool(dangerous=True)
def pay_back(order: str, euros: float, context: ToolContext) -> dict[str, Any]:
    """Pay money back."""
    receipt = PAID.setdefault(context.idempotency_key, f"R-{len(PAID) + 1}")
    return {"id": receipt, "order": order, "euros": euros}


@tool
def notify(who: str, text: str) -> str:
    """Write to a customer."""
    return f"to {who}: {text}"
