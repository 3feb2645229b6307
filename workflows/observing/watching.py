"""Who watches a run: while somebody does, what its model writes is told more often (R10.14)."""

from __future__ import annotations

from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.run.events.wire import WATCH_LASTS, WATCHED


class Watched:
    """A workflow that is told by those who watch it."""

    def __init__(self) -> None:
        super().__init__()
        self._watched_until = 0.0

    @workflow.signal(name=WATCHED, description="Somebody watches: what a model writes is told more often for a while")
    def watched(self, *_: Any) -> None:
        """Said once a minute while there are readers; it is kept until when that counts."""
        self._watched_until = workflow.time() + WATCH_LASTS

    @workflow.query(name=WATCHED)
    def watched_until(self, *_: Any) -> float:
        """Until when somebody watches, in seconds since 1970; 0 for nobody."""
        return self._watched_until
