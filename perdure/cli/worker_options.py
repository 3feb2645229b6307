"""What a worker may do and who is asked: options that `perdure worker` and `perdure dev` share, said once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import typer

from perdure.cli.errors import USAGE, CommandError, one_line_errors
from perdure.hosting.equipment import Equipment
from perdure.people.policies import ASKS


def _equipment(
    tools: Annotated[str, typer.Option(envvar="PERDURE_TOOLS", help="Modules with tools, comma-separated.")] = "",
    agents: Annotated[
        Path | None, typer.Option(envvar="PERDURE_AGENTS", help="Folder of agent files: delegates are found there.")
    ] = None,
    files: Annotated[
        Path | None,
        typer.Option(envvar="PERDURE_FILES", help="Offer read_file, write_file, list_files in this folder."),
    ] = None,
    http_hosts: Annotated[
        str,
        typer.Option(envvar="PERDURE_HTTP_HOSTS", help="Offer http_request to these: api.example.com,*.example.org"),
    ] = "",
    http_private: Annotated[
        bool, typer.Option("--http-private", envvar="PERDURE_HTTP_PRIVATE", help="Also at private addresses.")
    ] = False,
    commands: Annotated[
        str, typer.Option(envvar="PERDURE_COMMANDS", help="Offer run_command for these programs: git,df")
    ] = "",
    mcp: Annotated[
        Path | None, typer.Option(envvar="PERDURE_MCP", help="Offer the tools of a standard mcpServers file.")
    ] = None,
    functions: Annotated[
        str,
        typer.Option(
            envvar="PERDURE_FUNCTIONS",
            help="Modules whose functions agent files may name: config.models.policy, config.approval.approver.",
        ),
    ] = "",
    approval_floor: Annotated[
        str,
        typer.Option(envvar="PERDURE_APPROVAL_FLOOR", help="What people are always asked about: " + " < ".join(ASKS)),
    ] = "never",
) -> Equipment:
    for ask in ASKS:
        if ask == approval_floor:
            break
    else:
        raise CommandError(f"--approval-floor must be one of {', '.join(ASKS)}, not {approval_floor!r}", USAGE)
    return Equipment(
        tools=names(tools),
        agents=agents,
        files=files,
        http_hosts=names(http_hosts),
        http_private=http_private,
        commands=names(commands),
        mcp=mcp,
        functions=tuple(names(functions)),
        approval_floor=ask,
    )


_SHARED: Final = inspect.signature(_equipment).parameters


def equipped(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the shared options beside its own; it is given them as its `equipment`."""

    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        with one_line_errors():
            equipment = _equipment(**{name: given.pop(name) for name in _SHARED})
        command(equipment=equipment, **given)

    own = [value for name, value in inspect.signature(command).parameters.items() if name != "equipment"]
    keywords = [value.replace(kind=inspect.Parameter.KEYWORD_ONLY) for value in (*_SHARED.values(), *own)]
    hints = get_type_hints(_equipment, include_extras=True) | get_type_hints(command, include_extras=True)
    wrapper.__annotations__ = {value.name: hints[value.name] for value in keywords}
    wrapper.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [value.replace(annotation=hints[value.name]) for value in keywords]
    )
    return wrapper


def names(text: str) -> tuple[str, ...]:
    """What an option lists, comma-separated."""
    return tuple(name.strip() for name in text.split(",") if name.strip())
