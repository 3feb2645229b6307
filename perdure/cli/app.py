"""The program `perdure`: its commands by name, each loaded with its module when it is used."""

from __future__ import annotations

import gc
import importlib
from collections import UserDict
from importlib.metadata import version
from typing import Annotated, Any, Final

import typer
import typer.main

from perdure.cli._help import CommandGroup, Commands

_MODULES: Final = {
    "_run_commands:runs_app": ("run", "wait", "show", "watch", "steer", "withdraw"),
    "_server_commands:servers_app": ("worker", "serve", "dev", "codec-server", "demo"),
    "_session_commands:agent_app": ("agent",),
    "_session_commands:session_app": ("session",),
    "_plan_commands:plan_app": ("plan",),
    "_model_commands:models_app": ("models",),
    "_server_commands:token_app": ("token",),
    "_server_commands:trigger_app": ("trigger",),
    "_approval_commands:approvals_app": ("approvals", "approve", "reject", "edit", "replace", "answer", "inbox"),
    "_session_commands:chat_app": ("chat",),
    "_event_commands:events_app": ("events",),
    "_schedule_commands:schedule_app": ("schedule",),
    "_list_commands:lists_app": ("list", "cancel", "terminate", "policy", "limits"),
    "_history_commands:undo_app": ("undo",),
    "_history_commands:histories_app": ("fork", "what-if", "replay"),
    "_evaluation_commands:evaluations_app": ("eval", "record"),
    "_data_commands:audit_app": ("audit",),
    "_data_commands:exports_app": ("export", "import"),
    "_procedure_commands:procedures_app": ("promote",),
    "_data_commands:codec_app": ("codec",),
    "_data_commands:erasure_app": ("erase",),
    "_rollout_commands:rollout_app": ("rollout",),
    "_procedure_commands:standing_app": ("standing",),
    "_project_commands:starting_app": ("init", "tools", "schema", "settings"),
}
"""The commands of each module, in the order of the help."""
PLACES: Final = {name: place for place, names in _MODULES.items() for name in names}


class LazyCommands(UserDict[str, Any]):
    """Typer's commands by name. A command's module is imported at its first use: `--version` imports none."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(PLACES))

    def __getitem__(self, name: str) -> Any:
        """Return the command, or raise `KeyError`."""
        if self.data[name] is None:
            module, _, apps = PLACES[name].partition(":")
            gc.disable()  # the imported objects stay: to examine them takes a tenth of a command's start
            try:
                group = typer.main.get_group(getattr(importlib.import_module(f"perdure.cli.{module}"), apps))
            finally:
                gc.freeze()
                gc.enable()
            group.name = name
            self.data[name] = group.commands.get(name, group)
        return self.data[name]


class LazyGroup(CommandGroup):
    """The group of all commands."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{**given, "commands": LazyCommands()})


app = Commands(name="perdure", cls=LazyGroup, help="A durable engine for AI agents, on Temporal.", no_args_is_help=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"perdure {version('perdure')}")
        raise typer.Exit()


@app.callback()
def perdure(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A durable engine for AI agents, on Temporal."""
    del version
