"""A run with the runs below it: their approval requests, and whether any work continues."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.approvals.requests import WaitingView
from perdure.client.approvals import list_below, waiting_in
from perdure.client.errors import clear_errors
from perdure.client.run import Run
from perdure.errors import RunNotFoundError
from perdure.runs.wire import RunView

REMEMBERED: Final = 1_000
"""The most views of ended runs that are kept."""
_AT_ONCE: Final = 16
"""Runs that are read together."""


@dataclass(frozen=True, slots=True)
class RunTree:
    """A run, and the runs of its delegates and of theirs."""

    view: RunView
    below: Mapping[str, RunView] = field(default_factory=dict)
    """The runs below by their paths: the ids behind the run's own, `1.0`, `1.0/2.1`."""

    @property
    def views(self) -> list[tuple[str, RunView]]:
        """Every run with its path; the path of the run itself is empty."""
        return [("", self.view), *sorted(self.below.items())]

    @property
    def waiting(self) -> list[tuple[str, WaitingView]]:
        """The approval requests of all runs, each with the path of its run."""
        return [(path, request) for path, view in self.views for request in view.waiting]

    @property
    def rests(self) -> bool:
        """Whether the run waits for a person, and no work of it continues meanwhile."""
        return self.view.status == "running" and self._rests("", self.view)

    def _rests(self, path: str, view: RunView) -> bool:
        if any(request.calls is not None for request in view.waiting):  # a whole plan: none of its calls runs
            return True
        if view.log and view.log[-1].status == "running":
            return False
        busy = [join_ids(path, call.id) for call in view.calls if call.status in ("running", "ready")]
        return bool(view.waiting or busy) and all(map(self._rests_below, busy))

    def _rests_below(self, path: str) -> bool:
        """Whether delegates' runs execute a call, and all of them rest."""
        under = [(each, view) for each, view in self.below.items() if each == path or each.startswith(f"{path}/")]
        running = [(each, view) for each, view in under if view.status == "running"]
        return bool(running) and all(self._rests(each, view) for each, view in running)


def join_ids(path: str, id: str) -> str:
    """Return an id in the run at this path, as the outermost run's id for it."""
    return f"{path}/{id}" if path else id


class RunTreeReader:
    """A reader of the runs below a run, from the server's index."""

    def __init__(self) -> None:
        self._ended: OrderedDict[str, RunView] = OrderedDict()
        """Views of ended runs by execution id: a reset gives a run a new execution."""

    async def below(self, run: Run[Any], *, asked: bool) -> dict[str, RunView]:
        """Return the runs below by their paths. `asked`: of ended runs only those that had an approval request."""
        limit = asyncio.Semaphore(_AT_ONCE)

        async def look(id: str, execution: str) -> RunView | None:
            if (known := self._ended.get(execution)) is not None:
                return known
            async with limit:
                try:
                    found = await Run(run.client, id).view()
                except RunNotFoundError:
                    return None
            if found.status != "running":
                self._ended[execution] = found
                while len(self._ended) > REMEMBERED:
                    self._ended.popitem(last=False)
            return found

        with clear_errors(run.client):
            executions = await list_below(run.client, run.id, asked=asked)
        views = await asyncio.gather(*(look(*each) for each in executions.items()))
        return {id.removeprefix(f"{run.id}/"): view for id, view in zip(executions, views, strict=True) if view}

    async def waiting(self, run: Run[Any], tree: RunTree) -> list[tuple[str, WaitingView]]:
        """Return the approval requests of the run and of the runs below it in full, the oldest first, each with its
        run's path.

        Raises `RunError` if one of the runs does not answer.
        """
        paths = {
            join_ids(run.id, path) if path else run.id: path for path, request in tree.waiting if not request.client
        }
        found, problems = await waiting_in(run.client, paths)
        if problems:
            raise problems[0]
        return [(paths[one.run_id], one.request) for one in found]
