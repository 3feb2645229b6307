"""`perdure audit`: verification of an audit log."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from perdure.cli._errors import USAGE, CommandError, one_line_errors
from perdure.cli._execute import Json
from perdure.cli._help import Commands
from perdure.cli._options import configured
from perdure.hosting.settings import Settings
from perdure.runs.audit import DATABASES, VerifiedChain, verify_chain
from perdure.values.json import dumps

audit_app = Commands(no_args_is_help=True, help="The audit log: who decided, what was refused, which rights were used.")


@audit_app.command("verify")
@configured("audit_token")
def verify(
    settings: Settings,
    places: Annotated[
        list[str],
        typer.Argument(metavar="FILE…", help="Its files, the oldest first, or postgresql://USER@HOST/DATABASE."),
    ],
    as_json: Json = False,
) -> None:
    """Verify the chain of an audit log: no line is missing, changed or moved. Print its numbers and its last digest."""
    chain = VerifiedChain()
    with one_line_errors():
        for place in places:
            if place.startswith(DATABASES):
                from perdure.activities.audit import AuditTable

                chain = asyncio.run(AuditTable(place, settings.audit_token).verify(chain))
                continue
            try:
                with Path(place).open(encoding="utf-8", errors="replace", newline="\n") as lines:
                    chain = verify_chain(lines, chain, source=f"{place}: line")
            except OSError as error:
                raise CommandError(f"{place}: {error.strerror or error}", USAGE) from None
    if as_json:
        print(dumps({"first": chain.first, "last": chain.last, "digest": chain.digest}))
    elif chain.last == 0:
        print("the log has no line")
    else:
        print(f"lines {chain.first:,} to {chain.last:,} are whole; the digest of line {chain.last:,} is {chain.digest}")
