"""Failures of tools' activities as data for the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, TimeoutType

with workflow.unsafe.imports_passed_through():
    from perdure.errors import CallError
    from perdure.hooks.events import NO_SUCH_HOOK
    from perdure.models.requests import ProviderAway, read_away
    from perdure.plan import BEGUN, INTERRUPTED, LOST, NO_SUCH_TOOL, NOT_BEGUN, Call, Failed
    from perdure.values.limits import MAX_MESSAGE

_TIMEOUTS = {
    TimeoutType.START_TO_CLOSE: "an attempt took longer than its timeout",
    TimeoutType.SCHEDULE_TO_START: "no worker took it up",
    TimeoutType.SCHEDULE_TO_CLOSE: "it did not end in time",
}

_MANY = 1000
"""Attempts of an activity without a maximum, where its failure does not count them."""


def failed(call: Call, error: ActivityError, attempts: int) -> tuple[int, Failed]:
    """Return the number of begun `attempts`, as far as the failure tells, and the failure of a call's activity (R6.6)."""
    tool, cause = call.spec.known_tool, error.cause
    if isinstance(cause, ApplicationError):
        began = next((detail for detail in cause.details if isinstance(detail, int)), 1)
        return began, Failed(_own(call, cause))
    if isinstance(cause, TimeoutError):
        if cause.type is TimeoutType.SCHEDULE_TO_START and tool.task_queue is not None:
            message = f"no worker of task queue {tool.task_queue!r} took {call.spec.tool_name} up within {tool.queue_timeout:g} s"
            return 0, Failed(CallError("no_worker", message))
        if (lost := _lost(call, cause)) is not None:
            return lost
        what = _TIMEOUTS.get(cause.type or TimeoutType.SCHEDULE_TO_CLOSE, "it timed out")
        words = f"{call.spec.tool_name} timed out: {what} ({tool.attempt_timeout:g} s per attempt)"
        return attempts, Failed(CallError("timeout", words))
    return attempts, Failed(CallError(type(cause).__name__, str(cause)))


def _lost(call: Call, cause: TimeoutError) -> tuple[int, Failed] | None:
    """Return the failure of a call whose worker sent no heartbeat (`perdure.plan._retry`)."""
    tool = call.spec.known_tool
    if cause.type is not TimeoutType.HEARTBEAT:
        return None
    begun = _begun(cause.last_heartbeat_details)
    if tool.retries == 0 and begun is None:
        words = f"{call.spec.tool_name} was not begun: a worker took it up and gave no sign of life"
        return 1, Failed(CallError(NOT_BEGUN, words))
    words = (
        f"{call.spec.tool_name} gave no sign of life for {tool.heartbeat_timeout:g} s, so its worker is taken for lost"
    )
    again = "it may not be tried again (retries: 0)" if tool.retries == 0 else "it is not tried again"
    return begun or 1, Failed(CallError(LOST, f"{words}; whether it took effect is not known, and {again}"))


def _begun(details: Sequence[Any]) -> int | None:
    """Return the attempt that the last heartbeat named; 1 where the heartbeat holds something else, `None` without one."""
    attempts = [each.get(BEGUN) for each in details if isinstance(each, dict)]
    return next((each for each in attempts if isinstance(each, int)), 1) if details else None


def _own(call: Call, cause: ApplicationError) -> CallError:
    """Return the activity's own error, with its meaning where the engine does not retry."""
    if cause.type in (NO_SUCH_TOOL, NO_SUCH_HOOK):
        return CallError(
            cause.type, f"{cause.message}, nor did another within {call.spec.known_tool.queue_timeout:g} s"
        )
    if cause.type == INTERRUPTED:
        words = f"{cause.message}; whether it took effect is not known, and it may not be tried again (retries: 0)"
        return CallError(INTERRUPTED, words)
    return CallError((cause.type or "error")[:MAX_MESSAGE], cause.message[:MAX_MESSAGE])  # of any worker's


def attempts_of(error: ActivityError, most: int) -> int:
    """Return how many attempts the activity may have made, of `most` (0: any number).

    The failure's own count has precedence. So the next attempt's number is never one that was used.
    """
    cause = error.cause
    made = (
        (detail for detail in cause.details if isinstance(detail, int)) if isinstance(cause, ApplicationError) else ()
    )
    return next(iter(made), 1 if not_taken_up(error) else most or _MANY)


def not_taken_up(error: ActivityError) -> bool:
    """Whether the activity was never begun: no worker took it from its queue in time."""
    return isinstance(error.cause, TimeoutError) and error.cause.type is TimeoutType.SCHEDULE_TO_START


def is_lost(error: ActivityError) -> bool:
    """Whether the activity's last attempt sent no heartbeat: its worker was lost, or too busy."""
    return isinstance(error.cause, TimeoutError) and error.cause.type is TimeoutType.HEARTBEAT


def away_of(error: ActivityError) -> ProviderAway | None:
    """Return the failure's report on a provider that is away; `None` for another failure (R20.5)."""
    return read_away(error.cause.details) if isinstance(error.cause, ApplicationError) else None


def message_of(error: ActivityError) -> str:
    """Return the activity's own message, without Temporal's frame around it."""
    return error.cause.message if isinstance(error.cause, ApplicationError) else str(error.cause or error)


def kind_of(error: ActivityError) -> str | None:
    """Return the type of the activity's own failure."""
    return error.cause.type if isinstance(error.cause, ApplicationError) else type(error.cause).__name__
