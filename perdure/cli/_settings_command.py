"""`perdure settings`: what is in force, and where each value comes from."""

from __future__ import annotations

import typer
from rich.table import Table
from rich.text import Text

from perdure.cli._console import screen
from perdure.cli._execute import Json
from perdure.cli._help import Commands
from perdure.cli._options import ALL, configured
from perdure.hosting.settings import Settings, unknown_variables
from perdure.hosting.settings_display import shown
from perdure.values.json import dumps

settings_app = Commands()


@settings_app.command("settings")
@configured(*ALL)
def print_settings(settings: Settings, as_json: Json = False) -> None:
    """Print the settings in force, and where each comes from; secrets are masked."""
    rows = shown(settings)
    if as_json:
        print(dumps({row.name: {"value": row.value, "source": row.source} for row in rows}))
    else:
        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
        for title in ("setting", "value", "from"):
            table.add_column(title, no_wrap=title == "setting", overflow="fold")
        for row in rows:
            value = row.value if isinstance(row.value, str) else dumps(row.value)
            table.add_row(row.name, Text(value), row.source, style="dim" if row.source == "default" else None)
        screen().print(table)
    for problem in unknown_variables():
        typer.echo(f"perdure: {problem}", err=True)
