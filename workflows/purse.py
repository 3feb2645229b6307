"""Waiting for a share of a budget: see `perdure.run.shares` for who gets how much (R18.7)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.model.usage import RunUsage
    from perdure.run.shares import Shares
    from perdure.run.stopping import Budget, Limit

Share: TypeAlias = Budget | Limit


class Purse:
    """Gives shares in the order in which they are asked for.

    `usage` tells what was used so far, `worked` the seconds, and `rivals` how many may run at once and have no share yet: `None` while
    that is not known, because calls may still arrive.
    """

    def __init__(
        self,
        shares: Shares,
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
