"""How every command that talks to a server runs: on an event loop, with a user's mistake as one line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import ModuleType
from typing import Annotated, Any

import typer

from perdure.cli.errors import CommandError, one_line_errors

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
RunId = Annotated[str, typer.Argument(metavar="ID", help="The run's id.")]


def execute(start: Callable[[ModuleType], Coroutine[Any, Any, Any]]) -> Any:
    """Run what a command does with the module `perdure.cli.commands`; a user's mistake becomes one line and an exit code."""
    from perdure.cli import (
        commands,
    )  # Temporal's client: a fifth of a second that `plan`, `--help` and a typing error need not wait

    with one_line_errors():
        try:
            return asyncio.run(start(commands))
        except commands.RPCError as error:
            raise CommandError(f"the Temporal server answered: {error.message}") from None
        finally:
            commands.flush()
    raise AssertionError("one_line_errors leaves the process")
