"""One clear line for a mistake, and the right exit code (section 11)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from perdure.cli._console import harmless
from perdure.errors import MessageRefusedError, PerdureError, ProtocolError, RunTimeoutError, SettingsError
from perdure.values.problems import meant

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
        near = meant(value, choices)
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
    except BrokenPipeError:
        # The reader of the output has closed the pipe. Without this, the interpreter reports it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(FAILED) from None


def _leave(message: str, code: int, lines: Sequence[str] = ()) -> None:
    """Print a line for each mistake, and exit."""
    for line in lines or [message]:
        print(f"perdure: {harmless(' '.join(line.split()))}", file=sys.stderr)
    raise SystemExit(code)
