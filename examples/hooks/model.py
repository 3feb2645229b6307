"""What the example's scripted model answers; it has a word for calls that were refused."""

from __future__ import annotations

from typing import Any

from perdure.testing.scripted_model import ChatRequest

PLAN = [
    {"_tool": "find_customer", "name": "†input.customer", "_outputPath": "†state.customer"},
    {"_tool": "send_offer", "customer": "†state.customer", "text": "†input.offer", "_outputPath": "†state.sent"},
]


def SCRIPT(request: ChatRequest) -> dict[str, Any]:  # noqa: N802
    """By what the run has come to."""
    if "refused_by_hook" in request.text:
        return {"calls": [], "output": "Nothing was sent: today's budget is used up."}
    if "two lamps" in request.text and "find_customer" in request.text and "card ending" in request.text:
        return {"calls": [], "output": "Sent {†state.sent}. {†state.customer.paid}."}
    return {"calls": PLAN, "output": None}
