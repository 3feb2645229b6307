"""The route `/mcp`. Its methods are imported if the library is installed."""

from __future__ import annotations

import importlib.util
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TypeGuard

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from perdure.errors import JsonError
from perdure.gateway.adapter import Adapter, Gateway
from perdure.gateway.bounds import read_value
from perdure.gateway.callers import caller_of
from perdure.values.json import Json, JsonObject


def mcp_adapter(gateway: Gateway) -> Adapter:
    """Return the adapter that offers each agent as a tool. Without the library (`pip install perdure[mcp]`) it has no routes."""
    if importlib.util.find_spec("mcp") is None:
        return Adapter("mcp", [])
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from perdure.gateway.mcp._methods import SESSION, McpMethods, mcp_server
    from perdure.gateway.mcp._prompts import Prompts
    from perdure.gateway.mcp._resources import Resources

    methods, prompts = McpMethods(gateway), Prompts(gateway)
    # The gateway's frame has checked Host and Origin.
    manager = StreamableHTTPSessionManager(
        mcp_server(methods, prompts, Resources(gateway, prompts)),
        stateless=True,
        max_request_body_size=gateway.settings.gateway_body,
    )

    class McpEndpoint:
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive)
            request_body: Json = None
            with suppress(JsonError):  # the protocol has its own error for invalid JSON
                request_body = await read_value(request)
            if _is(
                request_body, "notifications/cancelled"
            ):  # the library would look for the call on this connection only
                params = request_body.get("params")
                id = params.get("requestId") if isinstance(params, dict) else None
                await methods.cancel_call(caller_of(request), request.headers.get(SESSION, ""), id)
            body: list[bytes] = [await request.body()]

            async def again() -> Message:
                return {"type": "http.request", "body": body.pop()} if body else await receive()

            async def with_session(message: Message) -> None:
                if message["type"] == "http.response.start":
                    MutableHeaders(scope=message)[SESSION] = uuid.uuid4().hex
                await send(message)

            await manager.handle_request(scope, again, with_session if _is(request_body, "initialize") else send)

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        try:
            async with manager.run():
                yield
        except BaseExceptionGroup as group:  # the library's task group wraps the application's error
            raise group.exceptions[0] from None

    # A session is only a name: there is nothing to delete (DELETE). The server sends no unrequested messages, so a GET
    # would stay silent.
    return Adapter("mcp", [Route("/mcp", McpEndpoint(), methods=["POST"])], lifespan=lifespan)


def _is(request_body: Json, method: str) -> TypeGuard[JsonObject]:
    return isinstance(request_body, dict) and request_body.get("method") == method
