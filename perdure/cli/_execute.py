"""Execution of commands that need a server: on an event loop, with a user's mistake as one line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from perdure.agents.json_files import json_option
from perdure.cli._errors import USAGE, CommandError, one_line_errors
from perdure.errors import InputError
from perdure.runs.caller_context import read_context
from perdure.values.json import JsonObject

if TYPE_CHECKING:
    from perdure.client.perdure import Perdure

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
RunId = Annotated[str, typer.Argument(metavar="ID", help="The run's id.")]
Context = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="JSON|@FILE",
        help='Facts about the sender that tools read, and no model: {"customer": "C-17"}.',
    ),
]
Priority = Annotated[
    int | None,
    typer.Option(min=1, max=5, help="1 to 5: runs of a smaller number go first; by default the agent's, or 3."),
]


def context_option(text: str | None, check: Callable[[object], JsonObject] = read_context) -> JsonObject:
    """Return the value of `--context`, which `check` validates. Raises an error that names the flag."""
    try:
        return check(None if text is None else json_option(text, "--context", '{"customer": "C-17"}'))
    except InputError as error:
        raise CommandError(f"--context: {error}", USAGE) from None


T = TypeVar("T")


def connected(do: Callable[[Perdure], Coroutine[Any, Any, T]]) -> T:
    """Run a command with Perdure's Python API as its only access to the server (R13.3)."""

    async def start() -> T:
        # Temporal's client is imported here: it takes 0.2 s, which `plan`, `--help` and a mistyped command need not
        # wait.
        from perdure.client.perdure import Perdure
        from perdure.hosting.telemetry import silent_runtime

        return await do(await Perdure.connect(runtime=silent_runtime()))

    return execute(start)


def execute(start: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine. A user's mistake becomes one line and an exit code."""
    with one_line_errors():
        try:
            return asyncio.run(start())
        finally:
            from perdure.hosting.telemetry import flush  # imported by now

            flush()
    raise AssertionError("one_line_errors leaves the process")
