"""`perdure record` and `perdure replay`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli._errors import FAILED, USAGE, CommandError, one_line_errors
from perdure.cli._execute import RunId, connected, execute
from perdure.cli._help import Commands
from perdure.cli._options import configured
from perdure.errors import SettingsError
from perdure.hosting.settings import Settings

if TYPE_CHECKING:
    from perdure.client.perdure import Perdure


histories_app = Commands()


@histories_app.command()
def record(
    run_id: RunId,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write it there instead of printing it.")
    ] = None,
) -> None:
    """Write a run down as a case: what the model answered, what tools returned, what people decided. See perdure.testing.replay.

    It holds what the run read and wrote: look at it before it is shared.
    """
    from perdure.testing import cases  # replays histories, as no other command but replay does

    case = connected(lambda perdure: cases.record(perdure.get_run(run_id)))
    if out is None:
        print(cases.case_text(case))
        return
    with one_line_errors():
        try:
            cases.write_case(case, out)
        except OSError as error:
            raise SettingsError(f"{out} cannot be written: {error.strerror}") from None


@histories_app.command()
@configured("workflows")
def replay(
    settings: Settings,
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID|FILE…]", help="Runs and sessions by id, or histories in JSON files."),
    ] = None,
    all_running: Annotated[
        bool, typer.Option("--running", help="All open runs, loops and sessions of the namespace.")
    ] = False,
    query: Annotated[
        str | None,
        typer.Option(metavar="QUERY", help="Of those that run these alone, in the language of Temporal's lists."),
    ] = None,
) -> None:
    """Before a deploy: would workers of this version go on with these runs? A line for each; ends with 1 unless all would.

    A run or a session is replayed with all below it. A file is what `temporal workflow show --output json` writes, or the Web UI
    downloads. A file that is left out, because it is no workflow of Perdure's or cannot be read, has a line too, and fails the command.
    """
    names = what or []
    with one_line_errors():
        if bool(names) == all_running or (query is not None and not all_running):
            raise CommandError("give IDs or files, or --running; --query goes with --running only", USAGE)
    files = [name for name in names if name.endswith(".json") or Path(name).is_file()]

    async def runs(perdure: Perdure | None) -> bool:
        from perdure.client.histories import replay_each, replay_running
        from perdure.hosting.connection import data_converter
        from perdure.hosting.user_workflows import load_workflows

        users = load_workflows(settings.workflows).workflows
        client, count, bad = None if perdure is None else perdure.client, 0, 0
        if all_running:
            assert client is not None
            each = replay_running(client, query, users)
        else:
            converter = data_converter() if client is None else client.data_converter
            each = replay_each(client, names, files, converter, users)
        async for found in each:
            print(found.line())
            count, bad = count + 1, bad + (found.problem is not None)
        if all_running:
            print(f"{count:,} open executions, {bad:,} that break or were left out")
        return bad > 0

    broken = execute(lambda: runs(None)) if names and len(files) == len(names) else connected(runs)
    raise SystemExit(FAILED if broken else 0)
