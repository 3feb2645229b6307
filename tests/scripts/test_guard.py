"""The guard of the benchmarks: a ratio that has grown by more than a tenth fails it."""

from __future__ import annotations

import json

import pytest

from benchmarks.guard import BASELINE, COUNTED, CPU, compare

NAME = next(iter(COUNTED))


@pytest.mark.parametrize(
    ("found", "python", "beyond"),
    [
        ({"a": 2.0}, "3.11", False),
        ({"a": 2.19}, "3.11", False),
        ({"a": 1.0}, "3.11", False),
        ({"a": 2.21}, "3.11", True),
        ({"a": 2.21}, "3.12", True),
        ({NAME: 112.0}, "3.11", True),
        ({NAME: 112.0}, "3.12", False),
        ({CPU: 1.4}, "3.12", False),
        ({CPU: 1.6}, "3.12", True),
        ({"new": 1.0}, "3.11", True),
    ],
)
def test_a_ratio_beyond_its_bound_fails(found: dict[str, float], python: str, beyond: bool) -> None:
    known = {"python": ["3", "11"], "ratios": {"a": 2.0, NAME: 100.0, CPU: 1.0}}
    rows, failed = compare(known, found, python.split("."))
    assert (len(rows), failed) == (1, beyond)


def test_the_baseline_has_ten_ratios() -> None:
    assert len(json.loads(BASELINE.read_text(encoding="utf-8"))["ratios"]) == 10
