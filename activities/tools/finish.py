"""The tool that ends a run on purpose (R9.5)."""

from __future__ import annotations

from typing_extensions import TypedDict

from perdure.tools.decorator import tool


class Completed(TypedDict):
    summary: str
    success: bool


@tool(safe=True, timeout=10)
def task_complete(summary: str, success: bool) -> Completed:
    """Call this when the task is fully resolved, or cannot be. It ends the run.

    Args:
        summary: what was done, or why it could not be.
        success: whether the task was solved.
    """
    return {"summary": summary, "success": success}
