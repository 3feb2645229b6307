"""What checking may cost: the one place where it is counted and bounded (R18.5, R18.6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

MOST_STEPS: Final = 1_500_000
"""For one value against one schema, and once more for the words of what is wrong. A step takes 0.1 to 0.3 µs: the largest value that
Temporal carries, 1.9 MB of `[[1],[1],…`, takes 0.5 million of them and 0.15 s against a schema without alternatives."""


TASK_STEPS: Final = 750_000
"""Of one workflow task: once its checks have taken so many, no further one begins in it (R18.5)."""
ROUNDS_STEPS: Final = 150_000
"""The same for iterations: 50 of one call each, which take 0.02 s. On a machine that other programs use the same work takes ten times as
long, and the SDK fails a task after 2 s by the clock."""
SHORT_TASKS: Final = "short-tasks-in-loops"
"""Patch: runs of 0.1.0 begin iterations until `TASK_STEPS`, check a body's calls anew in each, and have a timer bring the next task."""
DECIDED: Final = "sources-of-conditions"
"""Patch: in runs of 0.1.0 a result does not have the sources of the conditions that its call is made under."""
PART_STEPS: Final = 2
"""Steps for each part of a call as a model wrote it: it is looked through for names and nulls, read, measured and sent."""
COSTLY: Final = 2_000
"""Steps. What took more is remembered: many calls may read one large value (R18.2)."""


class TooMuchError(Exception):
    """Checking would take more steps than it may."""


class Checks:
    """The checks of one plan: what they found, by the identity of schema and value, and what they have taken of a task.

    A value that was checked must not be changed afterwards. What is found again takes no steps. To be used where a replay does the
    same only: what a query or a validator checks has `Checks` of its own.
    """

    def __init__(self) -> None:
        # Schema and value are kept beside what was found, so that their ids cannot be used again while it counts.
        self.verdicts: dict[int, dict[int, tuple[Any, Any, bool | None]]] = {}
        """By value and node whether it fits; `None`: that takes too many steps."""
        self.words: dict[tuple[int, int], tuple[Any, Any, list[Any] | None]] = {}
        """By schema and value what is wrong; `None`: that takes too many steps."""
        self.schemas: dict[int, Any] = {}
        """Those that are made where they are used, by the identity of the document."""
        self.taken = 0
        """Steps, in the task under way."""
        self._task = -1
        self.is_patched: Callable[[str], bool] = lambda _: True
        """Whether this execution goes by a rule that is newer than its history may be."""

    @property
    def spent(self) -> bool:
        """Whether the rest goes with the next task."""
        return self.taken >= TASK_STEPS

    @property
    def full(self) -> bool:
        """Whether no further iteration of a loop begins in this task."""
        return self.spent or (self.taken >= ROUNDS_STEPS and self.is_patched(SHORT_TASKS))

    def begin(self, task: int) -> None:
        """A workflow task, known by a number of its own, has begun, or goes on."""
        if task != self._task:
            self._task, self.taken = task, 0


class Steps:
    """The budget of one check. With `checks` what it finds is remembered there."""

    __slots__ = ("checks", "left", "most")

    def __init__(self, most: int = MOST_STEPS, checks: Checks | None = None) -> None:
        self.left = self.most = most
        self.checks = Checks() if checks is None else checks

    def settle(self) -> None:
        """The check has ended: the task has taken what it took."""
        self.checks.taken += self.most - max(self.left, 0)

    def take(self, count: int) -> None:
        """Raises `TooMuchError` when nothing is left."""
        self.left -= count
        if self.left < 0:
            raise TooMuchError
