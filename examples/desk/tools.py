"""A shop's orders, in memory."""

from __future__ import annotations

from typing import Any

from perdure import ToolContext, ToolError, tool

ORDERS: dict[str, dict[str, Any]] = {
    "A-17": {"item": "a lamp", "euros": 80, "status": "on its way"},
    "B-4": {"item": "a chair", "euros": 120, "status": "delivered broken"},
}
PAID: dict[str, str] = {}
"""Order by idempotency key: paying twice under one key pays once."""


@tool(safe=True)
async def find_order(order: str) -> dict[str, Any]:
    """What is known of an order."""
    if order not in ORDERS:
        raise ToolError("unknown_order", f"there is no order {order}")
    return ORDERS[order]


@tool(dangerous=True)
async def pay_back(order: str, context: ToolContext) -> str:
    """Pay the price of an order back."""
    PAID[context.idempotency_key] = order
    return f"{ORDERS[order]['euros']} euros for {ORDERS[order]['item']} paid back"
