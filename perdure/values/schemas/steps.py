"""What checking may cost: the one place where it is counted and bounded (R18.5, R18.6)."""

from __future__ import annotations

from typing import Final

MOST_STEPS: Final = 1_500_000
"""For one value against one schema, and once more for the words of what is wrong. A step takes 0.1 to 0.3 µs: the largest value that
Temporal carries, 1.9 MB of `[[1],[1],…`, takes 0.5 million of them and 0.15 s against a schema without alternatives."""


class TooMuchError(Exception):
    """Checking would take more steps than it may."""


class Steps:
    """A budget of steps."""

    __slots__ = ("left",)

    def __init__(self, most: int = MOST_STEPS) -> None:
        self.left = most

    def take(self, count: int) -> None:
        """Raises `TooMuchError` when nothing is left."""
        self.left -= count
        if self.left < 0:
            raise TooMuchError
