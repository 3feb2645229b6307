"""`perdure worker`, which `python worker.py` is too: the options of a worker (R12.5)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from perdure.cli.errors import USAGE, CommandError, one_line_errors
from perdure.people.policies import ASKS
from perdure.run.wire import TASK_QUEUE


def main(
    tools: Annotated[str, typer.Option(envvar="PERDURE_TOOLS", help="Modules with tools, comma-separated.")] = "",
    agents: Annotated[
        Path | None, typer.Option(envvar="PERDURE_AGENTS", help="Folder of agent files: delegates are found there.")
    ] = None,
    task_queue: Annotated[str, typer.Option(envvar="PERDURE_TASK_QUEUE", help="Where to listen.")] = TASK_QUEUE,
    tools_only: Annotated[bool, typer.Option("--tools-only", help="Offer tools, run no agents.")] = False,
    files: Annotated[
        Path | None,
        typer.Option(envvar="PERDURE_FILES", help="Offer read_file, write_file, list_files in this folder."),
    ] = None,
    http_hosts: Annotated[
        str,
        typer.Option(envvar="PERDURE_HTTP_HOSTS", help="Offer http_request to these: api.example.com,*.example.org"),
    ] = "",
    http_private: Annotated[
        bool, typer.Option("--http-private", envvar="PERDURE_HTTP_PRIVATE", help="Also at private addresses.")
    ] = False,
    commands: Annotated[
        str, typer.Option(envvar="PERDURE_COMMANDS", help="Offer run_command for these programs: git,df")
    ] = "",
    mcp: Annotated[
        Path | None, typer.Option(envvar="PERDURE_MCP", help="Offer the tools of a standard mcpServers file.")
    ] = None,
    approval_floor: Annotated[
        str,
        typer.Option(envvar="PERDURE_APPROVAL_FLOOR", help="What people are always asked about: " + " < ".join(ASKS)),
    ] = "never",
    metrics: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", envvar="PERDURE_METRICS", help="Serve Temporal's metrics for Prometheus."),
    ] = None,
) -> None:
    """Run a Perdure worker. Connection settings are Temporal's own: TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, profiles, …"""
    # A model's client, Temporal's worker, web clients: two thirds of a second that no other command needs to wait.
    from perdure.activities.registry import load_tools, module_names
    from perdure.activities.tools import ToolSettings, built_in
    from perdure.hosting.worker import serve

    with one_line_errors():
        if approval_floor not in ASKS:
            raise CommandError(f"--approval-floor must be one of {', '.join(ASKS)}, not {approval_floor!r}", USAGE)
        built_ins = ToolSettings(
            files=files,
            http_hosts=module_names(http_hosts),
            http_private=http_private,
            commands=module_names(commands),
        )
        registry = load_tools(module_names(tools))
        registry.add_missing(built_in(built_ins))
        asyncio.run(
            serve(
                registry,
                task_queue=task_queue,
                tools_only=tools_only,
                metrics=metrics,
                approval_floor=approval_floor,
                agents=agents,
                mcp=mcp,
            )
        )
