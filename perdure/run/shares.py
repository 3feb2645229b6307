"""A budget shared out to what runs at once: delegates, and iterations of a loop (R18.7).

Each reserves its share when it starts and settles when it ends, whatever became of it, so that all of them together have no
more than what is left. What is left is divided by those that may run beside each other. A run that began can hardly use less than one
Request, however small its share: where the budget is tight some wait until others have settled, and the last find it spent.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from perdure.model.usage import RunUsage, Usage
from perdure.plan.plan import Plan
from perdure.run.stopping import Budget, Limit
from perdure.values.wire import Wire


class Expected(Wire):
    """What one taker is thought to use, learnt on the way and carried over continue-as-new."""

    tokens: int = 0
    cost: float = 0.0
    """Dollars. Both of the largest Request so far, until a taker has ended; of the largest taker from then on."""
    measured: bool = False
    """Whether a taker has ended."""
    lost_tokens: int = 0
    lost_cost: float = 0.0
    """What those are thought to have used that cannot tell any more: they were terminated, or timed out."""

    def note_request(self, usage: Usage, cost: float | None) -> None:
        if not self.measured:
            self.tokens, self.cost = max(self.tokens, usage.tokens), max(self.cost, cost or 0.0)

    def note_taker(self, usage: RunUsage) -> None:
        before = self if self.measured else Expected()
        self.tokens, self.cost = max(before.tokens, usage.tokens), max(before.cost, usage.cost or 0.0)
        self.measured = True


class _Amount(NamedTuple):
    """Tokens and dollars; infinite where there is no limit."""

    tokens: float
    cost: float


class Shares:
    """What is given out of one budget."""

    def __init__(self, budget: Budget, expected: Expected | None = None) -> None:
        self.budget = budget
        self.expected = expected or Expected()
        self._taken: dict[str, _Amount] = {}

    @property
    def limited(self) -> bool:
        """Whether there is anything to share out: else everybody has as much as the others."""
        return self.budget.tokens is not None or self.budget.cost is not None

    @property
    def takers(self) -> frozenset[str]:
        """Who has a share and has not settled."""
        return frozenset(self._taken)

    def take(self, name: str, usage: RunUsage, *, beside: int = 1, worked: float = 0.0) -> Budget | Limit | None:
        """A share for `name`; `usage` is what is known to be used of the budget, `worked` the seconds.

        `beside` counts those that may run at once and have no share yet, itself among them. A `Limit` when nothing is left, `None`
        when it has to wait until another settles.
        """
        if (spent := self.budget.spent(usage)) is not None:
            return spent
        left = self.budget.left(usage, worked)
        free = self._free(left)
        least = _Amount(self.expected.tokens, self.expected.cost)
        fits = min(
            [all_ // one for all_, one in zip(free, least, strict=True) if one > 0 and all_ < math.inf],
            default=math.inf,
        )
        if self._taken and (fits < 1 or min(free) <= 0):
            return None
        if min(free) <= 0:
            return Limit(
                "token_budget" if free.tokens <= 0 else "cost_budget", "delegates that were stopped used it up"
            )
        count = max(1, min(beside, fits))
        share = self._taken[name] = _Amount(free.tokens / count, free.cost / count)
        return Budget(
            tokens=None if math.isinf(share.tokens) else max(1, int(share.tokens)),
            cost=None if math.isinf(share.cost) else share.cost,
            deadline=left.deadline,
        )

    def settle(self, name: str, used: RunUsage | None) -> None:
        """It has ended, and used so much; `None` when nobody can tell."""
        share = self._taken.pop(name)
        if used is not None:
            self.expected.note_taker(used)
            return
        self.expected.lost_tokens += int(min(share.tokens, self.expected.tokens))
        self.expected.lost_cost += min(share.cost, self.expected.cost)

    def _free(self, left: Budget) -> _Amount:
        return _Amount(
            math.inf
            if left.tokens is None
            else left.tokens - self.expected.lost_tokens - sum(share.tokens for share in self._taken.values()),
            math.inf
            if left.cost is None
            else left.cost - self.expected.lost_cost - sum(share.cost for share in self._taken.values()),
        )


def rivals(plan: Plan, takers: frozenset[str]) -> int:
    """The delegates of a plan that may run beside each other and have no share yet: those that wait for another do not count."""
    delegates = {
        call.index for call in plan.calls if call.tool is not None and call.tool.delegate is not None and not call.ended
    }
    readers: dict[int, list[int]] = {}
    for writer, reader, _ in plan.edges():
        if not plan.calls[writer].ended:
            readers.setdefault(writer, []).append(reader)
    behind: set[int] = set()
    todo = list(delegates)
    while todo:
        for reader in readers.get(todo.pop(), ()):
            if reader not in behind:
                behind.add(reader)
                todo.append(reader)
    return sum(plan.calls[index].id not in takers for index in delegates - behind)
