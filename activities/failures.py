"""What a failure means for retrying: the one place that decides (R9.7, R12.3)."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import httpx2
import openai
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from perdure.errors import ToolError
from perdure.run.wire import CONTEXT_TOO_LONG

_LONGEST_WAIT: Final = 3600.0
"""Seconds. A server that asks for more is not waited for longer at a time."""

_FINAL: Final = (
    openai.AuthenticationError,
    openai.PermissionDeniedError,
    openai.BadRequestError,
    openai.NotFoundError,
    openai.UnprocessableEntityError,
)


def model_failure(error: Exception) -> ApplicationError:
    """A provider's failure: given up at once, waited for as the server says, or retried with backoff."""
    kind = type(error).__name__
    if isinstance(error, openai.BadRequestError) and _is_too_long(error):
        return ApplicationError(_status_line(error), type=CONTEXT_TOO_LONG, non_retryable=True)
    if isinstance(error, _FINAL):
        return ApplicationError(_status_line(error), type=kind, non_retryable=True)
    if isinstance(error, openai.RateLimitError):
        out_of_money = error.code == "insufficient_quota"
        delay = None if out_of_money else _retry_after(error)
        return ApplicationError(_status_line(error), type=kind, non_retryable=out_of_money, next_retry_delay=delay)
    if isinstance(error, openai.APIStatusError):
        return ApplicationError(_status_line(error), type=kind, next_retry_delay=_retry_after(error))
    if isinstance(error, openai.APITimeoutError | httpx2.TimeoutException):
        return ApplicationError("the model did not answer in time", type="Timeout")
    if isinstance(error, openai.APIConnectionError | httpx2.HTTPError):
        return ApplicationError(f"the model cannot be reached: {error.__cause__ or error}", type="Connection")
    if isinstance(error, openai.APIError):
        return ApplicationError(f"the model reported an error: {error.message}", type=kind)
    if isinstance(error, openai.OpenAIError):
        return ApplicationError(str(error), type=kind, non_retryable=True)
    raise error


def tool_failure(error: Exception) -> ApplicationError:
    """A tool's failure: final if the tool says so, else retried by the tool's policy; its class name is the code."""
    attempt = activity.info().attempt
    if isinstance(error, ToolError):
        # Benign: what a tool says by itself is an answer, not a fault of the worker to fill its log with.
        return ApplicationError(
            error.message,
            attempt,
            type=error.code,
            non_retryable=not error.retry,
            category=ApplicationErrorCategory.BENIGN,
        )
    return ApplicationError(str(error) or type(error).__name__, attempt, type=type(error).__name__)


def _is_too_long(error: openai.BadRequestError) -> bool:
    """Whether the context was more than the model takes; servers agree on the code, or else on the words."""
    words = ("maximum context length", "context length exceeded", "context window", "prompt is too long")
    return error.code == "context_length_exceeded" or any(word in str(error).lower() for word in words)


def _status_line(error: openai.APIStatusError) -> str:
    return f"the model's server answered {error.status_code}: {error.message}"[:500]


def _retry_after(error: openai.APIStatusError) -> timedelta | None:
    """What the `retry-after-ms` or `retry-after` header asks for, in seconds; an HTTP date is left to the backoff."""
    headers = error.response.headers
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        if seconds >= 0:
            return timedelta(seconds=min(seconds, _LONGEST_WAIT))
    return None
