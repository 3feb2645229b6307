"""`perdure record` and `perdure replay`: runs written down as cases, and histories against the code that is here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.errors import FAILED, one_line_errors
from perdure.cli.execute import RunId, connected, execute
from perdure.errors import SettingsError

if TYPE_CHECKING:
    from perdure.client.perdure import Perdure

histories_app = typer.Typer()


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
    from perdure.testing.cases import recording  # replays histories, as no other command but replay does

    case = connected(lambda perdure: recording.record(perdure.get_run(run_id)))
    if out is None:
        print(recording.case_text(case))
        return
    with one_line_errors():
        try:
            recording.write_case(case, out)
        except OSError as error:
            raise SettingsError(f"{out} cannot be written: {error.strerror}") from None


@histories_app.command()
def replay(
    what: Annotated[list[str], typer.Argument(metavar="ID|FILE…", help="Runs by id, or histories in JSON files.")],
) -> None:
    """Before a deploy: would workers of this version go on with these runs? A line for each; ends with 1 if one breaks.

    A run is replayed with all below it. A file is what `temporal workflow show --output json` writes, or the Web UI downloads.
    """
    files = [name for name in what if name.endswith(".json") or Path(name).is_file()]

    async def runs(perdure: Perdure | None) -> bool:
        from perdure.client.histories import replay_each
        from perdure.hosting.connection import data_converter

        client, broken = None if perdure is None else perdure.client, False
        converter = data_converter() if client is None else client.data_converter
        async for name, problem, events in replay_each(client, what, files, converter):
            print(f"{name}: ok, {events} events" if problem is None else f"{name}: breaks: {problem}")
            broken = broken or problem is not None
        return broken

    broken = execute(lambda: runs(None)) if len(files) == len(what) else connected(runs)
    raise SystemExit(FAILED if broken else 0)
