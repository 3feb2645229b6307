"""A segment of a session's old entries, which idles and answers whoever asks: four events, no timer, no activity (R10.13)."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from temporalio import workflow

from perdure.workflows.arguments import read_input

with workflow.unsafe.imports_passed_through():
    from perdure.errors import PerdureError, RunError
    from perdure.sessions.segments import (
        SEGMENT_DELETE,
        SEGMENT_ENTRIES_QUERY,
        SEGMENT_FIND_QUERY,
        SEGMENT_INDEX_QUERY,
        SEGMENT_WORKFLOW,
        Entries,
        Index,
        Segment,
    )


@workflow.defn(name=SEGMENT_WORKFLOW, failure_exception_types=[PerdureError, ValidationError])
class SegmentWorkflow:
    """Takes one `Segment`, and holds it until it is deleted. Where it was evicted, a question brings it back."""

    def __init__(self) -> None:
        self._segment: Segment | None = None
        self._deleted = False

    @workflow.run
    async def run(self, *given: Any) -> None:
        """See the class."""
        self._segment = read_input(Segment, given)
        workflow.set_current_details(f"entries {self._segment.first:,} to {self._segment.last:,}")
        await workflow.wait_condition(lambda: self._deleted)

    @workflow.signal(name=SEGMENT_DELETE, description="The engine's own: its session was deleted")
    def delete(self, *_: Any) -> None:
        """Nobody needs it any more."""
        self._deleted = True

    @workflow.query(name=SEGMENT_ENTRIES_QUERY)
    def entries(self) -> Entries:
        """All of its entries."""
        return Entries(entries=self._open().read)

    @workflow.query(name=SEGMENT_INDEX_QUERY)
    def index(self) -> str:
        """The messages that it knows of."""
        return self._open().index

    @workflow.query(name=SEGMENT_FIND_QUERY)
    def find(self, message_id: str) -> list[int]:
        """The numbers of the segments in which messages of an id stand, as far as this one knows, the newest first."""
        return Index(self._open().index).find_all(message_id)

    def _open(self) -> Segment:
        """Return the segment. Raises `RunError` where its input could not be read: an empty answer would hide entries."""
        if self._segment is None:
            raise RunError("this segment has no entries: its input could not be read")
        return self._segment
