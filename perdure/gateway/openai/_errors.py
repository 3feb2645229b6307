"""Errors in OpenAI's form: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import logging
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from perdure.gateway._keys import REUSED
from perdure.gateway.errors import HttpError, problem_of
from perdure.values.json import JsonObject, dumps

NOT_AGAIN: Final = "invalid_request_error"
"""The `type` of errors that clients do not retry."""
_AGAIN: Final = (408, 409, 429)
_log = logging.getLogger("perdure.gateway")
_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES: Final = {
    401: "invalid_api_key",
    403: "insufficient_permissions",
    413: "request_too_large",
    429: "rate_limit_exceeded",
}
_AS_BAD: Final = frozenset({409, 415, 422})
"""Replacements of statuses that OpenAI does not use: its clients would retry after a 409."""


def refused(message: str, param: str | None = None, code: str | None = None, *, status: int = 400) -> HttpError:
    """Return the error for a rejected part of a request, in one line. `param`: the part's path."""
    return HttpError(status, message, more={"param": param, "code": code})


def unsupported(param: str, why: str) -> HttpError:
    """Return the error for an unsupported parameter that would change the result."""
    return refused(f"'{param}' is not supported here: {why}", param, "unsupported_parameter")


def invalid(param: str, wanted: str) -> HttpError:
    """Return the error of an invalid value."""
    return refused(f"'{param}' must be {wanted}", param, "invalid_value")


def ended_badly(message: str, code: str) -> HttpError:
    """Return an error that clients do not retry, for a request whose run has begun: a retry would start a second run.

    Clients retry after a 408, 409, 429 or 5xx, some also after the start of a stream, by the error's `type` and `code`.
    """
    more: JsonObject = {"param": None, "code": code, "type": NOT_AGAIN}
    return HttpError(422, message, more=more, headers={"X-Should-Retry": "false"})


def after_start(error: Exception, id: object) -> HttpError:
    """Return such an error for a failure outside of the run: the run continues."""
    problem = problem_of(error)
    if problem is None:
        _log.error("a run's answer was not delivered", exc_info=error)
    elif problem.status < 500 and problem.status not in _AGAIN:
        return problem
    words = "the gateway could not go on with this; its log says why" if problem is None else problem.detail
    return ended_badly(f"{words}; the run goes on as {id}", "still_running")


def not_found(id: str, what: str = "response") -> HttpError:
    """Return the error for a missing object, and for another tenant's (R10.2)."""
    return refused(f"there is no {what} {id!r}", f"{what}_id", "not_found", status=404)


def error_body(problem: HttpError) -> JsonObject:
    """Return the form's `error` member."""
    kind = (
        problem.more.get("type")
        or _TYPES.get(problem.status)
        or ("server_error" if problem.status >= 500 else NOT_AGAIN)
    )
    code = problem.more.get("code") or _CODES.get(problem.status)
    if code is None and problem.status in _AS_BAD:
        code = problem.kind.replace("-", "_")
    return {"message": problem.detail, "type": kind, "param": problem.more.get("param"), "code": code}


def as_openai(_: Request, problem: HttpError) -> Response:
    """Return the form, with a status that OpenAI's clients know."""
    bad = problem.status in _AS_BAD and problem.kind != REUSED and "type" not in problem.more
    status = 400 if bad else problem.status
    body = dumps({"error": error_body(problem)})
    return Response(body, status, problem.headers, "application/json")
