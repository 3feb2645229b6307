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
    from perdure.runs.delegates import BUDGET, ChildUsage
    from perdure.runs.limits import Budget, Limit
    from perdure.runs.wire import POLICY
    from perdure.values.json import JsonObject


class ChildRuns:
    """The active child runs, by their ids."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        """Names of child runs that were started and have not ended: `<this run>/<name>` is the id."""
        self._running: dict[str, ChildWorkflowHandle[Any, Any]] = {}
        self._changes: list[JsonObject] = []
        self._raised: dict[str, Budget] = {}
        """Shares that were raised before their child runs were active."""
        self._signalling: set[asyncio.Task[None]] = set()

    @property
    def changes(self) -> int:
        """The number of policy changes: a child starts with these, and receives later ones by signal."""
        return len(self._changes)

    @contextmanager
    def running(self, child: ChildWorkflowHandle[Any, Any], changes: int) -> Iterator[None]:
        """Signal every change from the `changes`-th on to this child, until it has ended."""
        self._running[child.id] = child
        for change in self._changes[changes:]:
            self._start(child, POLICY, change)
        if (budget := self._raised.pop(child.id, None)) is not None:
            self._start(child, BUDGET, budget)
        try:
            yield
        finally:
            del self._running[child.id]

    def signal_change(self, change: JsonObject) -> None:
        """Pass on a change of policy."""
        self._changes.append(change)
        for child in self._running.values():
            self._start(child, POLICY, change)

    def raise_budget(self, name: str, budget: Budget) -> None:
        """Signal the run `<this run>/<name>` that its share of the budget is larger now (R18.7)."""
        id = f"{workflow.info().workflow_id}/{name}"
        if id in self._running:
            self.signal_one(id, BUDGET, budget)
        else:
            self._raised[id] = budget

    def signal_one(self, id: str, signal: str, what: Any = None) -> None:
        """Signal the child run of this id, if it is active."""
        if (child := self._running.get(id)) is not None:
            self._start(child, signal, what)

    def _start(self, child: ChildWorkflowHandle[Any, Any], signal: str, what: Any) -> None:
        task = asyncio.create_task(_signal(child, signal, what))
        self._signalling.add(task)
        task.add_done_callback(self._signalling.discard)


async def _signal(child: ChildWorkflowHandle[Any, Any], signal: str, what: Any) -> None:
    with suppress(FailureError):  # it has just ended
        await child.signal(signal, what)


Share: TypeAlias = Budget | Limit


class BudgetShare:
    """Shares of a budget, in the order of requests for them.

    `usage` returns the usage so far, `worked` the seconds. `rivals` returns how many may run at once and have no share
    yet; `None` while calls may still arrive. `frees_unused` returns whether an unused share is free again. In runs of 0.2.0
    it counts as used. The function is called only for an unused share, because it may record a marker.
    """

    def __init__(
        self,
        shares: BudgetPool,
        usage: Callable[[], RunUsage],
        rivals: Callable[[], int | None],
        worked: Callable[[], float] = lambda: 0.0,
        *,
        frees_unused: Callable[[], bool],
    ) -> None:
        self._shares = shares
        self._usage = usage
        self._rivals = rivals
        self._frees_unused = frees_unused
        self._worked = worked
        self._waiting: deque[tuple[str, asyncio.Future[Share]]] = deque()

    async def take(self, name: str) -> Share:
        """Return a share, once there is one, for the caller to `settle`; a `Limit`, without settling, when the budget
        is spent.
        """
        share_future: asyncio.Future[Share] = asyncio.get_running_loop().create_future()
        self._waiting.append((name, share_future))
        self.hand_out()
        try:
            return await share_future
        except asyncio.CancelledError:
            # The caller was cancelled in the workflow task that gave it a share: nobody would settle that share.
            if share_future.done() and not share_future.cancelled() and self._frees_unused():
                self._shares.release(name)
                self.hand_out()
            raise

    def settle(self, name: str, usage: ChildUsage) -> None:
        """Settle a share at its holder's end: others get the rest, and an unused share as a whole."""
        if not usage.started and self._frees_unused():
            self._shares.release(name)
        else:
            self._shares.settle(name, usage.used)
        self.hand_out()

    def level(self) -> dict[str, Budget]:
        """Distribute the rest when the answer is complete; return each raised share."""
        raised = self._shares.level(self._usage(), beside=self._rivals() or 0) if self._shares.limited else {}
        self.hand_out()
        return raised

    def raise_to(self, budget: Budget) -> None:
        """Raise the budget."""
        self._shares.budget = budget
        self.hand_out()

    def hand_out(self) -> None:
        """Distribute the rest in the order of requests."""
        rivals = self._rivals() if self._waiting and self._shares.limited else 1
        while self._waiting:
            name, share_future = self._waiting[0]
            if not share_future.cancelled():
                share = self._shares.take(
                    name, self._usage(), beside=rivals or 1, writing=rivals is None, worked=self._worked()
                )
                if share is None:
                    return
                share_future.set_result(share)
                if rivals is not None and self._shares.limited and isinstance(share, Budget):
                    rivals = max(1, rivals - 1)
            self._waiting.popleft()
