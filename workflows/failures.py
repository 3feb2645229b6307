"""Functions that read the failures of activities."""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, TimeoutType

with workflow.unsafe.imports_passed_through():
    from perdure.models.requests import ProviderAway, read_away, read_spent
    from perdure.models.usage import Usage

_MANY = 1000
"""Attempts of an activity without a maximum, where its failure does not count them."""


def attempts_of(error: ActivityError, most: int) -> int:
    """Return the number of attempts that the activity may have made, of `most` (0: any number).

    The failure's own count has precedence, so that no attempt's number is used twice.
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
    """Return the failure's report on an unavailable provider; `None` for another failure (R20.5)."""
    return read_away(error.cause.details) if isinstance(error.cause, ApplicationError) else None


def spent_of(error: ActivityError) -> Usage:
    """Return the usage of the activity's attempts, as far as they have reported it."""
    cause = error.cause
    details = cause.last_heartbeat_details if isinstance(cause, TimeoutError) else ()
    last = cause.cause if isinstance(cause, TimeoutError) else cause
    return read_spent([*(last.details if isinstance(last, ApplicationError) else ()), *details])


def message_of(error: ActivityError) -> str:
    """Return the activity's own message, without Temporal's frame around it."""
    cause = error.cause
    if isinstance(cause, TimeoutError) and isinstance(cause.cause, ApplicationError):
        cause = cause.cause  # the failure of the last attempt, after which no time was left
    return cause.message if isinstance(cause, ApplicationError) else str(cause or error)


def kind_of(error: ActivityError) -> str | None:
    """Return the type of the activity's own failure."""
    return error.cause.type if isinstance(error.cause, ApplicationError) else type(error.cause).__name__
