"""Old entries of a session go to segments, and a message of before is found there (R10.13)."""

from __future__ import annotations

from temporalio import activity
from temporalio.client import WorkflowQueryFailedError
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError

from perdure.activities.asking import ask_other, ask_run, client
from perdure.activities.transcripts.recalling import SessionReader
from perdure.errors import RunError
from perdure.sessions.segments import (
    SEGMENT_ENTRIES_QUERY,
    SEGMENT_INDEX_QUERY,
    SEGMENT_WORKFLOW,
    Entries,
    Index,
    joined_below,
)
from perdure.sessions.tending import (
    ARCHIVE_ACTIVITY,
    FIND_ACTIVITY,
    SEGMENT_QUERY,
    Archived,
    ArchiveInput,
    FindInput,
    Found,
    SegmentSource,
)


@activity.defn(name=ARCHIVE_ACTIVITY)
async def archive(wanted: ArchiveInput) -> Archived:
    """Start the next segment of the session that asks; one that is there already, from an attempt before, stays as it is. Fails where a segment of
    the session, as it was before a reset, holds other entries: then these stay at hand."""
    number = wanted.span.segments + 1
    name = wanted.span.id(number)
    try:
        source: SegmentSource = await ask_run(SEGMENT_QUERY, number, SegmentSource)
    except (RPCError, WorkflowQueryFailedError) as error:
        raise ApplicationError(f"the session does not say what is old: {error}", type="Archive") from None
    segment = source.segment
    if segment is None:
        raise ApplicationError("nothing is old any more", type="Archive", non_retryable=True)
    index = Index(segment.index)
    for below in joined_below(number):
        index = index.joined(Index(await ask_other(wanted.span.id(below), SEGMENT_INDEX_QUERY, str)))
    segment.index = index.text
    try:
        await client().start_workflow(
            SEGMENT_WORKFLOW,
            segment,
            id=name,
            task_queue=activity.info().task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            static_summary=f"entries {segment.first:,} to {segment.last:,} of {activity.info().workflow_id}"[:200],
        )
    except WorkflowAlreadyStartedError:
        there = (await ask_other(name, SEGMENT_ENTRIES_QUERY, Entries)).entries
        if there != segment.read[: len(there)]:
            words = f"{name} holds other entries: the session was reset to before it was made"
            raise ApplicationError(words, type="Archive", non_retryable=True) from None
        return Archived(last=there[-1].n)
    return Archived(last=segment.last)


@activity.defn(name=FIND_ACTIVITY)
async def find(wanted: FindInput) -> Found:
    """A message's entry, wherever it lies: a few questions, however many segments there are."""
    try:
        return Found(entry=await SessionReader(client(), "").find(wanted.spans, wanted.message_id, wanted.sender))
    except RunError as error:
        raise ApplicationError(str(error), type="Archive") from None
