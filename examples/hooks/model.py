"""What the example's scripted model answers."""

from __future__ import annotations

from typing import Any

SCRIPT: list[dict[str, Any]] = [
    {
        "calls": [
            {"_tool": "find_customer", "name": "†input.customer", "_outputPath": "†state.customer"},
            {
                "_tool": "send_offer",
                "customer": "†state.customer",
                "text": "†input.offer",
                "_outputPath": "†state.sent",
            },
        ],
        "output": None,
    },
    {"calls": [], "output": "Sent {†state.sent}. {†state.customer.paid}."},
]
