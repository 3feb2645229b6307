"""The worker of `perdure dev`: a process for each version of the code, started and ended by the supervisor."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from perdure.errors import PerdureError
from perdure.hosting import logs
from perdure.hosting.connection import connect
from perdure.hosting.equipment import equipped, registry_of
from perdure.hosting.settings import Settings, changed, using
from perdure.hosting.telemetry import worker_runtime
from perdure.hosting.user_workflows import load_workflows
from perdure.hosting.worker import leave, work
from perdure.values.json import JsonObject, dumps

FAULT: Final = 2
"""The exit code when tools or agents are invalid; the report holds the reason."""


def main(given: JsonObject) -> None:
    """Run a worker. `given`: the settings, the server's address, the version, and the file descriptor for the report."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    settings = Settings(**given["settings"])
    with using(settings), os.fdopen(given["report"], "w", encoding="utf-8") as pipe:

        def report(message: JsonObject) -> None:
            print(dumps(message), file=pipe, flush=True)

        asyncio.run(_work(settings, given, report))


async def _work(settings: Settings, given: JsonObject, report: Callable[[JsonObject], None]) -> None:
    logs.configure(settings.log_format, settings.log_level, payloads=settings.log_payloads)
    folder = settings.agents_folder if settings.agents_folder.is_dir() else None
    known = changed(settings, {"agents": folder})
    loaded = False
    try:
        registry = registry_of(settings)
        load_workflows(settings.workflows).check_tools(registry)
        async with equipped(known if given["checks_agents"] else settings, registry):
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


def _end_with_parent() -> None:
    """End this process when the supervisor has ended: its end of the pipe is closed then."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def _own_files(error: BaseException | None = None) -> list[str]:
    """Return the files of the user's own modules, and the file of a module that cannot be imported."""
    installed = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    installed.append(Path(__file__).parents[1].resolve())
    found = {
        file for module in list(sys.modules.values()) if isinstance(file := getattr(module, "__file__", None), str)
    }
    while error is not None:
        found |= {error.filename} if isinstance(error, SyntaxError) and error.filename else set()
        error = error.__cause__
    paths = [Path(file).resolve() for file in found if file.endswith(".py")]
    return sorted(str(path) for path in paths if not any(path.is_relative_to(each) for each in installed))
