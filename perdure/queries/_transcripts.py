"""A session's transcript, read by queries of the session, its segments and its runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from perdure.errors import NoWorkerError, RunError
from perdure.queries._answers import answer_of, may_pass
from perdure.runs.wire import VALUE_QUERY
from perdure.sessions.compaction import ENTRIES_QUERY, HeldEntries
from perdure.sessions.entries import CommandEntry, MessageEntry, ReplyEntry, RunEntry
from perdure.sessions.recall import HistoryGoneError, newest_first, oldest_first
from perdure.sessions.transcript import (
    SEGMENT_ENTRIES_QUERY,
    SEGMENT_FIND_QUERY,
    SEGMENT_FORM,
    SEGMENT_INDEX_QUERY,
    SEGMENT_WORKFLOW,
    EntryList,
    Segment,
    SegmentSpan,
    is_sent,
    segments_to_query,
)
from perdure.sessions.wire import Fate, several_senders
from perdure.values.json import Json, ValuePage, pack

_STORED: Final = 4_000
"""The least bytes of a segment for external storage; its summary, which the Web UI shows, is shorter."""


async def start_segment(client: Client, id: str, segment: Segment, task_queue: str, *, replace: bool = False) -> None:
    """Start the workflow of a segment. Raise `WorkflowAlreadyStartedError` if its id was ever used.

    `replace`: end the execution of this id, and start this one in its place.
    """
    await _storing_client(client).start_workflow(
        SEGMENT_WORKFLOW,
        segment,
        id=id,
        task_queue=task_queue,
        id_reuse_policy=(WorkflowIDReusePolicy.ALLOW_DUPLICATE if replace else WorkflowIDReusePolicy.REJECT_DUPLICATE),
        id_conflict_policy=(
            WorkflowIDConflictPolicy.TERMINATE_EXISTING if replace else WorkflowIDConflictPolicy.UNSPECIFIED
        ),
        static_summary=f"entries {segment.first:,} to {segment.last:,} of {id.rpartition('/~')[0]}"[:200],
    )


def _storing_client(client: Client) -> Client:
    """Return the client with external storage for values of at least `_STORED` bytes, if it has any.

    A segment is kept for long and seldom read.
    """
    config = client.config()
    converter = config["data_converter"]
    if (storage := converter.external_storage) is None:
        return client
    least = min(storage.payload_size_threshold, _STORED)
    config["data_converter"] = replace(converter, external_storage=replace(storage, payload_size_threshold=least))
    return Client(**config)


async def read_segment(client: Client, id: str, number: int) -> Segment:
    """Return a segment as the input of its workflow. Raise the errors of `answer_of`."""
    handle = client.get_workflow_handle(id)
    entries: EntryList = await answer_of(handle, SEGMENT_ENTRIES_QUERY, result_type=EntryList, client=client)
    index = await answer_of(handle, SEGMENT_INDEX_QUERY, result_type=str, client=client)
    first, last = entries.entries[0].n, entries.entries[-1].n
    return Segment(number=number, first=first, last=last, entries=pack(entries, SEGMENT_FORM), index=index)


class SessionReader:
    """A reader that queries one session, its segments and its runs."""

    def __init__(self, client: Client, session: str) -> None:
        self._client = client
        self._session = session

    async def at_hand(self, after: int) -> HeldEntries:
        """Return the entries that are not archived. Raise `RunError` without an answer."""
        found: HeldEntries = await self._ask(self._session, ENTRIES_QUERY, HeldEntries, after)
        return found

    async def segment(self, id: str) -> EntryList:
        """Return the entries of a segment. Raise `RunError` if it is not in this namespace."""
        found: EntryList = await self._ask(id, SEGMENT_ENTRIES_QUERY, EntryList)
        return found

    async def whole(self, run_id: str, what: str) -> Json:
        """Return a whole value of a run. Raise `RunError` if its history is not in this namespace, or lacks the value."""
        parts: list[str] = []
        offset: int | None = 0
        while offset is not None:
            page: ValuePage = await self._ask(run_id, VALUE_QUERY, ValuePage, what, offset)
            if page.earlier:
                raise RunError(f"{run_id} has continued in a new execution since then")
            parts.append(page.text)
            offset = page.next
        value: Json = json.loads("".join(parts))
        return value

    async def find(
        self, spans: Sequence[SegmentSpan], message_id: str, sender: str = ""
    ) -> MessageEntry | CommandEntry | None:
        """Return a message's entry from the archived segments, with few queries for any number of segments.

        Raises `RunError` if a segment does not answer, and without `sender` if several senders have a message of this
        id.
        """
        found: dict[str, MessageEntry | CommandEntry] = {}
        for span in reversed(spans):
            for number in segments_to_query(span.segments):
                held: Any = await self._ask(span.id(number), SEGMENT_FIND_QUERY, None, message_id)
                for each in held if isinstance(held, list) else [held] if held else []:
                    # The newest first: a fork's sender may have used the id of a copied message again.
                    for entry in reversed((await self.segment(span.id(each))).entries):
                        if not is_sent(entry) or entry.message_id != message_id or entry.n > span.last:
                            continue
                        if entry.sender == sender:
                            return entry
                        found.setdefault(entry.sender, entry)
        if sender:
            return None
        if len(found) > 1:
            raise RunError(several_senders(message_id, found))
        return next(iter(found.values()), None)

    async def fate(self, message_id: str, sender: str = "") -> Fate:
        """Return the fate of a message that is archived. Raises `RunError` as `find` does."""
        hand = await self.at_hand(0)
        entry = await self.find(hand.spans, message_id, sender)
        if entry is None:
            return Fate()
        if isinstance(entry, CommandEntry):
            return Fate(known=True, state="ended", status="ok")
        if entry.run_id is None or entry.why is not None:
            return Fate(known=True, state="ended", status="error", error=entry.why)
        fate = await self.end_of(entry.run_id, entry.n)
        if fate is None:
            raise RunError(f"the transcript has no end of {entry.run_id}")
        return fate

    async def end_of(self, run_id: str, after: int | None = None) -> Fate | None:
        """Return the end and the reply of a run, searched after an entry or else from the newest on; `None`: the
        transcript has none.
        """
        fate = Fate(known=True, run_id=run_id, state="ended")
        replied = False
        async for entry in newest_first(self) if after is None else oldest_first(self, after):
            if isinstance(entry, RunEntry) and entry.run_id == run_id:
                fate.status, fate.ended_at = "ok" if entry.status == "completed" else "error", entry.at
                fate.started_at = entry.started_at
                replied = replied or entry.status == "forked"  # this session began as a fork within the run
            elif isinstance(entry, ReplyEntry) and entry.run_id == run_id:
                fate.reply, fate.error, replied = entry.text, entry.why, True
            if replied and fate.status is not None:
                return fate
        return None

    async def _ask(self, id: str, query: str, kind: Any, *arguments: Any) -> Any:
        handle: WorkflowHandle[Any, Any] = self._client.get_workflow_handle(id)
        try:
            return await answer_of(handle, query, *arguments, result_type=kind, client=self._client)
        except WorkflowQueryFailedError as error:
            words = f"{id} did not answer: {error}"
            raise (NoWorkerError(words) if may_pass(error) else RunError(words)) from None
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                raise HistoryGoneError(f"{id} is not in this namespace") from None
            raise NoWorkerError(f"{id} does not answer: {error.message}") from None
