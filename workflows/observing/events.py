"""The events of a workflow, as it answers them to whoever asks: a query, which no history holds (R10.14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.run.events.journal import Journal
    from perdure.run.events.noting import Noting
    from perdure.run.events.wire import EVENTS_QUERY, EventsPage


_FIRST_TASK: Final = 3
"""Events of a history when its first task begins, unless that task has failed before, as in an execution that is reset to it."""


def now() -> str:
    """The workflow's time in words: ISO 8601, UTC."""
    return workflow.now().isoformat(timespec="milliseconds")


def page_of(journal: Journal, said: Sequence[Any]) -> EventsPage:
    """What was asked for: from which number on, and how many at most; both may be left out. Raises `ValueError` for anything else."""
    if len(said) > 2 or not all(isinstance(each, int) and not isinstance(each, bool) for each in said):
        raise ValueError("events are asked for by the number of the first, and how many at most: 0, 1000")
    return journal.page(*said)


def _may_be_reset_to_its_start(info: workflow.Info) -> bool:
    """Whether a reset execution begins with its first task done again: of a reset to that task no other sign follows, of a later one its own.
    Of an execution that went on as new nothing says it."""
    is_reset = info.run_id != info.first_execution_run_id and info.continued_run_id is None
    return is_reset and info.get_current_history_length() > _FIRST_TASK


class Noted:
    """A run's journal, from its workflow's first task on, also once it has ended."""

    def __init__(self) -> None:
        super().__init__()
        self._notes = Noting(now=now, run_id=workflow.info().workflow_id)
        if _may_be_reset_to_its_start(workflow.info()):
            self._notes.was_reset()

    @workflow.query(name=EVENTS_QUERY)
    def events(self, *said: Any) -> EventsPage:
        """What has happened: an `EventsPage` from a number on, and with at most so many."""
        return page_of(self._notes.journal, said)
