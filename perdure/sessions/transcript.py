"""The transcript of a session: append-only, with branches, segments, and snapshots."""

from __future__ import annotations

import base64
import hashlib
import operator
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeGuard, TypeVar

from pydantic import Field

from perdure.rules import RuleRecord
from perdure.runs.events import CarriedEvents
from perdure.sessions.entries import (
    CommandEntry,
    CompactionEntry,
    ConversationStep,
    DeliveryEntry,
    Entry,
    MessageEntry,
    ReplyEntry,
    RunEntry,
    StepPosition,
    estimate,
    steps_of,
)
from perdure.sessions.message_queue import QueueState
from perdure.sessions.replies import ReplyDelivery
from perdure.sessions.status_webhooks import KeptStatusWebhook
from perdure.values.json import JsonObject, Packed, WireModel, pack
from perdure.values.limits import CONTEXT_TOKENS, LEAST_SEGMENT, MAX_REPLY, MAX_SEGMENT
from perdure.values.media import cut_text

# Segments are workflows: every worker can query them, without another service. A segment also has the index of
# earlier segments, as in a Fenwick tree: segment 12 knows the messages of 9 to 12, segment 8 those of 1 to 8. So a few
# queries find one message among hundreds of thousands.

SEGMENT_WORKFLOW: Final = "SessionSegment"
SEGMENT_ENTRIES_QUERY: Final = "entries"
"""Query for a segment's entries: an `EntryList`."""
SEGMENT_INDEX_QUERY: Final = "index"
"""Query for the messages that a segment knows: the text of an `Index`."""
SEGMENT_FIND_QUERY: Final = "find"
"""Query, a message's id: the numbers of segments that hold such a message, as far as this one knows, newest first.

In 0.1.0 the answer was one number; 0: none.
"""
SEGMENT_DELETE: Final = "delete"
"""Signal: the session was deleted."""
SEGMENT_FORM: Final = 1
_FORM: Final = SEGMENT_FORM
_SPANS: Final = 64
"""Segments whose messages one segment knows, at most: 64 hold some ten thousand messages, in 200 kB."""
_DIGEST: Final = 8
SENT: Final = ("new", "reset", "stop")
"""Commands that are messages, with an id of their own."""
_RECORD: Final = _DIGEST + 4
"""Bytes of a message in an index: the beginning of its id's digest, and its segment."""


class SegmentSpan(WireModel):
    """Segments of one session, one after the other: `name` followed by their number, from 1 on."""

    name: str
    segments: int = 0
    last: int = 0
    """Place of the last entry that counts: a segment from before a fork may have later ones."""

    def id(self, number: int) -> str:
        return f"{self.name}{number}"


class EntryList(WireModel):
    """A list of entries, in their order."""

    entries: list[Entry] = Field(default_factory=list)


class Segment(WireModel):
    """The input of the workflow that holds a segment."""

    number: int
    first: int
    """Places of its first and last entry."""
    last: int
    entries: Packed
    """Entries, packed as an `EntryList`."""
    index: str = ""
    """An `Index`, as text."""

    @property
    def read(self) -> list[Entry]:
        """Return its entries. Raise `ProtocolError` if an unknown version has written them."""
        return self.entries.read(EntryList, _FORM, f"segment {self.number}").entries


def segment_of(number: int, entries: Sequence[Entry]) -> Segment:
    """Return a segment of these entries, with the index of its own messages only."""
    packed = pack(EntryList(entries=list(entries)), _FORM)
    ids = [entry.message_id for entry in entries if is_sent(entry)]
    return Segment(
        number=number, first=entries[0].n, last=entries[-1].n, entries=packed, index=Index.of(ids, number).text
    )


def is_sent(entry: Entry) -> TypeGuard[MessageEntry | CommandEntry]:
    """Whether the entry was sent under an id: a message, or a command that was sent as a message."""
    return isinstance(entry, MessageEntry) or (isinstance(entry, CommandEntry) and entry.command in SENT)


def joined_below(number: int) -> Iterator[int]:
    """Yield the other segments whose messages the index of segment `number` includes."""
    step = 1
    while number % (2 * step) == 0 and 2 * step <= _SPANS:
        yield number - step
        step *= 2


