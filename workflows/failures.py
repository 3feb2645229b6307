"""How a tool's activity ended, as data for the plan: the one place that reads Temporal's failures."""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, TimeoutType

with workflow.unsafe.imports_passed_through():
    from perdure.errors import CallError
    from perdure.plan.calls import Call
    from perdure.plan.outcomes import Failed

_TIMEOUTS = {
    TimeoutType.START_TO_CLOSE: "an attempt took longer than its timeout",
    TimeoutType.HEARTBEAT: "it gave no sign of life",
    TimeoutType.SCHEDULE_TO_START: "no worker took it up",
    TimeoutType.SCHEDULE_TO_CLOSE: "it did not end in time",
}


def failed(call: Call, error: ActivityError) -> Failed:
    """The failure of a call's activity, and its attempts as far as the failure tells (R6.6)."""
    assert call.tool is not None
    cause = error.cause
    if isinstance(cause, ApplicationError):
        call.attempts = next((detail for detail in cause.details if isinstance(detail, int)), 1)
        return Failed(CallError(cause.type or "error", cause.message))
    call.attempts = call.tool.retries + 1
    if isinstance(cause, TimeoutError):
        if cause.type is TimeoutType.SCHEDULE_TO_START and call.tool.task_queue is not None:
            call.attempts = 0
            message = f"no worker of task queue {call.tool.task_queue!r} took {call.tool_name} up within {call.tool.queue_timeout:g} s"
            return Failed(CallError("no_worker", message))
        what = _TIMEOUTS.get(cause.type or TimeoutType.SCHEDULE_TO_CLOSE, "it timed out")
        return Failed(
            CallError("timeout", f"{call.tool_name} timed out: {what} ({call.tool.attempt_timeout:g} s per attempt)")
        )
    return Failed(CallError(type(cause).__name__, str(cause)))


def message_of(error: ActivityError) -> str:
    """The activity's own message, without Temporal's frame around it."""
    return error.cause.message if isinstance(error.cause, ApplicationError) else str(error.cause or error)
