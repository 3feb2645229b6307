"""Secrets of a worker, masked in all data that leaves it.

A server may repeat what it received ("incorrect API key: sk-…"). Its messages reach failures, histories, logs and
traces.
"""

from __future__ import annotations

import functools
import os
import traceback
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from pydantic_core import to_jsonable_python
from temporalio import worker
from temporalio.exceptions import ApplicationError, CancelledError

from perdure.activities.active_executions import begun_details
from perdure.errors import causes_of
from perdure.runs.caller_context import MASK, looks_secret, secrets_of
from perdure.values.json import Json, JsonObject, dumps

_SHORTEST: Final = 10
"""Characters. A shorter value is not a key, and may be part of ordinary words."""
_known: set[str] = set()
_OF_ACTIVITY: Final[ContextVar[set[str]]] = ContextVar("secrets of this activity")
"""Secrets of the calling activity, shared with its tasks and threads: heartbeats are sent by a task of their own."""

T = TypeVar("T")


def keep_secret(*values: str) -> None:
    """Mask these values from now on, beside those of variables whose names contain key, token, secret or password."""
    _known.update(part for value in values for part in (value, value.rpartition(" ")[2]) if len(part) >= _SHORTEST)


def keep_secret_here(context: JsonObject) -> None:
    """Mask the secrets of a run's context in all data that leaves the calling activity (R19.1)."""
    _OF_ACTIVITY.get().update(value for value in secrets_of(context) if len(value) >= _SHORTEST)


def mask_text(text: str) -> str:
    """Return the text with every known secret replaced."""
    for secret in known_secrets():
        text = text.replace(secret, MASK)
    return text


def mask_value(value: T) -> T:
    """Return the value with every secret in its texts replaced; the same object if it holds none."""
    plain: Any = value  # JSON of the same form
    text = dumps(plain)
    if len(text) < _SHORTEST or not any(escaped in text for _, escaped in _forms()):
        return value
    masked: T = _walk(plain)
    return masked


def masked_details(details: Any) -> Any:
    """Return a tool's heartbeat or failure details with every secret replaced; details that are not JSON stay
    unchanged.
    """
    try:
        plain = to_jsonable_python(details, fallback=str)
        found = mask_value(plain)
    except (ValueError, RecursionError):  # not JSON: it cannot leave
        return details
    return details if found is plain else found


def _walk(value: Json) -> Any:
    if isinstance(value, str):
        return mask_text(value)
    if isinstance(value, list):
        return [_walk(item) for item in value]
    if isinstance(value, dict):
        return {mask_text(key): _walk(item) for key, item in value.items()}
    return value


def known_secrets() -> list[str]:
    """Return the secrets, plain and as JSON escapes them, longest first: one may contain another."""
    return [plain for plain, _ in _forms()]


def _forms() -> list[tuple[str, str]]:
    """Return each of `known_secrets` with its form in JSON."""
    # Each value that leaves the worker asks for this, and iterating `os.environ` itself decodes every name.
    names = _secret_names(tuple(getattr(os.environ, "_data", os.environ)))
    values = (os.environ.get(name, "") for name in names)
    return _forms_of(frozenset(value for value in values if len(value) >= _SHORTEST) | _known | _OF_ACTIVITY.get(set()))


@functools.lru_cache(maxsize=4)
def _secret_names(names: tuple[str | bytes, ...]) -> list[str]:
    """Return the variables of these names that hold secrets."""
    return [name for name in map(os.fsdecode, names) if looks_secret(name)]


@functools.lru_cache(maxsize=64)
def _forms_of(secrets: frozenset[str]) -> list[tuple[str, str]]:
    plain = sorted(secrets | {dumps(secret)[1:-1] for secret in secrets}, key=len, reverse=True)
    return [(each, dumps(each)[1:-1]) for each in plain]


class Masking(worker.Interceptor):
    """An interceptor that masks secrets in the errors and heartbeats of every activity of a worker."""

    def intercept_activity(self, next: worker.ActivityInboundInterceptor) -> worker.ActivityInboundInterceptor:
        return _MaskingInbound(next)


class _MaskingInbound(worker.ActivityInboundInterceptor):
    def init(self, outbound: worker.ActivityOutboundInterceptor) -> None:
        super().init(_MaskingOutbound(outbound))

    async def execute_activity(self, input: worker.ExecuteActivityInput) -> Any:
        _OF_ACTIVITY.set(set())
        try:
            return await super().execute_activity(input)
        except Exception as error:
            if (clean := mask_error(error)) is error:
                raise
            raise clean from None


class _MaskingOutbound(worker.ActivityOutboundInterceptor):
    def heartbeat(self, *details: Any) -> None:
        super().heartbeat(*map(masked_details, details or begun_details()))


def mask_error(error: Exception) -> Exception:
    """Return the error if it holds no secret; else an equivalent one, without its causes and traceback."""
    story = "".join(traceback.format_exception(error))
    if mask_text(story) == story and not any(map(_holds_secret, causes_of(error))):
        return error
    message, type_name = str(error), type(error).__name__
    if isinstance(error, CancelledError):
        return CancelledError(mask_text(message), *map(masked_details, error.details))
    if not isinstance(error, ApplicationError):
        return ApplicationError(mask_text(message), type=mask_text(type_name))
    return ApplicationError(
        mask_text(error.message),
        *map(masked_details, error.details),
        type=mask_text(error.type or type_name),
        non_retryable=error.non_retryable,
        next_retry_delay=error.next_retry_delay,
        category=error.category,
    )


def _holds_secret(error: BaseException) -> bool:
    """Whether attributes that a traceback does not show hold a secret."""
    details = [*error.details] if isinstance(error, ApplicationError | CancelledError) else []
    kind = error.type or "" if isinstance(error, ApplicationError) else ""
    return mask_text(kind) != kind or any(masked_details(each) is not each for each in details)