def segments_to_query(segments: int) -> Iterator[int]:
    """Yield the segments to query for a message, newest first; together they know all up to `segments`."""
    while segments:
        yield segments
        step = 1
        while segments % (2 * step) == 0 and 2 * step <= _SPANS:
            step *= 2
        segments -= step


class Index:
    """An index of messages: the digest of each id, and the segment that holds the message."""

    def __init__(self, text: str = "") -> None:
        self._bytes = base64.b64decode(text)

    @classmethod
    def of(cls, ids: Iterable[str], segment: int) -> Index:
        """Return the index of one segment's messages."""
        return cls._from_records(_digest(id) + segment.to_bytes(4) for id in ids)

    @classmethod
    def _from_records(cls, records: Iterable[bytes]) -> Index:
        made = cls()
        made._bytes = b"".join(sorted(records))
        return made

    @property
    def text(self) -> str:
        return base64.b64encode(self._bytes).decode()

    def __len__(self) -> int:
        return len(self._bytes) // _RECORD

    def _record(self, at: int) -> bytes:
        return self._bytes[at * _RECORD : (at + 1) * _RECORD]

    def joined(self, other: Index) -> Index:
        """Return this index joined with another."""
        each = [index._record(at) for index in (self, other) for at in range(len(index))]
        return self._from_records(each)

    def find_all(self, id: str) -> list[int]:
        """Return the segments of messages of an id, which several senders may have used, newest first."""
        wanted = _digest(id)
        first = bisect_left(range(len(self)), wanted, key=self._record)
        last = bisect_left(range(len(self)), wanted + b"\xff" * 5, key=self._record)
        return sorted({int.from_bytes(self._record(at)[_DIGEST:]) for at in range(first, last)}, reverse=True)


def _digest(id: str) -> bytes:
    return hashlib.sha256(id.encode(errors="replace")).digest()[:_DIGEST]


class MessageFilter:
    """A Bloom filter of the messages that may have been accepted before.

    It has no false negatives. With 100,000 messages it has one false positive in a hundred. Its size is fixed; with
    more messages it has more false positives.
    """

    def __init__(self, text: str = "") -> None:
        self._bits = bytearray(base64.b64decode(text)) if text else bytearray(_BYTES)

    @property
    def text(self) -> str:
        return base64.b64encode(self._bits).decode() if any(self._bits) else ""

    def add(self, id: str) -> None:
        """Remember a message."""
        for place in _places(id):
            self._bits[place >> 3] |= 1 << (place & 7)

    def __contains__(self, id: str) -> bool:
        return all(self._bits[place >> 3] >> (place & 7) & 1 for place in _places(id))


_BYTES: Final = 128 * 1024


def _places(id: str) -> Iterator[int]:
    digest = hashlib.sha256(id.encode(errors="replace")).digest()
    for at in range(_DIGEST, _DIGEST + 16, 4):
        yield int.from_bytes(digest[at : at + 4]) % (8 * _BYTES)


E = TypeVar("E", MessageEntry, RunEntry, ReplyEntry, DeliveryEntry, CompactionEntry, CommandEntry)

BRANCHES: Final = ("new", "reset")
"""Commands that begin a branch."""
FORK: Final = "fork"
"""The command that ends the copied entries of a fork."""
_LEAST_LIMIT: Final = 1_000
"""Tokens. Every model accepts more."""
_SHOWN: Final = 50
"""Entries that always stay in the session, for readers."""
EARLIER: Final = "# earlier in this conversation, in short; the tool `recall` reads it word for word\n"


class TranscriptSnapshot(WireModel):
    """The transcript for a new execution: part of the session's snapshot."""

    entries: list[Entry] = Field(default_factory=list)
    """Entries in the session; older ones are in segments (R10.13)."""
    last: int = 0
    """Place of the last entry."""
    branch: int = 0
    reported: int = 0
    """Tokens of the server's last count; 0: none was reported."""
    thought: int = 0
    """Estimated tokens of the conversation at that time."""
    limit: int = CONTEXT_TOKENS
    """Tokens at which the conversation is compacted."""
    spans: list[SegmentSpan] = Field(default_factory=list)
    """Segments of earlier entries, oldest first: of the sessions from which it was forked, and its own."""


