"""`perdure worker`, `serve`, `dev`, `codec-server` and `demo`, which run until they are stopped; tokens and triggers of the gateway."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from perdure.cli._console import get_console, make_table
from perdure.cli._execute import FAILED, USAGE, CommandError, Context, Json, context_option, execute, one_line_errors
from perdure.cli._help import Commands
from perdure.cli._options import DEV, SERVE, WORKER, Port, with_settings
from perdure.hosting.settings import Settings
from perdure.runs.caller_context import masked_context
from perdure.values.json import dumps

servers_app = Commands()


@servers_app.command()
@with_settings(*WORKER)
def worker(settings: Settings) -> None:
    """Run a Perdure worker. Connection settings are Temporal's own: TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, profiles, …"""
    from perdure.hosting.worker import serve  # only this command needs a model's client and Temporal's worker

    execute(lambda: serve(settings))


@servers_app.command()
@with_settings("agents", "task_queue", "tools", "wait", "log_format", "log_level", "log_payloads", flags=SERVE)
def serve(settings: Settings) -> None:
    """Serve the gateway, the HTTP API of agents, sessions and runs, until Ctrl-C. Several gateways may run in parallel."""
    from perdure.cli._gateway import serve as serve_gateway  # a web server is not needed by any other command

    execute(lambda: serve_gateway(settings))


@servers_app.command()
@with_settings(
    *DEV, *SERVE, flags={"dev_port": "--port", "dev_ui_port": "--ui-port", "dev_db": "--db", "dev_reload": "--reload"}
)
def dev(settings: Settings) -> None:
    """Run an embedded Temporal server with its Web UI, a worker and the gateway, until Ctrl-C."""
    from perdure.cli._gateway import serve_dev  # only this command needs the server and the worker

    execute(lambda: serve_dev(settings))


@servers_app.command("codec-server")
@with_settings(flags={"codec_token": "--token", "codec_origin": "--origin"})
def codec_server(
    settings: Settings,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Port = 8081,
) -> None:
    """Decode values of PERDURE_CODEC for Temporal's Web UI and command line, until Ctrl-C."""
    from perdure.pages.adapter import serve_codec  # a web server is not needed by any other command

    execute(lambda: serve_codec(host=host, port=port, token=settings.codec_token, origin=settings.codec_origin))


@servers_app.command()
@with_settings(flags={"dev_ui_port": "--ui-port"})
def demo(
    settings: Settings,
    yes: Annotated[bool, typer.Option("--yes", help="Approve calls that wait for a person.")] = False,
    stay: Annotated[bool, typer.Option("--stay", help="Keep the server and the Web UI running until Ctrl-C.")] = False,
    model: Annotated[str, typer.Option(help="'scripted' needs no key; 'live' uses OPENAI_BASE_URL.")] = "scripted",
) -> None:
    """Run the demo on this machine: a server, a worker and an agent. It needs no account and no key. The Web UI uses a free port by default."""
    from perdure.cli.demo import run_demo

    ui_port = settings.dev_ui_port if settings.sources.get("dev_ui_port") == "--ui-port" else 0
    execute(lambda: run_demo(stay=stay, model=model, ui_port=ui_port, yes=yes))


token_app = Commands(no_args_is_help=True, help="The gateway's tokens: each has a sender, a tenant and rights.")
trigger_app = Commands(no_args_is_help=True, help="Triggers: signed webhooks that start runs or send messages.")
_FILE: Final = {"gateway_tokens": "--tokens"}


