"""Secrets of a worker, masked in everything that leaves it.

A server may say back what it was sent ("incorrect API key: sk-…"): what it says goes into failures, histories, logs and traces.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator
from typing import Any, Final

from pydantic_core import to_jsonable_python
from temporalio import worker
from temporalio.exceptions import ApplicationError, CancelledError

from perdure.activities.active_executions import said_begun
from perdure.values.json import Json, dumps

MASK: Final = "[masked]"
_SHORTEST: Final = 10
"""Characters. What is shorter is no key, and stands in ordinary words."""
_NAMES: Final = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_known: set[str] = set()


def keep_secret(*values: str) -> None:
    """Mask these from now on, beside the values of the environment's variables that are called a key, token, secret or password."""
    _known.update(part for value in values for part in (value, value.rpartition(" ")[2]) if len(part) >= _SHORTEST)


def looks_secret(name: str) -> bool:
    """Whether a variable or header of this name holds a secret."""
    return bool(_NAMES.search(name)) or name.lower() in ("authorization", "cookie", "proxy-authorization")


def masked(text: str) -> str:
    """The text with every secret that is known replaced."""
    for secret in known_secrets():
        text = text.replace(secret, MASK)
    return text


def masked_value(value: Json) -> Json:
    """The value with every secret in its texts replaced; the same one where it holds none."""
    text = dumps(value)
    if not any(dumps(secret)[1:-1] in text for secret in known_secrets()):
        return value
    return _walk(value)


def masked_details(details: Any) -> Any:
    """The same of what a tool says while it works or with its failure, which may be anything that can be written as JSON."""
    try:
        plain = to_jsonable_python(details, fallback=str)
        found = masked_value(plain)
    except (ValueError, RecursionError):  # no JSON: it cannot leave
        return details
    return details if found is plain else found


def _walk(value: Json) -> Json:
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, list):
        return [_walk(item) for item in value]
    if isinstance(value, dict):
        return {masked(key): _walk(item) for key, item in value.items()}
    return value


def known_secrets() -> list[str]:
    """As they are, and as JSON writes them inside a text; the longest first: one may hold another."""
    ours = {value for name, value in os.environ.items() if looks_secret(name) and len(value) >= _SHORTEST}
    secrets = _known | ours
    return sorted(secrets | {dumps(secret)[1:-1] for secret in secrets}, key=len, reverse=True)


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