class Transcript:
    """The entries that a session has itself: those of its conversation, and newer ones."""

    def __init__(self, carried: TranscriptSnapshot | None = None) -> None:
        carried = carried or TranscriptSnapshot()
        self.last = carried.last
        """Place of the last entry."""
        self.branch = carried.branch
        """Current branch: the place of the command that began it; 0 for the session's first branch."""
        self.bytes = 0
        """Bytes of the session's own entries, as JSON."""
        self.limit = carried.limit
        """Tokens of the context at which the conversation is compacted (R10.11)."""
        self.spans = carried.spans
        """Segments that hold the other entries: oldest first, the session's own last."""
        self.compactions_in_a_row = 0
        """Compactions since the last run."""
        self._reported, self._thought = carried.reported, carried.thought
        self._entries: dict[int, Entry] = {}
        self._sizes: dict[int, int] = {}
        self.forked_at = 0
        """Place of the command that forked it. Entries before it are copies: their ids name messages of another session."""
        self._messages: dict[str, MessageEntry] = {}
        """Messages that were sent to this session, by their keys."""
        self._messages_of_runs: dict[str, list[MessageEntry]] = {}
        """Messages by the run that received them."""
        self._runs: dict[int, RunEntry] = {}
        self._replies: dict[str, ReplyEntry] = {}
        self._compactions: dict[int, CompactionEntry] = {}
        """Last compaction of each branch."""
        self._tokens: dict[int, int] = {}
        """Estimated tokens of each run in the conversation, by its place."""
        self._total: int | None = None
        """Estimated tokens of the whole conversation; `None` if unknown."""
        self._looked_at = 0
        """Bytes of the entries when the last search found no old ones."""
        for entry in carried.entries:
            self._keep(entry)

    @property
    def entries(self) -> list[Entry]:
        """The session's own entries, in their order."""
        return list(self._entries.values())

    @property
    def archived_through(self) -> int:
        """The place of the last entry that is in a segment; 0 if there is none."""
        return max((span.last for span in self.spans if span.segments), default=0)

    def append(self, entry: E) -> E:
        """Append an entry and set its place."""
        self.last += 1
        entry.n = self.last
        if isinstance(entry, CommandEntry) and entry.command in BRANCHES:
            self.branch, self._reported, self._thought = entry.n, 0, 0
            self._total, self._looked_at = None, 0
        elif isinstance(entry, ReplyEntry) and entry.text is not None:
            entry.text = cut_text(entry.text, MAX_REPLY, f"{len(entry.text):,} characters")
        elif isinstance(entry, MessageEntry):
            entry.branch = self.branch
        elif isinstance(entry, RunEntry):
            entry.branch = next(
                (message.branch for message in self._messages_of_runs.get(entry.run_id, ())), self.branch
            )
        self._keep(entry)
        if isinstance(entry, RunEntry) and entry.context_tokens and entry.branch == self.branch:
            self._reported, self._thought = entry.context_tokens, self._estimate()
        elif isinstance(entry, RunEntry) and entry.tight and entry.branch == self.branch:
            self.refused()
        elif (
            isinstance(entry, CompactionEntry) and self._reported and entry.branch == self.branch
        ):  # the server counted the conversation before the compaction
            more = self._reported - self._thought
            self._reported = entry.after + more if more >= 0 else entry.after * self._reported // self._thought
            self._thought = entry.after
        return entry

    def refused(self) -> None:
        """Record that a model's server rejected the context as too long: later contexts are shorter (R9.7)."""
        self.limit = max(_LEAST_LIMIT, min(self.limit, self.tokens) * 6 // 10)

    def _keep(self, entry: Entry) -> None:
        self._entries[entry.n] = entry
        self._sizes[entry.n] = len(entry.model_dump_json(by_alias=True, exclude_defaults=True)) + 20
        self.bytes += self._sizes[entry.n]
        if isinstance(entry, MessageEntry):
            self._messages[entry.key] = entry
            self._assign_to_run(entry)
        elif isinstance(entry, RunEntry):
            self._runs[entry.n] = entry
            self.compactions_in_a_row = 0
            self._add(entry)
        elif isinstance(entry, ReplyEntry):
            self._replies[entry.run_id] = entry
            run = next((run for run in reversed(self._runs.values()) if run.run_id == entry.run_id), None)
            if run is not None:  # usually the last run
                self._add(run)
        elif isinstance(entry, CompactionEntry):
            self._compactions[entry.branch] = entry
            self.compactions_in_a_row += 1
            self._total, self._looked_at = None, 0
        elif isinstance(entry, CommandEntry) and entry.command == FORK:
            self.forked_at = entry.n
            self._messages.clear()

    def _add(self, run: RunEntry) -> None:
        """Count the tokens of a run that was added, or that has its reply now."""
        before = self._tokens.get(run.n, 0)
        self._tokens[run.n] = sum(step.tokens for step in self._steps_of(run))
        compaction = self._compactions.get(run.branch)
        if self._total is not None and run.branch == self.branch and (compaction is None or run.n > compaction.up_to):
            self._total += self._tokens[run.n] - before

    def _assign_to_run(self, message: MessageEntry) -> None:
        if message.run_id is not None:
            self._messages_of_runs.setdefault(message.run_id, []).append(message)

    def message(self, key: str) -> MessageEntry | None:
        """Return a message of the session's own entries, by its `message_key`; none of a fork's copied entries."""
        return self._messages.get(key)

    def deliveries(self, run_id: str) -> list[DeliveryEntry]:
        """Return the deliveries of a run's replies, oldest first; a repeated delivery has several."""
        found = (entry for entry in self._entries.values() if isinstance(entry, DeliveryEntry))
        return [entry for entry in found if entry.run_id == run_id]

    def reply(self, run_id: str) -> str | None:
        """Return the text of a run's reply; `None` if it is not in the session's own entries."""
        entry = self._replies.get(run_id)
        return None if entry is None else entry.text

    def assign(self, key: str, run_id: str | None, request: int = 1) -> None:
        """Set the run that received a message, and the first Request that held the message; `None`: no run yet.

        Call it before the run's own entry is appended. It ignores an archived message.
        """
        if (entry := self._messages.get(key)) is not None:
            if entry.run_id is not None and (messages := self._messages_of_runs.get(entry.run_id)):
                messages.remove(entry)
            entry.run_id, entry.request = run_id, request
            self._assign_to_run(entry)

    def settle(self, key: str, why: str, run_id: str | None = None) -> None:
        """Set the reason why a message has no answer. `run_id`: its run, which has not begun."""
        self.assign(key, run_id)
        if (entry := self._messages.get(key)) is not None:
            entry.why = why

    # The conversation for a model.

    def conversation(self, branch: int | None = None) -> list[JsonObject]:
        """Return the ended runs of a branch as chat messages, after the summary of earlier ones (R10.11).

        Unanswered messages are not in it: the caller that starts a run adds them.
        """
        compaction = self.compaction(branch)
        chat: list[JsonObject] = []
        if compaction is not None:
            chat.append({"role": "user", "content": EARLIER + compaction.text})
        for step in self.steps(branch):
            chat += step.messages
        return chat

    def compaction(self, branch: int | None = None) -> CompactionEntry | None:
        """Return the compaction that replaces the beginning of the branch, if there is one."""
        return self._compactions.get(self.branch if branch is None else branch)

    def steps(self, branch: int | None = None) -> Iterator[ConversationStep]:
        """Yield the steps of a branch that no compaction replaces."""
        branch = self.branch if branch is None else branch
        compaction = self.compaction(branch)
        after: StepPosition = (0, 0) if compaction is None else (compaction.up_to, compaction.request)
        for n, run in self._runs.items():
            if run.branch == branch and n >= after[0]:
                yield from (step for step in self._steps_of(run) if step.place > after)

    def _steps_of(self, run: RunEntry) -> Iterator[ConversationStep]:
        steps = steps_of(run, self._messages_of_runs.get(run.run_id, ()), self._replies.get(run.run_id))
        return (step for step in steps if step.messages)

    @property
    def tokens(self) -> int:
        """Return the estimated tokens of the next run's context: the last count, and later entries (R10.11)."""
        now = self._estimate()
        if not self._reported:
            return now
        if self._reported >= self._thought:  # the rest of the prompt: tools, state, the agent's own context
            return now + self._reported - self._thought
        return now * self._reported // self._thought

    def _estimate(self) -> int:
        if self._total is None:
            compaction = self.compaction()
            total, first = 0, 0
            if compaction is not None:
                total, first = estimate(EARLIER, compaction.text), compaction.up_to
            for n, run in self._runs.items():
                if run.branch == self.branch and n > first:
                    total += self._tokens[n]
                elif compaction is not None and n == first:
                    total += sum(step.tokens for step in self._steps_of(run) if step.place > (n, compaction.request))
            self._total = total
        return self._total

    # The snapshot, and entries to archive.

    def old(self) -> list[Entry]:
        """Return the oldest entries, enough for a segment, that no conversation or unanswered message needs; none if
        there are too few.

        See R10.13.
        """
        if self._looked_at and self.bytes < self._looked_at + LEAST_SEGMENT:
            return []
        needed = self._needed()
        found: list[Entry] = []
        size = 0
        for n, entry in self._entries.items():
            if n >= needed or (found and size + self._sizes[n] > MAX_SEGMENT):
                break
            found.append(entry)
            size += self._sizes[n]
        self._looked_at = 0 if size >= LEAST_SEGMENT else self.bytes
        return found if size >= LEAST_SEGMENT else []

    def _needed(self) -> int:
        """Return the place of the first entry that must stay in the session."""
        ended = {run.run_id for run in self._runs.values()}
        waiting = [each for each in self._messages.values() if each.why is None and each.run_id not in ended]
        branches = {self.branch, *(message.branch for message in waiting)}
        needed = min([self.last - _SHOWN, *(message.n for message in waiting)])
        for branch in branches:
            compaction = self.compaction(branch)
            first = 0 if compaction is None else compaction.up_to
            for n, run in self._runs.items():
                if run.branch == branch and n >= first:
                    needed = min(needed, n, *(message.n for message in self._messages_of_runs.get(run.run_id, ())))
            if compaction is not None:
                needed = min(needed, compaction.n)
        return needed

    def behind(self, place: int, room: int) -> tuple[list[Entry], bool]:
        """Return the entries after a place, in at most `room` bytes but at least one, and whether there are more."""
        found: list[Entry] = []
        for n, entry in self._entries.items():
            if n > place:
                room -= self._sizes[n]
                if found and room < 0:
                    return found, True
                found.append(entry)
        return found, False

    def let_go(self, last: int) -> None:
        """Drop the entries up to a place, which are in a segment now."""
        for n in [n for n in self._entries if n <= last]:
            entry = self._entries.pop(n)
            self.bytes -= self._sizes.pop(n)
            if isinstance(entry, MessageEntry):
                if self._messages.get(entry.key) is entry:
                    del self._messages[entry.key]
                if entry.run_id is not None and (messages := self._messages_of_runs.get(entry.run_id)):
                    messages.remove(entry)
                    if not messages:
                        del self._messages_of_runs[entry.run_id]
            elif isinstance(entry, RunEntry):
                del self._runs[n]
                self._tokens.pop(n, None)
            elif isinstance(entry, ReplyEntry) and self._replies.get(entry.run_id) is entry:
                del self._replies[entry.run_id]
            elif isinstance(entry, CompactionEntry) and self._compactions.get(entry.branch) is entry:
                del self._compactions[entry.branch]

    def carried(self) -> TranscriptSnapshot:
        """Return the snapshot for a new execution."""
        return TranscriptSnapshot(
            entries=self.entries,
            last=self.last,
            branch=self.branch,
            reported=self._reported,
            thought=self._thought,
            limit=self.limit,
            spans=self.spans,
        )


SESSION_FORM: Final = 1
"""Form of a `SessionSnapshot`. A worker that does not know the form fails its tasks, until another worker takes over.
"""


class SessionSnapshot(WireModel):
    """A snapshot of a session between two runs."""

    message_queue: QueueState = Field(alias="lane")  # on the wire it has the name of 0.1.0
    transcript: TranscriptSnapshot
    remembered: str = ""
    """Text of a `MessageFilter`: the messages whose entries are in segments."""
    sources: dict[str, list[str]] = Field(default_factory=dict)
    """Sources of its state and its conversation, by reference (R15.1)."""
    events: CarriedEvents = Field(default_factory=CarriedEvents)
    """Events that the snapshot carries (R10.14)."""
    replies: list[ReplyDelivery] = Field(default_factory=list)
    """Replies that are not delivered yet (R10.16)."""
    state: JsonObject | None = None
    """State that its runs have written; `None` if they have written nothing, so that the agent file's state applies."""
    rule_record: RuleRecord | None = Field(default=None, exclude_if=operator.not_)
    """The record of its runs, for rules over a session (R23.1)."""
    webhooks: list[KeptStatusWebhook] = Field(default_factory=list, exclude_if=operator.not_)
    """Addresses that are informed of its runs."""
