"""The door's one address, `/mcp`: streamable HTTP."""

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
from perdure.gateway.bounds import read_value
from perdure.gateway.callers import caller_of
from perdure.gateway.door import Door, Gateway
from perdure.values.jsons import Json, JsonObject


def mcp_door(gateway: Gateway) -> Door:
    """Each agent as a tool. Without the library (`pip install perdure[mcp]`) there is no such door."""
    if importlib.util.find_spec("mcp") is None:
        return Door("mcp", [])
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from perdure.gateway.mcp.serving import SESSION, Methods, mcp_server

    methods = Methods(gateway)
    # The gateway's frame has looked at Host and Origin.
    manager = StreamableHTTPSessionManager(
        mcp_server(methods), stateless=True, max_request_body_size=gateway.settings.gateway_body
    )

    class Address:
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive)
            said: Json = None
            with suppress(JsonError):  # which the protocol has an answer of its own for
                said = await read_value(request)
            if _is(said, "notifications/cancelled"):  # the library looks for the call on this connection alone
                params = said.get("params")
                id = params.get("requestId") if isinstance(params, dict) else None
                await methods.cancel_call(caller_of(request), request.headers.get(SESSION, ""), id)
            body: list[bytes] = [await request.body()]

            async def again() -> Message:
                return {"type": "http.request", "body": body.pop()} if body else await receive()

            async def with_session(message: Message) -> None:
                if message["type"] == "http.response.start":
                    MutableHeaders(scope=message)[SESSION] = uuid.uuid4().hex
                await send(message)

            await manager.handle_request(scope, again, with_session if _is(said, "initialize") else send)

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with manager.run():
            yield

    # A session is a name alone: there is nothing to end (DELETE), nor to say unasked, so a GET would hold a connection for nothing.
    return Door("mcp", [Route("/mcp", Address(), methods=["POST"])], lifespan=lifespan)


def _is(said: Json, method: str) -> TypeGuard[JsonObject]:
    return isinstance(said, dict) and said.get("method") == method
