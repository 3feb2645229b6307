"""Budgets: shares for delegates and iterations that run at once.

Each holder reserves its share at its start and settles at its end, whatever the outcome. So all holders together never
have more than what is left. What is left is divided by the number of holders that may run at once. While the model still
writes its answer, that number is unknown: each holder begins with a part (`AT_FIRST`), and gets more later.

No share is less than the estimated need of one holder. Where the budget is tight, some holders wait until others have
settled, and the last find it spent. A run keeps its last Request free from its share (`last_of_share`). So it exceeds
the share by less than one Request, and all holders together exceed the budget by less than one Request each.
"""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple

from perdure.models.usage import RunUsage, Usage
from perdure.plan import Plan
from perdure.runs.limits import Budget, Limit
from perdure.values.json import WireModel

AT_FIRST: Final = 8
"""Part of the remaining budget for a holder that begins while the number of holders, or the need of one, is unknown."""
ASSUMED: Final = 1000
"""Tokens of a Request before the first was made: a small agent's prompt and a few calls."""
_WORTH: Final = 1.1
"""Factor by which a share must grow before a signal is sent: each signal is a billed Action."""


class ExpectedUsage(WireModel):
    """The estimated usage of one holder, learnt on the way and carried over continue-as-new."""

    tokens: int = 0
    cost: float = 0.0
    """Dollars. Until a holder has ended, twice the largest Request so far; from then on, the largest holder."""
    measured: bool = False
    """Whether a holder has ended."""
    lost_tokens: int = 0
    lost_cost: float = 0.0
    """Estimated usage of holders that can no longer report it: no query for it was answered."""
    own_tokens: int = 0
    own_cost: float = 0.0
    """Dollars of the largest Request of the run itself."""
    one_tokens: int = 0
    one_cost: float = 0.0
    """Dollars of a holder's Request, by the average of the last holder that reported."""

    @property
    def known(self) -> bool:
        """Whether any estimate has a basis: a Request of this run or of a loop's parent run, or a holder that has ended."""
        return self.measured or self.tokens > 0

    def note_request(self, usage: Usage, cost: float | None) -> None:
        self.own_tokens, self.own_cost = max(self.own_tokens, usage.tokens), max(self.own_cost, cost or 0.0)
        if not self.measured:
            self.tokens, self.cost = 2 * self.own_tokens, 2 * self.own_cost

    def note_usage(self, usage: RunUsage) -> None:
        before = self if self.measured else ExpectedUsage()
        self.tokens, self.cost = max(before.tokens, usage.tokens), max(before.cost, usage.cost or 0.0)
        self.measured = True
        if requests := sum(each.requests for each in usage.by_model.values()):
            self.one_tokens, self.one_cost = usage.tokens // requests, (usage.cost or 0.0) / requests

    def last_of_share(self, share: Budget, usage: RunUsage) -> Limit | None:
        """Return the reason why the coming Request is the last of a run with this share: the rest is not enough for
        two more.
        """
        left = share.left(usage)
        if left.tokens is not None and left.tokens < 2 * self.own_tokens:
            return Limit("token_budget", f"{left.tokens:,} tokens are left of its share of {share.tokens:,}")
        if left.cost is not None and left.cost < 2 * self.own_cost:
            return Limit("cost_budget", f"${left.cost:.4f} is left of its share of ${share.cost:g}")
        return None


