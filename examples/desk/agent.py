"""The agent that answers at the desk, and what is said to it there."""

from __future__ import annotations

from examples.desk.tools import find_order, pay_back
from perdure import Agent

AGENT = Agent(
    "desk",
    description="Answers customers of a shop",
    instructions="You work at the support desk of a shop. Answer in a sentence. Customers may only have their own orders paid back.",
    tools=[find_order, pay_back],
    output=str,
    # A small context, so that a short conversation shows how a long one is told in short.
    session={"context_tokens": 1_500},
)

CUSTOMER: tuple[str, ...] = ()
"""The rights of whoever writes to the desk: to be answered."""
COLLEAGUE = ("approve", "stop")
"""The rights of whoever works there."""
