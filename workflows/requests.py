"""Requests to a model: its choice, its retries, and the wait for an unavailable provider (R9.4, R9.7)."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

from perdure.workflows.dispatch import WAIT, Routing, ask_worker
from perdure.workflows.failures import attempts_of, away_of, is_lost, kind_of, message_of, spent_of
from perdure.workflows.internal_activities import WorkerSearch, execute_typed
from perdure.workflows.observability import observe

with workflow.unsafe.imports_passed_through():
    from perdure.models.requests import (
        ATTEMPTS,
        FIRST_PAUSE,
        LONGEST_PAUSE,
        WAITING_PAUSE,
        ModelWait,
        ProviderAway,
        RequestInput,
        RequestResult,
    )
    from perdure.plan import INTERRUPTED, MOST_LOST, NO_SUCH_TOOL, NOT_BEGUN
    from perdure.runs import metrics
    from perdure.runs.agent import POLICIES, ChooseInput, ModelChoice, Situation
    from perdure.runs.run import RunState
    from perdure.runs.version_switches import LOST_IS_NOT_DOWN, MODEL_PATIENCE
    from perdure.runs.views import summary as line
    from perdure.runs.wire import CHOOSE_ACTIVITY, CONTEXT_TOO_LONG, MODEL_MEMO, REQUEST_ACTIVITY
    from perdure.values.limits import SHORTEST

TIMEOUT: Final = timedelta(minutes=10)
"""Time of one attempt: longer than any answer takes."""
AFTER_DEADLINE: Final = timedelta(minutes=2)
"""Time of the last Request of a run at its deadline, with all attempts."""
HEARTBEAT: Final = timedelta(seconds=5)
"""A lost worker is detected within five seconds. A false detection costs little: see `perdure.models.response_stream`.
"""
ATTEMPTS_BEFORE_FALLBACK: Final = 2

_SAME_EVERYWHERE: Final = ("BadRequestError", "UnprocessableEntityError")
"""Failures that another model would return too."""


async def choose(situation: Situation, *, local: bool) -> ModelChoice:
    """Choose the model of a Request. A worker's own policy runs on the worker, and its answer is recorded.

    `local`: by a local activity, as in runs of 0.1.0.
    """
    name = situation.models.policy
    if name in POLICIES:
        return POLICIES[name](situation)
    chosen: ModelChoice = await ask_worker(
        CHOOSE_ACTIVITY, ChooseInput(policy=name, situation=situation), ModelChoice, local=local, attempts=3
    )
    return chosen


class Provider:
    """The wait of one Request for models whose provider is unavailable, and the run's report on it (R20.5).

    `resting` is called with whether the run waits for nothing else: that time is not work.
    """

    def __init__(self, run: RunState, resting: Callable[[bool], None]) -> None:
        self._agent_run = run
        self._resting = resting
        patience = run.agent.config.model_patience
        self._patience = run.prepared.model_patience if patience is None else patience
        self._began = workflow.time()
        self._first: tuple[str, ProviderAway] | None = None
        self.waits = False
        """Whether the quick attempts are over, and the run reports that it waits."""

    @property
    def left(self) -> float:
        """Return the seconds of patience that are left."""
        return max(0.0, self._patience - (workflow.time() - self._began))

    def note(self, model: str, error: ActivityError) -> None:
        """Record that a Request to the model has failed. The run waits for the first provider that is unavailable."""
        if self._first is None and not self.waits and (away := away_of(error)) is not None:
            self._first = (model, away)

    async def wait(self) -> str | None:
        """Begin to wait for the first unavailable model, for the time that its server requests, and return it; `None`
        if the wait is not allowed.
        """
        run = self._agent_run
        late = run.limits.reached is not None and run.limits.reached.reason == "deadline"
        if self._first is None or self.waits or late or not self.left or not run.prepared.follows(MODEL_PATIENCE):
            return None
        model, away = self._first
        self.waits = True
        run.wait = ModelWait(model=model, reason=away.reason, since=workflow.now().isoformat(timespec="seconds"))
        run.journal.model_is_away(run.records.past.log[-1], run.wait)
        observe(metrics.waits_for_model(run.agent.name, run.records.past.log[-1], away.reason))
        workflow.upsert_memo({MODEL_MEMO: run.wait.as_json()})
        self._resting(True)
        if away.pause:
            pause = max(min(away.pause, self.left), SHORTEST)
            await workflow.sleep(pause, summary=line(f"{model} asks to wait: {away.reason}"))
        return model

    def over(self) -> None:
        """End the wait: the Request has an answer, or has failed."""
        if self._agent_run.wait is not None:
            self._agent_run.wait = None
            self._resting(False)
            workflow.upsert_memo({MODEL_MEMO: None})


async def ask(
    run: RunState,
    request: RequestInput,
    released: Callable[[], bool],
    resting: Callable[[bool], None],
    lend: Callable[[int], None],
) -> RequestResult:
    """Return the model's answer, or a fallback's if the model is down. Raise `ActivityError` without an answer in time.

    Once calls were `released` no other model is used: those calls stay (R6.7). `resting`: see `Provider`. `lend` gives
    the Request's context to activities of this process.
    """
    fallbacks = [model for model in run.prepared.models.fallback if model != request.model]
    executions, before, lost, routing, provider = 0, 0, 0, Routing(run), Provider(run, resting)
    search = WorkerSearch()
    observe(metrics.request_started(run.agent.name, run.records.past.log[-1]))
    try:
        while True:
            limited = routing.model(request.model)
            attempts = 0 if provider.waits else ATTEMPTS_BEFORE_FALLBACK if fallbacks else ATTEMPTS
            lend(request.number)
            try:
                one = functools.partial(_ask_one, run, request, executions, before, attempts, provider, limited)
                result: RequestResult = await search.run(one)
                return result
            except ActivityError as error:
                kind = kind_of(error)
                run.count_reported(request.model, spent_of(error), requests=0)
                if is_cancelled_exception(error) or released():
                    raise
                executions, before = executions + 1, before + attempts_of(error, attempts)
                provider.note(request.model, error)
                if limited is not None and await routing.lifted(
                    error
                ):  # its turn has not come yet, or it is no longer limited
                    continue
                if kind == INTERRUPTED:  # only its worker was shut down: the same Request is repeated
                    continue
                if not (fallbacks and search.lacked) and await search.goes_on(error):
                    continue  # one more worker before a fallback, without a fallback as many as there are
                is_down = kind != NOT_BEGUN and not (is_lost(error) and run.prepared.follows(LOST_IS_NOT_DOWN))
                if not is_down and lost < MOST_LOST:
                    lost += 1  # the model may be well, and a fallback's worker would be lost too
                    continue
                if kind == CONTEXT_TOO_LONG and not run.progress.tight:
                    request = run.ask_again(
                        ModelChoice(request.model, "the context was too long, and was cut"), tight=True
                    )
                elif fallbacks and kind not in _SAME_EVERYWHERE:
                    reason = f"fallback: {request.model} is down ({message_of(error)[:100]})"
                    observe(metrics.fell_back(request.number, request.model, fallbacks[0], kind))
                    request, search = run.ask_again(ModelChoice(fallbacks.pop(0), reason)), WorkerSearch()
                elif (model := await provider.wait()) is not None:
                    if model != request.model:
                        request = run.ask_again(ModelChoice(model, "the first that may come back: no fallback answers"))
                else:
                    if run.progress.draft is None:  # else the run continues with its draft
                        observe(metrics.request_failed(run.agent.name, run.records.past.log[-1], kind))
                    run.journal.unanswered(run.records.past.log[-1], message_of(error))
                    raise
    finally:
        if not isinstance(sys.exception(), GeneratorExit):  # then the run is only put out of memory
            provider.over()


async def _ask_one(
    run: RunState,
    request: RequestInput,
    executions: int,
    before: int,
    attempts: int,
    provider: Provider,
    limited: str | None,
) -> RequestResult:
    """Return the answer of one activity.

    `before` counts the attempts of earlier activities, `attempts` is how many it may make, 0 for any number.
    """
    late = run.limits.reached is not None and run.limits.reached.reason == "deadline"
    first_pause = WAITING_PAUSE if provider.waits else FIRST_PAUSE
    about = {
        "earlier_attempts": before,
        "patience": provider.left,
        "first_pause": first_pause,
        "hands_back": not (late or provider.waits),
    }
    closed = timedelta(seconds=provider.left) + TIMEOUT if provider.waits else AFTER_DEADLINE if late else None
    result: RequestResult = await execute_typed(
        REQUEST_ACTIVITY,
        [request.model_copy(update=about)],
        RequestResult,
        activity_id=f"request-{request.number}" + (f"-{executions}" if executions else ""),
        task_queue=limited,
        schedule_to_start_timeout=WAIT if limited else None,
        start_to_close_timeout=TIMEOUT,
        schedule_to_close_timeout=closed,
        heartbeat_timeout=HEARTBEAT,
        retry_policy=RetryPolicy(
            initial_interval=timedelta(seconds=first_pause),
            maximum_interval=timedelta(seconds=LONGEST_PAUSE),
            maximum_attempts=attempts,
            non_retryable_error_types=[NO_SUCH_TOOL],
        ),
        summary=line(f"Request {request.number} · {request.model} · {request.reason}"),
    )
    return result
