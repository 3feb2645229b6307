"""Write the tables of all settings, of all keys of agent files, of all events, of all commands and of all limits, and
the options of `Agent`, anew: `make settings`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import typer.main

from perdure.agents.schema import config_table
from perdure.cli.app import app
from perdure.hosting.settings import Settings, setting_info
from perdure.hosting.settings_display import render_settings
from perdure.models.model_names import PROVIDERS
from perdure.models.providers.capabilities import EXAMPLES, Capabilities, capabilities_of
from perdure.runs.events import TOPICS
from scripts.agent_options import options_source
from scripts.limits import limits_table

_ROOT: Final = Path(__file__).parents[1]
_DOCS: Final = _ROOT / "docs"
PAGE: Final = _DOCS / "settings.md"
AGENTS: Final = _DOCS / "agents.md"
EVENTS: Final = _DOCS / "events.md"
COMMANDS: Final = _DOCS / "commands.md"
LIMITS: Final = _DOCS / "limits.md"
MODELS: Final = _DOCS / "providers.md"
OPTIONS: Final = _ROOT / "perdure" / "agents" / "options.py"
PANELS: Final = {setting_info(field).group for field in Settings.model_fields.values()}
MARKS: Final = {
    PAGE: "<!-- made from the settings by `make settings`; not to be edited below -->\n",
    AGENTS: "<!-- made from the models by `make settings`; not to be edited below -->\n",
    EVENTS: "<!-- made from the table of events by `make settings`; not to be edited below -->\n",
    COMMANDS: "<!-- made from the commands by `make settings`; not to be edited below -->\n",
    LIMITS: "<!-- made from perdure/values/limits.py by `make settings`; not to be edited below -->\n",
    MODELS: "<!-- made from the capabilities of models by `make settings`; not to be edited below -->\n",
    OPTIONS: "# Made from the models by `make settings`; not to be edited below.\n\n",
}


def events_table() -> str:
    """A table of what each topic's phases say."""
    rows = ["| topic | phase | when | data |", "|---|---|---|---|"]
    for topic, phases in TOPICS.items():
        for name, phase in phases.items():
            data = ". ".join(f"`{key}` {what}" for key, what in phase.data.items())
            live = "" if phase.noted else " (not noted: made for each reader)"
            rows.append(f"| `{topic}` | `{name}` | {phase.when}{live} | {data} |")
    return "\n".join(rows) + "\n"


def _in_a_word(value: bool | int | str | tuple[str, ...]) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(value)


def capabilities_table() -> str:
    """A table of what a model of each provider can do."""
    names = [field.name for field in dataclasses.fields(Capabilities)]
    rows = [f"| model | {' | '.join(name.replace('_', ' ') for name in names)} |", "|---" * (len(names) + 1) + "|"]
    for provider in PROVIDERS:
        model = f"{provider}:{EXAMPLES[provider]}"
        found = dataclasses.asdict(capabilities_of(model))
        words = [_in_a_word(value) for value in found.values()]
        rows.append(f"| `{model}` | {' | '.join(words)} |")
    return "\n".join(rows) + "\n"


def _commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Each command with the words that a person types: `agent say` is typed as `agent`."""
    for word, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from _commands(one, (*path, word))
        else:
            yield " ".join(path if one.hidden else (*path, word)), one


def commands_table() -> str:
    """A table of all commands with their arguments and their own options; those of settings are in the settings' table."""
    rows = ["| command | does | options |", "|---|---|---|"]
    for name, command in _commands(typer.main.get_command(app)):
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        shapes = [(each.metavar or each.name).strip("{}").upper() for each in arguments]
        options = [
            f"`{max(each.opts, key=len)}`"
            for each in command.params
            if each.param_type_name == "option"
            and getattr(each, "rich_help_panel", None) not in PANELS
            and each.name not in ("help", "config")
        ]
        words = " ".join(["perdure", name, *shapes]).replace("|", "\\|")
        does = " ".join((command.help or "").split()).replace("|", "\\|")
        rows.append(f"| `{words}` | {does} | {' '.join(options)} |")
    return "\n".join(rows) + "\n"


def flags() -> dict[str, list[str]]:
    """The flags of each setting: `--grace` where it is a worker's, else with its command, `serve --port`."""
    found: dict[str, list[str]] = {name: [] for name in Settings.model_fields}
    for command, one in _commands(typer.main.get_command(app)):
        for each in one.params if command != "settings" else ():  # which takes them all, to show them
            if getattr(each, "rich_help_panel", None) in PANELS:
                found[each.name].append(f"{command} {max(each.opts, key=len)}")
    workers = {name: [each[7:] for each in taken if each.startswith("worker ")] for name, taken in found.items()}
    return {name: workers[name] or taken for name, taken in found.items()}


def settings_table() -> str:
    """A table of all settings."""
    return render_settings(flags())


TABLES: Final[dict[Path, Callable[[], str]]] = {
    PAGE: settings_table,
    AGENTS: config_table,
    EVENTS: events_table,
    COMMANDS: commands_table,
    LIMITS: limits_table,
    MODELS: capabilities_table,
    OPTIONS: options_source,
}


def page(path: Path = PAGE) -> str:
    """The page as it should be: its own words, and the table below the mark."""
    head, mark, _ = path.read_text(encoding="utf-8").partition(MARKS[path])
    assert mark, f"{path} has lost its mark"
    return f"{head}{MARKS[path]}\n{TABLES[path]()}"


if __name__ == "__main__":
    for each in TABLES:
        each.write_text(page(each), encoding="utf-8")
