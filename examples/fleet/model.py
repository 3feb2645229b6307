"""What the example's scripted model answers: one plan for the fleet, and no way out for the host that is broken."""

from __future__ import annotations

from typing import Any

from perdure.testing import ChatRequest

PLAN: dict[str, Any] = {
    "calls": [
        {"_tool": "list_hosts", "_outputPath": "†state.hosts"},
        {"_tool": "update_host", "_each": "†state.hosts", "_parallel": 4, "_outputPath": "†state.hosts_done"},
    ],
    "output": None,
}
LAST: dict[str, Any] = {"calls": [], "output": {"updated": 7, "failed": ["web-05"]}}


def SCRIPT(asked: ChatRequest) -> dict[str, Any]:  # noqa: N802
    """The fleet's agent and the broken host's ask the same server."""
    if "You are HOST." in asked.text:
        return {"calls": [], "output": {"gave": "up"}}
    return LAST if "# plan" in asked.text else PLAN
