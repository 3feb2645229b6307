"""Write the tables of all settings, of all keys of agent files and of all events anew: `make settings`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from perdure.agents.schema import config_table
from perdure.hosting.settings_display import table
from perdure.runs.events import TOPICS

_DOCS: Final = Path(__file__).parents[1] / "docs"
PAGE: Final = _DOCS / "settings.md"
AGENTS: Final = _DOCS / "agents.md"
EVENTS: Final = _DOCS / "events.md"
MARKS: Final = {
    PAGE: "<!-- made from the settings by `make settings`; not to be edited below -->\n",
    AGENTS: "<!-- made from the models by `make settings`; not to be edited below -->\n",
    EVENTS: "<!-- made from the table of events by `make settings`; not to be edited below -->\n",
}


def events_table() -> str:
    """A table of what each topic's phases say."""
    rows = ["| topic | phase | when | data |", "|---|---|---|---|"]
    for topic, phases in TOPICS.items():
        for name, phase in phases.items():
            data = "; ".join(f"`{key}` {what}" for key, what in phase.data.items())
            live = "" if phase.noted else " (not noted: made for each reader)"
            rows.append(f"| `{topic}` | `{name}` | {phase.when}{live} | {data} |")
    return "\n".join(rows) + "\n"


TABLES: Final[dict[Path, Callable[[], str]]] = {PAGE: table, AGENTS: config_table, EVENTS: events_table}


def page(path: Path = PAGE) -> str:
    """The page as it should be: its own words, and the table below the mark."""
    head, mark, _ = path.read_text(encoding="utf-8").partition(MARKS[path])
    assert mark, f"{path} has lost its mark"
    return f"{head}{MARKS[path]}\n{TABLES[path]()}"


if __name__ == "__main__":
    for each in TABLES:
        each.write_text(page(each), encoding="utf-8")
