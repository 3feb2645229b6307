"""The snapshot of a run between two Requests, from which a new execution continues."""

from __future__ import annotations

import operator
from typing import Final

from pydantic import Field

from perdure.rules import RuleRecord
from perdure.runs.events import CarriedEvents
from perdure.runs.notifications import NotificationView
from perdure.runs.progress import RunProgress
from perdure.runs.records import PastRequests
from perdure.runs.run import RunState
from perdure.runs.wire import PreparedWorker
from perdure.values.json import JsonObject, WireModel, json_bytes
from perdure.values.limits import MAX_CARRIED
from perdure.values.provenance import SourceTable
from perdure.values.state import State, Write

SNAPSHOT_FORM: Final = 3
"""Form of a `RunSnapshot`. A worker that does not know a snapshot's form fails the run with that reason."""


class RunSnapshot(WireModel):
    """A snapshot of a run between two Requests, from which a new execution continues (R6.8)."""

    prepared: PreparedWorker
    progress: RunProgress
    writes: list[Write]
    sets: list[list[str]] = Field(default_factory=list)
    sources: list[int] = Field(default_factory=list)
    """Sources of each write's value, as an index into `sets` (R15.1)."""
    policy: JsonObject = Field(default_factory=dict)
    """Changes of the run's own approval policy against the agent file's (R7.7)."""
    remembered: dict[str, list[str]] | list[str] = Field(default_factory=dict)
    """Untrusted sources of the calls that a person has seen, by tool. A list, as in 0.1.0, applies to any source.
    """
    vouched: dict[str, str] = Field(default_factory=dict)
    """Endorsed values: the digest of each value by reference (R15.6)."""
    changed: bool = Field(default=False, exclude_if=operator.not_)
    """Whether a decision has changed a call or the plan, or a change has made the policy stricter (R23.3)."""
    refusals: list[JsonObject] = Field(default_factory=list)
    notifications: list[NotificationView] = Field(default_factory=list)
    past: PastRequests
    rule_record: RuleRecord | None = Field(default=None, exclude_if=operator.not_)
    """The record for the run's rules (R23.1)."""
    events: CarriedEvents = Field(default_factory=CarriedEvents)
    """Events that a snapshot carries (R10.14)."""


_WRITE: Final = 150
"""Approximate bytes of a write without its value."""


def take_snapshot(run: RunState) -> RunSnapshot:
    """Return the state that the next Request, a watcher and the result need."""
    run.state.compact()
    run.records.past.sets = run.records.table.as_json()
    table = SourceTable()
    numbers = [table.number(write.sources) for write in run.state.writes]
    return RunSnapshot(
        prepared=run.prepared,
        progress=run.progress,
        writes=[write.model_copy(update={"size": run.sizes.of(write.value)}) for write in run.state.writes],
        sets=table.as_json(),
        sources=numbers,
        policy=run.approval_queue.guard.change.as_change(),
        remembered={name: sorted(sources) for name, sources in run.approval_queue.guard.remembered.items()},
        vouched=run.approval_queue.vouched.known,
        changed=run.approval_queue.is_changed,
        refusals=run.approval_queue.refusals,
        notifications=run.notifications,
        past=run.records.past,
        rule_record=run.rules.record if run.rules.rules else None,
        events=run.journal.events.carried(),
    )


def restore(run: RunState, snapshot: RunSnapshot) -> None:
    """Continue a run from the `snapshot`. The guard of its approval queue has the snapshot's `policy` already."""
    queue = run.approval_queue
    queue.guard.recall(snapshot.remembered)
    queue.vouched.known |= snapshot.vouched
    queue.is_changed |= snapshot.changed
    queue.refusals = [*snapshot.refusals, *queue.refusals]
    run.notifications = [*snapshot.notifications, *run.notifications]
    run.journal.events.take_up(snapshot.events)
    if snapshot.rule_record is not None:
        run.rules.record.join(snapshot.rule_record)
    for each in snapshot.writes:
        run.sizes.note(each.value, each.size)
    table, numbers = SourceTable(snapshot.sets), snapshot.sources
    writes = [
        write.model_copy(update={"sources": table.of(number), "size": 0})
        for write, number in zip(snapshot.writes, numbers or [-1] * len(snapshot.writes), strict=True)
    ]
    run.restore(snapshot.progress, snapshot.past, State(writes, run.sizes))


def encode_snapshot(run: RunState) -> tuple[bytes, int]:
    """Return the snapshot as JSON, and the approximate number of its lists and objects: the time to read it grows with
    both.
    """
    written = json_bytes(take_snapshot(run))
    return written, written.count(b"[") + written.count(b"{")


def estimate_snapshot_size(run: RunState) -> int:
    """Return the approximate bytes of a snapshot. Values are measured once, and nothing is encoded."""
    run.state.compact()
    return sum(map(run.sizes.of, run.values())) + _WRITE * len(run.state.writes) + run.records.size


class Attempts:
    """The record of snapshots that were too large. A snapshot's cost grows with its size, even if it fails (R18.5)."""

    def __init__(self) -> None:
        self._failed: tuple[int, int] | None = None

    def worth(self, size: int, most: int) -> bool:
        """Whether a snapshot of about `size` bytes may have at most `most` when packed, according to earlier ones."""
        if size > MAX_CARRIED:
            return False
        return self._failed is None or size * self._failed[1] <= most * self._failed[0]

    def note(self, size: int, packed: int) -> None:
        """Record that a snapshot of about `size` bytes had `packed` bytes, which was too much."""
        self._failed = size, packed
