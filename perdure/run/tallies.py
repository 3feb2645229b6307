"""What a run tells of itself at every event: it costs the same however long the run is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from perdure.plan.calls import Call
from perdure.plan.plan import Plan
from perdure.run.past import call_view
from perdure.run.past.wire import Past, Progress
from perdure.run.wire import CallView
from perdure.values.jsons import Json, JsonObject
from perdure.values.limits.sizes import Sizes
from perdure.values.sources import Table
from perdure.values.state import State

RECENT: Final = 40
"""Calls kept whole for the live table. It is made anew at every event, so its cost must not grow with the run."""


class Tallies:
    """Of the run's calls, those that are over and those of the plan that runs."""

    state: State
    progress: Progress
    past: Past
    plan: Plan | None
    _recent: list[Call]
    _views: dict[str, CallView]
    """What is shown of calls in iterations that have ended, by id."""
    sizes: Sizes
    table: Table
    _done: int

    def carries(self) -> Iterator[Json]:
        """The values that the run carries on, as far as they grow with it."""
        yield from (write.value for write in self.state.writes)
        yield from self.progress.results.values()
        yield from self.progress.messages
        yield from (self.progress.plan_message, self.progress.draft)

    @property
    def errors(self) -> list[JsonObject]:
        """The error messages given to the model so far."""
        return [message for message in self.progress.messages if message["type"] == "error"]

    @property
    def count(self) -> int:
        """Calls so far, in whatever status."""
        return len(self.past.calls) + (self.plan.count if self.plan is not None else 0)

    @property
    def done(self) -> int:
        """Calls that ended well so far."""
        return self._done + (self.plan.done if self.plan is not None else 0)

    def call_view(self, call: Call) -> CallView:
        """The call as it is shown. Of one in an iteration that has ended it is made once (R16.6)."""
        known = self._views.get(call.id)
        return call_view(call, self.sizes, self.table) if known is None else known

    def fold(self) -> None:
        """Make what is shown of the calls of iterations that have ended: nothing of them changes any more."""
        for call in self.plan.take_folded() if self.plan is not None else ():
            self._views[call.id] = call_view(call, self.sizes, self.table)

    def last_calls(self) -> list[Call]:
        """The newest calls, `RECENT` at most, in their order."""
        newest = [] if self.plan is None else [*islice(self.plan.made_last(), RECENT)][::-1]
        return [*self._recent, *newest][-RECENT:]
