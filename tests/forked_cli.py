"""The command line, a worker or an MCP server, as a process that is forked from one that has loaded it already: loading takes one to three seconds of CPU time.

Run as a program this is the one that forks. Over a socket of its own for each command it takes `{"program", "argv", "env", "cwd"}` and the three standard files. It
answers with two lines: the command's process, and its exit code. A command whose socket is closed is killed. It has no thread, so that what is forked from it is as good as new.
"""

from __future__ import annotations

import array
import asyncio
import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import ClassVar, Final

_ROOT: Final = Path(__file__).parents[1]
_CLI: Final = "perdure.cli.main"
_WORKER: Final = "tests.worker_process"
MCP_SERVER: Final = "tests.mcp_server"
_LOADED: Final = {
    _CLI: (
        *(_CLI, "perdure.client.perdure", "perdure.hosting.telemetry", "perdure.hosting.dev"),
        *("perdure.cli._gateway", "perdure.gateway.mcp._methods", "perdure.pages.adapter", "perdure.pages.what_if"),
        *("perdure.cli.demo", "perdure.activities.mcp", "perdure.activities.tools", "genai_prices.data"),
        *("anyio._backends._asyncio", "httpcore2"),
        *("mcp.server.mcpserver", "mcp.server.auth.settings", "sse_starlette", "uvicorn.protocols.http.auto"),
    ),
    _WORKER: (_WORKER,),
}
"""What is loaded before a program is forked, which begins with the function `main` of its module. An MCP server is forked from the command line."""
FORKED: Final = (
    *("TEMPORAL_", "PERDURE_", "EDITOR", "VISUAL", "HOME", "USER", "COLUMNS"),
    *("OPENAI_", "ANTHROPIC_", "GOOGLE_", "GEMINI_", "AWS_"),
)
"""Variables that nothing reads while it is loaded."""
_HEADER: Final = 8


class ForkedCli:
    """The processes that fork, of one test process."""

    _paths: ClassVar[dict[str, str]] = {}
    _starting = threading.Lock()

    @classmethod
    async def run(cls, argv: list[str], env: dict[str, str], cwd: Path, seconds: float) -> tuple[int, bytes, bytes]:
        """Exit code, standard output and error of a command."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            connection = await cls._begin(_CLI, argv, env, cwd, out.fileno(), err.fileno())
            loop = asyncio.get_running_loop()
            answer = b""
            with connection:
                async with asyncio.timeout(seconds):
                    while piece := await loop.sock_recv(connection, 64):
                        answer += piece
            _, code = answer.split()
            return int(code), _read(out.fileno()), _read(err.fileno())

    @classmethod
    async def command(cls, program: str = _CLI) -> tuple[str, ...]:
        """Return the beginning of a command line that stands for `python client.py`, for a process that a test talks to while it runs.

        Whoever kills it by SIGKILL does not know when the command itself has ended: it is no worker to be killed.
        """
        clean = {name: value for name, value in os.environ.items() if not name.startswith(FORKED)}
        path = await asyncio.to_thread(cls._start, _CLI, clean)
        return (sys.executable, "-I", "-S", str(_ROOT / "tests" / "forked_client.py"), path, program)

    @classmethod
    async def worker(cls, *argv: str) -> ForkedWorker:
        """Start `python -m tests.worker_process ARGV…`. What it writes is lost."""
        nothing = os.open(os.devnull, os.O_WRONLY)
        try:
            connection = await cls._begin(_WORKER, list(argv), dict(os.environ), _ROOT, nothing, nothing)
        finally:
            os.close(nothing)
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        return ForkedWorker(int(await reader.readline()), reader, writer)

    @classmethod
    async def _begin(
        cls, program: str, argv: list[str], env: dict[str, str], cwd: Path, out: int, err: int
    ) -> socket.socket:
        """Return the socket of a process that has begun: it answers with the process and, at its end, the exit code."""
        path = await asyncio.to_thread(cls._start, program, env)
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        connection.setblocking(False)
        nothing = os.open(os.devnull, os.O_RDONLY)
        text = json.dumps({"program": program, "argv": argv, "env": env, "cwd": str(cwd)}).encode()
        socket.send_fds(connection, [len(text).to_bytes(_HEADER)], [nothing, out, err])
        os.close(nothing)
        await asyncio.get_running_loop().sock_sendall(connection, text)
        return connection

    @classmethod
    def _start(cls, program: str, env: dict[str, str]) -> str:
        """Start the process once. Loading takes seconds on a slow machine, in which the test's own worker has to go on with its heartbeats."""
        with cls._starting:
            path = cls._paths[program] = cls._paths.get(program) or _started(program, env)
        return path


class ForkedWorker:
    """A worker's process, which a test kills or which kills itself."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._pid, self._reader, self._writer = pid, reader, writer
        self._has_ended = False

    async def wait(self) -> None:
        """Return once it has ended."""
        await self._reader.readline()
        self._has_ended = True
        self._writer.close()

    async def kill(self) -> None:
        """End it by SIGKILL, if it has not ended."""
        if not self._has_ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            await self.wait()


def _read(file: int) -> bytes:
    os.lseek(file, 0, os.SEEK_SET)
    with open(file, "rb", closefd=False) as opened:
        return opened.read()


def _started(program: str, env: dict[str, str]) -> str:
    folder = tempfile.mkdtemp(prefix="forked-cli-")
    path = f"{folder}/socket"
    plain = {key: value for key, value in env.items() if not key.startswith(FORKED)}
    process = subprocess.Popen(
        [sys.executable, __file__, path, program], env=plain, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"

    def end() -> None:
        process.kill()
        process.wait()
        with contextlib.suppress(OSError):
            os.unlink(path)
            os.rmdir(folder)

    atexit.register(end)
    return path


def serve(path: str, program: str) -> None:
    """Fork for ever."""
    sys.path[0] = str(_ROOT)
    for name in _LOADED[program]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    assert threading.active_count() == len(os.listdir("/proc/self/task")) == 1, "what has threads cannot be forked"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(100)
    os.write(1, b"ready\n")
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _attend(connection)
        connection.close()


def _attend(connection: socket.socket) -> None:
    """One command, and what became of it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    length, files, _, _ = socket.recv_fds(connection, _HEADER, 3)
    said = b""
    while len(said) < int.from_bytes(length):
        said += connection.recv(65536)
    wanted = json.loads(said)
    child = os.fork()
    if child == 0:
        connection.close()
        _become(wanted["program"], wanted["argv"], wanted["env"], wanted["cwd"], array.array("i", files).tolist())
    for file in files:
        os.close(file)
    with contextlib.suppress(OSError):
        connection.sendall(f"{child}\n".encode())
    ended = os.pidfd_open(child)
    if ended not in select.select([connection.fileno(), ended], [], [])[0]:  # nobody waits for it any more
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become(program: str, argv: list[str], env: dict[str, str], cwd: str, files: list[int]) -> None:
    code = 70
    try:
        for standard, file in enumerate(files):
            os.dup2(file, standard)
            os.close(file)
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout = os.fdopen(1, "w", buffering=1 if os.isatty(1) else -1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
        os.environ.clear()
        os.environ.update(env)
        os.chdir(cwd)
        sys.argv = [str(_ROOT / "client.py"), *argv]
        importlib.import_module(program).main()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1 if leaving.code else 0
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(*sys.argv[1:])
