"""Execution of programs that the worker allows, without a shell and within limits."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from typing_extensions import TypedDict

from perdure.activities.tools.jail import adopt_orphans, end_strays
from perdure.errors import ToolError
from perdure.tools.decorator import tool

MAX_OUTPUT: Final = 100_000
"""Bytes of each stream that are kept; the rest is counted."""
TIMEOUT: Final = 300.0
_GRACE: Final = 5.0
"""Seconds for the jail to end its processes."""
ADDRESS_SPACE: Final = 4096
"""Megabytes of memory that a process may reserve: more than a compiler needs, less than a machine has."""
_JAIL: Final = Path(__file__).with_name("jail.py")
_PR_SET_DUMPABLE: Final = 4
_jails: Final[set[int]] = set()
"""Jails of this process that are alive."""


class Ended(TypedDict):
    exitCode: int
    stdout: str
    stderr: str


def command_tools(commands: Sequence[str], folder: Path | None) -> list[Callable[..., Any]]:
    """Return `run_command` for these programs, in this folder.

    It makes this process's memory and environment unreadable for other processes of the same user
    (`/proc/<pid>/environ`): they hold keys.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    adopt_orphans()
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
    """Run a program in a jail, a process that ends all processes of the program: see `jail`."""
    ours, theirs = socket.socketpair()
    jail = ["-I", "-S", str(_JAIL), str(theirs.fileno()), str(ADDRESS_SPACE)]
    with ours, theirs:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *jail,
            program,
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
            # The worker's environment holds keys: the program receives only `PATH`.
            env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        _jails.add(process.pid)
        theirs.close()
        ours.setblocking(False)
        reading = asyncio.gather(_read(process.stdout), _read(process.stderr), _write(process.stdin, stdin.encode()))
        lost = False
        try:
            async with asyncio.timeout(timeout):
                said = await asyncio.get_running_loop().sock_recv(ours, 64)
                if lost := not said:
                    raise ToolError(
                        "killed",
                        f"the parent process of {argv[0]} was killed; all its child processes were ended",
                        carried_out=None,
                    )
                out, err, _ = await asyncio.wait_for(reading, _GRACE)
        except TimeoutError:
            raise ToolError("timeout", f"{argv[0]} ran for longer than {timeout:g} s, and was stopped") from None
        finally:
            # The jail ends the program and its children, also when the call is cancelled: it sees that its socket is
            # closed.
            ours.close()
            reading.cancel()
            await asyncio.shield(_ended(process, lost))
            await asyncio.gather(reading, return_exceptions=True)
    return {"exitCode": int(said), "stdout": out, "stderr": err}


async def _ended(process: asyncio.subprocess.Process, lost: bool) -> None:
    """Wait for the jail's end; `lost`: it ended without a report."""
    try:
        if not lost:
            await asyncio.wait_for(process.wait(), _GRACE)
    except TimeoutError:
        lost = True
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    _jails.discard(process.pid)
    if lost or process.returncode:
        await asyncio.to_thread(end_strays, set(_jails))


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
