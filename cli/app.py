"""The commands (section 11)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from datetime import datetime
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from temporalio.client import Client

from cli.connection import connect
from cli.errors import FAILED, INTERRUPTED, TIMEOUT, CommandError, one_line_errors
from cli.files import json_option, read_agent
from cli.render import print_result, print_run, run_table
from cli.runs import fetch_run, has_worker, list_runs, start_run, wait_run, watch_run
from perdure.agents import Context
from perdure.jsons import dumps
from perdure.runs import TASK_QUEUE, RunView

T = TypeVar("T")

app = typer.Typer(
    name="perdure",
    help="A durable engine for AI agents, on Temporal.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
RunId = Annotated[str, typer.Argument(metavar="ID", help="The run's id.")]
TaskQueue = Annotated[str, typer.Option(envvar="PERDURE_TASK_QUEUE", help="Where the workers listen.")]


def execute(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work; a user's mistake becomes one line and an exit code."""
    with one_line_errors():
        return asyncio.run(work)
    raise AssertionError("one_line_errors leaves the process")


@app.command()
def run(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="An agent file, or a name in the agents folder.")],
    input: Annotated[str | None, typer.Option("--input", metavar="JSON|@FILE", help="The run's input.")] = None,
    id: Annotated[
        str | None, typer.Option("--id", help="The run's id; by default the agent's name and a random part.")
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Start it and return.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it live.")] = False,
    as_json: Json = False,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Start an agent and print its result."""

    async def work() -> RunView | None:
        found, document = read_agent(agent)
        run_input = None if input is None else json_option(input, "--input")
        Context(
            found, run_input, has_input=input is not None
        )  # what the run would refuse needs no server to be refused
        client = await connect()
        handle = await start_run(
            client, found, document, run_input, has_input=input is not None, run_id=id, task_queue=task_queue
        )
        if no_wait:
            print(dumps({"runId": handle.id}) if as_json else handle.id)
            return None
        print(f"run {handle.id}", file=sys.stderr)
        if not await has_worker(client, task_queue):
            print(
                f"perdure: no worker listens on task queue {task_queue!r} yet; the run waits for one", file=sys.stderr
            )
        try:
            return await (_watch(client, handle.id) if watch and not as_json else wait_run(client, handle.id))
        except asyncio.CancelledError:
            raise CommandError(f"interrupted; the run goes on: perdure wait {handle.id}", INTERRUPTED) from None

    view = execute(work())
    if view is not None:
        _finish(view, as_json)


@app.command()
def wait(
    run_id: RunId,
    timeout: Annotated[float, typer.Option(help="Seconds; the run is not touched.")] = 30.0,
    as_json: Json = False,
) -> None:
    """Wait for a run to end and print its result."""

    async def work() -> RunView:
        view = await wait_run(await connect(), run_id, timeout)
        if view is None:
            raise CommandError(f"{run_id} has not ended after {timeout:g} s; it goes on", TIMEOUT)
        return view

    _finish(execute(work()), as_json)


@app.command()
def show(run_id: RunId, as_json: Json = False) -> None:
    """Show a run as it stands: Requests, calls, state and result."""

    async def work() -> RunView:
        return await fetch_run(await connect(), run_id)

    view = execute(work())
    if as_json:
        print(dumps(view.result().as_json()))
    else:
        print_run(Console(), view)


@app.command()
def watch(run_id: RunId) -> None:
    """Show a run live until it ends."""

    async def work() -> RunView:
        client = await connect()
        await fetch_run(client, run_id)
        return await _watch(client, run_id)

    _finish(execute(work()), as_json=False)


@app.command()
def cancel(run_id: RunId) -> None:
    """Cancel a run: its model stream, its running tools, and the run itself."""

    async def work() -> str:
        client = await connect()
        view = await fetch_run(client, run_id)
        if view.status != "running":
            raise CommandError(f"{run_id} has already ended: {view.status}")
        await client.get_workflow_handle(run_id).cancel()
        return f"{run_id}: cancellation requested"

    print(execute(work()))


@app.command("list")
def list_command(
    limit: Annotated[int, typer.Option(help="Runs to print at most, newest first.")] = 20, as_json: Json = False
) -> None:
    """List runs, newest first."""

    async def work() -> list[dict[str, Any]]:
        return await list_runs(await connect(), limit)

    rows = execute(work())
    if as_json:
        print(dumps(rows))
        return
    table = Table(box=None, header_style="dim")
    for title in ("run", "status", "started", "ended"):
        table.add_column(title, no_wrap=title == "run")
    for row in rows:
        table.add_row(row["runId"], row["status"], _local(row["startedAt"]), _local(row["endedAt"]))
    Console().print(table if rows else "no runs")


@app.command()
def dev(
    port: Annotated[int, typer.Option(help="The server's port.")] = 7233,
    ui_port: Annotated[int, typer.Option(help="The Web UI's port.")] = 8233,
    db: Annotated[
        str | None, typer.Option(help="A file to keep runs in; without one they are gone at the end.")
    ] = None,
    tools: Annotated[str, typer.Option(envvar="PERDURE_TOOLS", help="Modules with tools, comma-separated.")] = "",
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """An embedded Temporal server with its Web UI, and a worker, until Ctrl-C."""
    from cli.dev import serve_dev  # the server and the worker are not needed by any other command

    execute(serve_dev(port=port, ui_port=ui_port, db=db, tools=tools, task_queue=task_queue))


@app.command()
def demo(
    stay: Annotated[bool, typer.Option("--stay", help="Keep the server and the Web UI up until Ctrl-C.")] = False,
    model: Annotated[str, typer.Option(help="'scripted' needs no key; 'live' asks OPENAI_BASE_URL.")] = "scripted",
    ui_port: Annotated[int, typer.Option(help="The Web UI's port; 0 takes a free one.")] = 0,
) -> None:
    """The whole thing on this machine, with no account and no key."""
    from cli.demo import run_demo

    execute(run_demo(stay=stay, model=model, ui_port=ui_port))


async def _watch(client: Client, run_id: str) -> RunView:
    view = RunView(run_id=run_id)
    with Live(console=Console(), refresh_per_second=8, transient=False) as live:
        async for view in watch_run(client, run_id):
            live.update(run_table(view))
    print()
    return view


def _finish(view: RunView, as_json: bool) -> None:
    """Print a result and leave with its exit code."""
    if as_json:
        print(dumps(view.result().as_json()))
    else:
        print_result(Console(), view)
    raise SystemExit(0 if view.status == "completed" else FAILED)


def _local(time: str | None) -> str:
    return "" if time is None else datetime.fromisoformat(time).astimezone().strftime("%Y-%m-%d %H:%M:%S")
