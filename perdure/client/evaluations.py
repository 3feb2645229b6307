"""Evaluations: start, progress and result (R22.3)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.common import SearchAttributeKey, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.agents.agent import Agent
from perdure.agents.datasets import CaseSet, read_dataset
from perdure.client._run_lists import names_attribute
from perdure.client.errors import clear_errors
from perdure.client.run_operations import new_run_id
from perdure.client.selection import Selection
from perdure.client.tenancy import owned_memo, queue_priority
from perdure.errors import AgentError, MessageRefusedError, RunError, RunExistsError, RunNotFoundError, SettingsError
from perdure.queries import answer_of
from perdure.runs.agent import check_new_id
from perdure.runs.evaluation import (
    EVALUATED_RUN_WORKFLOW,
    EVALUATION_WORKFLOW,
    PROGRESS_QUERY,
    SCORES_FORM,
    Decide,
    EvaluationInput,
    EvaluationPlan,
    EvaluationProgress,
    EvaluationResult,
    PackedScores,
    RunScore,
    RunScores,
    scored_id,
)
from perdure.runs.events import JournalEntry
from perdure.runs.views import summary
from perdure.runs.wire import SCORE_ATTRIBUTE, VERSION_ATTRIBUTE
from perdure.sessions.agent_file import with_conversation
from perdure.values.arguments import check_arguments
from perdure.values.json import Json, shorten
from perdure.values.problems import first_problem

if TYPE_CHECKING:
    from pydantic_evals import Dataset

_SCORE: Final = SearchAttributeKey.for_float(SCORE_ATTRIBUTE)
_VERSION: Final = SearchAttributeKey.for_keyword(VERSION_ATTRIBUTE)
_PAUSE: Final = 1.0
"""Seconds between two looks at the progress."""


@check_arguments
class Evaluation:
    """An evaluation that runs, or has ended: a workflow of its own, which continues without this process.

    ```python
    evaluation = await perdure.evaluate(shopper, "cases/", repeat=5)
    result = await evaluation.wait()
    ```
    """

    def __init__(self, client: Client, id: str) -> None:
        self._client = client
        self.id = id
        """Its id, by which `Perdure.get_evaluation` finds it again."""
        self.handle: WorkflowHandle[Any, PackedScores] = client.get_workflow_handle(id, result_type=PackedScores)
        """Temporal's own handle."""

    async def progress(self) -> EvaluationProgress:
        """Return how many runs are scored. Raises `RunNotFoundError`, and `NoWorkerError` if no worker answers.

        ```python
        print((await evaluation.progress()).done)
        ```
        """
        with clear_errors(self._client, self.id, "evaluation"):
            progress: EvaluationProgress = await answer_of(self.handle, PROGRESS_QUERY, result_type=EvaluationProgress)
        return progress

    async def wait(
        self, *, on_progress: Callable[[EvaluationProgress], None] | None = None, pause: float = _PAUSE
    ) -> EvaluationResult:
        """Wait for the end, and return the result.

        `on_progress` receives the progress, every `pause` seconds (1). Raises `RunError` if the evaluation failed, e.g.
        if a worker lacks an evaluator.

        ```python
        result = await evaluation.wait(on_progress=lambda progress: print(progress.done))
        ```
        """
        plan = await fetch_plan(self._client, self.id)
        watching = asyncio.create_task(self._watch(on_progress, pause)) if on_progress is not None else None
        try:
            with clear_errors(self._client, self.id, "evaluation"):
                packed = await self.handle.result()
        except WorkflowFailureError as error:
            cause = error.cause
            raise RunError(f"the evaluation {self.id} failed: {getattr(cause, 'message', None) or cause}") from None
        finally:
            if watching is not None:
                watching.cancel()
        scores = packed.scores.read(RunScores, SCORES_FORM, "the scores of the evaluation").scores
        if on_progress is not None:
            passed = sum(score.passed for score in scores)
            on_progress(EvaluationProgress(total=plan.total, done=len(scores), passed=passed))
        return EvaluationResult(
            id=self.id,
            name=plan.name,
            agent=str(plan.agent.get("name", "")),
            models=plan.models,
            cases=[case.name for case in plan.cases],
            scores=scores,
        )

    async def cancel(self) -> None:
        """Cancel the evaluation, and its runs that have not ended.

        ```python
        await evaluation.cancel()
        ```
        """
        with clear_errors(self._client, self.id, "evaluation"):
            await self.handle.cancel()

    async def _watch(self, on_progress: Callable[[EvaluationProgress], None], pause: float) -> None:
        while True:
            with contextlib.suppress(RunError, WorkflowQueryFailedError):  # the wait for the result goes on in any case
                on_progress(await self.progress())
            await asyncio.sleep(pause)

    def __repr__(self) -> str:
        return f"Evaluation({self.id!r})"


