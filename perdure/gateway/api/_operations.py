"""Operations of the API: a route, its parameters, its answer, and its place in the OpenAPI document."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Generic, Literal

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from typing_extensions import TypeVar

from perdure.client.run import Run
from perdure.gateway._idempotency import RequestKey
from perdure.gateway.adapter import Gateway
from perdure.gateway.bounds import read_json
from perdure.gateway.callers import Caller, caller_of
from perdure.gateway.errors import HttpError
from perdure.gateway.streams import result_before
from perdure.sessions.wire import WaitResult
from perdure.values.json import Json, JsonObject, WireModel, dumps
from perdure.values.problems import MOST, problems_of

BodyT = TypeVar("BodyT", bound=BaseModel, default=BaseModel)
QueryT = TypeVar("QueryT", bound=BaseModel, default=BaseModel)
PLACES: Final[Mapping[str, str]] = {
    "run": "The run's id.",
    "session": "The session's key.",
    "message": "The message's id.",
    "agent": "The agent's name.",
    "schedule": "The schedule's name.",
    "standing": "The standing approval's name.",
}
"""The parameters of paths."""
OBJECT: Final[Mapping[str, Any]] = {"type": "object"}
"""The schema of an object whose keys are not described here."""


def page_schema(rows: str) -> Mapping[str, Any]:
    """Return the schema of a page of a list."""
    following = {"type": ["string", "null"], "description": "The token of the next page; `null` on the last page."}
    listed = {"type": "array", "items": OBJECT}
    return {"type": "object", "properties": {rows: listed, "next": following}, "required": [rows, "next"]}


class EmptyForm(WireModel):
    """The form of an operation without a body, or without a query."""


@dataclass(frozen=True)
class ApiRequest(Generic[BodyT, QueryT]):
    """An operation's request: validated, from a permitted caller."""

    gateway: Gateway
    request: Request
    caller: Caller
    body: BodyT
    query: QueryT

    def named(self, place: str) -> str:
        """Return a path parameter."""
        return str(self.request.path_params[place])

    @property
    def key(self) -> RequestKey | None:
        """The idempotency key in the header. Raises `RunError` for an invalid key."""
        return RequestKey.of(
            self.gateway, self.request, self.caller, self.body.model_dump(mode="json", exclude_unset=True)
        )

    async def run(self) -> Run[Any]:
        """Return the run that the path names. Raises `RunNotFoundError` for an unknown run and for another tenant's."""
        return await self.gateway.own_run(self.caller, self.named("run"))


@dataclass(frozen=True)
class Operation:
    """An operation of the API. The caller needs `right`, which is checked before anything is read."""

    name: str
    """The name in the document, and in clients generated from it."""
    method: Literal["GET", "POST", "DELETE"]
    path: str
    summary: str
    do: Callable[[ApiRequest[Any, Any]], Awaitable[Response]]
    right: str
    body: type[BaseModel] | None
    query: type[BaseModel] | None
    answers: Mapping[int, Any]
    """The answer by status: a model, a schema, or `None` for no body. Errors are not listed."""
    media: str

    def route(self, gateway: Gateway) -> Route:
        """Return the operation as a starlette route. Ids and keys may contain slashes."""

        async def answer(request: Request) -> Response:
            caller = caller_of(request)
            caller.check(self.right, self.summary[0].lower() + self.summary[1:].rstrip("."))
            query = _read(self.query or EmptyForm, dict(request.query_params), "the query")
            body = _read(self.body, await read_json(request), "the body") if self.body else EmptyForm()
            return await self.do(ApiRequest(gateway, request, caller, body, query))

        return Route(re.sub(r"\{(\w+)\}", r"{\1:path}", self.path), answer, methods=[self.method], name=self.name)


def operation(
    method: Literal["GET", "POST", "DELETE"],
    path: str,
    right: str,
    *,
    body: type[BaseModel] | None = None,
    query: type[BaseModel] | None = None,
    answers: Mapping[int, Any],
    media: str = "application/json",
) -> Callable[[Callable[[ApiRequest[Any, Any]], Awaitable[Response]]], Operation]:
    """Return a decorator that makes a function an operation. The function's name in camelCase is the operation's, its
    docstring the summary. The parameters are fields of `Operation`.
    """

    def decorate(do: Callable[[ApiRequest[Any, Any]], Awaitable[Response]]) -> Operation:
        summary = inspect.getdoc(do) or ""
        return Operation(to_camel(do.__name__), method, path, summary, do, right, body, query, answers, media)

    return decorate


def _read(model: type[BaseModel], given: Json, what: str) -> BaseModel:
    """Validate the input. Raise `HttpError` with all problems."""
    if isinstance(given, dict) and len(given) > len(model.model_fields) + MOST:
        given = _cut(model, given)
    try:
        return model.model_validate(given)
    except ValidationError as error:
        problems = [str(each) for each in problems_of(error, given, model=model)]
        raise HttpError(422, f"{what}: {'; '.join(problems[:5])}", more={"problems": problems}) from None


def _cut(model: type[BaseModel], given: JsonObject) -> JsonObject:
    """Return an object with only a few of its unknown keys: each is an error, which takes time, and few are reported."""
    names = {name for key, field in model.model_fields.items() for name in (key, field.alias)}
    unknown = islice((key for key in given if key not in names), MOST + 1)
    return {key: given[key] for key in (*(key for key in given if key in names), *unknown)}


def json_response(value: Json, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return JSON. A text's lone surrogates are written as JSON escapes."""
    return Response(dumps(value).encode(errors="backslashreplace"), status, headers, "application/json")


async def wait_response(request: ApiRequest[Any, Any], wait: Callable[[float], Awaitable[WaitResult]]) -> Response:
    """Return `{status, startedAt, endedAt, error?}` (R10.1)."""
    found = await until_stopping(request, wait(request.query.timeout))
    return json_response((found or await wait(0)).as_json())


async def until_stopping(request: ApiRequest[Any, Any], what: Awaitable[Any]) -> Any:
    """Return the result of `what`; `None` if the gateway is about to end."""
    return await result_before(what, request.gateway.stopping.wait())
