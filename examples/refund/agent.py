"""The agent, in Python: its plan is given, and it is asked anew at every step."""

from __future__ import annotations

from pydantic import BaseModel

from examples.refund.tools import check_policy, find_order, notify, pay_back
from perdure import Agent


class Wish(BaseModel):
    order: str


class Refund(BaseModel):
    refunded: float
    """Euros."""


PLAN = [
    {"_tool": "find_order", "order": "†input.order", "_outputPath": "†state.order"},
    {"_tool": "check_policy", "order": "†state.order", "_outputPath": "†state.policy"},
    {
        "_tool": "pay_back",
        "order": "†input.order",
        "euros": "†state.policy.euros",
        "_outputPath": "†state.receipt || †state.problem",
    },
    {"_tool": "notify", "who": "†state.order.customer", "text": "Refunded: {†state.receipt.id}"},
]

AGENT = Agent(
    "refund",
    description="Handles a customer's wish for a refund",
    instructions="You handle refunds. Follow the plan, and depart from it where the order says so.",
    tools=[find_order, check_policy, pay_back, notify],
    input=Wish,
    output=Refund,
    messages=[{"type": "plan", "plan": PLAN}],
    start="plan",
    execution="step",
    approval={"tools": {"pay_back": {"when": {"properties": {"euros": {"minimum": 50}}}}}},
)
INPUT = Wish(order="A-17")
