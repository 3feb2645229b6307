"""Flags made from the settings: each is said once, in `perdure.hosting.settings`."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, get_type_hints

import typer

from perdure.cli._errors import one_line_errors
from perdure.hosting.settings import CONFIG, GATEWAY, PAGES, Settings, about, flag, load, using, variable
from perdure.hosting.settings_display import shown_default

ALL: Final = tuple(Settings.model_fields)
WORKER: Final = tuple(
    name for name, field in Settings.model_fields.items() if about(field).group not in (GATEWAY, PAGES)
)
"""What `perdure worker` takes."""
SERVE: Final = {
    name: flag(name.removeprefix("gateway_"))
    for name, field in Settings.model_fields.items()
    if about(field).group == GATEWAY
}
"""What `perdure serve` takes, by flags that need not say whose they are."""
DEV: Final = tuple(name for name in WORKER if name not in ("tools_only", "wait"))
"""What `perdure dev` takes of them: its server is its own."""

NONE: Final[Mapping[str, str]] = {}
_CONFIG = typer.Option("--config", metavar="FILE", help=f"The file of settings; {CONFIG}, or perdure.toml here.")


def configured(*names: str, flags: Mapping[str, str] = NONE) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with flags for these settings beside its own; it is given what is in force as its `settings`.

    `flags` are settings whose flags have another name there: `{"dev_port": "--port"}`.
    """
    chosen = {name: flags.get(name, flag(name)) for name in (*names, *flags)}

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapper(config: str | None, **given: Any) -> None:
            said = {name: value for name in chosen if (value := given.pop(name)) is not None}
            with one_line_errors():
                if config is not None:
                    os.environ[CONFIG] = config  # for whatever reads settings in this process, and for what it starts
                settings = load(said, chosen)
            with using(settings):
                command(settings=settings, **given)

        own = [value for name, value in inspect.signature(command).parameters.items() if name != "settings"]
        hints = get_type_hints(command, include_extras=True)
        hints |= {name: _option(name, words) for name, words in chosen.items()} | {
            "config": Annotated[str | None, _CONFIG]
        }
        made = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in (*chosen, "config")]
        keywords = [value.replace(kind=inspect.Parameter.KEYWORD_ONLY) for value in own] + made
        wrapper.__annotations__ = {value.name: hints[value.name] for value in keywords}
        wrapper.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [value.replace(annotation=hints[value.name]) for value in keywords]
        )
        return wrapper

    return wrap


def _option(name: str, words: str) -> Any:
    """One flag. What it is given is read with all the others, so that a wrong value is told the same way everywhere."""
    field = Settings.model_fields[name]
    switch = field.annotation is bool
    help = f"{field.description}. [{variable(name)}; {shown_default(name)}]"
    option = typer.Option(
        f"{words}/--no-{words[2:]}" if switch else words,
        help=help,
        metavar=None if switch else about(field).form,
        show_default=False,
        rich_help_panel=about(field).group,
    )
    return Annotated[bool | None if switch else str | None, option]
