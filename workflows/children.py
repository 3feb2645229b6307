"""The runs below one that runs: they are told when its policy changes (R7.7), whether their output may come
(R18.4), and when their share of the budget has grown (R18.7)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from temporalio import workflow
from temporalio.exceptions import FailureError
from temporalio.workflow import ChildWorkflowHandle

with workflow.unsafe.imports_passed_through():
    from perdure.run.delegates import BUDGET
    from perdure.run.stopping import Budget
    from perdure.run.wire import POLICY
    from perdure.values.jsons import JsonObject


class Children:
    """Those that run now, by their ids."""

    def __init__(self) -> None:
        self._running: dict[str, ChildWorkflowHandle[Any, Any]] = {}
        self._changes: list[JsonObject] = []
        self._raised: dict[str, Budget] = {}
        """Shares that were raised before those that have them were running."""
        self._telling: set[asyncio.Task[None]] = set()

    @property
    def told(self) -> int:
        """How many changes there have been: a child is started with these, and told of those that come meanwhile."""
        return len(self._changes)

    @contextmanager
    def running(self, child: ChildWorkflowHandle[Any, Any], told: int) -> Iterator[None]:
        """Tell this child of every change from the `told`-th on, until it has ended."""
        self._running[child.id] = child
        for change in self._changes[told:]:
            self._start(child, POLICY, change)
        if (budget := self._raised.pop(child.id, None)) is not None:
            self._start(child, BUDGET, budget)
        try:
            yield
        finally:
            del self._running[child.id]

    def tell(self, change: JsonObject) -> None:
        """Pass on a change of policy."""
        self._changes.append(change)
        for child in self._running.values():
            self._start(child, POLICY, change)

    def raise_budget(self, name: str, budget: Budget) -> None:
        """Tell the run `<this run>/<name>` that its share of the budget is larger now (R18.7)."""
        id = f"{workflow.info().workflow_id}/{name}"
        if id in self._running:
            self.tell_one(id, BUDGET, budget)
        else:
            self._raised[id] = budget

    def tell_one(self, id: str, signal: str, what: Any = None) -> None:
        """Send one of them a signal, if it is a child that runs."""
        if (child := self._running.get(id)) is not None:
            self._start(child, signal, what)

    def _start(self, child: ChildWorkflowHandle[Any, Any], signal: str, what: Any) -> None:
        task = asyncio.create_task(_signal(child, signal, what))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)


async def _signal(child: ChildWorkflowHandle[Any, Any], signal: str, what: Any) -> None:
    with suppress(FailureError):  # it has just ended
        await child.signal(signal, what)
