"""`perdure trigger`: signed webhooks that the gateway takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perdure.cli._console import screen, table
from perdure.cli._errors import USAGE, CommandError, one_line_errors
from perdure.cli._help import Commands
from perdure.cli._options import configured
from perdure.hosting.settings import Settings

trigger_app = Commands(no_args_is_help=True, help="Triggers: signed webhooks that start runs or send messages.")


@trigger_app.command("check")
@configured("agents")
def check(
    settings: Settings,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file of triggers.")],
) -> None:
    """Check a file of triggers, with its secrets and agents: a line for each fault. No secret is printed."""
    from perdure.gateway.triggers import trigger_faults  # a web server's, which no other command needs

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
