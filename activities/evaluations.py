"""The score of a finished run, by evaluators of `pydantic-evals` (R22.3, R22.4)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from temporalio import activity
from temporalio.client import (
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowQueryFailedError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.heartbeats import supervised_heartbeat
from perdure.activities.queries import GONE, ask_other, other_run
from perdure.activities.registry import Registry
from perdure.activities.secrets import mask_value
from perdure.errors import SettingsError
from perdure.queries import failed_result
from perdure.runs.evaluation import (
    BAD_EVALUATORS,
    CHECK_EVALUATORS_ACTIVITY,
    SCORE_ACTIVITY,
    RunScore,
    ScoreInput,
)
from perdure.runs.metrics import METRICS
from perdure.runs.wire import RUN_QUERY, RunStatus, RunView
from perdure.values.json import Json

if TYPE_CHECKING:
    from pydantic_evals.evaluators import Evaluator

_ATTEMPTS: Final = 3
"""Attempts to score a run whose evaluators fail: a judge is a model, which may be unavailable for a moment."""
_ENDED: Final[dict[WorkflowExecutionStatus, RunStatus]] = {
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.TERMINATED: "terminated",
    WorkflowExecutionStatus.TIMED_OUT: "timed_out",
}


class ScoreActivity:
    """The activities that score, with the evaluators of the worker's modules."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    @activity.defn(name=CHECK_EVALUATORS_ACTIVITY)
    async def check(self, specs: list[Any]) -> None:
        """Raise `ApplicationError` (`BadEvaluators`) for evaluators that this worker does not have."""
        self._load(specs)

    @activity.defn(name=SCORE_ACTIVITY)
    async def score(self, wanted: ScoreInput) -> RunScore:
        """Return the score of a run that has ended. It is recorded: a replay does not call the judge again."""
        from perdure.evals import score_run

        evaluators = self._load(wanted.evaluators)
        async with supervised_heartbeat():
            view, seconds = await _ended(wanted.run_id)
            score = await score_run(view, wanted.case, evaluators, seconds=seconds)
        if score.problems and activity.info().attempt < _ATTEMPTS:
            raise ApplicationError("; ".join(score.problems), type="evaluator_failed")
        _count(wanted.agent, score)
        return RunScore.model_validate(mask_value(score.as_json()))

    def _load(self, specs: list[Json]) -> list[Evaluator[Any, Any, Any]]:
        try:
            from perdure.evals import load_evaluators
        except ModuleNotFoundError as error:
            why = f"the worker needs pydantic-evals: pip install 'perdure[evals]' ({error})"
            raise ApplicationError(why, type=BAD_EVALUATORS, non_retryable=True) from None
        try:
            return load_evaluators(specs, self._registry.evaluators)
        except SettingsError as error:
            why = f"{error}. The worker has the evaluators of pydantic-evals, perdure.evals and its --tools modules"
            raise ApplicationError(why, type=BAD_EVALUATORS, non_retryable=True) from None


async def _ended(run_id: str) -> tuple[RunView, float]:
    """Return a run that has ended, and the seconds that it took."""
    failure: WorkflowFailureError | None = None
    try:
        try:
            await other_run(run_id).result(follow_runs=False)
        except WorkflowFailureError as error:  # a run that has failed is scored, too
            failure = error
        described = await other_run(run_id).describe()
        view: RunView = await ask_other(run_id, RUN_QUERY, RunView)
    except (RPCError, WorkflowQueryFailedError) as error:
        lasting = isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND
        raise ApplicationError(str(error), type=GONE, non_retryable=lasting) from None
    view.run_id = run_id
    if described.status is WorkflowExecutionStatus.FAILED and failure is not None:
        result = failed_result(run_id, failure)
        view.status, view.error, view.stop_reason = result.status, result.error, result.stop_reason
    elif described.status is not None:
        view.status = _ENDED.get(described.status, view.status)
    return view, _seconds(described)


def _seconds(described: WorkflowExecutionDescription) -> float:
    ended = described.close_time or datetime.now(UTC)
    return round(max(0.0, (ended - described.start_time).total_seconds()), 3)


def _count(agent: str, score: RunScore) -> None:
    meter = activity.metric_meter()
    held, number = METRICS["perdure_evaluations_total"], METRICS["perdure_evaluation_score"]
    for name, holds in score.assertions.items():
        labels = {"agent": agent, "evaluator": name, "outcome": "pass" if holds else "fail"}
        meter.create_counter(held.name, held.help).add(1, labels)
    for name, value in score.scores.items():
        meter.create_histogram_float(number.name, number.help).record(value, {"agent": agent, "evaluator": name})
