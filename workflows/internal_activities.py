"""Activities of the engine itself, such as Requests, hooks, and queries of other workflows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Final

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError
from temporalio.exceptions import RetryState as ActivityRetryState

from perdure.workflows.failures import kind_of, message_of

with workflow.unsafe.imports_passed_through():
    from pydantic import ValidationError

    from perdure.plan import MOST_LOST, NO_SUCH_TOOL, NOT_BEGUN, RetryState
    from perdure.values.problems import first_problem

RETRY_ON_OTHER_WORKERS: Final = RetryPolicy(
    initial_interval=timedelta(seconds=0.25),
    maximum_interval=timedelta(seconds=2),
    maximum_attempts=32,
    non_retryable_error_types=["TemporalTimeout:StartToClose", "TemporalTimeout:Heartbeat"],
)
"""Retries until a worker takes the activity that has what it needs, such as a hook: about a minute. A lost worker does not
count as one of them: `execute_internal` executes the activity again.
"""
CAPABLE_WORKER_SECONDS: Final = 60.0
"""Seconds to look for a worker that has what an activity needs: a deploy replaces its workers one after the other."""
LAST_WORKER_LACKED: Final = ContextVar("LAST_WORKER_LACKED", default=False)
"""Whether the last attempt's worker lacked what the activity needs. Then the next attempt is not started eagerly, which
would give it to the same worker.
"""
UNTIL_READABLE: Final = RetryPolicy(maximum_attempts=12)
"""Attempts to query another run, for about nine minutes: a deploy that cannot replay the run is mended meanwhile."""
CONVERSION_ERRORS: Final = (KeyError, RuntimeError, ValidationError)
"""Exceptions of a payload converter for a payload that is not a value of the type. An encrypted payload without its key
raises another `ValueError`: then the server repeats the workflow task.
"""
UNUSABLE_RESULT: Final = "UnusableResult"
"""Type of the failure of an activity that someone has completed by hand, with a result that the engine cannot use."""


async def execute_typed(activity: str, arguments: list[Any], result_type: Any, **options: Any) -> Any:
    """Return the result of an activity of the engine. `options`: of `workflow.execute_activity`.

    Raise `ActivityError` also for a result that is not of this type: someone has completed the activity by hand, as
    `temporal activity complete` does.
    """
    raw = await workflow.execute_activity(activity, args=arguments, result_type=RawValue, **options)
    problem = "it has no value"
    try:
        if (result := read_raw(raw, result_type)) is not None or result_type is Any:
            return result
    except ValidationError as error:
        problem = first_problem(error)
    except CONVERSION_ERRORS as error:
        problem = str(error)
    words = f"{activity} was completed by hand with a result that the engine cannot use: {problem}"
    raise ActivityError(
        words,
        scheduled_event_id=0,
        started_event_id=0,
        identity="",
        activity_type=activity,
        activity_id=options.get("activity_id") or "",
        retry_state=None,
    ) from ApplicationError(words, type=UNUSABLE_RESULT, non_retryable=True)


def read_raw(raw: RawValue | None, result_type: Any) -> Any:
    """Return an activity's result as this type; `None` without a result. Raise what the payload converter raises."""
    return None if raw is None else workflow.payload_converter().from_payload(raw.payload, result_type)


async def execute_on_capable_worker(execute: Callable[[], Awaitable[Any]]) -> Any:
    """Return the result of an activity that `execute` runs. Execute it again, for a minute, while its workers lack what it
    needs (`NO_SUCH_TOOL`), such as a model's endpoint.
    """
    search = WorkerSearch()
    while True:
        try:
            return await search.run(execute)
        except ActivityError as error:
            if not await search.goes_on(error):
                raise


class WorkerSearch:
    """The search, for a minute, for a worker that has what an activity needs."""

    def __init__(self) -> None:
        self._state = RetryState(retries=0, seconds=CAPABLE_WORKER_SECONDS)

    @property
    def lacked(self) -> bool:
        """Whether the last worker lacked what the activity needs."""
        return self._state.missing

    async def run(self, execute: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of an activity. If the last worker lacked what it needs, it is not started eagerly."""
        LAST_WORKER_LACKED.set(self.lacked)
        try:
            return await execute()
        finally:
            LAST_WORKER_LACKED.set(False)

    async def goes_on(self, error: ActivityError) -> bool:
        """Return whether to execute the activity again, after a pause: its worker lacked what it needs, and time is left."""
        pause = self._state.pause(NO_SUCH_TOOL, 1, workflow.time()) if kind_of(error) == NO_SUCH_TOOL else None
        if pause is None:
            return False
        await workflow.sleep(pause, summary=message_of(error)[:100])
        return True


async def execute_internal(
    activity: str,
    arguments: list[Any],
    result_type: Any,
    *,
    timeout: timedelta,
    retry_policy: RetryPolicy,
    heartbeat: timedelta | None = None,
    summary: str = "",
) -> Any:
    """Return the result of an activity of the engine. Raise `ActivityError` after the attempts of its policy.

    The time without a worker does not count, nor the time in its queue: `timeout` is that of one attempt. The activity is
    executed again, at most `MOST_LOST` times, if an attempt has not begun because this workflow did not answer its
    query, or ended by a timeout that the policy does not retry: its worker was lost.
    """
    lost = 0
    while True:
        try:
            return await execute_typed(
                activity,
                arguments,
                result_type,
                start_to_close_timeout=timeout,
                heartbeat_timeout=heartbeat,
                retry_policy=retry_policy,
                summary=summary or None,
            )
        except ActivityError as error:
            if lost == MOST_LOST or not (kind_of(error) == NOT_BEGUN or _timed_out_for_good(error)):
                raise
            lost += 1


def _timed_out_for_good(error: ActivityError) -> bool:
    """Whether an attempt ended by a timeout that its policy does not retry."""
    return isinstance(error.cause, TimeoutError) and error.retry_state is ActivityRetryState.NON_RETRYABLE_FAILURE
