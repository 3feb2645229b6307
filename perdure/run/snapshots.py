"""A run between two Requests as data, for it to go on in a new execution (R6.8, R18.4)."""

from __future__ import annotations

from collections.abc import Mapping

from perdure.people.desk import Desk
from perdure.run.agents import Agent, Context
from perdure.run.events.noting import Noting
from perdure.run.past.wire import RunSnapshot
from perdure.run.running import Run
from perdure.run.stopping import Budget
from perdure.values.limits import MAX_CARRIED
from perdure.values.sources import Table
from perdure.values.state import State

_WRITE = 150
"""Bytes of a write beside its value, more or less."""


def snapshot(run: Run) -> RunSnapshot:
    """All that the next Request, a watcher and the result need."""
    run.state.compact()
    run.past.sets = run.table.as_json()
    table = Table()
    numbers = [table.number(write.sources) for write in run.state.writes]
    return RunSnapshot(
        prepared=run.prepared,
        progress=run.progress,
        writes=run.state.writes,
        sets=table.as_json(),
        sources=numbers,
        policy=run.desk.guard.change.as_change(),
        remembered={name: sorted(sources) for name, sources in run.desk.guard.remembered.items()},
        vouched=run.desk.vouched.known,
        refusals=run.desk.refusals,
        past=run.past,
        events=run.notes.journal.carried(),
    )


def restore(
    agent: Agent,
    context: Context,
    snapshot: RunSnapshot,
    desk: Desk | None = None,
    *,
    budget: Budget | None = None,
    sources: Mapping[str, list[str]] | None = None,
    notes: Noting | None = None,
) -> Run:
    """The run as `snapshot` left it."""
    run = Run(agent, context, snapshot.prepared, desk, budget=budget, sources=sources, notes=notes)
    run.notes.journal.take_up(snapshot.events)
    table, numbers = Table(snapshot.sets), snapshot.sources
    writes = [
        write.model_copy(update={"sources": table.of(number)})
        for write, number in zip(snapshot.writes, numbers or [-1] * len(snapshot.writes), strict=True)
    ]
    run.take_up(snapshot.progress, snapshot.past, State(writes, run.sizes))
    return run


def carried(run: Run) -> int:
    """Bytes of what a snapshot would hold, more or less: values are measured once, and nothing is encoded."""
    run.state.compact()
    return sum(map(run.sizes.of, run.carries())) + _WRITE * len(run.state.writes) + run.past_bytes


class Attempts:
    """Whether it is worth making a snapshot: to make one costs what it holds, also where it turns out to be too large (R18.5)."""

    def __init__(self) -> None:
        self._failed: tuple[int, int] | None = None

    def worth(self, size: int, most: int) -> bool:
        """Whether a snapshot of about `size` bytes may have at most `most` when it is packed, as far as those before tell."""
        if size > MAX_CARRIED:
            return False
        return self._failed is None or size * self._failed[1] <= most * self._failed[0]

    def note(self, size: int, packed: int) -> None:
        """One of about `size` bytes had `packed`, and that was too much."""
        self._failed = size, packed
