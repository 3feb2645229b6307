"""What brings a run its next workflow task: an activity that does nothing."""

from __future__ import annotations

from typing import Any

from temporalio import activity

from perdure.run.wire import NEXT_TASK_ACTIVITY


@activity.defn(name=NEXT_TASK_ACTIVITY)
async def next_task(*_: Any) -> None:
    """Return at once."""
