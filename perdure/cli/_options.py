"""Options: the flags of settings, each defined once in `perdure.hosting.settings`; files to write; and the user who decides."""

from __future__ import annotations

import functools
import getpass
import inspect
import os
import shlex
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, get_type_hints

import typer

from perdure.cli._execute import USAGE, CommandError, one_line_errors
from perdure.errors import RunNotFoundError
from perdure.hosting.settings import (
    CONFIG,
    GATEWAY,
    PAGES,
    Settings,
    apply_settings,
    flag,
    load,
    setting_info,
    variable_name,
)
from perdure.hosting.settings_display import shown_default

if TYPE_CHECKING:
    from perdure.client.perdure import Perdure

ALL: Final = tuple(Settings.model_fields)
WORKER: Final = tuple(
    name for name, field in Settings.model_fields.items() if setting_info(field).group not in (GATEWAY, PAGES)
)
"""The settings of `perdure worker`."""
SERVE: Final = {
    name: flag(name.removeprefix("gateway_"))
    for name, field in Settings.model_fields.items()
    if setting_info(field).group == GATEWAY
}
"""The settings of `perdure serve`, with flags without the prefix `gateway`."""
DEV: Final = tuple(name for name in WORKER if name not in ("tools_only", "wait"))
"""The worker's settings of `perdure dev`, which has its own server."""

NONE: Final[Mapping[str, str]] = {}
Port = Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="The port; 0 selects a free one.")]
_CONFIG = typer.Option("--config", metavar="FILE", help=f"The file of settings; {CONFIG}, or perdure.toml here.")


def with_settings(*names: str, flags: Mapping[str, str] = NONE) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds flags for these settings to a command. Its parameter `settings` receives those in
    force.

    `flags` are settings whose flags have another name here: `{"dev_port": "--port"}`.
    """
    chosen = {name: flags.get(name, flag(name)) for name in (*names, *flags)}

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapper(config: str | None, **given: Any) -> None:
            said = {name: value for name in chosen if (value := _join_names(given.pop(name))) is not None}
            with one_line_errors():
                if config is not None:
                    if not Path(config).is_file():
                        raise CommandError(f"--config: the file {config} does not exist", USAGE)
                    os.environ[CONFIG] = config  # for code that reads settings here, and for child processes
                settings = load(said, chosen)
            with apply_settings(settings):
                command(settings=settings, **given)

        options = {name: (_option(name, words), None) for name, words in chosen.items()}
        _declare(wrapper, command, "settings", after=options | {"config": (Annotated[str | None, _CONFIG], None)})
        return wrapper

    return wrap


def built_from(parameter: str, build: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces a command's parameter by the options of `build`. The parameter receives `build`'s result."""
    hints = get_type_hints(build, include_extras=True)
    options = {name: (hints[name], each.default) for name, each in inspect.signature(build).parameters.items()}

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapper(**given: Any) -> None:
            with one_line_errors():
                built = build(**{name: given.pop(name) for name in options})
            command(**{parameter: built}, **given)

        _declare(wrapper, command, parameter, before=options)
        return wrapper

    return wrap


Options: TypeAlias = Mapping[str, tuple[Any, Any]]
"""The annotation and the default of each option."""


def _declare(
    wrapper: Callable[..., None],
    command: Callable[..., None],
    replaced: str,
    *,
    before: Options = MappingProxyType({}),
    after: Options = MappingProxyType({}),
) -> None:
    """Set a wrapper's signature for Typer: its command's, with options in place of the parameter `replaced`."""
    hints = get_type_hints(command, include_extras=True)
    own = {name: (hints[name], each.default) for name, each in inspect.signature(command).parameters.items()}
    del own[replaced]
    options = {**before, **own, **after}
    wrapper.__annotations__ = {name: hint for name, (hint, _) in options.items()}
    wrapper.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
            for name, (hint, default) in options.items()
        ]
    )


def _join_names(value: Any) -> Any:
    """Return the value of a flag. A flag of names that is repeated has the names of all; an absent one is `None`."""
    if isinstance(value, list):
        return ",".join(value) if value else None
    return value


def _option(name: str, words: str) -> Any:
    """Return one flag. Its text is parsed with all settings, so that an invalid value has the same error everywhere."""
    field = Settings.model_fields[name]
    switch = field.annotation is bool
    kind = bool if switch else list[str] if setting_info(field).form == "A,B,…" else str
    help = f"{field.description}. [{variable_name(name)}; {shown_default(name)}]"
    option = typer.Option(
        f"{words}/--no-{words[2:]}" if switch else words,
        help=help,
        metavar=None if switch else setting_info(field).form,
        show_default=False,
        rich_help_panel=setting_info(field).group,
    )
    return Annotated[kind | None, option]


def tenant_text(tenant: str) -> str:
    return f"tenant {tenant!r}" if tenant else "no tenant"


def tenant_options(tenants: list[str]) -> str:
    """Return the option for each tenant."""
    return ", ".join(
        f"--tenant {shlex.quote(tenant)}" if tenant else "no tenant (without --tenant)" for tenant in tenants
    )


async def naming_tenants(
    perdure: Perdure, error: RunNotFoundError, tenant: str, has: Callable[[str], Awaitable[bool]]
) -> RunNotFoundError:
    """Return the error of what a tenant does not have, with the options for the tenants that have it."""
    others = [other for other in ["", *await perdure.list_tenants()] if other != tenant and await has(other)]
    if not others:
        return error
    return RunNotFoundError(f"{error} for {tenant_text(tenant)}; found with {tenant_options(others)}")


def write_file(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a file that an option names. If this fails, end the command with one line.

    `mode`: the permissions of a new file, before the umask.
    """
    with one_line_errors():
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise CommandError(f"{path} cannot be written: {error.strerror}", USAGE) from None


def make_folder(path: Path, option: str) -> None:
    """Make a folder that an option names, and the folders above it. Raise `CommandError` if this fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"{option}: the folder {path} cannot be made: {error.strerror}", USAGE) from None


def local_user() -> str:
    """Return the default of `--by` and `--sender`: this process's user, with `sudo` its caller. A user without a name
    is `uid 1000`.

    The name proves nothing, because users of the machine can set it. It is never empty, so each decision names
    somebody.
    """
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # the user id has no name, as in a container
        return f"uid {os.getuid()}"
