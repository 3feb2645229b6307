"""The door's one address, `/mcp`: streamable HTTP."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from perdure.gateway.door import Door, Gateway


def mcp_door(gateway: Gateway) -> Door:
    """Each agent as a tool. Without the library (`pip install perdure[mcp]`) there is no such door."""
    if importlib.util.find_spec("mcp") is None:
        return Door("mcp", [])
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from perdure.gateway.mcp.serving import mcp_server

    # The gateway's frame has looked at Host and Origin.
    manager = StreamableHTTPSessionManager(
        mcp_server(gateway), stateless=True, max_request_body_size=gateway.settings.gateway_body
    )

    class Address:
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await manager.handle_request(scope, receive, send)

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with manager.run():
            yield

    # Without sessions there is nothing to end (DELETE), nor to say unasked: a GET would hold a connection for nothing.
    return Door("mcp", [Route("/mcp", Address(), methods=["POST"])], lifespan=lifespan)
