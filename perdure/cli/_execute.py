"""Execution of commands: on an event loop, with a user's mistake as one clear line and the right exit code (section 11)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from perdure.agents.json_files import json_option
from perdure.cli._console import strip_control_characters
from perdure.errors import InputError, MessageRefusedError, PerdureError, ProtocolError, RunTimeoutError, SettingsError
from perdure.runs.caller_context import read_context
from perdure.values.json import JsonObject
from perdure.values.problems import suggest_name

if TYPE_CHECKING:
    from perdure.client.perdure import Perdure


FAILED: Final = 1
USAGE: Final = 2
TIMEOUT: Final = 3
INTERRUPTED: Final = 130


class CommandError(Exception):
    """A command fails: `str()` is the line to print, or `lines` if given; `code` is the exit code."""

    def __init__(self, message: str, code: int = FAILED, lines: Sequence[str] = ()) -> None:
        super().__init__(message, code)
        self.message = message
        self.code = code
        self.lines = lines

    def __str__(self) -> str:
        return self.message


def check_choice(option: str, value: str | None, choices: Sequence[str]) -> None:
    """Raise `CommandError` for a value that is not one of the choices; `None` means no value."""
    if value is not None and value not in choices:
        near = suggest_name(value, choices)
        hint = f"; did you mean {near!r}?" if near else ""
        raise CommandError(f"{option}: {value!r} is not one of {', '.join(choices)}{hint}", USAGE)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn a user's mistake into one line on stderr and an exit code. A bug keeps its traceback."""
    try:
        yield
    except CommandError as error:
        _leave(str(error), error.code, error.lines)
    except SettingsError as error:
        _leave(str(error), USAGE)
    except RunTimeoutError as error:
        _leave(str(error), TIMEOUT)
    except MessageRefusedError as error:
        _leave(str(error), FAILED)
    except ProtocolError as error:  # the input is invalid, and nothing was started
        _leave(str(error), USAGE, [str(each) for each in getattr(error, "problems", ())])
    except PerdureError as error:
        _leave(str(error), FAILED)
    except KeyboardInterrupt:
        _leave("interrupted", INTERRUPTED)


def _leave(message: str, code: int, lines: Sequence[str] = ()) -> None:
    """Print a line for each mistake, and exit."""
    for line in lines or [message]:
        print(f"perdure: {strip_control_characters(' '.join(line.split()))}", file=sys.stderr)
    raise SystemExit(code)


Json = Annotated[bool, typer.Option("--json", help="Print only one JSON document.")]
RunId = Annotated[str, typer.Argument(metavar="ID", help="The run's id.")]
Context = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="JSON|@FILE",
        help='Facts about the sender for tools, not for models: {"customer": "C-17"}.',
    ),
]
Priority = Annotated[
    int | None,
    typer.Option(min=1, max=5, help="The priority, 1 to 5; a smaller number runs first. By default the agent's, or 3."),
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
    raise AssertionError("one_line_errors ends the process")
