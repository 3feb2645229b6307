"""`perdure worker`, `serve`, `dev`, `codec-server` and `demo`: programs that run until they are stopped."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli._execute import execute
from perdure.cli._help import Commands
from perdure.cli._options import DEV, SERVE, WORKER, configured
from perdure.hosting.settings import Settings

servers_app = Commands()


@servers_app.command()
@configured(*WORKER)
def worker(settings: Settings) -> None:
    """Run a Perdure worker. Connection settings are Temporal's own: TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, profiles, …"""
    from perdure.hosting.worker import (
        serve,  # only this command needs a model's client and Temporal's worker
    )

    execute(lambda: serve(settings))


@servers_app.command()
@configured("agents", "task_queue", "tools", "wait", "log_format", "log_level", "log_payloads", flags=SERVE)
def serve(settings: Settings) -> None:
    """Serve the gateway: HTTP in front of agents, sessions and runs, until Ctrl-C. Any number of them may run side by side."""
    from perdure.cli._gateway import serve as serve_gateway  # a web server is not needed by any other command

    execute(lambda: serve_gateway(settings))


@servers_app.command()
@configured(
    *DEV, *SERVE, flags={"dev_port": "--port", "dev_ui_port": "--ui-port", "dev_db": "--db", "dev_reload": "--reload"}
)
def dev(settings: Settings) -> None:
    """Run an embedded Temporal server with its Web UI, a worker and the gateway, until Ctrl-C."""
    from perdure.cli._gateway import serve_dev  # only this command needs the server and the worker

    execute(lambda: serve_dev(settings))


@servers_app.command("codec-server")
@configured(flags={"codec_token": "--token", "codec_origin": "--origin"})
def codec_server(
    settings: Settings,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.")] = 8081,
) -> None:
    """Show what PERDURE_CODEC encrypts in Temporal's Web UI and command line, until Ctrl-C."""
    from perdure.pages.serve import serve_codec  # a web server is not needed by any other command

    execute(lambda: serve_codec(host=host, port=port, token=settings.codec_token, origin=settings.codec_origin))


@servers_app.command()
@configured(flags={"dev_ui_port": "--ui-port"})
def demo(
    settings: Settings,
    yes: Annotated[bool, typer.Option("--yes", help="Approve what waits for a person.")] = False,
    stay: Annotated[bool, typer.Option("--stay", help="Keep the server and the Web UI up until Ctrl-C.")] = False,
    model: Annotated[str, typer.Option(help="'scripted' needs no key; 'live' asks OPENAI_BASE_URL.")] = "scripted",
) -> None:
    """Run the demo on this machine: a server, a worker and an agent. It needs no account and no key. The Web UI takes a free port unless you name one."""
    from perdure.cli.demo import run_demo

    ui_port = settings.dev_ui_port if settings.sources.get("dev_ui_port") == "--ui-port" else 0
    execute(lambda: run_demo(stay=stay, model=model, ui_port=ui_port, yes=yes))
