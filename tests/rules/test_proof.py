"""The static judge (R23.1), by example, and compared with an interpreter that plays every outcome."""

from __future__ import annotations

from collections import Counter

import pytest

from perdure.rules import RuleBook, judge_plan
from tests.rules.outcomes import Outcomes, new_plan, seeds


def compare(first: int, count: int) -> Counter[str]:
    """Compare the judge with the interpreter over these seeds; return how many verdicts of each kind it gave."""
    given: Counter[str] = Counter()
    for seed, calls, rules in seeds(first, count):
        outcomes = Outcomes(calls, rules)
        for rule, verdict in zip(rules, judge_plan(new_plan(calls), RuleBook(rules)), strict=True):
            given[verdict.status] += 1
            broken = rule.key in outcomes.broken
            if verdict.status == "proven":
                assert not broken, (seed, calls, verdict.line)
            elif verdict.status == "violated" and outcomes.complete:
                assert broken, (seed, calls, verdict.line)
            given[f"{verdict.status}, {'broken' if broken else 'kept'}"] += 1
    return given


def test_r23_1_the_judge_agrees_with_an_interpreter_that_plays_every_outcome() -> None:
    given = compare(0, 40)
    assert given["proven"] > 130
    assert given["violated"] > 20


@pytest.mark.soak
@pytest.mark.parametrize("part", range(20))
def test_r23_1_the_judge_agrees_over_10_000_seeds(part: int) -> None:
    given = compare(1000 + 500 * part, 500)
    assert given["proven"] > 0
    assert given["violated"] > 0
