"""`perdure promote`."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from perdure.agents.files import write_procedure
from perdure.cli._console import harmless
from perdure.cli._errors import USAGE, CommandError, one_line_errors
from perdure.cli._execute import Json, connected
from perdure.cli._help import Commands
from perdure.cli._options import configured
from perdure.hosting.settings import Settings
from perdure.runs.procedures import Procedure
from perdure.values.json import dumps, shorten

procedures_app = Commands()


@procedures_app.command()
@configured("agents")
def promote(
    settings: Settings,
    runs: Annotated[list[str], typer.Argument(metavar="ID…", help="A completed run; with --like several.")],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Of the procedure: its file, and its tool.")],
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter",
            metavar="INPUT=R.N.PATH",
            help="A literal that becomes an input: euros=1.2.euros. Repeatable.",
        ),
    ] = None,
    like: Annotated[
        bool, typer.Option("--like", help="Literals in which the plans of these runs differ become the inputs.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Write the next version of an existing procedure.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Write the plan of a completed run as an agent file that makes the same calls without a model. Chosen literals become its inputs."""
    with one_line_errors():
        chosen = _parameters(parameter or [])
        if like and (len(runs) < 2 or chosen):
            raise CommandError("--like takes two or more runs, and no --parameter", USAGE)
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
    _print(procedure)


def _parameters(written: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in written:
        name, sign, place = each.partition("=")
        if not sign or not name or not place:
            raise CommandError(f"--parameter {each[:80]}: expected INPUT=R.N.PATH, such as euros=1.2.euros", USAGE)
        found.setdefault(name, []).append(place)
    return found


def _print(procedure: Procedure) -> None:
    """Print the inputs and the frozen literals to stderr, for the person who must agree with them."""
    lines = [f"digest {procedure.digest}"]
    for name, value in procedure.inputs.items():
        lines.append(f"input {name}: {shorten(value, 60)} in the run, at {', '.join(procedure.places[name])}")
    lines += [f"frozen {place}: {shorten(value, 60)}" for place, value in procedure.frozen.items()]
    lines += [f"note: {note}" for note in procedure.notes]
    for line in lines:
        print(harmless(line), file=sys.stderr)
