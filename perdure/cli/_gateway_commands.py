"""`perdure token` and `perdure trigger`: the gateway's tokens, and the webhooks that it accepts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from perdure.cli._console import screen, table
from perdure.cli._execute import FAILED, USAGE, CommandError, Context, Json, context_option, one_line_errors
from perdure.cli._help import Commands
from perdure.cli._options import configured
from perdure.hosting.settings import Settings
from perdure.runs.caller_context import masked_context
from perdure.values.json import dumps

token_app = Commands(no_args_is_help=True, help="Tokens of the gateway: each has a sender, a tenant and rights.")
trigger_app = Commands(no_args_is_help=True, help="Triggers: signed webhooks that start runs or send messages.")
_FILE: Final = {"gateway_tokens": "--tokens"}


@token_app.command("new")
@configured(flags=_FILE)
def new(
    settings: Settings,
    sender: Annotated[
        str,
        typer.Argument(metavar="SENDER", help="The person or program that uses it, as runs and decisions record it."),
    ],
    tenant: Annotated[str, typer.Option(metavar="NAME", help="The tenant whose runs and sessions they see.")] = "",
    rights: Annotated[str, typer.Option(metavar="A,B,…", help="Their rights; * is all of them.")] = "read,send",
    roles: Annotated[str, typer.Option(metavar="A,B,…", help="Their roles, for approvals that need a quorum.")] = "",
    days: Annotated[float | None, typer.Option(min=0, help="Days until it expires; by default it does not.")] = None,
    context: Context = None,
    as_json: Json = False,
) -> None:
    """Create a token, print it, and write its digest to the file. It is printed only once. To change a token that is in use,
    create another for the same sender, and revoke the old one when nobody uses it any more."""
    from perdure.gateway.tokens import (  # part of the web server, which other commands do not need
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
        screen(stderr=True).print(
            f"its id is {entry.id}; store it now: {path} has only its digest", soft_wrap=True, markup=False
        )


@token_app.command("list")
@configured(flags=_FILE)
def list_tokens(settings: Settings, as_json: Json = False) -> None:
    """List the tokens of the file: ids, senders, tenants and rights."""
    from perdure.gateway.tokens import read_tokens

    with one_line_errors():
        entries = read_tokens(_file(settings))
    if as_json:
        shown = [entry.model_copy(update={"context": masked_context(entry.context)}) for entry in entries]
        print(dumps([entry.model_dump(mode="json", exclude={"sha256"}) for entry in shown]))
        return
    console = screen()
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
        table(
            ("id", "tenant", "sender", "rights", "roles", "until"),
            rows,
            console.width,
            gives=("rights",),
            drops=("roles",),
        )
    )


@token_app.command("revoke")
@configured(flags=_FILE)
def revoke(settings: Settings, id: Annotated[str, typer.Argument(metavar="ID", help="The token's id.")]) -> None:
    """Remove a token from the file. Within a second the gateway rejects it, and the sign-ins that were made with it."""
    from perdure.gateway.tokens import read_tokens, write_tokens

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
@configured("agents")
def check_triggers(
    settings: Settings,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file of triggers.")],
) -> None:
    """Check a file of triggers, with its secrets and agents: a line for each fault. No secret is printed."""
    from perdure.gateway.triggers import trigger_faults  # part of the web server, which other commands do not need

    with one_line_errors():
        found, faults = trigger_faults(file, settings.agents_folder)
        if faults:
            raise CommandError(f"{file} has faults", USAGE, [f"{file}: {fault}" for fault in faults])
    console = screen()
    rows = [
        [name, each.scheme, each.agent, ", ".join(each.on) or "every event", "message" if each.session else "run"]
        for name, each in sorted(found.items())
    ]
    console.print(table(("trigger", "scheme", "agent", "on", "gives"), rows, console.width, gives=("agent", "on")))
