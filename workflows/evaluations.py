"""Evaluations: the workflow that starts a run for each case, and the one that scores a run (R22.3, R22.4)."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any, Final

from pydantic import ValidationError
from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributeKey, WorkflowIDReusePolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

from perdure.workflows.arguments import end_if_started_by_hand, query_arguments, read_input
from perdure.workflows.continue_as_new import should_continue_as_new
from perdure.workflows.failures import message_of
from perdure.workflows.internal_activities import execute_typed
from perdure.workflows.reservations import reserve
from perdure.workflows.resets import ResetFlag

with workflow.unsafe.imports_passed_through():
    from perdure.errors import PerdureError, clip
    from perdure.runs.agent import with_model
    from perdure.runs.evaluation import (
        BAD_EVALUATORS,
        CHECK_EVALUATORS_ACTIVITY,
        EVALUATED_RUN_WORKFLOW,
        EVALUATION_WORKFLOW,
        LONGEST_REASON,
        NOT_SCORED,
        PROGRESS_QUERY,
        SCORE_ACTIVITY,
        SCORES_FORM,
        EvaluatedRunInput,
        EvaluationInput,
        EvaluationProgress,
        PackedScores,
        RunScore,
        RunScores,
        ScoreInput,
        evaluated_run,
        scored_id,
        scores_a_day,
    )
    from perdure.runs.ledger import Reservation
    from perdure.runs.run import RunState
    from perdure.runs.views import summary as line
    from perdure.runs.wire import (
        AGENT_ATTRIBUTE,
        AGENT_WORKFLOW,
        LONGEST_KEYWORD,
        SCORE_ATTRIBUTE,
        TENANT_ATTRIBUTE,
        VERSION_ATTRIBUTE,
    )
    from perdure.sessions.agent_file import with_conversation
    from perdure.values.json import Json, pack
    from perdure.values.limits import MAX_ID

_VERSION: Final = SearchAttributeKey.for_keyword(VERSION_ATTRIBUTE)
_ATTEMPTS: Final = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=1))
_SCORE: Final = RetryPolicy(
    initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=1), maximum_attempts=10
)
"""An evaluator may hang in each attempt."""
_SCORED_WITHIN: Final = timedelta(minutes=10)
"""Time of one attempt to score: a judge is a model."""
_RESERVE_ATTEMPTS: Final = 40
"""Attempts of the reservation of a score: the ledger may be unavailable for about an hour."""


async def start_score(run: RunState) -> None:
    """Start the score of a run that ends, if its agent names evaluators and the run belongs to the sample.

    The score is a workflow that outlives the run. The run waits only for its start.
    """
    evaluate, run_id = run.agent.config.evaluate, workflow.info().workflow_id
    is_too_long = len(scored_id(run_id).encode()) > MAX_ID  # the server would refuse the task
    if run.identity.parents or not evaluate.takes(run_id) or is_too_long:
        return
    owner, agent = run.identity.owner, run.agent.name
    with contextlib.suppress(WorkflowAlreadyStartedError):  # the run was reset, and has its score
        await workflow.start_child_workflow(
            EVALUATED_RUN_WORKFLOW,
            EvaluatedRunInput(
                score=ScoreInput(run_id=run_id, evaluators=evaluate.evaluators, agent=agent),
                quota=scores_a_day(agent, evaluate),
                tenant=owner.tenant,
                agent=agent,
                attributes=run.prepared.attributes,
                version=workflow.info().typed_search_attributes.get(_VERSION) or "",
            ),
            id=scored_id(run_id),
            task_queue=run.identity.queue or None,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            parent_close_policy=ParentClosePolicy.ABANDON,
            cancellation_type=ChildWorkflowCancellationType.ABANDON,
            static_summary=line(f"the score of {run_id}"),
        )


@workflow.defn(name=EVALUATION_WORKFLOW, failure_exception_types=[PerdureError, ValidationError])
class EvaluationWorkflow:
    """An agent over the cases of a dataset: so many runs at a time, each scored when it has ended."""

    @workflow.init
    def __init__(self, *arguments: Json) -> None:
        self._refusal: Exception | None = None
        self._running: dict[int, str] = {}
        self._scores: list[RunScore] = []
        self._ended: dict[int, RunScore] = {}
        self._reset = ResetFlag()
        try:
            self._input = read_input(EvaluationInput, arguments)
            self._scores = self._input.scores()
            if not self._input.began:
                self._input.plan.check()
        except Exception as error:  # `run` raises it: a handler may be called before
            self._refusal = error

    @workflow.run
    async def run(self, *_: Json) -> PackedScores:
        """Run and score all cases, and return the scores. Continue as new when the history is long."""
        if self._refusal is not None:
            raise self._refusal
        plan = self._input.plan
        if not self._input.began:
            await self._check()
        places, following = asyncio.Semaphore(plan.at_once), len(self._scores)
        tasks: list[asyncio.Task[RunScore]] = []
        while following < plan.total and not (tasks and should_continue_as_new()):
            await places.acquire()
            tasks.append(asyncio.create_task(self._score(following, places)))
            following += 1
        if tasks:
            # In the order of the cases, and not of their ends: the next execution begins where this one stops.
            scores = await asyncio.gather(*tasks)
            self._ended.clear()
            self._scores += scores
        if len(self._scores) < plan.total:
            workflow.continue_as_new(EvaluationInput.go_on(plan, self._scores))
        return PackedScores(scores=pack(RunScores(scores=self._scores), SCORES_FORM))

    @workflow.query(name=PROGRESS_QUERY, description="The numbers of scored, passed and active runs")
    @query_arguments
    def progress(self) -> EvaluationProgress:
        """Return the evaluation's progress."""
        if self._refusal is not None:
            return EvaluationProgress(total=0)
        done = [*self._scores, *self._ended.values()]
        return EvaluationProgress(
            total=self._input.plan.total,
            done=len(done),
            passed=sum(score.passed for score in done),
            running=[*self._running.values()],
        )

    async def _check(self) -> None:
        """Fail at once where a worker does not have the evaluators."""
        plan = self._input.plan
        specs = [*plan.evaluators, *(each for case in plan.cases for each in case.evaluators)]
        try:
            await workflow.execute_activity(
                CHECK_EVALUATORS_ACTIVITY,
                specs,
                start_to_close_timeout=timedelta(minutes=1),
                retry_policy=_ATTEMPTS,
                summary=line("the evaluators"),
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            raise ApplicationError(message_of(error), type=BAD_EVALUATORS, non_retryable=True) from error

    async def _score(self, index: int, places: asyncio.Semaphore) -> RunScore:
        plan = self._input.plan
        place, model, number = plan.place(index)
        case, run_id = plan.cases[place], f"{plan.id}-{index + 1}"
        document = with_model(plan.agent, plan.models[model]) if plan.models[model] else plan.agent
        document = with_conversation(document, case.messages)
        self._running[index] = run_id
        about = {"case": place, "model": model, "number": number, "run_id": run_id}
        agent = str(plan.agent.get("name", ""))
        wanted = ScoreInput(run_id=run_id, case=case, evaluators=[*case.evaluators, *plan.evaluators], agent=agent)
        try:
            score: RunScore = await workflow.execute_child_workflow(
                EVALUATED_RUN_WORKFLOW,
                EvaluatedRunInput(
                    score=wanted,
                    start=evaluated_run(plan, index, document),
                    timeout=plan.timeout,
                    tenant=plan.tenant,
                    agent=agent,
                ),
                id=scored_id(run_id),
                result_type=RunScore,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
                cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
                static_summary=line(f"{case.name} {plan.models[model]} {number + 1}"),
            )
        except WorkflowAlreadyStartedError:
            if not self._reset.is_set:
                raise
            score = await _score_run(wanted)  # the case has its run from before the reset
        except ChildWorkflowError as error:
            if is_cancelled_exception(error):
                raise
            score = RunScore(status=NOT_SCORED, error=clip(str(error.cause or error), LONGEST_REASON))
        finally:
            del self._running[index]
            places.release()
        self._ended[index] = score = score.model_copy(update=about)
        return score


async def _score_run(wanted: ScoreInput) -> RunScore:
    """Wait for a run's end, and return its score; a failure is part of the score."""
    try:
        score: RunScore = await execute_typed(
            SCORE_ACTIVITY,
            [wanted],
            RunScore,
            start_to_close_timeout=_SCORED_WITHIN,
            heartbeat_timeout=timedelta(seconds=30),
            retry_policy=_SCORE,
            summary=line(f"the score of {wanted.run_id}"),
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        return RunScore(run_id=wanted.run_id, status=NOT_SCORED, error=clip(message_of(error), LONGEST_REASON))
    return score


@workflow.defn(name=EVALUATED_RUN_WORKFLOW, failure_exception_types=[PerdureError, ValidationError])
class EvaluatedRunWorkflow:
    """The score of one run. It starts the run itself, or scores a run of production that has ended."""

    def __init__(self) -> None:
        self._reset = ResetFlag()

    @workflow.run
    async def run(self, *arguments: Any) -> RunScore:
        """Return the score of the run, also of a failed one. The argument is one `EvaluatedRunInput`."""
        wanted = read_input(EvaluatedRunInput, arguments)
        with end_if_started_by_hand():
            if wanted.start is not None:
                await self._run_agent(wanted)
            elif wanted.quota is not None and (refused := await self._reserve(wanted)):
                return RunScore(run_id=wanted.score.run_id, status=NOT_SCORED, error=refused)
            score = await _score_run(wanted.score)
            self._list(wanted, score)
            return score

    async def _run_agent(self, wanted: EvaluatedRunInput) -> None:
        """Run the agent, and wait for its end. A failure is part of the score."""
        try:
            await workflow.execute_child_workflow(
                AGENT_WORKFLOW,
                wanted.start,
                id=wanted.score.run_id,
                execution_timeout=timedelta(seconds=wanted.timeout),
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
                cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
                static_summary=line(f"the agent {wanted.agent}"),
            )
        except WorkflowAlreadyStartedError:
            if not self._reset.is_set:
                raise
        except ChildWorkflowError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise asyncio.CancelledError from error

    async def _reserve(self, wanted: EvaluatedRunInput) -> str:
        """Reserve one of the agent's scores of the day; return the reason why none is left."""
        assert wanted.quota is not None
        reservation = Reservation(key=wanted.score.run_id, amounts=[wanted.quota])
        try:
            return (
                await reserve(wanted.tenant, reservation, "one of the scores of the day", _RESERVE_ATTEMPTS)
            ).refused
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            return f"the tenant's ledger does not answer: {message_of(error)}"

    def _list(self, wanted: EvaluatedRunInput, score: RunScore) -> None:
        """Set search attributes, so that lists find the score by agent, tenant and value."""
        values: dict[str, Any] = {
            AGENT_ATTRIBUTE: wanted.agent[:LONGEST_KEYWORD],
            TENANT_ATTRIBUTE: wanted.tenant[:LONGEST_KEYWORD],
            VERSION_ATTRIBUTE: wanted.version[:LONGEST_KEYWORD],
            SCORE_ATTRIBUTE: score.share,
        }
        keys = {SCORE_ATTRIBUTE: SearchAttributeKey.for_float}
        found = [
            keys.get(name, SearchAttributeKey.for_keyword)(name).value_set(value)
            for name, value in values.items()
            if name in wanted.attributes and value != ""
        ]
        if found and score.status != NOT_SCORED:
            workflow.upsert_search_attributes(found)
