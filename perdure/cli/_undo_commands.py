"""`perdure undo`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import Console

from perdure.cli._console import harmless, screen, table
from perdure.cli._errors import FAILED
from perdure.cli._execute import Json, RunId, connected
from perdure.cli._help import Commands
from perdure.cli._options import local_user
from perdure.cli._run_view import started_and_shown
from perdure.runs.undo import Effect, UndoPlan
from perdure.values.json import dumps, shorten

undo_app = Commands()


@undo_app.command()
def undo(
    run_id: RunId,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="R.N", help="Only this call, all that depends on it, and the calls of later Requests."
        ),
    ] = None,
    no_effect: Annotated[
        list[str] | None,
        typer.Option(
            "--no-effect", metavar="R.N", help="A call of unknown outcome that took no effect. May be repeated."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be undone and what stays.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    by: Annotated[str, typer.Option("--by", envvar="USER", help="Who asks for it, for the record.")] = "",
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Start it and print its id.")] = False,
    as_json: Json = False,
) -> None:
    """Take back what a run that has ended has done, in the reverse order of its data flow. Calls without an undo stay.

    An undo is a run of its own, under the policies of the first one. An undo that fails keeps back the calls that it depends on; independent calls are undone. The same command goes on.
    """
    settled = no_effect or []
    if dry_run or not yes:
        plan = connected(lambda perdure: perdure.get_run(run_id).undo_plan(to=to, no_effect=settled))
        if as_json:
            print(dumps(plan.as_json()), file=sys.stdout if dry_run else sys.stderr)
        else:
            print_plan(screen(stderr=not dry_run), plan)
        if dry_run:
            return
        if plan.undoes and not typer.confirm(f"undo {len(plan.undoes)} calls of {run_id}?", err=True):
            raise SystemExit(FAILED)

    started_and_shown(
        lambda perdure: perdure.get_run(run_id).undo(to=to, no_effect=settled, by=by or local_user()),
        lambda started: f"perdure: undone by {started}",
        no_wait=no_wait,
        as_json=as_json,
    )


def print_plan(console: Console, plan: UndoPlan) -> None:
    """Print the calls that an undo takes back, in order, and the calls that stay."""
    print_effects(console, [*plan.undoes, *plan.waits, *plan.cannot], {each.call for each in plan.undoes})
    if plan.left:
        console.print(f"{plan.left:,} more are left for the next undo")
    if not plan.undoes:
        console.print("nothing can be undone now")


def print_effects(console: Console, effects: Iterable[Effect], undoes: Iterable[str] = ()) -> None:
    """Print a table of effects. Effects that are undone now have `undoes` in place of their status."""
    now = set(undoes)
    rows = [
        (
            each.call,
            each.tool,
            "will be undone" if each.call in now else each.status,
            f"{each.undo}({shorten(each.params, 80)})" if each.params else ", ".join(each.below) or each.undo,
            harmless(each.reason),
        )
        for each in effects
    ]
    if rows:
        console.print(table(("call", "tool", "effect", "undo", "why"), rows, console.width, gives=("why", "undo")))
