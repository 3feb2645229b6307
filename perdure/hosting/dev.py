"""`perdure dev`: server, Web UI, worker and gateway in one process, until Ctrl-C; the worker is as it is alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext

from temporalio.client import Client

from perdure.hosting import logs
from perdure.hosting.equipment import equipped, registry_of
from perdure.hosting.server import embedded_server
from perdure.hosting.settings import Settings, changed
from perdure.hosting.telemetry import worker_runtime
from perdure.hosting.user_workflows import load_workflows
from perdure.hosting.worker import leave, work


async def serve_dev(
    settings: Settings, beside: Callable[[Client], AbstractAsyncContextManager[object]] = nullcontext
) -> None:
    """Serve until interrupted; agents are looked for in `agents`, if it is there. `beside`: what lasts as long, once there is a server.

    Raises a `PerdureError` when something cannot start.
    """
    logs.configure(settings.log_format, settings.log_level, payloads=settings.log_payloads)
    registry = registry_of(settings)
    load_workflows(settings.workflows).check_tools(registry)
    port, ui_port = settings.dev_port, settings.dev_ui_port
    runtime = worker_runtime(settings.metrics)
    async with (
        equipped(settings, registry),
        embedded_server(port=port, ui_port=ui_port, db=settings.dev_db, runtime=runtime) as server,
    ):
        bound = server.client.service_client.config.target_host.rpartition(":")[2]
        print(f"Temporal  localhost:{bound}", file=sys.stderr)
        print(f"Web UI    http://localhost:{ui_port}; Ctrl-C ends both, and the worker", file=sys.stderr)
        agents = settings.agents_folder if settings.agents_folder.is_dir() else None
        async with beside(server.client):
            ended = await work(server.client, runtime, registry, changed(settings, {"agents": agents}))
    leave(ended)
