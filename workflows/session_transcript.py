"""A session's transcript: compaction, and segments of old entries.

Nothing here fails a session. An action that fails is tried again the next time. If no model writes a summary, an
extract of the messages replaces it.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

from pydantic import ValidationError
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

from perdure.workflows.arguments import any_arguments, query_arguments, read_input
from perdure.workflows.continue_as_new import wait_uncancelled
from perdure.workflows.failures import message_of
from perdure.workflows.internal_activities import execute_internal
from perdure.workflows.observability import now
from perdure.workflows.session_hooks import SessionHooks

with workflow.unsafe.imports_passed_through():
    from perdure.errors import PerdureError, RunError
    from perdure.runs.claim_check import GONE, Payload
    from perdure.sessions.compaction import (
        ARCHIVE_ACTIVITY,
        FIND_ACTIVITY,
        SEGMENT,
        SUMMARY,
        SUMMARY_ACTIVITY,
        Archived,
        ArchiveInput,
        CompactionCut,
        FindInput,
        FoundEntry,
        HeldEntries,
        SummaryInput,
        SummaryResult,
        SummarySource,
        Why,
        compacted,
        compaction_reason,
        cut_of,
    )
    from perdure.sessions.entries import CommandEntry, CompactionEntry, Entry, MessageEntry
    from perdure.sessions.state import SessionState
    from perdure.sessions.transcript import (
        SEGMENT_DELETE,
        SEGMENT_ENTRIES_QUERY,
        SEGMENT_FIND_QUERY,
        SEGMENT_INDEX_QUERY,
        SEGMENT_WORKFLOW,
        EntryList,
        Index,
        Segment,
        SegmentSpan,
        Transcript,
        segment_of,
    )
    from perdure.values.json import Json, JsonObject, Sent
    from perdure.values.limits import AT_HAND


_SUMMARY: Final = timedelta(minutes=2)
"""Time of one attempt of a summary. After three the waiting run begins with an extract."""
_SEGMENT: Final = timedelta(seconds=20)
"""Time of one attempt to start or read a segment."""
_THREE_ATTEMPTS: Final = RetryPolicy(maximum_attempts=3)
COMPACTED_SHOWN: Final = 320_000
"""Characters of the compacted text that hooks receive: as many as the summary's model reads."""


