"""CPU time in laps of a loop that runs at the same moment: a bound that holds on every machine, and beside a busy one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_ROUNDS: Final = 60_000
"""Of the loop in one lap: about a hundredth of a second on the machine that the bounds were first measured on."""
_LAPS: Final = 2


def lap() -> float:
    """Return the CPU seconds of this thread that one lap takes now."""
    started = time.thread_time()
    for _ in range(_LAPS):
        text, found = "", {}
        for number in range(_ROUNDS):
            found[number % 97] = number
            text = f"{number}"
        assert (text, len(found)) == (str(_ROUNDS - 1), 97)
    return (time.thread_time() - started) / _LAPS


class Cpu:
    """The CPU time of this thread since it was made.

    Neighbours slow the loop as much as the code between: `assert cpu.laps() < 50` is no assertion on seconds.
    """

    def __init__(self) -> None:
        self._lap = lap()
        self._started = time.thread_time()

    def laps(self) -> float:
        """Return the time that has passed, in laps."""
        spent = time.thread_time() - self._started
        return spent / max(self._lap, lap())


def in_one_try(measure: Callable[[], bool]) -> bool:
    """Whether one of three measurements is within its bounds: neighbours can only add time."""
    return any(measure() for _ in range(3))


def takes_less(work: Callable[[], object], laps: float) -> bool:
    """Whether one of three tries takes less than these laps."""

    def measure() -> bool:
        cpu = Cpu()
        work()
        return cpu.laps() < laps

    return in_one_try(measure)
