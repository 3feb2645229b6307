"""`perdure worker`, which `python worker.py` is too: the options of a worker (R12.5)."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from perdure.cli.errors import one_line_errors
from perdure.cli.worker_options import equipped
from perdure.hosting.equipment import GRACE, Equipment
from perdure.run.wire import TASK_QUEUE


@equipped
def main(
    equipment: Equipment,
    task_queue: Annotated[str, typer.Option(envvar="PERDURE_TASK_QUEUE", help="Where to listen.")] = TASK_QUEUE,
    tools_only: Annotated[bool, typer.Option("--tools-only", help="Offer tools, run no agents.")] = False,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", envvar="PERDURE_METRICS", help="Serve Temporal's metrics for Prometheus."),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            min=0, envvar="PERDURE_GRACE", help="Seconds that calls have to end after SIGTERM; the rest is handed over."
        ),
    ] = GRACE,
) -> None:
    """Run a Perdure worker. Connection settings are Temporal's own: TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, profiles, …"""
    # A model's client, Temporal's worker, web clients: two thirds of a second that no other command needs to wait.
    from perdure.hosting.worker import serve

    with one_line_errors():
        asyncio.run(serve(equipment, task_queue=task_queue, tools_only=tools_only, metrics=metrics, grace=grace))