@token_app.command("new")
@with_settings(flags=_FILE)
def new(
    settings: Settings,
    sender: Annotated[
        str,
        typer.Argument(
            metavar="SENDER", help="The person or program that uses the token. Runs and decisions record it."
        ),
    ],
    tenant: Annotated[
        str, typer.Option(metavar="NAME", help="The tenant whose runs and sessions the token gives access to.")
    ] = "",
    rights: Annotated[str, typer.Option(metavar="A,B,…", help="The token's rights; * means all rights.")] = "read,send",
    roles: Annotated[
        str, typer.Option(metavar="A,B,…", help="The sender's roles, for approvals that need a quorum.")
    ] = "",
    days: Annotated[
        float | None, typer.Option(min=0, help="The days until the token expires; by default it does not expire.")
    ] = None,
    context: Context = None,
    as_json: Json = False,
) -> None:
    """Create a token, print it once, and write its digest to the file. To change a token in use, create a second one for
    the same sender, and revoke the first when it is no longer used."""
    from perdure.gateway.callers import (  # part of the web server, which other commands do not need
        new_token,
        read_tokens,
        write_tokens,
    )

    with one_line_errors():
        path = _file(settings)
        names, own = ([each.strip() for each in text.split(",") if each.strip()] for text in (rights, roles))
        expires = None if days is None else datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
        token, entry = new_token(tenant, sender, names, expires, context_option(context), own)
        write_tokens(path, [*(read_tokens(path) if path.exists() else []), entry])
    if as_json:
        print(dumps({"id": entry.id, "token": token}))
    else:
        print(token)
        get_console(stderr=True).print(
            f"its id is {entry.id}; store the token now: {path} has only its digest", soft_wrap=True, markup=False
        )


@token_app.command("list")
@with_settings(flags=_FILE)
def list_tokens(settings: Settings, as_json: Json = False) -> None:
    """List the file's tokens: ids, senders, tenants and rights."""
    from perdure.gateway.callers import read_tokens

    with one_line_errors():
        entries = read_tokens(_file(settings))
    if as_json:
        shown = [entry.model_copy(update={"context": masked_context(entry.context)}) for entry in entries]
        print(dumps([entry.model_dump(mode="json", exclude={"sha256"}) for entry in shown]))
        return
    console = get_console()
    rows = [
        [
            each.id,
            each.tenant,
            each.sender,
            ",".join(each.rights),
            ",".join(each.roles),
            each.expires.isoformat() if each.expires else "",
        ]
        for each in entries
    ]
    console.print(
        make_table(
            ("id", "tenant", "sender", "rights", "roles", "until"),
            rows,
            console.width,
            shrinkable=("rights",),
            droppable=("roles",),
        )
    )


@token_app.command("revoke")
@with_settings(flags=_FILE)
def revoke(settings: Settings, id: Annotated[str, typer.Argument(metavar="ID", help="The token's id.")]) -> None:
    """Remove a token from the file. Within a second the gateway rejects the token and its sign-ins."""
    from perdure.gateway.callers import read_tokens, write_tokens

    with one_line_errors():
        path = _file(settings)
        entries = read_tokens(path)
        kept = [entry for entry in entries if entry.id != id]
        if len(kept) == len(entries):
            raise CommandError(f"{path} has no token with the id {id!r}", FAILED)
        write_tokens(path, kept)


def _file(settings: Settings) -> Path:
    if settings.gateway_tokens is None:
        raise CommandError(
            "the file of tokens is not set: give --tokens FILE, or set gateway_tokens in perdure.toml", USAGE
        )
    return settings.gateway_tokens


@trigger_app.command("check")
@with_settings("agents")
def check_triggers(
    settings: Settings, file: Annotated[Path, typer.Argument(metavar="FILE", help="The file of triggers.")]
) -> None:
    """Check a file of triggers, its secrets and its agents. Print each fault on a line; never print a secret."""
    from perdure.gateway.triggers import trigger_faults  # part of the web server, which other commands do not need

    with one_line_errors():
        found, faults = trigger_faults(file, settings.agents_folder)
        if faults:
            raise CommandError(f"{file} has faults", USAGE, [f"{file}: {fault}" for fault in faults])
    console = get_console()
    rows = [
        [name, each.scheme, each.agent, ", ".join(each.on) or "every event", "message" if each.session else "run"]
        for name, each in sorted(found.items())
    ]
    console.print(
        make_table(("trigger", "scheme", "agent", "on", "gives"), rows, console.width, shrinkable=("agent", "on"))
    )
