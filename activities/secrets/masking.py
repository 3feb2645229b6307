"""What an activity says leaves the worker without the worker's keys: its failure, as Temporal and traces are told it, and its heartbeats."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

from temporalio import worker
from temporalio.exceptions import ApplicationError, CancelledError

from perdure.activities.secrets import masked, masked_details
from perdure.activities.underway.beginning import said_begun


class Masking(worker.Interceptor):
    """Of every activity of a worker, whatever raised or said it: a tool, the library that it uses, or a program that decides."""

    def intercept_activity(self, next: worker.ActivityInboundInterceptor) -> worker.ActivityInboundInterceptor:
        return _Inbound(next)


class _Inbound(worker.ActivityInboundInterceptor):
    def init(self, outbound: worker.ActivityOutboundInterceptor) -> None:
        super().init(_Outbound(outbound))

    async def execute_activity(self, input: worker.ExecuteActivityInput) -> Any:
        try:
            return await super().execute_activity(input)
        except Exception as error:
            if (clean := masked_error(error)) is error:
                raise
            raise clean from None


class _Outbound(worker.ActivityOutboundInterceptor):
    def heartbeat(self, *details: Any) -> None:
        super().heartbeat(*map(masked_details, details or said_begun()))


def masked_error(error: Exception) -> Exception:
    """The error itself where it tells no key; else one that means the same, without its causes and where it was raised."""
    story = "".join(traceback.format_exception(error))
    if masked(story) == story and not any(map(_tells, _chain(error))):
        return error
    message, type_name = str(error), type(error).__name__
    if isinstance(error, CancelledError):
        return CancelledError(masked(message), *map(masked_details, error.details))
    if not isinstance(error, ApplicationError):
        return ApplicationError(masked(message), type=masked(type_name))
    return ApplicationError(
        masked(error.message),
        *map(masked_details, error.details),
        type=masked(error.type or type_name),
        non_retryable=error.non_retryable,
        next_retry_delay=error.next_retry_delay,
        category=error.category,
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """It and its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _tells(error: BaseException) -> bool:
    """Whether there is a key in what a traceback does not show."""
    details = [*error.details] if isinstance(error, ApplicationError | CancelledError) else []
    kind = error.type or "" if isinstance(error, ApplicationError) else ""
    return masked(kind) != kind or any(masked_details(each) is not each for each in details)
