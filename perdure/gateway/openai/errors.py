"""How these doors say that something was refused: OpenAI's form, `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from perdure.gateway.problems import HttpError
from perdure.values.jsons import JsonObject, dumps

_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES: Final = {
    401: "invalid_api_key",
    403: "insufficient_permissions",
    413: "request_too_large",
    429: "rate_limit_exceeded",
}
_AS_BAD: Final = frozenset({409, 415, 422})
"""Statuses that OpenAI has no use for: its clients would send the same again after a 409."""


def refused(message: str, param: str | None = None, code: str | None = None, *, status: int = 400) -> HttpError:
    """What a request says and cannot have, in one line; `param`: where it says it."""
    return HttpError(status, message, more={"param": param, "code": code})


def unsupported(param: str, why: str) -> HttpError:
    """Something that would change what is done, and is not done here."""
    return refused(f"'{param}' is not supported here: {why}", param, "unsupported_parameter")


def invalid(param: str, wanted: str) -> HttpError:
    """A value that is none."""
    return refused(f"'{param}' must be {wanted}", param, "invalid_value")


def not_found(id: str) -> HttpError:
    """The same for what there is not and for what is another's (R10.2)."""
    return refused(f"there is no response {id!r}", "response_id", "not_found", status=404)


def error_body(problem: HttpError) -> JsonObject:
    """The `error` of the form."""
    kind = _TYPES.get(problem.status, "server_error" if problem.status >= 500 else "invalid_request_error")
    code = problem.more.get("code") or _CODES.get(problem.status)
    if code is None and problem.status in _AS_BAD:
        code = problem.kind.replace("-", "_")
    return {"message": problem.detail, "type": kind, "param": problem.more.get("param"), "code": code}


def as_openai(_: Request, problem: HttpError) -> Response:
    """The form, with a status that OpenAI's clients know."""
    status = 400 if problem.status in _AS_BAD else problem.status
    body = dumps({"error": error_body(problem)})
    return Response(body, status, problem.headers, "application/json")
