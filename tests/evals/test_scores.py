"""The score of a run (R22.3): the evaluators of pydantic-evals and those about plans, given a run's view."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic_evals.evaluators import (
    ArgumentCorrectness,
    EqualsExpected,
    Evaluator,
    EvaluatorContext,
    MaxDuration,
    MaxModelRequests,
    MaxToolCalls,
    ToolCorrectness,
    TrajectoryMatch,
)

from perdure.errors import SettingsError
from perdure.evals import Approvals, Flows, MaxCost, MaxTokens, NoFlow, load_evaluators, run_of, score_run
from perdure.models.requests import RequestView
from perdure.models.usage import RunUsage
from perdure.plan import Approval
from perdure.runs.evaluation import EvaluationCase
from perdure.runs.wire import CallView, RunView
from tests.timeouts import HANG


def call(id: str, tool: str, status: str = "done", at: str = "2026-01-01T00:00:00+00:00", **more: Any) -> CallView:
    started = None if status == "skipped" else at
    return CallView(id=id, tool=tool, params=more.pop("params", {}), status=status, started_at=started, **more)


VIEW = RunView(
    run_id="r",
    status="completed",
    output="paid",
    requests=2,
    usage=RunUsage(prompt_tokens=90, completion_tokens=10, cost=0.02),
    log=[RequestView(number=n, model="m", reason="") for n in (0, 1, 2)],
    calls=[
        call("1.0", "look", at="2026-01-01T00:00:02+00:00", params={"order": "17"}),
        call("1.1", "join", at="2026-01-01T00:00:03+00:00"),
        call("1.2", "refund", at="2026-01-01T00:00:04+00:00", approval=Approval(requested_at="")),
        call("1.3", "mail", "failed", at="2026-01-01T00:00:01+00:00"),
        call("1.4", "note", "skipped"),
    ],
    edges=[("1.0", "1.1", "†state.a"), ("1.1", "1.2", "†state.b"), ("0.9", "1.2", "†state.c")],
)


@dataclass
class Polite(Evaluator[Any, Any, Any]):
    """Three results, by name, of the run itself."""

    def evaluate(self, ctx: EvaluatorContext[Any, Any, Any]) -> dict[str, bool | float | str]:
        return {"kind": True, "calls": float(len(run_of(ctx).calls)), "tone": "warm"}


@dataclass
class Broken(Evaluator[Any, Any, Any]):
    def evaluate(self, ctx: EvaluatorContext[Any, Any, Any]) -> bool:
        raise ConnectionError(f"the judge of {ctx.name} is away")


async def held(*evaluators: Evaluator[Any, Any, Any], view: RunView = VIEW) -> dict[str, bool]:
    return (await score_run(view, None, evaluators, seconds=3.0)).assertions


async def test_evaluators_of_pydantic_evals_read_tools_order_arguments_and_requests() -> None:
    assert await held(
        ToolCorrectness(["look", "join", "refund"]),
        MaxModelRequests(2),
        MaxToolCalls(4),
        MaxDuration(4.0),
        ArgumentCorrectness("look", {"order": "17"}),
    ) == dict.fromkeys(
        ["ToolCorrectness", "MaxModelRequests", "MaxToolCalls", "MaxDuration", "ArgumentCorrectness"], True
    )
    assert await held(MaxModelRequests(1), MaxToolCalls(3), ToolCorrectness(["note"])) == {
        "MaxModelRequests": False,
        "MaxToolCalls": False,
        "ToolCorrectness": False,
    }
    in_order = await score_run(VIEW, None, [TrajectoryMatch(["mail", "look", "join", "refund"], include_failed=True)])
    assert in_order.scores == {"TrajectoryMatch": 1.0}
    assert (await score_run(VIEW, None, [TrajectoryMatch(["refund", "look"])])).scores["TrajectoryMatch"] < 1.0


@pytest.mark.parametrize(
    ("evaluator", "holds", "reason"),
    [
        (Flows([["look", "refund"]]), True, "1 flows"),
        (Flows([["refund", "look"]]), False, "no result of refund reaches look"),
        (Flows([["look", "join"], ["join", "refund"]], exact=True), True, "2 flows"),
        (Flows([["look", "join"]], exact=True), False, "a result of join reaches refund, which is not expected"),
        (NoFlow("mail", "refund"), True, "no result of mail reaches refund"),
        (NoFlow("look", "refund"), False, "1.2 refund reads a result of 1.0 look"),
        (Approvals(["refund"]), True, "asked about refund"),
        (Approvals([]), False, "a person was asked about refund"),
        (Approvals(["refund", "mail"]), False, "no person was asked about mail"),
        (MaxCost(0.02), True, "$0.0200 of $0.0200"),
        (MaxCost(0.019), False, "$0.0200 of $0.0190"),
        (MaxTokens(100), True, "100 of 100 tokens"),
        (MaxTokens(99), False, "100 of 99 tokens"),
    ],
)
async def test_evaluators_of_plans(evaluator: Evaluator[Any, Any, Any], holds: bool, reason: str) -> None:
    score = await score_run(VIEW, None, [evaluator])
    name = type(evaluator).__name__
    assert (score.assertions, score.reasons) == ({name: holds}, {name: reason})


@pytest.mark.parametrize(("code", "executed"), [("invalid_write", True), ("rule_broken", False)])
async def test_an_invalid_call_counts_as_made_if_only_its_result_could_not_be_written(
    code: str, *, executed: bool
) -> None:
    invalid = call("1.5", "pay", "invalid", error={"code": code, "message": ""})
    view = VIEW.model_copy(update={"calls": [*VIEW.calls, invalid]})
    assert await held(MaxToolCalls(4), view=view) == {"MaxToolCalls": not executed}


async def test_a_run_without_a_price_does_not_pass_a_limit_of_cost() -> None:
    free = VIEW.model_copy(update={"usage": RunUsage()})
    assert await held(MaxCost(1.0), view=free) == {"MaxCost": False}


async def test_results_are_kept_by_their_kind_and_a_case_lends_what_is_expected() -> None:
    case = EvaluationCase(name="one", inputs="x", expected_output="paid")
    score = await score_run(VIEW, case, [Polite(), EqualsExpected()], seconds=3.0)
    assert score.assertions == {"kind": True, "EqualsExpected": True}
    assert (score.scores, score.labels) == ({"calls": 5.0}, {"tone": "warm"})
    assert (score.tokens, score.cost, score.requests, score.seconds, score.output) == (100, 0.02, 2, 3.0, "paid")
    assert score.passed


@dataclass
class Criteria(Evaluator[Any, Any, Any]):
    """Conditions by number, of which the last does not hold."""

    count: int
    name: str = "x"

    def evaluate(self, ctx: EvaluatorContext[Any, Any, Any]) -> dict[str, bool]:
        names = [f"{self.name} {n} {self.name}" for n in range(self.count)]
        return {name: run_of(ctx) is VIEW and name != names[-1] for name in names}


async def test_failed_conditions_are_kept_first_and_left_out_results_fail_the_run() -> None:
    score = await score_run(VIEW, None, [Criteria(25)])
    assert len(score.assertions) == 20
    assert not score.assertions["x 24 x"]
    assert score.problems == ["5 more results: at most 20 of one run are kept"]
    alike = await score_run(VIEW, None, [Criteria(2, "a" * 100)])
    assert list(alike.assertions.values()) == [False]


async def test_an_evaluator_that_raises_is_a_problem_of_the_score() -> None:
    score = await score_run(VIEW, None, [Broken(), MaxCost(1.0)])
    assert (score.assertions, score.problems) == (
        {"MaxCost": True},
        ["Broken: ConnectionError: the judge of run is away"],
    )
    assert not score.passed


@dataclass
class Waits(Evaluator[Any, Any, Any]):
    """An evaluator without `async` that waits for something."""

    def evaluate(self, ctx: EvaluatorContext[Any, Any, Any]) -> bool:
        return FREED.wait(HANG) and run_of(ctx) is VIEW


FREED = threading.Event()


async def test_an_evaluator_that_waits_does_not_hold_up_the_worker() -> None:
    scoring = asyncio.create_task(score_run(VIEW, None, [Waits(), Polite()]))
    asyncio.get_running_loop().call_later(0.01, FREED.set)
    assert (await scoring).assertions == {"Waits": True, "kind": True}


def test_names_and_arguments_are_checked() -> None:
    assert load_evaluators(["Polite", {"MaxCost": 0.5}], [Polite]) == [Polite(), MaxCost(0.5)]
    with pytest.raises(SettingsError, match="'Polite'"):
        load_evaluators(["Polite"])
    with pytest.raises(SettingsError, match="evaluators: "):
        load_evaluators([{"MaxCost": {"euros": 1}}])
    with pytest.raises(SettingsError, match="evaluators: "):
        load_evaluators([7])
