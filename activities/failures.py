"""Retry decisions by failure: the one module that makes them (R9.7, R12.3)."""

from __future__ import annotations

import dataclasses
import json
import re
import traceback
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx2
import openai
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from perdure.activities.secrets import mask_text
from perdure.errors import ToolError
from perdure.hooks.events import REFUSED_BY_HOOK
from perdure.models.provider_errors import Refusal, RefusalError, refusal_of
from perdure.models.requests import (
    LONGEST_QUIET,
    SHORTEST_PAUSE,
    AwayReason,
    ProviderAway,
    RequestInput,
    pause_after,
    read_away,
    spent_details,
)
from perdure.models.usage import Usage
from perdure.plan import CARRIED_OUT, NOT_BEGUN, RESERVED_CODES
from perdure.runs.wire import CONTEXT_TOO_LONG
from perdure.values.limits import MAX_MESSAGE

_LONGEST_WAIT: Final = 3600.0
"""Seconds of one wait at most, also if a server requests a longer one."""

_FINAL: Final[Mapping[int, str]] = {
    400: "BadRequestError",
    401: "AuthenticationError",
    402: "NoMoney",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "BadRequestError",
    413: "BadRequestError",
    415: "BadRequestError",
    422: "UnprocessableEntityError",
}
"""Statuses that a repeated request would receive again, with the type of the failure."""

_REMAINING: Final = re.compile(r"(?:x|anthropic)-ratelimit-(?:remaining-([\w-]+)|([\w-]+)-remaining)")
_SPAN: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
_UNITS: Final = (86_400.0, 3_600.0, 60.0, 1.0, 0.001)

_ANSWERED: Final = openai.APIStatusError | httpx2.HTTPStatusError
"""Refusals of a server, by the library that sent the request."""
_UNREACHABLE: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.UnsupportedProtocol, httpx2.ProxyError)


def model_failure(error: Exception, *, setting: str = "OPENAI_BASE_URL") -> ApplicationError:
    """Return a provider's failure: final, delayed as the server requests, or retried with backoff.

    `setting` names the variable that holds the server's address, for a server that cannot be reached.
    """
    kind = type(error).__name__
    refusal = refusal_in(error)
    if refusal is not None:
        headers = error.response.headers if isinstance(error, _ANSWERED) else {}
        if refusal.status in (404, 405) and "model" not in refusal.words:  # a wrong path; no server explains it
            words = f"{refusal.words[:300]}{_at(error)}: check {setting}"
            refusal = dataclasses.replace(refusal, words=words)
        return _refused(refusal, headers)
    if isinstance(error.__cause__ or error, _UNREACHABLE):
        return _away("no connection", _unreachable(error, setting), type="Connection")
    if isinstance(error, openai.APITimeoutError | httpx2.TimeoutException):
        return _away("no answer", "the model did not answer in time", type="Timeout")
    if isinstance(error, openai.APIConnectionError | httpx2.HTTPError):
        words = f"the connection to the model was lost: {error.__cause__ or error}"
        return _away("connection lost", words, type="Connection")
    if isinstance(error, openai.APIError):
        return _away("an error", f"the model reported an error: {error.message}", type=kind)
    if isinstance(error, openai.OpenAIError):
        return _failure(str(error), type=kind, non_retryable=True)
    raise error


def context_failure(error: ApplicationError) -> ApplicationError:
    """Return the failure of a run that did not send a context: one that is too large for Temporal counts as too long for the model."""
    refusal = refusal_of(500, error.message)
    assert refusal is not None
    if error.type != NOT_BEGUN or refusal.kind != "too_long":
        return error
    return _failure(f"the context is too large for a query: {refusal.words}", type=CONTEXT_TOO_LONG, non_retryable=True)


