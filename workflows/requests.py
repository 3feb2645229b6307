"""Asking a model: which one, and what is done when nothing comes of it (R9.4, R9.7)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

from perdure.workflows.failures import kind_of, message_of
from perdure.workflows.observing import tell
from perdure.workflows.queues.routing import WAIT, Routing

with workflow.unsafe.imports_passed_through():
    from perdure.model.wire import RequestInput, RequestResult
    from perdure.plan.patience import INTERRUPTED
    from perdure.run.choosing import POLICIES, Choice, ChooseInput, Situation
    from perdure.run.running import Run
    from perdure.run.views import observing
    from perdure.run.views.markdown import summary as line
    from perdure.run.wire import CHOOSE_ACTIVITY, CONTEXT_TOO_LONG, REQUEST_ACTIVITY

TIMEOUT: Final = timedelta(minutes=10)
"""For one attempt: longer than any answer takes to be written."""
AFTER_DEADLINE: Final = timedelta(minutes=2)
"""For the last Request of a run that has come to its deadline, with all attempts."""
HEARTBEAT: Final = timedelta(seconds=5)
"""A lost worker is noticed within five seconds. To notice one that is not lost costs little: see `perdure.model.intake`."""
ATTEMPTS: Final = 6
"""Over half a minute; a server's own `retry-after` takes the place of the backoff (R9.7)."""
ATTEMPTS_BEFORE_FALLBACK: Final = 2

_SAME_EVERYWHERE: Final = ("BadRequestError", "UnprocessableEntityError")
"""Failures that another model would answer the same way."""


async def choose(situation: Situation) -> Choice:
    """The model of a Request, and why. A policy of the worker's own is asked there, and its answer recorded."""
    name = situation.models.policy
    if name in POLICIES:
        return POLICIES[name](situation)
    chosen: Choice = await workflow.execute_local_activity(
        CHOOSE_ACTIVITY,
        ChooseInput(policy=name, situation=situation),
        result_type=Choice,
        start_to_close_timeout=timedelta(seconds=30),
        retry_policy=RetryPolicy(maximum_attempts=3),
    )
    return chosen


async def ask(run: Run, request: RequestInput, released: Callable[[], bool]) -> RequestResult:
    """The model's answer; a fallback's where the model is down. Raises `ActivityError` when nobody answers.

    Once calls were `released` nobody else is asked: they stand (R6.7).
    """
    fallbacks = [model for model in run.prepared.models.fallback if model != request.model]
    asked, routing = 0, Routing(run)
    tell(observing.request_started(run.agent.name, run.past.log[-1]))
    while True:
        limited = routing.model(request.model)
        try:
            attempts = ATTEMPTS_BEFORE_FALLBACK if fallbacks else ATTEMPTS
            return await _ask_one(run, request, asked, attempts, limited)
        except ActivityError as error:
            kind = kind_of(error)
            if is_cancelled_exception(error) or released():
                raise
            asked += 1
            if limited is not None and await routing.lifted(
                error
            ):  # its turn has not come yet, or nobody limits it now
                continue
            if kind == INTERRUPTED:  # only its worker was shut down: the same is asked again
                continue
            if kind == CONTEXT_TOO_LONG and not run.progress.tight:
                request = run.ask_again(Choice(request.model, "the context was too long, and was cut"), tight=True)
            elif fallbacks and kind not in _SAME_EVERYWHERE:
                reason = f"fallback: {request.model} is down ({message_of(error)[:100]})"
                tell(observing.fell_back(request.number, request.model, fallbacks[0], kind))
                request = run.ask_again(Choice(fallbacks.pop(0), reason))
            else:
                if run.progress.draft is None:  # else the run goes on without it
                    tell(observing.request_failed(run.agent.name, run.past.log[-1], kind))
                run.notes.unanswered(run.past.log[-1], message_of(error))
                raise


async def _ask_one(run: Run, request: RequestInput, asked: int, attempts: int, limited: str | None) -> RequestResult:
    late = run.limit is not None and run.limit.reason == "deadline"
    result: RequestResult = await workflow.execute_activity(
        REQUEST_ACTIVITY,
        request.model_copy(update={"earlier_attempts": asked * 1000}),
        result_type=RequestResult,
        activity_id=f"request-{request.number}" + (f"-{asked}" if asked else ""),
        task_queue=limited,
        schedule_to_start_timeout=WAIT if limited else None,
        start_to_close_timeout=TIMEOUT,
        schedule_to_close_timeout=AFTER_DEADLINE if late else None,
        heartbeat_timeout=HEARTBEAT,
        retry_policy=RetryPolicy(
            initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30), maximum_attempts=attempts
        ),
        summary=line(f"Request {request.number} · {request.model} · {request.reason}"),
    )
    return result
