"""The files that `perdure init` writes; the README shows them one by one."""

from __future__ import annotations

from typing import Final

TOOLS: Final = '''\
# mytools.py
from perdure import ToolError, tool

PRICES = {"apple": 0.5, "pear": 0.75}


@tool(safe=True, timeout=10, retries=3)
def price(fruit: str, count: int = 1) -> float:
    """The price of some fruit, in euros."""
    if fruit not in PRICES:
        raise ToolError("unknown_fruit", f"no price for {fruit}; there are {', '.join(PRICES)}")
    return count * PRICES[fruit]


@tool(safe=True)
def total(prices: list[float]) -> float:
    """Add prices."""
    return sum(prices)


@tool(dangerous=True)
def order(euros: float) -> str:
    """Order what was priced, and pay for it."""
    return f"ordered for {euros:.2f} euros"
'''

SCRIPT: Final = """\
# shopping.py
import asyncio

from mytools import order, price, total
from pydantic import BaseModel

from perdure import Agent, Perdure


class Bill(BaseModel):
    euros: float


shopper = Agent("shopper", instructions="You help with shopping.", tools=[price, total, order], output=Bill)


async def main() -> None:
    perdure = await Perdure.connect()
    bill = await perdure.run(shopper, {"request": "What are three apples and a pear?"})
    print(bill.euros)


if __name__ == "__main__":
    asyncio.run(main())
"""

AGENT: Final = """\
{
  "$schema": "../agent.schema.json",
  "name": "shopper",
  "context": [
    {"type": "system", "text": "You help with shopping."},
    {"type": "tool", "tool": "price"},
    {"type": "tool", "tool": "total"},
    {"type": "tool", "tool": "order"}
  ],
  "schema": {"type": "object", "properties": {"euros": {"type": "number"}}, "required": ["euros"]}
}
"""

TEST: Final = """\
# test_shopping.py
import pytest
from shopping import Bill, shopper

from perdure.testing import approve, check, run_locally

PLAN = {
    "calls": [
        {"_tool": "price", "fruit": "apple", "count": 3, "_outputPath": "†state.apples"},
        {"_tool": "price", "fruit": "pear", "_outputPath": "†state.pears"},
        {"_tool": "total", "prices": ["†state.apples", "†state.pears"], "_outputPath": "†state.total"},
        {"_tool": "order", "euros": "†state.total"},
    ],
    "output": {"euros": "†state.total"},
}


def test_a_person_is_asked_before_anything_is_ordered() -> None:
    checked = check(shopper, PLAN)
    assert checked.problems == []
    assert checked.asks == ["order"]


@pytest.mark.asyncio
async def test_the_bill_is_right() -> None:
    async with run_locally(shopper, model=[PLAN], people=[approve("order", after="2 days")]) as local:
        view = await local.run({"request": "Order three apples and a pear."})
    assert shopper.read_output(view.output) == Bill(euros=2.25)
"""

CONFIG: Final = """\
tools = ["mytools"]
agents = "agents"
"""

FILES: Final = {
    "mytools.py": TOOLS,
    "shopping.py": SCRIPT,
    "agents/shopper.json": AGENT,
    "test_shopping.py": TEST,
    "perdure.toml": CONFIG,
}