def refusal_in(error: Exception) -> Refusal | None:
    """Return the server's refusal that an error holds; `None` where no server answered."""
    if isinstance(error, RefusalError):
        refusal: Refusal = error.refusal
        return refusal
    if isinstance(error, _ANSWERED):
        try:
            body = error.response.text
        except httpx2.StreamError:  # the body was not read
            sent = error.body if isinstance(error, openai.APIStatusError) else None
            body = sent if isinstance(sent, str) else str(error)
        return refusal_of(error.response.status_code, body)
    if isinstance(error, json.JSONDecodeError):  # an event of the stream that is not JSON is an error message
        return refusal_of(None, error.doc, event="error")
    if isinstance(error, openai.APIError) and error.body is not None:  # an error in a stream
        in_stream: Any = error.body  # JSON, as the stream had it
        return refusal_of(None, {"error": in_stream})
    return None


def _failure(message: str, *details: Any, **options: Any) -> ApplicationError:
    """Create a failure without the worker's secrets. Its last detail is the number of the attempt that failed."""
    attempt = (activity.info().attempt,) if activity.in_activity() else ()
    return ApplicationError(_text(mask_text(message)), *details, *attempt, **options)


def _refused(refusal: Refusal, headers: Mapping[str, str]) -> ApplicationError:
    status = refusal.status
    words = "the model's server" + (" reported an error" if status is None else f" answered {status}")
    message = f"{words}: {refusal.words}"
    if refusal.kind == "too_long":
        return _failure(message, type=CONTEXT_TOO_LONG, non_retryable=True)
    if refusal.kind == "no_money":
        return _failure(message, type="NoMoney", non_retryable=True)
    if status is not None and status in _FINAL and refusal.kind != "bad_answer":
        return _failure(message, type=_FINAL[status], non_retryable=True)
    kind, pause = "RateLimitError" if status == 429 else "ServerError", _retry_after(headers, refusal.wait)
    if refusal.kind == "bad_answer":  # the server was available, and discarded the answer
        return _failure(message, type=kind, next_retry_delay=pause)
    return _away("an error" if status is None else status, message, type=kind, next_retry_delay=pause)


def _away(
    reason: AwayReason | int, message: str, *, next_retry_delay: timedelta | None = None, **options: Any
) -> ApplicationError:
    """Return a failure that a wait may resolve, with the reason that the run shows (R20.5)."""
    pause = None if next_retry_delay is None else next_retry_delay.total_seconds()
    details = ProviderAway(reason=str(reason), pause=pause).as_json()
    return _failure(message, details, next_retry_delay=next_retry_delay, **options)


def within_patience(failure: ApplicationError, request: RequestInput) -> ApplicationError:
    """Return the failure of an attempt; it is final if the Request's patience allows no further attempt (R20.5).

    The times are the server's: a worker's clock may differ. The last attempt comes when the patience ends.
    """
    info, away = activity.info(), read_away(failure.details)
    if away is None or failure.non_retryable or request.patience is None:
        return failure
    left = request.patience - (info.started_time - info.scheduled_time).total_seconds()
    pause = pause_after(info.attempt, away.pause, request.first_pause)
    handed_back = request.hands_back and pause > LONGEST_QUIET and away.pause is not None
    if left > SHORTEST_PAUSE and not handed_back:
        delay = failure.next_retry_delay if pause <= left else timedelta(seconds=left)
        return _failure(failure.message, away.as_json(), type=failure.type, next_retry_delay=delay)
    return _failure(failure.message, away.as_json(), type=failure.type, non_retryable=True)


def with_spent(failure: ApplicationError, spent: Usage) -> ApplicationError:
    """Return the failure with the usage of the attempts that gave no answer, if the server reported any (R9.6)."""
    if not spent.tokens:
        return failure
    away = read_away(failure.details)
    details = [] if away is None else [away.as_json()]
    return _failure(
        failure.message,
        *details,
        spent_details(spent),
        type=failure.type,
        non_retryable=failure.non_retryable,
        next_retry_delay=failure.next_retry_delay,
    )


def _unreachable(error: Exception, setting: str) -> str:
    """Return the message for a server that cannot be reached: its address, and the variable that holds it."""
    reason = str(error.__cause__ or error) or type(error).__name__
    return f"the model cannot be reached{_at(error)} ({reason[:200]}): start its server, or check {setting}"


def _at(error: Exception) -> str:
    """Return the address of the request, without its secret parts."""
    if not isinstance(error, openai.APIConnectionError | httpx2.ConnectError | httpx2.ConnectTimeout | _ANSWERED):
        return ""
    return f" at {error.request.url.copy_with(query=None, username=None, password=None)}"