class _Amount(NamedTuple):
    """An amount of tokens and dollars; infinite where there is no limit."""

    tokens: float
    cost: float

    @classmethod
    def of(cls, budget: Budget) -> _Amount:
        return cls(
            math.inf if budget.tokens is None else budget.tokens, math.inf if budget.cost is None else budget.cost
        )

    def part(self, count: float) -> _Amount:
        return _Amount(self.tokens / count, self.cost / count)

    def plus(self, other: _Amount) -> _Amount:
        return _Amount(self.tokens + other.tokens, self.cost + other.cost)

    def minus(self, tokens: float, cost: float) -> _Amount:
        """Return the amount minus these tokens and dollars, where it has a limit."""
        return _Amount(
            self.tokens if math.isinf(self.tokens) else self.tokens - tokens,
            self.cost if math.isinf(self.cost) else self.cost - cost,
        )

    def holds(self, least: _Amount) -> float:
        """Return how many times the other amount goes into this one."""
        parts = [all_ // one for all_, one in zip(self, least, strict=True) if one > 0 and all_ < math.inf]
        return min(parts, default=math.inf)

    def budget(self, deadline: float | None = None) -> Budget:
        return Budget(
            tokens=None if math.isinf(self.tokens) else max(1, int(self.tokens)),
            cost=None if math.isinf(self.cost) else self.cost,
            deadline=deadline,
        )


class BudgetPool:
    """A pool of the shares of one budget.

    A run with a `share` of its parent's budget has that limit too, and keeps one Request of its own free.
    """

    def __init__(self, budget: Budget, expected: ExpectedUsage | None = None, share: Budget | None = None) -> None:
        self._own = budget
        self.share = share or Budget()
        self.budget = budget.within(self.share)
        self.expected = expected or ExpectedUsage()
        self._taken: dict[str, _Amount] = {}

    def raise_to(self, share: Budget) -> None:
        """Raise this run's share of its parent's budget; never lower it."""
        self.share = self.share.raised(share)
        self.budget = self._own.within(self.share)

    def limit(self, usage: RunUsage) -> Limit | None:
        """Return the reason why the coming Request is the last: the budget is spent, or the share has not enough left
        for two more.
        """
        return self.budget.spent(usage) or self.expected.last_of_share(self.share, usage)

    def used_up(self, usage: RunUsage) -> bool:
        """Whether nothing of the share is left: no further Request is made, not even a last one."""
        return self.share.spent(usage) is not None

    @property
    def limited(self) -> bool:
        """Whether there is a limit to share out; without one every holder has no limit."""
        return self.budget.tokens is not None or self.budget.cost is not None

    def unreserved(self, usage: RunUsage) -> Budget:
        """Return the tokens and dollars that no holder has reserved."""
        tokens, cost = self._free(self.budget.left(usage))
        return Budget(
            tokens=None if math.isinf(tokens) else max(0, int(tokens)),
            cost=None if math.isinf(cost) else max(0.0, cost),
        )

    @property
    def holders(self) -> frozenset[str]:
        """The names of holders that have a share and have not settled."""
        return frozenset(self._taken)

    def take(
        self, name: str, usage: RunUsage, *, beside: int = 1, writing: bool = False, worked: float = 0.0
    ) -> Budget | Limit | None:
        """Return a share for `name`.

        `usage` is the known usage of the budget, `worked` the seconds of work. `beside` counts the holders that may run
        at once and have no share yet, this one included. While an answer is `writing`, that number is unknown. Return a
        `Limit` when nothing is left, and `None` when the holder must wait until another settles or the answer is
        complete.
        """
        if (spent := self.budget.spent(usage)) is not None:
            return spent
        left = self.budget.left(usage, worked)
        free, least = self._free(left, writing=writing), self._least
        if writing or (not self.expected.known and beside + len(self._taken) > AT_FIRST):
            part = _Amount.of(left).part(AT_FIRST)
            share = _Amount(max(part.tokens, least.tokens), max(part.cost, least.cost))
            if free.tokens < share.tokens or free.cost < share.cost:
                if self._taken or writing:
                    return None
                share = free
        else:
            fits = free.holds(least)
            if self._taken and (fits < 1 or min(free) <= 0):
                return None
            one = _Amount(self.expected.one_tokens, self.expected.one_cost)
            if min(free) <= 0 or free.holds(one) < 1:
                reason: Literal["token_budget", "cost_budget"]
                reason = "token_budget" if free.tokens <= 0 or free.tokens < one.tokens else "cost_budget"
                return Limit(reason, "the rest of the budget is not enough for one Request")
            share = free.part(max(1, min(beside, fits)))
        self._taken[name] = share
        return share.budget(left.deadline)

    def level(self, usage: RunUsage, *, beside: int) -> dict[str, Budget]:
        """Raise the shares of holders that began while the answer was written; return the new share of each that gets
        more.

        `beside` counts the others: those that may run at once and have no share yet.
        """
        free, raised = self._free(self.budget.left(usage)), {}
        if not self._taken or min(free) <= 0:
            return {}
        all_ = free
        for share in self._taken.values():
            all_ = all_.plus(share)
        equal = all_.part(max(len(self._taken), min(len(self._taken) + beside, all_.holds(self._least))))
        for name, share in self._taken.items():
            more = share.plus(free)
            level = _Amount(min(equal.tokens, more.tokens), min(equal.cost, more.cost))
            level = _Amount(max(level.tokens, share.tokens), max(level.cost, share.cost))
            is_more = level.tokens > share.tokens * _WORTH or level.cost > share.cost * _WORTH
            if is_more and level.budget() != share.budget():  # a share of a few tokens is rounded up
                self._taken[name], raised[name] = level, level.budget()
                free = self._free(self.budget.left(usage))
        return raised

    def settle(self, name: str, used: RunUsage | None) -> None:
        """Settle a holder that has ended with this usage; `None` when the usage is unknown."""
        share = self._taken.pop(name)
        if used is not None:
            self.expected.note_usage(used)
            return
        self.expected.lost_tokens += int(min(share.tokens, self.expected.tokens))
        self.expected.lost_cost += min(share.cost, self.expected.cost)

    def release(self, name: str) -> None:
        """Return the share of a holder that has used nothing of it."""
        self._taken.pop(name, None)

    @property
    def _least(self) -> _Amount:
        return _Amount(self.expected.tokens if self.expected.known else 2 * ASSUMED, self.expected.cost)

    def _free(self, left: Budget, *, writing: bool = False) -> _Amount:
        """Return the unused and unreserved part of the budget; while an answer is `writing`, minus its expected cost."""
        expected, free = self.expected, _Amount.of(left)
        if writing or self.share.limited:
            free = free.minus(expected.own_tokens, expected.own_cost)
        free = free.minus(expected.lost_tokens, expected.lost_cost)
        for share in self._taken.values():
            free = free.minus(*share)
        return free


def count_rivals(plan: Plan, holders: frozenset[str]) -> int:
    """Return the number of a plan's delegates that may run at once and have no share yet, without those that wait for
    another.
    """
    delegates = {
        call.index
        for call in plan.calls
        if call.spec.tool is not None and call.spec.tool.delegate is not None and not call.state.ended
    }
    readers: dict[int, list[int]] = {}
    for writer, reader, _ in plan.edges():
        if not plan.calls[writer].state.ended:
            readers.setdefault(writer, []).append(reader)
    behind: set[int] = set()
    todo = list(delegates)
    while todo:
        for reader in readers.get(todo.pop(), ()):
            if reader not in behind:
                behind.add(reader)
                todo.append(reader)
    inside = sum(count_rivals(each, holders) for each in plan.iterations() if not each.settled)
    return inside + sum(plan.calls[index].id not in holders for index in delegates - behind)
