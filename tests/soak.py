"""How many cases are played: a share in the suite, all in a soak; `SOAK` multiplies the cases of tests marked `soak`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection
from typing import Any, Final

import pytest

_TIMES: Final = float(os.environ.get("SOAK", "1"))
_SHARE: Final = 1.0 if "SOAK" in os.environ else 0.3


def times(count: int) -> int:
    """So many, or as many times more as `SOAK` says: for tests that are marked `soak`."""
    return max(1, round(count * _TIMES))


def share(count: int) -> int:
    """So many in a soak, and a share of them in the suite: for random cases that cost seconds, beside smaller tests of the same rules.

    A property that is the only test of its rule plays all: with fewer examples it finds fewer mutants.
    """
    return max(1, round(count * _SHARE))


def combined(*axes: Collection[Any]) -> list[Any]:
    """Return all combinations of these values. The suite plays as many as have each value once, and `make soak` plays the others."""
    longest = max(map(len, axes))
    played = {tuple(number % len(axis) for axis in axes) for number in range(longest)}
    places = itertools.product(*(range(len(axis)) for axis in axes))
    return [
        pytest.param(*each, marks=[] if place in played else [pytest.mark.soak])
        for place, each in zip(places, itertools.product(*axes), strict=True)
    ]
