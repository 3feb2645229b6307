"""`perdure standing`: approvals of coming runs of a procedure (R23.3)."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.agents.files import read_agent
from perdure.agents.json_files import json_option
from perdure.cli._console import harmless, screen, table
from perdure.cli._errors import USAGE, CommandError, one_line_errors
from perdure.cli._execute import Json, connected
from perdure.cli._help import Commands
from perdure.cli._options import configured, local_user
from perdure.hosting.settings import Settings
from perdure.runs.standing_approvals import STANDING_SHARED, StandingApproval
from perdure.values.json import dumps, shorten

_HELP = "Standing approvals: what a person has approved of a procedure's coming runs."
standing_app = Commands(no_args_is_help=True, help=_HELP)
Tenant = Annotated[str, typer.Option("--tenant", metavar="NAME", help="The tenant; default: no tenant.")]


@standing_app.command("grant")
@configured("agents")
def grant(
    settings: Settings,
    procedure: Annotated[
        str, typer.Argument(metavar="PROCEDURE", help="Its name in the folder of agents, or its file.")
    ],
    uses: Annotated[int, typer.Option("--uses", min=1, help="The most runs.")],
    until: Annotated[str, typer.Option("--until", metavar="DATE", help="The last day, such as 2026-12-31, or a time.")],
    bounds: Annotated[
        str | None,
        typer.Option("--bounds", metavar="JSON|@FILE", help="JSON Schema of the input; by default any input."),
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="SOURCE",
            help="Where values may come from: trusted (the default), user, tool:NAME, …; may be repeated.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="By default the procedure's.")] = None,
    reason: Annotated[str, typer.Option(help="For the record.")] = "",
    by: Annotated[str, typer.Option("--by", envvar="USER", help="Who grants it, for the record.")] = "",
    tenant: Tenant = "",
    as_json: Json = False,
) -> None:
    """Approve coming runs of a procedure. A run uses it where its calls would ask a person, as long as it follows the plan."""
    with one_line_errors():
        from perdure.agents.agent import Agent  # imported here, so that a mistyped command fails fast

        limits = (
            {} if bounds is None else json_option(bounds, "--bounds", '{"properties": {"euros": {"maximum": 100}}}')
        )
        if not isinstance(limits, dict):
            raise CommandError(f"--bounds must be a JSON Schema, an object, not {shorten(limits, 60)}", USAGE)
        agent = Agent.of(read_agent(procedure, settings.agents_folder)[1])
    granted = connected(
        lambda perdure: perdure.grant_standing_approval(
            agent,
            uses=uses,
            until=until,
            by=by or local_user(),
            bounds=limits,
            sources=source or ["trusted"],
            name=name,
            reason=reason,
            tenant=tenant,
        )
    )
    if as_json:
        print(dumps(granted.as_json()))
    else:
        print(f"{granted.name}: {granted.uses:,} runs of {granted.procedure} until {granted.until} (UTC)")


@standing_app.command("list")
def list_standing(tenant: Tenant = "", as_json: Json = False) -> None:
    """List the standing approvals of a tenant, the newest first, with their uses."""
    found = connected(lambda perdure: perdure.standing_approvals(tenant=tenant))
    if as_json:
        print(dumps([each.as_json() for each in found]))
    elif not found:
        print("the tenant has no standing approval")
    else:
        console = screen()
        titles = ("name", "procedure", "status", "runs", "until", "granted", "bounds", "from")
        rows = [_row(each) for each in found]
        console.print(table(titles, rows, console.width, gives=("bounds", "from"), drops=("from", "bounds")))


@standing_app.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the standing approval.")],
    by: Annotated[str, typer.Option("--by", envvar="USER", help="Who revokes it, for the record.")] = "",
    tenant: Tenant = "",
    as_json: Json = False,
) -> None:
    """Revoke a standing approval. Later calls wait for a person, also in runs that use it."""
    revoked = connected(lambda perdure: perdure.revoke_standing_approval(name, by=by or local_user(), tenant=tenant))
    words = f"Calls that begin in the next {STANDING_SHARED:g} seconds may still use it"
    print(dumps(revoked.as_json()) if as_json else f"{revoked.name}: revoked after {revoked.used:,} runs. {words}")


def _row(each: StandingApproval) -> tuple[str, ...]:
    return (
        each.name,
        harmless(each.procedure),
        harmless(f"revoked by {each.revoked_by}") if each.revoked_by else each.status,
        f"{each.used:,} of {each.uses:,}",
        each.until[:16].replace("T", " "),
        f"{harmless(each.by)}, {each.granted_at[:10]}",
        shorten(each.bounds, 60) if each.bounds else "",
        ", ".join(each.sources),
    )
