"""Running programs: those that the worker allows, without a shell, and bounded."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from typing_extensions import TypedDict

from perdure import ToolError, tool

MAX_OUTPUT: Final = 100_000
"""Bytes of each stream that are kept; the rest is counted."""
TIMEOUT: Final = 300.0
_ENVIRONMENT: Final = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR")
"""All that a program gets of the worker's environment, which holds keys."""


class Ended(TypedDict):
    exitCode: int
    stdout: str
    stderr: str


def command_tools(commands: Sequence[str], folder: Path | None) -> list[Callable[..., Any]]:
    """`run_command` for these programs, in this folder."""
    allowed = set(commands)

    @tool(dangerous=True, retries=0, timeout=TIMEOUT + 10)
    async def run_command(argv: list[str], stdin: str = "", timeout: float = 60.0) -> Ended:
        """Run a program with its arguments; no shell reads them, so there are no pipes and no wildcards.

        Args:
            argv: the program's name and its arguments.
            stdin: what it reads.
            timeout: seconds, 300 at most.
        """
        if not argv or argv[0] not in allowed:
            raise ToolError("not_allowed", f"{argv[:1]} is not allowed; the worker allows {', '.join(sorted(allowed))}")
        if any("\0" in argument for argument in argv):
            raise ToolError("invalid_params", "an argument has a null character")
        program = shutil.which(argv[0])
        if program is None:
            raise ToolError("no_such_program", f"the worker's machine has no program {argv[0]!r}")
        return await _run(program, argv, stdin, min(timeout, TIMEOUT), folder)

    return [run_command]


async def _run(program: str, argv: list[str], stdin: str, timeout: float, folder: Path | None) -> Ended:
    process = await asyncio.create_subprocess_exec(
        *argv,
        executable=program,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=folder,
        env={key: os.environ[key] for key in _ENVIRONMENT if key in os.environ},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(timeout):
            out, err, _ = await asyncio.gather(
                _read(process.stdout), _read(process.stderr), _write(process.stdin, stdin.encode())
            )
            code = await process.wait()
    except TimeoutError:
        raise ToolError("timeout", f"{argv[0]} ran for longer than {timeout:g} s, and was stopped") from None
    finally:
        # It and whatever it has started, also when the call is cancelled.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.shield(process.wait())
    return {"exitCode": code, "stdout": out, "stderr": err}


async def _read(stream: asyncio.StreamReader | None) -> str:
    assert stream is not None
    kept, dropped = b"", 0
    while chunk := await stream.read(65536):
        room = MAX_OUTPUT - len(kept)
        kept += chunk[:room]
        dropped += max(0, len(chunk) - room)
    return kept.decode(errors="replace") + (f"… ({dropped:,} more bytes)" if dropped else "")


async def _write(stream: asyncio.StreamWriter | None, data: bytes) -> None:
    assert stream is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stream.write(data)
        await stream.drain()
    stream.close()
