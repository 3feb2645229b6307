"""`perdure events`: what happens in a run or a session, as it happens (R10.14)."""

from __future__ import annotations

import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.execute import connected
from perdure.cli.following.telling import Telling
from perdure.cli.viewing.console import screen
from perdure.values.jsons import dumps

if TYPE_CHECKING:
    from perdure.client.perdure import Perdure

events_app = typer.Typer()


@events_app.command("events")
def events(
    id: Annotated[str, typer.Argument(metavar="ID", help="A run's id, or a session's key or id.")],
    from_: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="CURSOR", help="Behind the event with this cursor; now: only what happens from now on."
        ),
    ] = None,
    topics: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these, e.g. assistant,tool; all are in docs/events.md.")
    ] = None,
    tenant: Annotated[str, typer.Option(metavar="NAME", help="Whose session it is.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON for each; in a pipe too.")] = False,
) -> None:
    """Tell what happens in a run or a session, and what has happened before, until it has ended."""
    names = None if topics is None else [name.strip() for name in topics.split(",") if name.strip()]

    async def follow(perdure: Perdure) -> None:
        telling = None if as_json or not sys.stdout.isatty() else Telling(screen())
        try:
            async with aclosing(perdure.events(id, from_, names, tenant=tenant)) as found:
                async for event in found:
                    if telling is None:
                        print(dumps(event.as_json()), flush=True)
                    else:
                        telling.tell(event)
        finally:
            if telling is not None:
                telling.rest()

    connected(follow)
