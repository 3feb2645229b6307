"""The delivery of one reply or notification, by an activity of its own."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from perdure.workflows.failures import kind_of, message_of

with workflow.unsafe.imports_passed_through():
    from perdure.plan import INTERRUPTED
    from perdure.runs.notifications import NotificationDelivery
    from perdure.runs.routes import NO_SUCH_ROUTE, Delivered
    from perdure.runs.views import summary as line
    from perdure.sessions.replies import ReplyDelivery

D = TypeVar("D", ReplyDelivery, NotificationDelivery)

_ATTEMPT: Final = timedelta(seconds=60)
"""Time of one attempt. The whole delivery has no timeout: it waits for a worker for as long as there is none (R24.2).
"""
_ALIVE: Final = timedelta(seconds=20)


async def deliver(activity: str, delivery: D, retry: RetryPolicy, title: str) -> Delivered:
    """Deliver by this activity and return the outcome. An attempt whose worker is shut down does not count."""
    while True:
        try:
            became: Delivered = await workflow.execute_activity(
                activity,
                delivery,
                result_type=Delivered,
                start_to_close_timeout=_ATTEMPT,
                heartbeat_timeout=_ALIVE,
                retry_policy=retry,
                summary=line(title),
            )
            return became
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            kind = kind_of(error)
            if kind == INTERRUPTED:
                delivery = delivery.model_copy(update={"earlier": delivery.earlier + _attempts(error)})
                continue
            return Delivered(status="refused" if kind == NO_SUCH_ROUTE else "unknown", why=message_of(error))


def _attempts(error: ActivityError) -> int:
    """Return the number of attempts, as the worker that was shut down reports it."""
    details = error.cause.details[:1] if isinstance(error.cause, ApplicationError) else ()
    return details[0] if details and isinstance(details[0], int) else 1
