"""Errors over HTTP (RFC 9457): the one place that maps an error to a status."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from perdure import errors
from perdure.client.errors import RunFailedError
from perdure.errors import PerdureError, clip
from perdure.values.json import JsonObject, dumps

STATUS: Final[dict[type[PerdureError], int]] = {
    errors.JsonError: 400,
    errors.AuditError: 422,
    errors.TooLargeError: 413,
    errors.MessageRefusedError: 409,
    errors.DecisionError: 422,
    errors.ProtocolError: 422,
    errors.SettingsError: 500,  # the gateway's own settings: a client cannot correct them
    errors.ServerError: 503,
    errors.ServerRefusalError: 502,
    errors.RunNotFoundError: 404,
    errors.RunExistsError: 409,
    RunFailedError: 409,
    errors.RunTimeoutError: 504,
    errors.RunEndedError: 409,
    errors.NoWorkerError: 503,
    errors.DecisionRefusedError: 409,
    errors.OutputError: 500,
    errors.RunError: 422,
    errors.ToolError: 500,
    PerdureError: 400,
}
"""The status by error class, or by its nearest base class."""
KINDS: Final = {
    400: "bad-request",
    401: "unauthorized",
    403: "forbidden",
    404: "not-found",
    405: "method-not-allowed",
    413: "too-large",
    415: "unsupported-media-type",
    421: "misdirected",
    422: "invalid",
    429: "too-many-requests",
    431: "headers-too-large",
    500: "internal",
    503: "unavailable",
    504: "timeout",
}
"""The title of a status without a known problem: some of Python's own titles differ between versions."""
AGAIN: Final = 2
"""Seconds after which a client may retry an unanswered request."""
_log: Final = logging.getLogger("perdure.gateway")


class HttpError(Exception):
    """A rejected request: the `status`, and in one line the error and the accepted form.

    `kind`: the problem's type for programs, by default that of the status; `more`: further members; `headers`: headers
    of the response.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        kind: str = "",
        more: JsonObject | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.kind = kind or KINDS.get(status, "error")
        self.more = more or {}
        self.headers = dict(headers or {})

    @property
    def title(self) -> str:
        """Return the title that all problems of the kind share."""
        return self.kind.replace("-", " ").capitalize()

    def as_json(self) -> JsonObject:
        """Return the document of RFC 9457."""
        plain: JsonObject = {"type": f"urn:perdure:problem:{self.kind}", "title": self.title, "status": self.status}
        return plain | {"detail": self.detail} | self.more


def problem_of(error: Exception) -> HttpError | None:
    """Return an error's problem for clients; `None` for a bug, whose details clients must not see."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, HTTPException):
        return HttpError(error.status_code, str(error.detail), headers=error.headers)
    if not isinstance(error, PerdureError):
        return None
    status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    kind = _kebab(type(error).__name__.removesuffix("Error"))
    if status >= 500 and isinstance(error, errors.SettingsError | errors.ToolError | errors.OutputError):
        return HttpError(
            status, "the gateway's settings do not allow the operation; the gateway's log has the error", kind=kind
        )
    if isinstance(error, errors.ServerError):  # the text names the server's address, and other details
        return HttpError(
            status,
            "the gateway's Temporal server does not answer",
            kind=kind,
            headers={"Retry-After": str(AGAIN)},
        )
    if isinstance(error, errors.ServerRefusalError):  # this text holds such details too
        return HttpError(
            status, "the gateway's Temporal server rejected the operation; the gateway's log has the error", kind=kind
        )
    problems = [str(each) for each in getattr(error, "problems", ())]
    return HttpError(
        status,
        clip(" ".join(str(error).split()), errors.MAX_ERROR_TEXT),
        kind=kind,
        more={"problems": problems} if len(problems) > 1 else {},
        headers={"Retry-After": str(AGAIN)} if status == 503 else {},
    )


def log_problem(error: BaseException, request: str = "") -> HttpError:
    """Return the problem that clients see for an error. Log the error if its status is 500 or more, and a bug with its
    traceback.

    `request`: the request's id, for the log line; none by default.
    """
    problem = problem_of(error) if isinstance(error, Exception) else None
    if problem is None or problem.status >= 500:
        _log.log(
            logging.ERROR if problem is None else logging.WARNING,
            "a request failed: %s: %s",
            type(error).__name__,
            "a bug" if problem is None else clip(str(error)),
            exc_info=error if problem is None else None,
            extra={"perdure": {"request": request}} if request else None,
        )
    at = f" at request {request}" if request else ""
    return problem or HttpError(500, f"the request failed; the gateway's log has the error{at}")


def as_problem_json(problem: HttpError) -> Response:
    """Return a response of the type `application/problem+json`."""
    return Response(dumps(problem.as_json()), problem.status, problem.headers, "application/problem+json")


def _kebab(words: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[^A-Za-z]+", "-", words).strip("-").lower()
