"""`perdure inbox`: the page, until Ctrl-C."""

from __future__ import annotations

import socket
import sys

import uvicorn

from perdure.errors import SettingsError
from perdure.hosting.connection import connect
from perdure.hosting.signals import until_interrupted
from perdure.pages.app import Inbox
from perdure.pages.guards import is_loopback


async def serve_inbox(*, host: str, port: int, token: str | None) -> None:
    """Serve until interrupted. Raises `SettingsError` when others could reach it and there is no token, or the port is taken."""
    if token is None and not is_loopback(host):
        raise SettingsError(
            f"others can reach {host}: give a token that they have to know, with --token or PERDURE_INBOX_TOKEN",
        )
    inbox = Inbox(await connect(), token)
    try:
        listening = socket.create_server((host, port))
    except OSError as error:
        raise SettingsError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    config = uvicorn.Config(inbox.app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    # Without `serve`, which would take over the process's signals.
    await server.startup(sockets=[listening])
    print(f"inbox  http://{host}:{listening.getsockname()[1]}; Ctrl-C ends it", file=sys.stderr, flush=True)
    try:
        await until_interrupted()
    finally:
        server.should_exit = server.force_exit = True
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        await server.shutdown(sockets=[listening])
