"""`perdure inbox` and `perdure codec-server`, until Ctrl-C."""

from __future__ import annotations

import socket
import sys
from typing import Final

import uvicorn
from starlette.applications import Starlette

from perdure.client.perdure import Perdure
from perdure.errors import SettingsError
from perdure.hosting.codec import CODEC
from perdure.hosting.connection import data_converter
from perdure.hosting.signals import until_interrupted
from perdure.pages.app import Inbox
from perdure.pages.codec import CodecServer
from perdure.pages.guards import check_token, is_loopback

_CONNECTIONS: Final = 1000
"""At a time; what comes beyond them is told so."""


async def serve_inbox(*, host: str, port: int, token: str | None) -> None:
    """Serve until interrupted. Raises `SettingsError` when others could reach it and there is no token, or it is empty, or the port is taken."""
    if token is None and not is_loopback(host):
        raise SettingsError(
            f"others can reach {host}: give a token that they have to know, with --token or PERDURE_INBOX_TOKEN",
        )
    check_token(token)  # before a server is needed
    await _serve(Inbox(await Perdure.connect(), token).app, "inbox", host, port)


async def serve_codec(*, host: str, port: int, token: str, origin: str) -> None:
    """Serve until interrupted. Raises `SettingsError` without a codec, a token or an origin, or when the port is taken."""
    converter = data_converter()
    if converter.payload_codec is None and converter.external_storage is None:
        raise SettingsError(f"there is nothing to decode: set {CODEC}, as for the workers")
    await _serve(CodecServer(converter, token, origin).app, "codec server", host, port)


async def _serve(app: Starlette, name: str, host: str, port: int) -> None:
    try:
        listening = socket.create_server((host, port))
    except OSError as error:
        raise SettingsError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    config = uvicorn.Config(
        app, log_level="warning", lifespan="off", limit_concurrency=_CONNECTIONS, timeout_graceful_shutdown=1
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    # Without `serve`, which would take over the process's signals.
    await server.startup(sockets=[listening])
    print(f"{name}  http://{host}:{listening.getsockname()[1]}; Ctrl-C ends it", file=sys.stderr, flush=True)
    try:
        await until_interrupted()
    finally:
        server.should_exit = server.force_exit = True
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        await server.shutdown(sockets=[listening])
