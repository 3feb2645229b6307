"""The agent: nothing of it knows of hooks."""

from __future__ import annotations

from pydantic import BaseModel

from examples.hooks.tools import find_customer, send_offer
from perdure import Agent


class Wish(BaseModel):
    customer: str
    offer: str


AGENT = Agent(
    "sales",
    description="Writes offers to customers",
    instructions="You look customers up and send them offers. Say what was sent.",
    tools=[find_customer, send_offer],
    input=Wish,
    output=str,
)
INPUT = Wish(customer="Ann", offer="two lamps for the price of one")
