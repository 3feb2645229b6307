"""The chat's agent: it orders what is in the cart of the page, once the customer has approved."""

from __future__ import annotations

from pydantic import BaseModel

from perdure import Agent, ToolContext, tool


class Customer(BaseModel):
    """The customer who is signed in."""

    number: str


@tool(dangerous=True, ask="order {pieces} {fruit}?")
def order(context: ToolContext[Customer], fruit: str, pieces: int) -> str:
    """Order fruit for the customer."""
    return f"ordered {pieces} {fruit} for {context.context.number}"


shopper = Agent(
    "shopper",
    instructions="You help customers of a fruit shop. Read the cart of their page before you order.",
    tools=[order, "ask_person"],
    context=Customer,
    output=str,
)
