"""The result of a run below another: it comes into that one's history, which it asks for room (R18.4)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from temporalio import workflow
from temporalio.exceptions import FailureError

from perdure.workflows.arguments import read_one

with workflow.unsafe.imports_passed_through():
    from perdure.run.wire import CLAIM
    from perdure.tools.wire import Claim, Grant
    from perdure.values.limits import said

_PATIENCE: Final = timedelta(minutes=5)
"""A run above that does not answer by then has ended, or takes what comes."""


class Upward:
    """What one run below another asks of it."""

    def __init__(self) -> None:
        self._granted: bool | None = None

    def note(self, answer: Sequence[Any]) -> None:
        """The run above has decided."""
        if (grant := read_one(Grant, answer)) is not None:
            self._granted = grant.granted

    async def why_not(self, size: int, free: int) -> str | None:
        """Wait until a result of so many bytes may come; why it may not, in words. A run that has none above may always."""
        info = workflow.info()
        if info.parent is None or size <= free:
            return None
        above = workflow.get_external_workflow_handle(info.parent.workflow_id, run_id=info.parent.run_id)
        name = info.workflow_id.removeprefix(f"{info.parent.workflow_id}/")
        try:
            await above.signal(CLAIM, Claim(call_id=name, size=size))
            await workflow.wait_condition(lambda: self._granted is not None, timeout=_PATIENCE)
        except (TimeoutError, FailureError):
            return None  # there is nobody any more who could be harmed
        if self._granted:
            return None
        return (
            f"its output has {said(size)}, and the history of the run above it has no room for that beside the others"
        )
