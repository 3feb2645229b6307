"""Options by which runs are chosen, and the question before something is done to many."""

from __future__ import annotations

import sys
from typing import Annotated

import click
import typer

from perdure.cli.errors import USAGE, CommandError
from perdure.client.selection import Selection

Agent = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Runs of this agent.")]
Since = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="TIME", help="Started, or gone on as new, since: 90min, 2h, 3d ago, or 2026-01-31T08:00."
    ),
]
Sender = Annotated[str | None, typer.Option("--sender", metavar="NAME", help="Started for this sender.")]
Tenant = Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Started for this tenant.")]
Query = Annotated[str | None, typer.Option("--query", metavar="QUERY", help="More, in Temporal's list filters.")]
All = Annotated[bool, typer.Option("--all", help="All that run.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]
OneRun = Annotated[str | None, typer.Argument(metavar="[ID]", help="The run's id; or choose many by options.")]


def running(
    agent: str | None, since: str | None, sender: str | None, tenant: str | None, query: str | None, *, everything: bool
) -> Selection | None:
    """The running runs that the options choose, without those of delegates, which follow them; `None`: nothing was said.

    Raises `CommandError` where both all and some are asked for.
    """
    chosen = Selection(agent, "running", since, sender, tenant, query=query, outermost=True)
    some = (agent, since, sender, tenant, query) != (None,) * 5
    if some and everything:
        raise CommandError("--all is all of them: leave the other options out, or leave it out", USAGE)
    return chosen if some or everything else None


def one_or_many(run_id: str | None, chosen: Selection | None) -> None:
    """Raises `CommandError` unless either a run or many were chosen."""
    if (run_id is None) == (chosen is None):
        raise CommandError(
            "give a run's id, or choose many by --agent, --since, --sender, --tenant, --query, --all", USAGE
        )


def confirm(count: int, what: str, *, yes: bool) -> bool:
    """Whether to go on with so many; asks on a terminal. Raises `CommandError` where nobody can be asked."""
    if count == 0 or yes:
        return count > 0
    runs = f"{count:,} run{'s' if count > 1 else ''}"
    if not sys.stdin.isatty():
        raise CommandError(f"{runs} match, and nothing was done: to {what} them say --yes", USAGE)
    if not click.confirm(f"{what} {runs}?", err=True):
        raise CommandError("nothing was done")
    return True
