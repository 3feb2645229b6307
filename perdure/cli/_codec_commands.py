"""`perdure codec`: the keys that encrypted values still need (R24.9)."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli._console import screen, table
from perdure.cli._errors import FAILED
from perdure.cli._execute import Json, connected
from perdure.cli._help import Commands
from perdure.cli._options import configured
from perdure.hosting.settings import Settings
from perdure.values.json import dumps

codec_app = Commands(
    no_args_is_help=True, help="The keys of encrypted values: which are needed, and a change to the newest."
)


@codec_app.command("status")
@configured("codec_keys")
def status(
    settings: Settings,
    query: Annotated[
        str | None, typer.Option(metavar="QUERY", help="Only these workflows, in Temporal's list filters.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the keys that histories and stored files need, and until when. It reads each history and each stored value, and decodes none."""
    uses = connected(lambda perdure: perdure.key_uses(query))
    here = [*(settings.codec_keys or {})]
    if as_json:
        print(dumps({"newest": here[0] if here else None, "keys": [each.as_json() for each in uses]}))
        return
    out = screen()
    rows = []
    for name in [*here, *(each.key for each in uses if each.key not in here)]:
        use = next((each for each in uses if each.key == name), None)
        place = "not encrypted" if not name else "missing here" if name not in here else ""
        place = place or ("encrypts" if name == here[0] else "decrypts" if use else "can be taken out")
        until = "" if use is None or use.until is None else use.until.isoformat(timespec="minutes")
        numbers = (use.open, use.closed, use.files) if use else (0, 0, 0)
        rows.append((name or "none", place, *(f"{number:,}" for number in numbers), until))
    if not rows:
        out.print("no workflows, and no keys")
        return
    titles = ("key", "here", "open", "ended", "files", "needed until")
    out.print(table(titles, rows, out.width, right=("open", "ended", "files")))


@codec_app.command("rewrite")
def rewrite(as_json: Json = False) -> None:
    """Continue idle sessions, ledgers and audit logs under the newest key, and encode stored files anew. Repeat it while anything remains."""
    report = connected(lambda perdure: perdure.rewrite_keys())
    if as_json:
        print(dumps(report.as_json()))
    else:
        out = screen()
        out.print(f"{report.workflows:,} workflows and {report.files:,} files are under {report.key}", markup=False)
        for id in report.remaining:
            is_file = id.startswith("file ")
            why = "no key here decodes it" if is_file else "a run is under way in it, or no worker answers"
            out.print(f"not yet: {id}: {why}", markup=False, soft_wrap=True)
    if report.remaining:
        raise SystemExit(FAILED)
