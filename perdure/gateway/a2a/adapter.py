"""The routes `/a2a/AGENT`: the agent's card, and its methods by JSON-RPC."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import AsyncGenerator, AsyncIterable
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from perdure.errors import JsonError, clip
from perdure.gateway.adapter import Adapter, Gateway
from perdure.gateway.bounds import read_value
from perdure.gateway.callers import READ, caller_of
from perdure.gateway.streams import EventStream, encode_event
from perdure.values.json import JsonObject
from perdure.values.problems import problems_of

if TYPE_CHECKING:
    from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher


_PARSE_ERROR: Final = -32700
"""JSON-RPC's code for a body that is not JSON."""
_INVALID_PARAMS: Final = -32602
"""JSON-RPC's code for invalid parameters."""
_CONTENT_TYPE: Final = -32005
"""A2A's code for a kind of content that is not supported."""


def a2a_adapter(gateway: Gateway) -> Adapter:
    """Return the adapter that serves each agent as an A2A agent. Without the library (`pip install perdure[a2a]`) it has no routes."""
    if importlib.util.find_spec("a2a") is None:
        return Adapter("a2a", [])

    @cache
    def dispatcher() -> JsonRpcDispatcher:
        from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher

        from perdure.gateway.a2a._methods import A2AMethods, CallContexts

        # The library logs each rejected request with a traceback. The client gets the reason, and the gateway logs bugs
        # itself.
        logging.getLogger("a2a.server.routes").setLevel(logging.CRITICAL)
        logging.getLogger("a2a.compat").setLevel(logging.CRITICAL)
        return JsonRpcDispatcher(A2AMethods(gateway), CallContexts(), enable_v0_3_compat=True)

    async def call(request: Request) -> Response:
        gateway.agents.get(request.path_params["agent"])
        if "json" not in (kind := request.headers.get("content-type", "json")):
            words = f"the request's Content-Type is {clip(kind, 60)!r}; it must be application/json"
            return JSONResponse({"jsonrpc": "2.0", "id": None, "error": {"code": _CONTENT_TYPE, "message": words}})
        library = dispatcher()
        try:
            sent = await read_value(request)
        except JsonError as invalid:  # the protocol has its own error; the library accepts NaN, and any depth
            error = {"code": _PARSE_ERROR, "message": f"Parse error: {invalid}"}
            return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error})
        if isinstance(sent, dict) and (words := _problem_of_0_3(sent)):
            error = {"code": _INVALID_PARAMS, "message": f"Invalid params: {words}"}
            return JSONResponse({"jsonrpc": "2.0", "id": sent.get("id"), "error": error})
        response: Response = await library.handle_requests(request)
        if not isinstance(response, StreamingResponse):
            return response
        # The library's own stream has no limits, and does not end with the gateway.
        return EventStream(gateway, caller_of(request), _frames(response.body_iterator), retry=False)

    async def card(request: Request) -> Response:
        from a2a.server.request_handlers.response_helpers import agent_card_to_dict
        from google.protobuf.json_format import MessageToDict

        from perdure.gateway.a2a._objects import card_of

        caller_of(request).check(READ, "list agents")
        name = request.path_params["agent"]
        agent = gateway.agents.get(name)
        url = f"{gateway.guards.scheme(request)}://{request.url.netloc}/a2a/{name}"
        made = card_of(
            name,
            agent,
            url,
            with_token=not gateway.guards.open,
            with_files=gateway.perdure.stores_media,
            with_push=bool(gateway.settings.callback_hosts),
        )
        newer = request.headers.get("a2a-version", "").startswith("1")  # other clients may support version 0.3 only
        return JSONResponse(MessageToDict(made) if newer else agent_card_to_dict(made))

    routes = [
        Route("/a2a/{agent}", call, methods=["POST"]),
        Route("/a2a/{agent}/.well-known/agent-card.json", card, methods=["GET"]),
    ]
    return Adapter("a2a", routes)


def _problem_of_0_3(sent: JsonObject) -> str:
    """Return the problem of a 0.3 request with invalid parameters; an empty text for any other request.

    The library would call the whole request invalid (-32600), in several lines.
    """
    from a2a.compat.v0_3.jsonrpc_adapter import JSONRPC03Adapter

    model = JSONRPC03Adapter.METHOD_TO_MODEL.get(str(sent.get("method")))
    if model is None:
        return ""
    try:
        model.model_validate(sent)
    except ValidationError as error:
        found = [each for each in problems_of(error, sent) if "id" in sent or each.place != ("id",)]
        if found and all(each.place[:1] == ("params",) for each in found):
            return f"{found[0].words} at {found[0].path}"
    return ""


async def _frames(events: AsyncIterable[Any]) -> AsyncGenerator[str, None]:
    async for event in events:
        yield encode_event(event["data"], event=event.get("event", ""))
