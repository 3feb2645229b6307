"""Activities of the engine itself, such as hooks, summaries, and queries of other workflows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, RetryState, TimeoutError

from perdure.workflows.failures import kind_of

with workflow.unsafe.imports_passed_through():
    from perdure.plan import MOST_LOST, NOT_BEGUN

ASK_AROUND: Final = RetryPolicy(
    initial_interval=timedelta(seconds=0.25),
    maximum_interval=timedelta(seconds=2),
    maximum_attempts=32,
    non_retryable_error_types=["TemporalTimeout:StartToClose", "TemporalTimeout:Heartbeat"],
)
"""Retries until a worker takes the activity that has what it needs, such as a hook: about a minute. A lost worker does not
count as one of them: `execute_internal` executes the activity again.
"""
UNTIL_READABLE: Final = RetryPolicy(maximum_attempts=12)
"""Attempts to query another run, for about nine minutes: a deploy that cannot replay the run is mended meanwhile."""


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
            return await workflow.execute_activity(
                activity,
                args=arguments,
                result_type=result_type,
                start_to_close_timeout=timeout,
                heartbeat_timeout=heartbeat,
                retry_policy=retry_policy,
                summary=summary or None,
            )
        except ActivityError as error:
            if lost == MOST_LOST or not (kind_of(error) == NOT_BEGUN or _is_lost(error)):
                raise
            lost += 1


def _is_lost(error: ActivityError) -> bool:
    return isinstance(error.cause, TimeoutError) and error.retry_state is RetryState.NON_RETRYABLE_FAILURE
