"""Child runs: signals to them, and their shares of a budget."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

from temporalio import workflow
from temporalio.exceptions import FailureError
from temporalio.workflow import ChildWorkflowHandle

with workflow.unsafe.imports_passed_through():
    from perdure.models.usage import RunUsage
    from perdure.runs.budget import BudgetPool
    from perdure.runs.delegates import BUDGET
    from perdure.runs.limits import Budget, Limit
    from perdure.runs.wire import POLICY
    from perdure.values.json import JsonObject


class ChildRuns:
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


Share: TypeAlias = Budget | Limit


class BudgetShare:
    """Gives shares in the order in which they are asked for.

    `usage` tells what was used so far, `worked` the seconds, and `rivals` how many may run at once and have no share yet: `None` while
    that is not known, because calls may still arrive.
    """

    def __init__(
        self,
        shares: BudgetPool,
        usage: Callable[[], RunUsage],
        rivals: Callable[[], int | None],
        worked: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._shares = shares
        self._usage = usage
        self._rivals = rivals
        self._worked = worked
        self._asking: deque[tuple[str, asyncio.Future[Share]]] = deque()

    async def take(self, name: str) -> Share:
        """A share, once there is one; `settle` it. A `Limit` when the budget is spent: then there is nothing to settle."""
        given: asyncio.Future[Share] = asyncio.get_running_loop().create_future()
        self._asking.append((name, given))
        self.hand_out()
        return await given

    def settle(self, name: str, used: RunUsage | None) -> None:
        """It has ended: what it did not use is for the others. `None` when nobody can tell what it used."""
        self._shares.settle(name, used)
        self.hand_out()

    def level(self) -> dict[str, Budget]:
        """The answer is whole: give what can be given. Who had a share before has more now: how much."""
        raised = self._shares.level(self._usage(), beside=self._rivals() or 0) if self._shares.limited else {}
        self.hand_out()
        return raised

    def raise_to(self, budget: Budget) -> None:
        """There is more to give than there was."""
        self._shares.budget = budget
        self.hand_out()

    def hand_out(self) -> None:
        """Give what can be given, to those who asked first."""
        rivals = self._rivals() if self._asking and self._shares.limited else 1
        while self._asking:
            name, given = self._asking[0]
            if not given.cancelled():
                share = self._shares.take(
                    name, self._usage(), beside=rivals or 1, writing=rivals is None, worked=self._worked()
                )
                if share is None:
                    return
                given.set_result(share)
                if rivals is not None and self._shares.limited and isinstance(share, Budget):
                    rivals = max(1, rivals - 1)
            self._asking.popleft()
