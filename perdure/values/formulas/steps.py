"""What a formula may take: steps are counted where work is done and where something is made, so they bound memory as well."""

from __future__ import annotations

from typing import Any, Final

MAX_FORMULA_STEPS: Final = 200_000
"""Of the formulas of one call, or of one output, below 0.1 s: a step is one operation, one item, or `CHARACTERS` of text;
what the value takes to be measured and written is paid for as well (R18.9)."""
CHARACTERS: Final = 16
LOOKS: Final = 2
"""Parts of a value that are looked at to measure it, in one step."""
BITS: Final = 128
"""Of an integer that is computed with: two of 4,000 digits take 30 µs."""


class OutOfStepsError(Exception):
    """The formula would take more steps than it may."""


class Steps:
    """The budget of one evaluation."""

    __slots__ = ("left",)

    def __init__(self, most: int = MAX_FORMULA_STEPS) -> None:
        self.left = most

    def take(self, count: int = 1) -> None:
        """Raises `OutOfStepsError` when nothing is left."""
        self.left -= count
        if self.left < 0:
            raise OutOfStepsError

    def text(self, length: int) -> None:
        """Text of so many characters is made or read."""
        self.take(length // CHARACTERS)

    def digits(self, *numbers: float) -> None:
        """There is computed with these numbers."""
        self.take(sum(number.bit_length() for number in numbers if isinstance(number, int)) // BITS)

    def weigh(self, value: Any) -> int:
        """Take a step for each item in the value, at any depth; how many were taken."""
        before = self.left
        stack = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                self.text(len(item))
            elif isinstance(item, list):
                self.take(len(item))
                stack.extend(item)
            elif isinstance(item, dict):
                self.take(2 * len(item))
                stack.extend(item)
                stack.extend(item.values())
            elif isinstance(item, int):
                self.digits(item)
        return before - self.left
