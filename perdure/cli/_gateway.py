"""The gateway with all its adapters, for `perdure serve` and `perdure dev`."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from perdure.activities.registry import load_tools
from perdure.client.perdure import Perdure
from perdure.errors import SettingsError
from perdure.gateway.a2a.adapter import a2a_adapter
from perdure.gateway.adapter import AdapterMaker
from perdure.gateway.agui.adapter import agui_adapter
from perdure.gateway.ai_sdk.adapter import ai_sdk_adapter
from perdure.gateway.api.adapter import api
from perdure.gateway.app import check_agents_folder, check_reachable, create_app, health_adapter
from perdure.gateway.http_server import run_start_hooks, run_stop_hooks, serve_app
from perdure.gateway.mcp.adapter import mcp_adapter
from perdure.gateway.openai.adapter import openai_adapter
from perdure.gateway.webhooks import triggers_adapter
from perdure.hosting import dev, logs
from perdure.hosting.connection import connect, connect_with_retry
from perdure.hosting.process import queue_interrupts
from perdure.hosting.server import free_port
from perdure.hosting.settings import Settings, flag, replace_settings
from perdure.hosting.telemetry import silent_runtime
from perdure.pages.adapter import pages, sign_in

ADAPTERS: Final[tuple[AdapterMaker, ...]] = (
    health_adapter,
    triggers_adapter,
    openai_adapter,
    mcp_adapter,
    agui_adapter,
    ai_sdk_adapter,
    a2a_adapter,
    api,
    sign_in,
    pages,
)
"""All adapters, in the order in which their routes are matched. A new protocol is a line here."""


@asynccontextmanager
async def gateway(
    perdure: Perdure, settings: Settings, *, quiet: bool = False, option: str = "--port"
) -> AsyncIterator[str]:
    """Serve the gateway while the context lasts. Yield its address, and print it unless `quiet`. Raises
    `SettingsError`.

    `option`: the flag of its port.
    """
    check_reachable(settings)
    app = create_app(perdure, settings, ADAPTERS)
    hooks = load_tools(settings.tools).hooks
    address = ""
    try:
        async with serve_app(
            app,
            None if quiet else "Gateway ",
            settings.gateway_host,
            settings.gateway_port,
            connections=settings.gateway_connections,
            stopping=app.state.gateway.stopping.set,
            grace=settings.gateway_grace,
            option=option,
        ) as address:
            await run_start_hooks(hooks, address)
            yield address
    finally:
        if address:
            await run_stop_hooks(hooks, address)


async def serve(settings: Settings) -> None:
    """Serve until interrupted. Raises `SettingsError` for an address that others reach without a token, or a taken port."""
    check_reachable(settings)  # before a server is needed
    check_agents_folder(settings)
    logs.configure(settings.log_format, settings.log_level, payloads=settings.log_payloads)
    runtime = silent_runtime()
    client = await connect_with_retry(lambda: connect(runtime), settings.wait)
    with queue_interrupts() as interrupted:  # around all: after a second signal, the gateway still answers its callers
        async with gateway(Perdure(client, task_queue=settings.task_queue), settings):
            gc.collect()
            gc.freeze()  # otherwise the collector scans all imported objects for a large body, and blocks answers for 0.2 s
            await interrupted.get()


async def serve_dev(settings: Settings) -> None:
    """Serve the gateway beside an embedded server and a worker, until interrupted."""
    check_reachable(settings)
    _check_ports(settings)
    known: dict[str, object] = {"dev_ui_port": settings.dev_ui_port or free_port()}
    known |= {} if settings.web_ui else {"web_ui": f"http://localhost:{known['dev_ui_port']}"}
    if not settings.pages_url and settings.gateway_port:
        known["pages_url"] = f"http://{settings.gateway_host}:{settings.gateway_port}"
    settings = replace_settings(settings, known)
    await dev.serve_dev(
        settings,
        lambda client: gateway(Perdure(client, task_queue=settings.task_queue), settings, option=flag("gateway_port")),
    )


def _check_ports(settings: Settings) -> None:
    """Raise `SettingsError` if two servers of `perdure dev` have the same port."""
    options: dict[int, str] = {}
    named = {"--port": settings.dev_port, "--ui-port": settings.dev_ui_port, "--gateway-port": settings.gateway_port}
    for option, port in named.items():
        if port and (other := options.setdefault(port, option)) != option:
            raise SettingsError(f"{other} and {option} are both {port}: give each another port")
