"""`perdure init`, `tools` and `schema`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.cli.errors import USAGE, CommandError, one_line_errors
from perdure.cli.execute import Json, execute
from perdure.cli.options import configured
from perdure.cli.starting.project import FILES
from perdure.cli.viewing.console import screen
from perdure.cli.viewing.tables import table
from perdure.hosting.settings import Settings
from perdure.tools.tool import resolve_tools
from perdure.values.jsons import JsonObject, dumps

starting_app = typer.Typer()


@starting_app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where; by default here.")] = Path(),
) -> None:
    """Write a project that runs: two tools, an agent, a script, a test. No file that is there is touched."""
    from perdure.authoring.keys import agent_schema  # as in `schema`: reads its own sources

    files = {**FILES, "agent.schema.json": dumps(agent_schema(), indent=2) + "\n"}
    with one_line_errors():
        try:
            if there := [name for name in files if (folder / name).exists()]:
                raise CommandError(f"nothing was written: {folder / there[0]} is there already", USAGE)
            for name, text in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text, encoding="utf-8")
                print(folder / name)
        except OSError as error:
            raise CommandError(f"{folder} cannot be written to: {error.strerror}", USAGE) from None
    where = "" if folder == Path() else f"cd {folder} && "
    print(f"\ntest it:    {where}pytest\nstart it:   {where}perdure dev\nrun it:     {where}python shopping.py")


@starting_app.command()
@configured("tools", "files", "http_hosts", "http_private", "commands", "mcp")
def tools(settings: Settings, as_json: Json = False) -> None:
    """List the tools that a worker with these options offers."""
    found = execute(lambda: _tools(settings))
    if as_json:
        print(dumps(list(found.values())))
        return
    rows = []
    for name, definition in sorted(found.items()):
        danger = "safe" if definition.get("_safe") else "dangerous" if definition.get("_dangerous") else ""
        about = str(definition.get("description", "")).strip().partition("\n")[0]
        rows.append((name, _parameters(resolve_tools([name], found)[name].parameters), danger, about))
    console = screen()
    console.print(table(("tool", "parameters", "is", "does"), rows, console.width, gives=("does", "parameters")))


async def _tools(settings: Settings) -> dict[str, JsonObject]:
    """With those of MCP servers, which are started for it."""
    from perdure.hosting.equipment import equipped, registry_of  # as for a worker

    registry = registry_of(settings)
    async with equipped(settings.model_copy(update={"agents": None}), registry):
        return registry.definitions()


def _parameters(schema: JsonObject) -> str:
    """Return `fruit, count?`: those that may be left out with a question mark."""
    required: Any = schema.get("required", [])
    names = [name for name in schema.get("properties", {}) if not name.startswith("_")]
    return ", ".join(name if name in required else f"{name}?" for name in names)


@starting_app.command()
def schema(
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write it there instead of printing it.")
    ] = None,
) -> None:
    """Print the JSON Schema of agent files: an editor completes and checks them by it, by a `$schema` in the file."""
    from perdure.authoring.keys import agent_schema

    text = dumps(agent_schema(), indent=2)
    if out is None:
        print(text)
        return
    with one_line_errors():
        try:
            out.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{out} cannot be written: {error.strerror}", USAGE) from None
