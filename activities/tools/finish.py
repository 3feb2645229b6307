"""Ending a run on purpose (R9.5)."""

from __future__ import annotations

from typing import Any

from perdure import tool


@tool(safe=True, timeout=10)
def task_complete(summary: str, success: bool) -> dict[str, Any]:
    """Call this when the task is fully resolved, or cannot be. It ends the run.

    Args:
        summary: what was done, or why it could not be.
        success: whether the task was solved.
    """
    return {"summary": summary, "success": success}