def tool_failure(error: Exception, *, carried_out: bool = False) -> ApplicationError:
    """Return a tool's failure: final if the tool declares it final, else retried by the tool's policy. Its class name
    is the code. `carried_out`: the tool had returned. Then, or if its own error says that the call took effect, it is not
    repeated.
    """
    took_effect: bool | None = carried_out or (isinstance(error, ToolError) and error.carried_out)
    details = [] if took_effect is False else [{CARRIED_OUT: took_effect}]
    if isinstance(error, ToolError):
        # Benign: a tool's own error is an answer, not a fault of the worker, and should not fill its log.
        return _failure(
            error.message,
            *details,
            type=_own_code(_text(error.code), carried_out=carried_out),
            non_retryable=bool(took_effect) or not error.retry,
            category=ApplicationErrorCategory.BENIGN,
        )
    # A value that cannot be encoded or decoded fails again the next time.
    final = carried_out or isinstance(error, UnicodeError | RecursionError)
    words = str(error) or type(error).__name__
    return _failure(words, *details, type=_own_code(type(error).__name__), non_retryable=final)


def _own_code(code: str, *, carried_out: bool = False) -> str:
    """Return a tool's code, which must not look like the engine's own. `carried_out`: the tool had returned, so it may be
    the code of a hook that withholds the result.
    """
    is_reserved = code in RESERVED_CODES and not (carried_out and code == REFUSED_BY_HOOK)
    return f"tool.{code}" if is_reserved else code


def serializable_cause(error: Exception) -> Exception | None:
    """Return the error if it can be a failure's cause, because all of it is text (see `_text`)."""
    story = "".join(traceback.format_exception(error))
    return error if _text(story) == story else None


def _text(words: str) -> str:
    """Return the text of a failure: cut, and encodable. An unpaired surrogate would keep the failure from being
    reported.
    """
    return words[:MAX_MESSAGE].encode("utf-8", "replace").decode()


def _retry_after(headers: Mapping[str, str], named: float | None) -> timedelta | None:
    """Return the wait that the headers or the message request: see `requested_pause`."""
    pause = requested_pause(headers, datetime.now(UTC))
    pause = named if pause is None else pause
    return None if pause is None else timedelta(seconds=min(pause, _LONGEST_WAIT))


def requested_pause(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the seconds until the retry that the headers request; `None` if they request none.

    `retry-after-ms` and `retry-after` (seconds, or a date) have precedence. Otherwise it is the time until the last
    exhausted limit is reset: `x-ratelimit-reset-…`, `anthropic-ratelimit-…-reset`. `now` is used if the server does not
    send its own time.
    """
    sent = {name.lower(): value for name, value in headers.items()}
    now = _moment(sent.get("date", "")) or now
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        pause = _seconds(sent.get(name, ""), now, unit)
        if pause is not None:
            return pause
    return max(_until_filled(sent, now), default=None)


def _until_filled(sent: Mapping[str, str], now: datetime) -> Iterator[float]:
    for name, value in sent.items():
        found = _REMAINING.fullmatch(name)
        if found is None or value.strip() != "0":
            continue
        reset = name.replace("remaining", "reset")
        if (pause := _seconds(sent.get(reset, ""), now, 1.0)) is not None:
            yield pause


def _seconds(text: str, now: datetime, unit: float) -> float | None:
    """Return the seconds in a text: a number of the unit, a duration such as `6m0s`, or a time."""
    text = text.strip()
    try:
        number = float(text) * unit
    except ValueError:
        pass
    else:
        return number if 0 <= number < float("inf") else None
    found = _SPAN.fullmatch(text)
    if text and found is not None:
        return sum(float(part) * size for part, size in zip(found.groups(), _UNITS, strict=True) if part)
    moment = _moment(text)
    return None if moment is None else max(0.0, (moment - now).total_seconds())


def _moment(text: str) -> datetime | None:
    """Return a time in the form of RFC 3339, or of HTTP's date."""
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = parse(text)
        except (ValueError, OverflowError):  # a year or an hour of many digits
            continue
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return None
