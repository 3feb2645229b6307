"""`perdure dev`: server, Web UI and worker in one process, until Ctrl-C."""

from __future__ import annotations

import sys

from perdure.authoring.files import agents_folder
from perdure.hosting.equipment import Equipment
from perdure.hosting.server import embedded_server
from perdure.hosting.settings import endpoints, prices
from perdure.hosting.signals import until_interrupted
from perdure.hosting.worker import build_worker


async def serve_dev(equipment: Equipment, *, port: int, ui_port: int, db: str | None, task_queue: str) -> None:
    """Serve until interrupted; agents are looked for in `agents`, if it is there. Raises a `PerdureError` when something cannot start."""
    registry = equipment.registry()
    async with equipment.opened(registry), embedded_server(port=port, ui_port=ui_port, db=db) as server:
        worker = build_worker(
            server.client,
            registry,
            task_queue=task_queue,
            approval_floor=equipment.approval_floor,
            agents=equipment.agents or (agents_folder() if agents_folder().is_dir() else None),
            endpoints=endpoints(),
            prices=prices(),
            functions=equipment.functions,
        )
        async with worker:
            print(f"Temporal  localhost:{port}", file=sys.stderr)
            print(f"Web UI    http://localhost:{ui_port}", file=sys.stderr)
            print(f"worker    {len(registry)} tools, task queue {task_queue!r}; Ctrl-C ends all three", file=sys.stderr)
            await until_interrupted()
