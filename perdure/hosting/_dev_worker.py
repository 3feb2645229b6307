"""The workers of `perdure dev`: a process for each version of the code, started and ended by the supervisor."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import signal
import socket
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from perdure.errors import PerdureError, ServerError
from perdure.hosting import logs
from perdure.hosting.connection import connect
from perdure.hosting.equipment import keep_mcp_tools, registry_of
from perdure.hosting.settings import Settings, apply_settings, replace_settings
from perdure.hosting.telemetry import worker_runtime
from perdure.hosting.user_workflows import load_workflows
from perdure.hosting.worker import leave, work
from perdure.values.json import JsonObject, dumps

FAULT: Final = 2
"""The exit code when tools or agents are invalid; the report holds the reason."""
_NUMBER: Final = 8
"""The length in bytes of a message with a process id or an exit code."""
_START: Final = b"+"
"""Request to the fork server: start a worker."""
_GUARD: Final = b"s"
"""Request to the fork server: kill the Temporal server whose process id follows, if `perdure dev` is killed."""
_CLOSE: Final = b"."
"""Request to the fork server: end."""


class WorkerProcess:
    """A worker in its own process. `pid`: of the process; `returncode`: `None` while it runs."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._control = control
        control.setblocking(False)
        self._ended = asyncio.ensure_future(self._read_code())

    async def wait(self) -> int:
        """Return the exit code once the process has ended; negative for a signal."""
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        """Send a signal. Raises `ProcessLookupError` if the process has ended."""
        if self.returncode is not None:
            raise ProcessLookupError(self.pid)
        os.kill(self.pid, number)

    async def _read_code(self) -> int:
        with self._control:
            code = await asyncio.get_running_loop().sock_recv(self._control, _NUMBER)
        self.returncode = int(code) if code else -signal.SIGKILL
        return self.returncode


class ForkServer:
    """A process that has loaded Perdure and no user code. Each worker is forked from it.

    It is itself a fork of `perdure dev`: the server of `multiprocessing` would load Perdure again, in three seconds of CPU
    time. It has one thread, because a fork of a process with several threads may hang. It ends with `perdure dev`. If that
    was killed, it kills the Temporal server too.
    """

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        if os.fork() == 0:
            try:
                self._socket.close()
                _fork_workers(theirs)
            finally:
                os._exit(1)
        theirs.close()

    def start(self, given: JsonObject, report: int) -> WorkerProcess:
        """Start a worker. `given`: the settings, the server's address and the version. `report`: the file descriptor that takes its
        report. Raises `ServerError` if the system has no room for a process.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._socket, [_START], [theirs.fileno(), report])
        ours.sendall(dumps(given).encode() + b"\n")
        if not (pid := ours.recv(_NUMBER)):
            raise ServerError("the system cannot start another process for the worker")
        return WorkerProcess(int(pid), ours)

    def guard_server(self, pid: int) -> None:
        """Have the server with this process id killed if `perdure dev` is killed."""
        self._socket.sendall(_GUARD + f"{pid:{_NUMBER}}".encode())

    def close(self) -> None:
        """End the process. Its workers continue."""
        with self._socket, contextlib.suppress(OSError):
            self._socket.sendall(_CLOSE)


def _fork_workers(requests: socket.socket) -> NoReturn:
    """Fork a worker for each request, and a process that waits for the worker's end."""
    os.setsid()  # otherwise a terminal's Ctrl-C ends it, and reaches the workers twice
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    server = 0
    while True:
        asked, files, _, _ = socket.recv_fds(requests, 1, 2)
        if asked == _GUARD:
            server = int(requests.recv(_NUMBER, socket.MSG_WAITALL))
            continue
        if asked != _START:
            if not asked and server:  # `perdure dev` was killed; on SIGTERM the server would wait for its connections
                os.kill(server, signal.SIGKILL)
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            _attend(socket.socket(fileno=files[0]), files[1])
        for file in files:
            os.close(file)


def _attend(control: socket.socket, report: int) -> NoReturn:
    """Start a worker. Report its process and, at its end, its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        _become_worker(control, report)
    os.close(report)
    _, status = os.waitpid(pid, 0) if _sent(control, pid) else (0, 0)
    _sent(control, os.waitstatus_to_exitcode(status))
    os._exit(0)


def _sent(control: socket.socket, number: int) -> bool:
    try:
        control.sendall(f"{number:{_NUMBER}}".encode())
    except OSError:  # the supervisor has ended, and the worker ends itself
        return False
    return True


def _become_worker(control: socket.socket, report: int) -> NoReturn:
    """Run a worker, and end the process as the interpreter does."""
    code = 1
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        given = json.loads(control.makefile("rb").readline())
        sys.path[:] = given["path"]
        threading.Thread(target=_end_with_supervisor, args=[control], daemon=True).start()
        main(given, report)
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(given: JsonObject, report_to: int) -> None:
    """Run a worker. `given`: the settings, the server's address and the version. `report_to`: the file descriptor for its report."""
    settings = Settings(**given["settings"])
    with apply_settings(settings), os.fdopen(report_to, "w", encoding="utf-8") as pipe:

        def report(message: JsonObject) -> None:
            print(dumps(message), file=pipe, flush=True)

        asyncio.run(_work(settings, given, report))


async def _work(settings: Settings, given: JsonObject, report: Callable[[JsonObject], None]) -> None:
    logs.configure(settings.log_format, settings.log_level, payloads=settings.log_payloads)
    folder = settings.agents_folder if settings.agents_folder.is_dir() else None
    known = replace_settings(settings, {"agents": folder})
    loaded = False
    try:
        registry = registry_of(settings)
        load_workflows(settings.workflows).check_tools(registry)
        async with keep_mcp_tools(known, registry):
            loaded = True
            report({"files": _own_files()})
            runtime = worker_runtime(settings.metrics)
            client = await connect(runtime, target_host=given["address"], namespace=given["namespace"])
            ended = await work(client, runtime, registry, known, adopted=given["adopted"])
    except PerdureError as error:
        if loaded:
            raise
        report({"fault": " ".join(str(error).split()), "files": _own_files(error)})
        sys.stdout.flush()
        os._exit(FAULT)
    if not ended:
        leave(ended)


def _end_with_supervisor(control: socket.socket) -> None:
    """End this process when the supervisor has ended: its end of the connection is closed then."""
    while control.recv(1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _own_files(error: BaseException | None = None) -> list[str]:
    """Return the files of the user's own modules, and the file of a module that cannot be imported."""
    installed = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    installed.append(Path(__file__).parents[1].resolve())
    modules = [module for name, module in [*sys.modules.items()] if name != "__main__"]
    found = {file for module in modules if isinstance(file := getattr(module, "__file__", None), str)}
    while error is not None:
        found |= {error.filename} if isinstance(error, SyntaxError) and error.filename else set()
        error = error.__cause__
    paths = [Path(file).resolve() for file in found if file.endswith(".py")]
    return sorted(str(path) for path in paths if not any(path.is_relative_to(each) for each in installed))
