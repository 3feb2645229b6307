"""Evaluations as data (R22.3): pass rates with their intervals, rows, comparisons, and the sample of `config.evaluate`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import SettingsError
from perdure.runs.agent import Evaluate
from perdure.runs.evaluation import (
    EvaluationCase,
    EvaluationInput,
    EvaluationPlan,
    EvaluationResult,
    PassRate,
    RunScore,
    compare,
    evaluated_run,
)


def plan(**more: Any) -> EvaluationPlan:
    given: dict[str, Any] = {"name": "d", "id": "e", "agent": {"name": "a"}, "cases": [EvaluationCase(name="one")]}
    return EvaluationPlan(**(given | more))


def result(passed: dict[str, list[bool]], model: str = "") -> EvaluationResult:
    scores = [
        RunScore(case=place, number=number, status="completed", assertions={"A": holds}, tokens=10, cost=0.5)
        for place, found in enumerate(passed.values())
        for number, holds in enumerate(found)
    ]
    return EvaluationResult(id="e", name="d", agent="a", models=[model], cases=[*passed], scores=scores)


def test_the_interval_is_wilsons() -> None:
    rate = PassRate(passed=9, runs=10)
    assert (round(rate.low, 3), round(rate.high, 3)) == (0.596, 0.982)
    assert (PassRate(passed=0, runs=0).low, PassRate(passed=0, runs=0).high) == (0.0, 1.0)


@given(st.integers(0, 2_000).flatmap(lambda runs: st.tuples(st.integers(0, runs), st.just(runs))))
def test_the_interval_holds_the_rate_and_stays_within_0_and_1(counts: tuple[int, int]) -> None:
    rate = PassRate(passed=counts[0], runs=counts[1])
    assert 0.0 <= rate.low <= rate.high <= 1.0
    if rate.runs:
        assert rate.low <= rate.rate <= rate.high
        more = PassRate(passed=10 * rate.passed, runs=10 * rate.runs)
        assert more.high - more.low < rate.high - rate.low


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 4))
def test_each_run_is_one_repetition_of_one_case_with_one_model(cases: int, models: int, repeat: int) -> None:
    whole = plan(
        cases=[EvaluationCase(name=str(n)) for n in range(cases)], models=[str(n) for n in range(models)], repeat=repeat
    )
    places = [whole.place(index) for index in range(whole.total)]
    assert len(set(places)) == cases * models * repeat
    assert {max(each) for each in zip(*places, strict=True)} == {cases - 1, models - 1, repeat - 1}


def test_rows_count_what_failed_and_why() -> None:
    found = result({"one": [True, False], "two": [True]})
    found.scores[1].reasons["A"] = "too long"
    found.scores.append(RunScore(case=1, status="failed", error="the model is away"))
    one, two = found.rows()
    assert (one.rate.passed, one.rate.runs, one.failed, one.reasons) == (1, 2, {"A": 1}, ["A: too long"])
    assert (two.failed, two.reasons, two.cost) == ({"run": 1}, ["the model is away"], None)
    (total,) = found.totals()
    assert (total.rate.passed, total.rate.runs, total.tokens) == (2, 4, 30)
    assert found.is_at_least(0.5)
    assert not found.is_at_least(0.51)
    assert EvaluationResult.from_json(found.as_json()) == found


def test_a_problem_of_an_evaluator_never_passes() -> None:
    assert not RunScore(status="completed", problems=["Judge: the model is away"]).passed
    assert RunScore(status="completed").passed
    assert not RunScore(status="timed_out", assertions={"A": True}).passed


def test_two_results_are_compared_case_by_case() -> None:
    before = result({"a": [True] * 20, "b": [False] * 20, "c": [True, False], "old": [True]}, "gpt-4o")
    after = result({"a": [False] * 20, "b": [True] * 20, "c": [True, False], "new": [True]}, "gpt-5")
    compared = compare(before, after)
    assert [(row.case, row.is_clear) for row in compared.better] == [("b", True)]
    assert [(row.case, row.is_clear) for row in compared.worse] == [("a", True)]
    assert (compared.same, compared.added, compared.removed) == (1, ["new"], ["old"])
    assert [(row.before.passed, row.after.passed) for row in compared.total] == [(21, 21)]
    assert not compare(result({"a": [True, False]}), result({"a": [True, True]})).better[0].is_clear
    assert not compared.not_compared
    two = after.model_copy(update={"models": ["gpt-5", "gpt-5-mini"]})
    assert compare(before, two).not_compared == "no model is in both: before gpt-4o; now gpt-5, gpt-5-mini"


def test_a_run_of_an_evaluation_informs_nobody_and_is_not_sampled() -> None:
    document = {
        "name": "a",
        "config": {"notify": {"run_ended": ["ops"]}, "evaluate": {"evaluators": ["X"]}, "refine": True},
    }
    case = EvaluationCase(name="one", inputs=None, has_input=True, metadata={"sender": "ann", "context": {"shop": 1}})
    run = evaluated_run(plan(cases=[case], decide="approve"), 0, document)
    assert run.agent["config"] == {"refine": True}
    assert (run.input, run.has_input, run.approval) == (None, True, {"timeout": 1, "on_timeout": "approve"})
    assert (run.whose.sender, run.whose.context, run.evaluated) == ("ann", {"shop": 1}, True)
    assert evaluated_run(plan(decide="wait"), 0, document).approval == {}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"cases": []}, "has no cases"),
        ({"cases": [EvaluationCase(name="one")] * 2}, "two cases of the dataset 'd' have the name 'one'"),
        ({"repeat": 2_001}, "2,001 runs are too many: the limit of one evaluation is 2,000"),
        (
            {"cases": [EvaluationCase(name="one", inputs="x" * 600_000)]},
            "the limit is 500,000 bytes: split the dataset",
        ),
    ],
)
def test_what_cannot_be_evaluated_is_named(more: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        plan(**more).check()


def test_scores_travel_packed_from_execution_to_execution() -> None:
    scores = [RunScore(run_id=f"e-{n}", assertions={"A": n % 2 == 0}) for n in range(500)]
    following = EvaluationInput.go_on(plan(), scores)
    assert following.scores() == scores
    assert following.snapshot is not None
    assert len(following.snapshot.data) < 10_000


def test_the_sample_is_a_share_of_all_runs_and_always_the_same() -> None:
    tenth = Evaluate(evaluators=["MaxCost"], share=0.1)
    taken = [name for name in map(str, range(10_000)) if tenth.takes(name)]
    assert 800 < len(taken) < 1_200
    assert taken == [name for name in map(str, range(10_000)) if tenth.takes(name)]
    assert not Evaluate(share=1.0).takes("run")  # nothing would score it
    assert not Evaluate(evaluators=["MaxCost"], share=0.0).takes("run")
    assert all(Evaluate(evaluators=["MaxCost"]).takes(name) for name in taken)
