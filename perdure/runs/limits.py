"""Limits of a run: Requests, time, repetition, and the clock that counts a run's own work."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from pydantic import Field

from perdure.models.requests import INTERRUPTED, RequestResult
from perdure.models.usage import RunUsage
from perdure.values.json import Json, WireModel, dumps
from perdure.values.limits import MAX_BUDGET

if TYPE_CHECKING:
    from perdure.runs.agent import Config

REPEATS: Final = (
    "Your last {count} answers asked for the same. It will not help to ask for it again: try another approach, or give the best "
    "output that what is known allows."
)
"""Message to the model, once, before its run ends as stuck (R9.8)."""

StopReason: TypeAlias = Literal[
    "output",
    "answer",
    "task_complete",
    "stuck",
    "token_budget",
    "cost_budget",
    "max_requests",
    "deadline",
    "history",
    "client_gone",
]
"""Reason why a run ended: with its output, or at the limit of this name (R9.5, R18.4)."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The reason why the coming Request is the last, in words that the model reads too."""

    reason: StopReason
    words: str


class Budget(WireModel):
    """The budget that a run may still use; `None` is no limit. A delegate receives the rest of its parent's (R9.6)."""

    tokens: int | None = Field(default=None, le=MAX_BUDGET)
    cost: float | None = Field(default=None, allow_inf_nan=False)
    """Dollars."""
    deadline: float | None = Field(default=None, allow_inf_nan=False)
    """Seconds of work."""

    def within(self, other: Budget) -> Budget:
        """Return the narrower of both budgets, limit by limit."""

        def least(mine: float | None, theirs: float | None) -> float | None:
            both = [each for each in (mine, theirs) if each is not None]
            return min(both) if both else None

        tokens = least(self.tokens, other.tokens)
        return Budget(
            tokens=None if tokens is None else int(tokens),
            cost=least(self.cost, other.cost),
            deadline=least(self.deadline, other.deadline),
        )

    @property
    def limited(self) -> bool:
        """Whether tokens or money have a limit."""
        return self.tokens is not None or self.cost is not None

    def raised(self, other: Budget) -> Budget:
        """Return the budget with the other's tokens and dollars, if both have a limit and the other's is higher. The
        deadline stays.
        """
        return Budget(
            tokens=self.tokens if self.tokens is None or other.tokens is None else max(self.tokens, other.tokens),
            cost=self.cost if self.cost is None or other.cost is None else max(self.cost, other.cost),
            deadline=self.deadline,
        )

    def left(self, usage: RunUsage, worked: float = 0.0) -> Budget:
        """Return the rest of the budget after this usage."""
        return Budget(
            tokens=None if self.tokens is None else max(0, self.tokens - usage.tokens),
            cost=None if self.cost is None else max(0.0, self.cost - (usage.cost or 0.0)),
            deadline=None if self.deadline is None else max(0.0, self.deadline - worked),
        )

    def late(self, worked: float) -> Limit | None:
        """Return the deadline as a limit, if the run has reached it."""
        if self.deadline is None or worked < self.deadline:
            return None
        return Limit("deadline", f"the run has worked for {self.deadline:g} s, which is its deadline")

    def spent(self, usage: RunUsage) -> Limit | None:
        """Return the budget's limit that has been used up, if one has."""
        if self.tokens is not None and usage.tokens >= self.tokens:
            return Limit("token_budget", f"the token budget of {self.tokens:,} is spent ({usage.tokens:,} were used)")
        if self.cost is None or not usage.by_model:
            return None
        if usage.cost is None:
            unknown = [model for model, used in usage.by_model.items() if used.cost is None]
            return Limit("cost_budget", f"the price of {', '.join(unknown)} is not known, so the budget cannot be kept")
        if usage.cost >= self.cost:
            return Limit("cost_budget", f"the budget of ${self.cost:g} is spent (${usage.cost:.4f} was used)")
        return None


def budget_of(config: Config) -> Budget:
    return Budget(tokens=config.token_budget, cost=config.cost_budget, deadline=config.deadline)


def fingerprint(calls: Sequence[Json], output: Json, problem: Json) -> str:
    """Return the fingerprint of an answer. Two answers that ask for the same have the same one."""
    wanted = [
        {key: value for key, value in call.items() if key != "_id"} if isinstance(call, dict) else call
        for call in calls
    ]
    text = dumps([wanted, output, problem], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def answer_print(result: RequestResult, taken: Sequence[Json]) -> str:
    """Return the fingerprint of an answer. An incomplete answer counts by its accepted calls, `taken`, not by its end."""
    if (result.problem or {}).get("code") == INTERRUPTED:
        return fingerprint(taken, None, INTERRUPTED)
    return fingerprint(result.calls, result.output, [result.problem, "" if result.calls else result.text])


def is_stuck(answers: Sequence[str], after: int) -> bool:
    """Whether the last `after` answers asked for the same."""
    return len(answers) >= after and len(set(answers[-after:])) == 1


def request_limit(
    config: Config, answers: Sequence[str], *, coming: int, warned: bool, last_counts: bool
) -> Limit | None:
    """Return the limit that Request `coming` reaches: it is the last of `max_requests`, or the agent repeats itself.

    An agent repeats itself if it was `warned` and did not change. With `max_requests: 1` the only Request has tools,
    and none follows it. `last_counts`: whether the last Request counts toward `max_requests`; in runs of 0.1.0 it does
    not.
    """
    if coming > config.max_requests or (coming == config.max_requests > 1 and last_counts):
        return Limit("max_requests", f"the run may ask {config.max_requests} times")
    if warned and is_stuck(answers, config.stuck_after):
        return Limit("stuck", f"the last {config.stuck_after} answers asked for the same")
    return None


OUTAGE: Final = 10.0
"""Seconds after a run's deadline. If no task has come until then, no worker was there: a busy worker is faster."""

_ROUNDED: Final = 0.1
"""Seconds before the deadline. A task in this time counts as the task at the deadline, because times are rounded."""


class WorkClock:
    """A clock of seconds of work: time without pauses. Callers pass the time; the clock reads none itself.

    A task always comes at the deadline, unless no worker is there. If it comes more than `OUTAGE` seconds later, the
    time since the task before it does not count.
    """

    def __init__(self, worked: float = 0.0) -> None:
        self._worked = worked
        self._since: float | None = None
        self._seen = 0.0
        self.deadline: float | None = None
        """Seconds of work at which a task comes; `None`: all time counts."""

    def work(self, now: float) -> None:
        """Start counting time."""
        if self._since is None:
            self._since = now

    def pause(self, now: float) -> None:
        """Stop counting time."""
        self._worked, self._since = self.worked(now), None

    @property
    def paused(self) -> bool:
        return self._since is None

    def worked(self, now: float) -> float:
        """Return the seconds of work until now, without an outage at the deadline."""
        if self._since is None:
            return self._worked
        worked = self._worked + max(0.0, now - self._since)
        before = self._worked + max(0.0, self._seen - self._since)
        outage = self.deadline is not None and before < self.deadline - _ROUNDED and self.deadline <= worked - OUTAGE
        return before if outage else worked

    def look(self, now: float) -> None:
        """Note the time of a task at its end. An outage before it is left out from now on."""
        if self._since is not None and self.deadline is not None and self.worked(now) < self.deadline:
            self.pause(now)
            self.work(now)
        self._seen = now

    def at_least(self, worked: float, now: float) -> None:
        """Count the work of a delegate while this clock was paused for it."""
        self._worked += max(0.0, worked - self.worked(now))
