"""The HTTP API as an adapter, and its OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure.gateway.adapter import Adapter, Gateway
from perdure.gateway.api._agents import AGENTS, SCHEDULES, STANDING_APPROVALS
from perdure.gateway.api._events import EVENTS
from perdure.gateway.api._operations import PLACES, Operation, json_response
from perdure.gateway.api._runs import RUNS
from perdure.gateway.api._sessions import SESSIONS
from perdure.values.json import JsonObject

_REF: Final = "#/components/schemas/{model}"
_PROBLEM: Final = {
    "type": "object",
    "description": "A problem (RFC 9457).",
    "properties": {
        "type": {"type": "string", "description": "`urn:perdure:problem:…`: the kind of problem, for programs."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "The problem, and the accepted form."},
        "problems": {
            "type": "array",
            "items": {"type": "string"},
            "description": "All problems, if there are several.",
        },
    },
    "required": ["type", "title", "status", "detail"],
}
_FAILS: Final = {
    "default": {
        "description": "The request was rejected or failed.",
        "content": {"application/problem+json": {"schema": {"$ref": _REF.format(model="Problem")}}},
    }
}


def document(operations: Iterable[Operation], others: Iterable[Adapter] = ()) -> JsonObject:
    """Return the document of OpenAPI 3.1."""
    operations = tuple(operations)
    models = {model for each in operations for model in (each.body, *each.answers.values()) if _is_model(model)}
    named, definitions = models_json_schema(
        [(model, "validation") for model in sorted(models, key=lambda one: one.__name__)],
        by_alias=True,
        ref_template=_REF,
    )
    refs: dict[Any, Any] = {model: schema for (model, _), schema in named.items()}
    paths: JsonObject = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, refs)
    schemas = {"Problem": _PROBLEM, **definitions.get("$defs", {})}
    for schema in schemas.values():
        if "description" in schema:  # a docstring: its first paragraph describes the data, others describe Python
            schema["description"] = " ".join(schema["description"].partition("\n\n")[0].split())
    for adapter in others:
        paths |= adapter.paths
        schemas |= adapter.schemas
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Perdure",
            "version": version("perdure"),
            "description": "Agents, runs and sessions of the token's tenant.",
        },
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }


def _operation(each: Operation, refs: dict[Any, Any]) -> JsonObject:
    found: JsonObject = {
        "operationId": each.name,
        "summary": each.summary,
        "description": f"Needs the right `{each.right}`.",
        "parameters": [*_places(each), *_parameters_of(each)],
        "responses": {str(status): _answer(each, answer, refs) for status, answer in each.answers.items()} | _FAILS,
    }
    if each.body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": refs[each.body]}}}
    return found


def _places(each: Operation) -> list[JsonObject]:
    return [
        {"name": name, "in": "path", "required": True, "description": PLACES[name], "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", each.path)
    ]


def _parameters_of(each: Operation) -> list[JsonObject]:
    if each.query is None:
        return []
    schema = each.query.model_json_schema(by_alias=True)
    required = schema.get("required", [])
    return [
        {
            "name": name,
            "in": "query",
            "required": name in required,
            "description": field.get("description", ""),
            "schema": {key: value for key, value in field.items() if key not in ("description", "title")},
        }
        for name, field in schema.get("properties", {}).items()
    ]


def _answer(each: Operation, answer: Any, refs: dict[Any, Any]) -> JsonObject:
    described: JsonObject = {"description": each.summary}
    if answer is None:
        return described
    schema = refs[answer] if _is_model(answer) else dict(answer)
    return described | {"content": {each.media: {"schema": schema}}}


def _is_model(what: Any) -> bool:
    return isinstance(what, type) and issubclass(what, BaseModel)


OPERATIONS: Final[tuple[Operation, ...]] = (*AGENTS, *EVENTS, *RUNS, *SCHEDULES, *SESSIONS, *STANDING_APPROVALS)


def api(gateway: Gateway) -> Adapter:
    """Serve the API under `/v1/`, with its document at `/v1/openapi.json`."""

    async def described(request: Request) -> Response:
        others: Iterable[Adapter] = request.app.state.adapters
        return json_response(document(OPERATIONS, others))

    routes = [Route("/v1/openapi.json", described), *(each.route(gateway) for each in OPERATIONS)]
    return Adapter("api", routes)
