"""`perdure export` and `perdure import`: runs and sessions as files (R24.5)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.agents.json_files import json_option
from perdure.cli._errors import one_line_errors
from perdure.cli._execute import Json, RunId, connected
from perdure.cli._help import Commands
from perdure.cli._options import configured, write_file
from perdure.errors import SettingsError
from perdure.hosting.settings import Settings
from perdure.values.json import JsonObject, dumps

if TYPE_CHECKING:
    from perdure.client.perdure import Perdure

exports_app = Commands()
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write it there instead of printing it.")]


@exports_app.command("export")
def export(run_id: RunId, out: Out = None) -> None:
    """Write a run as JSON, with its record and files: `import` restores it in another namespace. For a session: `session export`."""
    write_export(connected(lambda perdure: perdure.get_run(run_id).export()), out)


@exports_app.command("import")
@configured("task_queue")
def import_(
    settings: Settings,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file of export or session export.")],
    name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="The session's key, or the run's id; default: the same.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(metavar="NAME", help="The session's tenant here; default: the same.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Restore an exported session, which goes on from there, or an exported run, as a record. No model is asked and no call runs again."""
    with one_line_errors():
        exported: Any = json_option(f"@{file}", "FILE")
        is_run = isinstance(exported, dict) and "run" in exported
        if is_run and tenant is not None:
            raise SettingsError("--tenant is for sessions: a run keeps its tenant")

    async def restore(perdure: Perdure) -> JsonObject:
        if is_run:
            return {"run": (await perdure.import_run(exported, id=name, task_queue=settings.task_queue)).id}
        restored = await perdure.import_session(exported, key=name, tenant=tenant, task_queue=settings.task_queue)
        return {"session": restored.key, "tenant": restored.tenant}

    restored = connected(restore)
    print(dumps(restored) if as_json else restored.get("run") or restored["session"])


def write_export(exported: JsonObject, out: Path | None) -> None:
    """Write an export to a file that only its owner can read, or print it. Print to stderr why it cannot be restored."""
    if (problem := exported.get("problem")) is not None:
        print(f"perdure: this export cannot be restored: {problem}", file=sys.stderr)
    if missing := sum(data is None for data in (exported.get("files") or {}).values()):
        print(f"perdure: the export lacks {missing:,} files, which are not stored any more", file=sys.stderr)
    if out is None:
        print(dumps(exported))
    else:
        write_file(out, f"{dumps(exported)}\n", mode=0o600)
