"""The HTTP server of an application: connections, their bounds, and a clean shutdown."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from perdure.activities.hooks import HookRegistry, call_hooks
from perdure.errors import SettingsError
from perdure.gateway.bounds import HEADERS
from perdure.hooks.events import GatewayStart, GatewayStop

CONNECTIONS: Final = 1000
"""The most concurrent connections; further ones are rejected."""
PATIENCE: Final = 15.0
"""Seconds in which a connection must send its first request. Sent data must be acknowledged within twice the time."""


class _Patient(H11Protocol):
    """uvicorn's protocol. It also closes connections of clients that send or read nothing."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._silent = self.loop.call_later(PATIENCE, self._break_off)
        sock = transport.get_extra_info("socket")
        if sock is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(2 * PATIENCE * 1000))

    def connection_lost(self, exc: Exception | None) -> None:
        self._silent.cancel()
        super().connection_lost(exc)

    def _break_off(self) -> None:
        if self.cycle is None:
            self.transport.abort()


@asynccontextmanager
async def serve_app(
    app: Starlette,
    name: str | None,
    host: str,
    port: int,
    *,
    connections: int = CONNECTIONS,
    stopping: Callable[[], object] = lambda: None,
    grace: float = 1.0,
    option: str = "--port",
) -> AsyncIterator[str]:
    """Serve while the context lasts. Yield the address, and print it after the `name`, if there is one.

    At the end, call `stopping`; active requests then have `grace` seconds. Raises `SettingsError` with the port's
    `option` if the port is taken.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host.strip("[]"), port), family=family)
    except OSError as error:
        words = f"cannot listen on {host} port {port}: {error.strerror}; give another port with {option}"
        raise SettingsError(words) from None
    async with app.router.lifespan_context(app):
        server = await _started(app, listening, connections)
        address = f"http://{host}:{listening.getsockname()[1]}"
        if name is not None:
            print(f"{name}  {address}; press Ctrl-C to stop", file=sys.stderr, flush=True)
        try:
            yield address
        finally:
            stopping()
            await _ended(server, listening, grace)


async def _started(app: Starlette, listening: socket.socket, connections: int) -> uvicorn.Server:
    bounds: dict[str, Any] = {"limit_concurrency": connections + 1, "h11_max_incomplete_event_size": HEADERS}
    config = uvicorn.Config(
        app,
        http=_Patient,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        **bounds,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    # Not by `serve`, which would replace the process's signal handlers.
    await server.startup(sockets=[listening])
    return server


async def _ended(server: uvicorn.Server, listening: socket.socket, grace: float) -> None:
    for each in server.servers:
        each.close()
    for connection in list(server.server_state.connections):
        connection.shutdown()
    if tasks := list(server.server_state.tasks):
        await asyncio.wait(tasks, timeout=grace)
    server.should_exit = server.force_exit = True
    for connection in list(server.server_state.connections):
        connection.transport.abort()
    await server.shutdown(sockets=[listening])


async def run_start_hooks(hooks: HookRegistry, address: str) -> None:
    """Run the start hooks of a gateway that listens."""
    await _run_hooks(hooks, "gateway_start", GatewayStart(address=address, at=_now()))


async def run_stop_hooks(hooks: HookRegistry, address: str) -> None:
    """Run the stop hooks, after the server no longer listens and has answered its clients."""
    await _run_hooks(hooks, "gateway_stop", GatewayStop(address=address, at=_now()))


async def _run_hooks(hooks: HookRegistry, name: str, event: GatewayStart | GatewayStop) -> None:
    wanted = [each for each in hooks.recorded("gateway") if each.event == name]
    await call_hooks(hooks, wanted, event)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
