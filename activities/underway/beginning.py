"""What may not be done twice says that it begins, before it does: when its worker is lost it is known whether it had (R6.7)."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Final

from temporalio import activity
from temporalio.client import AsyncActivityCancelledError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from perdure.plan.patience import BEGUN, NOT_BEGUN
from perdure.values.jsons import Json

_SAID: Final[ContextVar[list[Json]]] = ContextVar("begun")
"""What the activity has said of its beginning; shared with the tasks and threads that it starts."""


def not_begun() -> None:
    """The activity has not begun what may not be done twice."""
    _SAID.set([])


def said_begun() -> list[Json]:
    """What a heartbeat without details says in their place: without any it would take back what was said."""
    return _SAID.get([])


def is_only_attempt() -> bool:
    """Whether this attempt may not be repeated."""
    policy = activity.info().retry_policy
    return policy is not None and policy.maximum_attempts == 1


async def say_begun() -> None:
    """Return when an attempt that is the only one may begin: its server has it that it did (`BEGUN`). An Action, and milliseconds.

    Raises an `ApplicationError` of type `NOT_BEGUN` where it is not taken: the attempt was taken for lost meanwhile, or nobody answers.
    """
    if not is_only_attempt():
        return
    info = activity.info()
    said: Json = {BEGUN: info.attempt}
    _SAID.get().append(said)
    try:
        await activity.client().get_async_activity_handle(task_token=info.task_token).heartbeat(said)
    except RPCError as error:
        words = f"it was not begun: its server did not take that it would ({error.message})"
        raise ApplicationError(words, info.attempt, type=NOT_BEGUN, non_retryable=True) from None
    except AsyncActivityCancelledError:  # the worker learns of it by a heartbeat of its own, and ends this
        activity.heartbeat()
        await asyncio.Future()