async def fetch_plan(client: Client, id: str) -> EvaluationPlan:
    """Return the plan of an evaluation, from the first event of its history."""
    handle: WorkflowHandle[Any, Any] = client.get_workflow_handle(id)
    with clear_errors(client, id, "evaluation"):
        description = await handle.describe()
        if description.workflow_type != EVALUATION_WORKFLOW:
            raise RunNotFoundError(f"{id!r} is not an evaluation, but a workflow of type {description.workflow_type}")
        async for event in handle.fetch_history_events(page_size=1):
            started = event.workflow_execution_started_event_attributes
            (given,) = await client.data_converter.decode(started.input.payloads, [EvaluationInput])
            plan: EvaluationPlan = given.plan
            return plan
    raise RunNotFoundError(f"{id!r} has no history")


async def start_evaluation(
    client: Client,
    agent: Agent[Any],
    dataset: CaseSet | str | Path | Dataset[Any, Any, Any],
    *,
    task_queue: str,
    evaluators: Iterable[Json] = (),
    models: Iterable[str] = (),
    repeat: int,
    parallel: int,
    timeout: float,
    decide: Decide,
    tenant: str | None = None,
    id: str | None = None,
) -> Evaluation:
    """Start an evaluation, or return the one of this id. Raises `SettingsError` for a dataset that cannot be evaluated."""
    cases = dataset if isinstance(dataset, CaseSet) else read_dataset(dataset)
    name = id or f"eval-{new_run_id(agent.parsed)}"
    check_new_id(name)
    try:
        plan = EvaluationPlan(
            id=name,
            name=cases.name,
            agent=agent.document(),
            delegates=agent.delegates(),
            models=[*models] or [""],
            cases=cases.cases,
            evaluators=[*cases.evaluators, *evaluators],
            repeat=repeat,
            parallel=parallel,
            timeout=timeout,
            decide=decide,
            tenant=tenant or "",
        )
    except ValidationError as error:
        raise SettingsError(f"the evaluation is not valid: {first_problem(error)}") from None
    plan.check()
    for case in plan.cases:
        try:
            with_conversation(plan.agent, case.messages)
        except (AgentError, MessageRefusedError) as error:
            raise SettingsError(
                f"the case {shorten(case.name, 60)} has messages with which this agent cannot begin: {error}"
            ) from None
    with clear_errors(client):
        try:
            await client.start_workflow(
                EVALUATION_WORKFLOW,
                EvaluationInput(plan=plan),
                id=name,
                task_queue=task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                static_summary=summary(f"{agent.name} over {len(plan.cases)} cases of {plan.name}"),
                memo=owned_memo(tenant),
                priority=queue_priority(tenant, agent.parsed.config.priority),
            )
        except WorkflowAlreadyStartedError:
            if await fetch_plan(client, name) != plan:
                raise RunExistsError(
                    f"another evaluation has the id {name!r}: use another id, or leave out the cases"
                ) from None
    return Evaluation(client, name)


async def walk_scores(client: Client, selection: Selection, limit: int) -> AsyncGenerator[tuple[str, float], None]:
    """Yield the newest scores of finished runs, each with the version of its agent, from visibility.

    Only the selection's agent, tenant and time count. A namespace without the search attribute has no scores.
    """
    query = selection.text(workflow_type=EVALUATED_RUN_WORKFLOW)
    try:
        async for each in client.list_workflows(f"{query} AND {SCORE_ATTRIBUTE} >= 0", limit=limit):
            score = each.typed_search_attributes.get(_SCORE)
            if score is not None:
                yield each.typed_search_attributes.get(_VERSION) or "", score
    except RPCError as error:
        if not names_attribute(error):
            raise


async def fetch_score(client: Client, run_id: str) -> RunScore | None:
    """Return the score of a run; `None`: it has no score yet."""
    found = await _find_score(client, run_id)
    return None if found is None else found[0]


async def scored_event(client: Client, run_id: str, *, wait: bool) -> JournalEntry | None:
    """Return the event of a run's score; `None` for a run without a score. `wait`: wait for the run's end, and for its score."""
    if wait:
        with contextlib.suppress(WorkflowFailureError):  # a run that has failed is scored, too
            await client.get_workflow_handle(run_id).result()
    found = await _find_score(client, run_id, wait=wait)
    return None if found is None else found[0].event(found[1].isoformat(timespec="milliseconds"))


async def _find_score(client: Client, run_id: str, *, wait: bool = False) -> tuple[RunScore, datetime] | None:
    """Return a run's score and its time; `None` for a run without a score."""
    handle: WorkflowHandle[Any, RunScore] = client.get_workflow_handle(scored_id(run_id), result_type=RunScore)
    try:
        with contextlib.suppress(WorkflowFailureError):  # somebody has ended it
            if wait:
                await handle.result()
        described = await handle.describe()
        if described.status != WorkflowExecutionStatus.COMPLETED:
            return None
        return await handle.result(), described.close_time or described.start_time
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
