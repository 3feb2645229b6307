"""What is read from the failures of activities."""

from __future__ import annotations

from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, TimeoutType

from perdure.workflows.failures import message_of


def failed(cause: BaseException) -> ActivityError:
    error = ActivityError(
        "Activity task failed",
        scheduled_event_id=1,
        started_event_id=2,
        identity="",
        activity_type="a",
        activity_id="1",
        retry_state=None,
    )
    error.__cause__ = cause
    return error


def test_an_activity_that_is_out_of_time_has_the_message_of_its_last_attempt() -> None:
    late = TimeoutError(
        "Not enough time to schedule next retry", type=TimeoutType.SCHEDULE_TO_CLOSE, last_heartbeat_details=[]
    )
    assert message_of(failed(late)) == "Not enough time to schedule next retry"
    late.__cause__ = ApplicationError("the host is not allowed")
    assert message_of(failed(late)) == message_of(failed(ApplicationError("the host is not allowed")))
    assert message_of(failed(late)) == "the host is not allowed"