class TranscriptTasks:
    """The activities of a session's transcript, and the answers to the queries by which they read it."""

    def __init__(self, kept: SessionState, hooks: SessionHooks) -> None:
        self._kept = kept
        self._hooks = hooks
        self._cut: CompactionCut | None = None
        self._old: list[Entry] = []
        self._one_at_a_time = asyncio.Lock()
        self._held_back: str | None = None
        """Reason why a hook refused the compaction."""

    async def tend(self, why: Why | None = None, by: str = "") -> str | None:
        """Compact and archive as far as due; with `why`, compact in any case, as `by` has requested. Return the action
        in words; `None`: nothing was due.

        One call at a time does it, others wait. Raise only a cancellation.
        """
        models = self._kept.models
        async with self._one_at_a_time:
            return await self._tend(models, why, by)

    async def _tend(self, models: JsonObject, why: Why | None, by: str) -> str | None:
        transcript = self._kept.transcript
        words = None
        while (reason := why or compaction_reason(transcript)) is not None:
            entry = await self._compact(transcript, models, reason, by)
            if entry is None and self._held_back is not None:
                words = f"not compacted: {self._held_back}"
                break
            if entry is None:
                words = words or (None if why is None else "compaction would save less than a tenth")
                break
            words = f"compacted from about {entry.before:,} tokens to {entry.after:,}, by {entry.kind}"
            why, by = None, ""
        await self._archive(transcript)
        return words

    async def _compact(self, transcript: Transcript, models: JsonObject, why: Why, by: str) -> CompactionEntry | None:
        self._cut = cut = cut_of(transcript, why)
        if cut is None:
            self._held_back = None
            return None
        self._held_back, addition = await self._hooks.may_compact(
            cut.why, cut.before, lambda: cut.source(COMPACTED_SHOWN), by
        )
        if self._held_back is not None:
            self._cut = None
            return None
        notes = self._kept.notes
        notes.compacts(cut.why, cut.before, now())
        try:
            summary: SummaryResult = await execute_internal(
                SUMMARY_ACTIVITY,
                [SummaryInput(models=models)],
                SummaryResult,
                timeout=_SUMMARY,
                heartbeat=timedelta(seconds=10),
                retry_policy=_THREE_ATTEMPTS,
                summary=f"compaction: {cut.before:,} tokens",
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            summary = SummaryResult(problem=message_of(error)[:500])
        finally:
            self._cut = None
        entry = compacted(cut, summary.text, summary.problem, now(), addition)
        notes.compacted(cut.why, cut.before, entry, now())
        if entry is None:
            return None
        entry.model, entry.usage = summary.model, summary.usage
        transcript.append(entry)
        await self._hooks.call_compaction_hooks(entry, by)
        return entry

    async def _archive(self, transcript: Transcript) -> None:
        """Archive old entries. If that fails they stay in memory until the next time."""
        info = workflow.info()
        name = f"{info.workflow_id}/~{info.first_execution_run_id[:8]}-"
        while old := transcript.old():
            self._kept.put_away(old)
            self._old = old
            if not transcript.spans or transcript.spans[-1].name != name:
                transcript.spans.append(SegmentSpan(name=name))
            span = transcript.spans[-1]
            try:
                archived: Archived = await execute_internal(
                    ARCHIVE_ACTIVITY,
                    [ArchiveInput(span=span)],
                    Archived,
                    timeout=_SEGMENT,
                    retry_policy=_THREE_ATTEMPTS,
                    summary="old entries",
                )
            except ActivityError as error:
                if is_cancelled_exception(error):
                    raise
                workflow.logger.warning("old entries are not archived: %s", message_of(error))
                break
            self._kept.gone([entry for entry in old if entry.n <= archived.last])
            transcript.let_go(archived.last)
            span.segments, span.last = span.segments + 1, archived.last
        self._old = []

    async def find(self, message_id: str, sender: str = "") -> JsonObject:
        """Return the data of a message that is no longer in memory; empty if there is none. Raise `ActivityError`."""
        found: FoundEntry = await execute_internal(
            FIND_ACTIVITY,
            [FindInput(message_id=message_id, sender=sender, spans=self._kept.transcript.spans)],
            FoundEntry,
            timeout=_SEGMENT,
            retry_policy=RetryPolicy(maximum_attempts=6),
            summary="a message of before",
        )
        return found.entry.known if isinstance(found.entry, MessageEntry | CommandEntry) else {}

    def payload(self, kind: str, name: str) -> Payload:
        """Return the text to summarise, in so many characters, or the entries to archive, as the segment of a number."""
        if kind == SUMMARY.name and self._cut is not None:
            return Payload(SummarySource(text=self._cut.source(int(name)), most=self._cut.most_of_summary))
        if kind == SEGMENT.name and self._old:
            return Payload(segment_of(int(name), self._old))
        return GONE

    def at_hand(self, after: int) -> HeldEntries:
        """Return the entries in memory after a position, as many as one answer holds, and the places of older ones."""
        transcript = self._kept.transcript
        entries, more = transcript.behind(after, AT_HAND)
        return HeldEntries(
            entries=entries,
            more=more,
            spans=transcript.spans,
            last=transcript.last,
            branch=transcript.branch,
            limit=transcript.limit,
        )


@workflow.defn(name=SEGMENT_WORKFLOW, failure_exception_types=[PerdureError, ValidationError])
class SegmentWorkflow:
    """A segment that holds its entries until it is deleted. A query loads it again where it was evicted."""

    def __init__(self) -> None:
        self._segment: Segment | None = None
        self._deleted = False

    @workflow.run
    async def run(self, *arguments: Json) -> None:
        """Hold one `Segment` until it is deleted."""
        self._segment = read_input(Segment, arguments)
        workflow.set_current_details(f"entries {self._segment.first:,} to {self._segment.last:,}")
        await wait_uncancelled(lambda: self._deleted)

    @workflow.signal(name=SEGMENT_DELETE, description="Internal: the session was deleted")
    @any_arguments
    def delete(self, _: Sent[None]) -> None:
        """End the segment: it is no longer needed."""
        self._deleted = True

    @workflow.query(name=SEGMENT_ENTRIES_QUERY, description="All of its entries")
    @query_arguments
    def entries(self) -> EntryList:
        """Return all of its entries."""
        return EntryList(entries=self._open().read)

    @workflow.query(name=SEGMENT_INDEX_QUERY, description="Internal: the index of the segment's messages")
    @query_arguments
    def index(self) -> str:
        """Return the index of the messages that it knows."""
        return self._open().index

    @workflow.query(name=SEGMENT_FIND_QUERY, description="The numbers of segments that hold messages of an id")
    @query_arguments
    def find(self, message_id: str) -> list[int]:
        """Return the numbers of the segments known to this one that hold messages of an id, newest first."""
        return Index(self._open().index).find_all(message_id)

    def _open(self) -> Segment:
        """Return the segment. Raise `RunError` where its input could not be read: an empty answer would hide entries."""
        if self._segment is None:
            raise RunError("this segment has no entries: its input could not be read")
        return self._segment
