"""`perdure promote` writes procedures; `perdure standing` approves their coming runs (R23.3)."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from perdure.agents.files import read_agent, write_procedure
from perdure.agents.json_files import json_option
from perdure.cli._console import get_console, make_table, strip_control_characters
from perdure.cli._execute import USAGE, CommandError, Json, connected, one_line_errors
from perdure.cli._help import Commands
from perdure.cli._options import local_user, with_settings
from perdure.errors import pluralize
from perdure.hosting.settings import Settings
from perdure.runs.procedures import Procedure
from perdure.runs.standing_approvals import STANDING_SHARED, StandingApproval
from perdure.values.json import dumps, shorten

procedures_app = Commands()


@procedures_app.command()
@with_settings("agents")
def promote(
    settings: Settings,
    runs: Annotated[list[str], typer.Argument(metavar="ID…", help="A completed run; with --like, several runs.")],
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="The procedure's name: of its file and of its tool.")
    ],
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter",
            metavar="INPUT=R.N.PATH",
            help="A literal that becomes an input: euros=1.2.euros. May be repeated.",
        ),
    ] = None,
    like: Annotated[
        bool, typer.Option("--like", help="Make inputs of the literals that differ between the runs' plans.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Write the next version of an existing procedure.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Write the plan of a completed run as an agent file that makes the same calls without a model. Selected literals become its inputs."""
    with one_line_errors():
        chosen = _parameters(parameter or [])
        if like and (len(runs) < 2 or chosen):
            raise CommandError("--like needs two or more runs, and cannot be used with --parameter", USAGE)
        if not like and len(runs) > 1:
            raise CommandError("give one run, or several with --like", USAGE)
    first, *others = runs
    procedure = connected(lambda perdure: perdure.get_run(first).promote(name, parameters=chosen, like=others))
    if not dry_run:
        with one_line_errors():
            procedure, path = write_procedure(procedure, settings.agents_folder, replace=replace)
        print(f"{path}: version {procedure.version}", file=sys.stderr)
    if as_json:
        print(dumps(procedure.as_json()))
    elif dry_run:
        print(json.dumps(procedure.agent, ensure_ascii=False, indent=2))
    _print_procedure(procedure)


def _parameters(written: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in written:
        name, sign, place = each.partition("=")
        if not sign or not name or not place:
            raise CommandError(f"--parameter {each[:80]}: expected INPUT=R.N.PATH, such as euros=1.2.euros", USAGE)
        found.setdefault(name, []).append(place)
    return found


def _print_procedure(procedure: Procedure) -> None:
    """Print the inputs and the frozen literals to stderr, for the person who must agree with them."""
    lines = [f"digest {procedure.digest}"]
    for name, value in procedure.inputs.items():
        lines.append(f"input {name}: {shorten(value, 60)} in the run, at {', '.join(procedure.places[name])}")
    lines += [f"frozen {place}: {shorten(value, 60)}" for place, value in procedure.frozen.items()]
    lines += [f"note: {note}" for note in procedure.notes]
    for line in lines:
        print(strip_control_characters(line), file=sys.stderr)


_STANDING_HELP = "Standing approvals: a person's approval of a procedure's coming runs."
standing_app = Commands(no_args_is_help=True, help=_STANDING_HELP)
Tenant = Annotated[str, typer.Option("--tenant", metavar="NAME", help="The tenant; by default no tenant.")]


@standing_app.command("grant")
@with_settings("agents")
def grant(
    settings: Settings,
    procedure: Annotated[
        str, typer.Argument(metavar="PROCEDURE", help="The procedure's name in the agents folder, or its file.")
    ],
    uses: Annotated[int, typer.Option("--uses", min=1, help="The largest number of runs.")],
    until: Annotated[str, typer.Option("--until", metavar="DATE", help="The last day, such as 2026-12-31, or a time.")],
    bounds: Annotated[
        str | None,
        typer.Option("--bounds", metavar="JSON|@FILE", help="A JSON Schema of approved inputs; by default any input."),
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="SOURCE",
            help="An accepted provenance of values: trusted (the default), user, tool:NAME, … May be repeated.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="The standing approval's name; by default the procedure's."),
    ] = None,
    reason: Annotated[str, typer.Option(help="A note. The approval records it.")] = "",
    by: Annotated[str, typer.Option("--by", envvar="USER", help="The person who grants the approval.")] = "",
    tenant: Tenant = "",
    as_json: Json = False,
) -> None:
    """Approve coming runs of a procedure. The approval covers a run's calls as long as the run follows the plan."""
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
        print(f"{granted.name}: {pluralize(granted.uses, 'run')} of {granted.procedure} until {granted.until} (UTC)")


@standing_app.command("list")
def list_standing(tenant: Tenant = "", as_json: Json = False) -> None:
    """List a tenant's standing approvals with their uses, newest first."""
    found = connected(lambda perdure: perdure.standing_approvals(tenant=tenant))
    if as_json:
        print(dumps([each.as_json() for each in found]))
    elif not found:
        print("the tenant has no standing approval")
    else:
        console = get_console()
        titles = ("name", "procedure", "status", "runs", "until", "granted", "bounds", "from")
        rows = [_standing_row(each) for each in found]
        console.print(
            make_table(titles, rows, console.width, shrinkable=("bounds", "from"), droppable=("from", "bounds"))
        )


@standing_app.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The standing approval's name.")],
    by: Annotated[str, typer.Option("--by", envvar="USER", help="The person who revokes the approval.")] = "",
    tenant: Tenant = "",
    as_json: Json = False,
) -> None:
    """Revoke a standing approval. Later calls wait for a person, in started runs too."""
    revoked = connected(lambda perdure: perdure.revoke_standing_approval(name, by=by or local_user(), tenant=tenant))
    words = f"Calls that start in the next {STANDING_SHARED:g} seconds may still use it"
    print(
        dumps(revoked.as_json())
        if as_json
        else f"{revoked.name}: revoked after {pluralize(revoked.used, 'run')}. {words}"
    )


def _standing_row(each: StandingApproval) -> tuple[str, ...]:
    return (
        each.name,
        strip_control_characters(each.procedure),
        strip_control_characters(f"revoked by {each.revoked_by}") if each.revoked_by else each.status,
        f"{each.used:,} of {each.uses:,}",
        each.until[:16].replace("T", " "),
        f"{strip_control_characters(each.by)}, {each.granted_at[:10]}",
        shorten(each.bounds, 60) if each.bounds else "",
        ", ".join(each.sources),
    )
