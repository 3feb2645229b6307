"""Write the tables of all settings, and of all keys of agent files, anew: `make settings`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from perdure.authoring.keys import config_table
from perdure.hosting.settings.showing import table

_DOCS: Final = Path(__file__).parents[1] / "docs"
PAGE: Final = _DOCS / "settings.md"
AGENTS: Final = _DOCS / "agents.md"
TABLES: Final[dict[Path, Callable[[], str]]] = {PAGE: table, AGENTS: config_table}
MARKS: Final = {
    PAGE: "<!-- made from the settings by `make settings`; not to be edited below -->\n",
    AGENTS: "<!-- made from the models by `make settings`; not to be edited below -->\n",
}


def page(path: Path = PAGE) -> str:
    """The page as it should be: its own words, and the table below the mark."""
    head, mark, _ = path.read_text(encoding="utf-8").partition(MARKS[path])
    assert mark, f"{path} has lost its mark"
    return f"{head}{MARKS[path]}\n{TABLES[path]()}"


if __name__ == "__main__":
    for each in TABLES:
        each.write_text(page(each), encoding="utf-8")
