"""`perdure demo`: an agent on this machine that plans, runs its plan, corrects itself after a failure, and completes."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.resources import files
from pathlib import Path

from openai import AsyncOpenAI
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from perdure.activities.registry import Registry, load_tools
from perdure.agents.agent import Agent
from perdure.approvals.requests import WaitingView
from perdure.cli._console import get_console, next_key
from perdure.cli._execute import FAILED, INTERRUPTED, USAGE, CommandError
from perdure.cli._gateway import gateway
from perdure.cli._run_view import LiveRun, print_result, run_table
from perdure.client.perdure import Perdure
from perdure.client.run import Run
from perdure.demo.scenario import SCRIPT, write_files
from perdure.hosting.process import until_interrupted
from perdure.hosting.server import embedded_server, free_port
from perdure.hosting.settings import Settings, replace_settings
from perdure.hosting.worker import build_worker
from perdure.runs.wire import RunView
from perdure.testing.scripted_model import Pace, ScriptedModel
from perdure.values.json import dumps, loads

TASK = "The disk is filling up. Sort it out."
PACE = Pace(first_token=0.4, per_token=0.004)
"""The pace of a model of medium speed, so that a person can follow."""


async def run_demo(*, stay: bool, model: str, ui_port: int, yes: bool) -> None:
    """Run the demo; with `yes`, without questions. Raises `CommandError` if the run does not complete."""
    console = get_console()
    ui_port = ui_port or free_port()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="perdure-demo-")))
        write_files(folder)
        client_of_model = await stack.enter_async_context(_model(model, console))
        server = await stack.enter_async_context(embedded_server(ui_port=ui_port))
        settings = replace_settings(
            Settings.model_construct(), {"gateway_port": 0, "web_ui": f"http://localhost:{ui_port}"}
        )
        await stack.enter_async_context(
            build_worker(server.client, _registry(), model=client_of_model, tools_only=False)
        )
        perdure = Perdure(server.client)
        pages = await stack.enter_async_context(gateway(perdure, settings, quiet=True))
        before = _size(folder)
        console.print(f"task    {TASK}\nfolder  {folder} ({before / 1e6:.1f} MB of real files)")
        if not yes and not sys.stdin.isatty():
            console.print("stdin is not a terminal: calls that wait for a person are approved, as with --yes")
            yes = True
        view = await _run(perdure, folder, ui_port, console, yes=yes)
        print_result(console, view)
        console.print(f"The folder shrank by {before - _size(folder):,} bytes.", style="bold green")
        console.print(Text(f"Its page  {pages}/runs/{view.run_id}"), soft_wrap=True)
        if stay:
            console.print("The page and the Web UI run until Ctrl-C.")
            await until_interrupted()
        else:
            console.print("The page ends with the demo. `make demo ARGS=--stay` keeps it running.")
    if view.status != "completed":
        raise CommandError(f"the demo's run ended as {view.status}", FAILED)


async def _run(perdure: Perdure, folder: Path, ui_port: int, console: Console, *, yes: bool) -> RunView:
    document = loads(files("perdure.demo").joinpath("agents/devops.json").read_bytes(), source="devops.json")
    run = await perdure.start(Agent.of(document), {"request": TASK, "folder": str(folder)})
    execution = (await run.handle.describe()).run_id
    address = f"http://localhost:{ui_port}/namespaces/default/workflows/{run.id}/{execution}"
    console.print(Text(f"Web UI  {address}\n"), soft_wrap=True)
    view = RunView(run_id=run.id)
    with LiveRun(console) as live:
        async for view in run.views():
            live.show(view)
            for request in view.waiting:
                live.pause()
                await _answer(run, request, console, yes=yes)
                live.go_on()
    console.print(run_table(view, console.width))
    return view


async def _answer(run: Run, request: WaitingView, console: Console, *, yes: bool) -> None:
    """Ask the person at the terminal about a dangerous call. The run waits meanwhile, for days if necessary."""
    console.print(
        Panel(
            dumps(request.params),
            title=f"{request.call} {request.tool} waits for your decision: {request.reason}",
            style="yellow",
        )
    )
    key = "a" if yes else ""
    if not yes:
        console.print("[a]pprove or [r]eject?", style="bold", markup=False)
    while key not in ("a", "r"):
        key = await next_key() or "q"
        if key in ("q", "\x04"):
            raise CommandError(f"{request.call} got no decision: the demo's run has ended", INTERRUPTED)
        if key not in ("a", "r"):
            console.print(
                f"{key!r} is not a valid key. Use one of: a (approve), r (reject), q (leave the demo)", markup=False
            )
    if key == "a":
        await run.approve(request, by="the demo's user")
    else:
        await run.reject(request, by="the demo's user")
    console.print("approved\n" if key == "a" else "rejected\n")


@asynccontextmanager
async def _model(kind: str, console: Console) -> AsyncIterator[AsyncOpenAI | None]:
    """Yield the scripted model behind the official client, or `None` for the worker's own settings."""
    if kind == "live":
        if not os.environ.get("OPENAI_API_KEY"):
            raise CommandError(
                "--model live needs a real model: set OPENAI_API_KEY (and OPENAI_BASE_URL for your own server)", USAGE
            )
        console.print("model   live, from OPENAI_BASE_URL and OPENAI_API_KEY")
        yield None
    elif kind == "scripted":
        async with ScriptedModel(SCRIPT, pace=PACE, strict=False) as scripted:
            console.print(
                f"model   scripted: a small server at {scripted.base_url} answers from a script; no data leaves this machine"
            )
            yield AsyncOpenAI(base_url=scripted.base_url, api_key="scripted", max_retries=0)
    else:
        raise CommandError(f"--model: {kind!r} is not one of scripted, live", USAGE)


def _registry() -> Registry:
    return load_tools(["perdure.demo.tools"])


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
