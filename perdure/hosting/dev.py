"""`perdure dev`: server, Web UI and worker in one process, until Ctrl-C."""

from __future__ import annotations

import sys

from perdure.hosting.equipment import equipped, registry_of
from perdure.hosting.operating import logs
from perdure.hosting.server import embedded_server
from perdure.hosting.settings import Settings
from perdure.hosting.signals import until_interrupted
from perdure.hosting.worker import build_worker


async def serve_dev(settings: Settings) -> None:
    """Serve until interrupted; agents are looked for in `agents`, if it is there. Raises a `PerdureError` when something cannot start."""
    logs.configure(settings.log_format, settings.log_level, payloads=settings.log_payloads)
    registry = registry_of(settings)
    port, ui_port = settings.dev_port, settings.dev_ui_port
    async with (
        equipped(settings, registry),
        embedded_server(port=port, ui_port=ui_port, db=settings.dev_db) as server,
    ):
        agents = settings.agents_folder if settings.agents_folder.is_dir() else None
        async with build_worker(server.client, registry, settings=settings, agents=agents):
            print(f"Temporal  localhost:{port}", file=sys.stderr)
            print(f"Web UI    http://localhost:{ui_port}", file=sys.stderr)
            tools = f"worker    {len(registry)} tools, task queue {settings.task_queue!r}"
            print(f"{tools}; Ctrl-C ends all three", file=sys.stderr)
            await until_interrupted()
