"""`perdure dev`: server, Web UI and worker in one process, until Ctrl-C."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from perdure.activities.registry import load_tools, module_names
from perdure.activities.tools import built_in
from perdure.hosting.files import agents_folder
from perdure.hosting.server import embedded_server
from perdure.hosting.settings import endpoints, mcp_tools, prices, tool_settings
from perdure.hosting.signals import until_interrupted
from perdure.hosting.worker import build_worker


async def serve_dev(*, port: int, ui_port: int, db: str | None, tools: str, task_queue: str) -> None:
    """Serve until interrupted. Raises `CommandError` or `ToolDefinitionError` when something cannot start."""
    registry = load_tools(module_names(tools))
    registry.add_missing(built_in(tool_settings()))
    agents = agents_folder() if agents_folder().is_dir() else None
    servers = os.environ.get("PERDURE_MCP")
    async with (
        mcp_tools(Path(servers) if servers else None) as offered,
        embedded_server(port=port, ui_port=ui_port, db=db) as server,
    ):
        for function in offered:
            registry.add(function)
        worker = build_worker(
            server.client,
            registry,
            task_queue=task_queue,
            agents=agents,
            endpoints=endpoints(),
            prices=prices(),
        )
        async with worker:
            print(f"Temporal  localhost:{port}", file=sys.stderr)
            print(f"Web UI    http://localhost:{ui_port}", file=sys.stderr)
            print(f"worker    {len(registry)} tools, task queue {task_queue!r}; Ctrl-C ends all three", file=sys.stderr)
            await until_interrupted()
