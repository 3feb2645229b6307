"""What the example's scripted model answers: at each step it decides again, with what is known by then."""

from __future__ import annotations

from typing import Any

CHECK = {"_tool": "check_policy", "order": "†state.order", "_outputPath": "†state.policy"}
PAY = {
    "_tool": "pay_back",
    "order": "†input.order",
    "euros": "†state.policy.euros",
    "_outputPath": "†state.receipt || †state.problem",
}
TELL = {"_tool": "notify", "who": "†state.order.customer", "text": "Refunded: {†state.receipt.id}"}

SCRIPT: list[dict[str, Any]] = [
    {"calls": [CHECK, PAY, TELL], "output": None},
    {"calls": [PAY, TELL], "output": None},
    {"calls": [TELL], "output": {"refunded": 72.0}},
]
