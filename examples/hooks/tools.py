"""A shop's tools, and the hooks that stand round them: those that a module imports are registered with its own, in the order of the imports."""

from __future__ import annotations

from typing import Any

from perdure import tool

# isort: off
from examples.hooks.budget import at_the_end, within_budget
from examples.hooks.audit import asked_for  # behind the budget: the log holds what was really about to be made
from examples.hooks.redaction import replies, results
from examples.hooks.audit import came_of_it  # behind the redaction: nor does the log hold what was taken out

# isort: on

__all__ = [
    "asked_for",
    "at_the_end",
    "came_of_it",
    "find_customer",
    "replies",
    "results",
    "send_offer",
    "within_budget",
]


@tool(safe=True)
def find_customer(name: str) -> dict[str, Any]:
    """Look a customer up."""
    return {"name": name, "mail": f"{name.lower()}.jones@example.com", "paid": f"{name} paid by 4012 8888 8888 1881"}


@tool
def send_offer(customer: dict[str, Any], text: str) -> str:
    """Send a customer an offer."""
    return f"to {customer['name']} ({customer['mail']}): {text}"
