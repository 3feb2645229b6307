"""`perdure dev`: server, Web UI, gateway and workers, until Ctrl-C. Tools and agents are reloaded when their files
change (R19.9).

Python cannot reload a module in a process in which its functions run. So each version of the code is a worker in its
own process, with its own Temporal worker version: runs are pinned to it. A change starts another worker, and makes it
current once tools and agents are loaded. The next change ends each former worker whose runs have all ended. The new
worker answers queries about these runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from temporalio.api.deployment.v1 import WorkerDeploymentInfo
from temporalio.api.enums.v1 import VersionDrainageStatus
from temporalio.api.workflowservice.v1 import DescribeWorkerDeploymentRequest, SetWorkerDeploymentCurrentVersionRequest
from temporalio.client import Client
from temporalio.service import RPCError

from perdure.errors import ServerError, SettingsError
from perdure.hosting import logs
from perdure.hosting._dev_worker import ForkServer, WorkerProcess
from perdure.hosting.equipment import registry_of
from perdure.hosting.process import queue_interrupts
from perdure.hosting.server import embedded_server, find_server_process
from perdure.hosting.settings import Settings, replace_settings
from perdure.hosting.telemetry import worker_runtime
from perdure.hosting.user_workflows import load_workflows
from perdure.hosting.worker import leave
from perdure.hosting.worker_group import LEAVES_AFTER
from perdure.queries import DEV_DEPLOYMENT, cancel_all
from perdure.values.json import JsonObject

MOST: Final = 5
"""The most former workers that are kept for their runs. Beyond that, the runs of the oldest continue with the newest code. Also the most
versions whose ended runs a new worker reads."""
RESTARTS: Final = 3
"""The most workers that are started in a row because the worker before ended by itself."""
_STEADY: Final = 600.0
"""Seconds since the last restart after which an end starts a new count. Broken code mostly fails at once, or at its first call."""
_AGAIN: Final = 0.1
_PINNED: Final = "TemporalWorkflowVersioningBehavior = 'Pinned' AND ExecutionStatus = 'Running'"
"""Sessions are not pinned: they continue on the current version."""
_log: Final = logging.getLogger("perdure.worker")


async def serve_dev(
    settings: Settings, beside: Callable[[Client], AbstractAsyncContextManager[object]] = nullcontext
) -> None:
    """Serve until interrupted; agents are read from `agents`, if it exists. `beside`: a context entered once the server
    runs.

    Raises a `PerdureError` when something cannot start.
    """
    with closing(ForkServer()) as fork:  # before any of the user's code is loaded, and any thread begins
        logs.configure(settings.log_format, settings.log_level, payloads=settings.log_payloads)
        load_workflows(settings.workflows).check_tools(registry_of(settings))  # before a server is needed
        ended = await _serve(settings, beside, fork)
    leave(ended)


async def _serve(
    settings: Settings, beside: Callable[[Client], AbstractAsyncContextManager[object]], fork: ForkServer
) -> bool:
    """Serve until interrupted. Return whether all workers have ended without an error."""
    port, ui_port = settings.dev_port, settings.dev_ui_port
    with queue_interrupts() as interrupted:
        runtime = worker_runtime()
        async with embedded_server(port=port, ui_port=ui_port, db=settings.dev_db, runtime=runtime) as server:
            if process := find_server_process():
                fork.guard_server(process)
            bound = server.client.service_client.config.target_host.rpartition(":")[2]
            # clients look at 7233 unless the variable names another address
            elsewhere = "" if bound == "7233" else f"; in other terminals: export TEMPORAL_ADDRESS=localhost:{bound}"
            print(f"Temporal  localhost:{bound}{elsewhere}", file=sys.stderr)
            print(
                f"Web UI    http://localhost:{ui_port}; press Ctrl-C to stop the server and the worker", file=sys.stderr
            )
            workers = _Workers(settings, server.client, fork)
            async with beside(server.client):
                return await workers.serve(interrupted)


@dataclass
class _DevWorker:
    """A worker in its own process."""

    build: str
    process: WorkerProcess
    files: list[str]
    serves: list[str] = field(default_factory=list)
    """Build ids: its own, and those of the runs that it has taken over, the newest first."""
    drains: bool = False
    """Whether the worker was interrupted."""

    @property
    def has_ended(self) -> bool:
        return self.process.returncode is not None

    @property
    def has_failed(self) -> bool:
        """Whether the worker ended without an interrupt, or left work behind. `-SIGTERM`: its worker had ended already."""
        return self.has_ended and not (self.drains and self.process.returncode in (0, -signal.SIGTERM))

    def interrupt(self) -> None:
        """Let the worker drain, or hand over its calls if it drains already."""
        self.drains = True
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)


class _FaultError(Exception):
    """Tools or agents are invalid: the reason in one line, and the files that were read."""

    def __init__(self, line: str, files: list[str]) -> None:
        super().__init__(line)
        self.files = files


class _Workers:
    """The worker whose code is current, and the former ones."""

    def __init__(self, settings: Settings, client: Client, fork: ForkServer) -> None:
        self._settings = settings
        self._client = client
        self._fork = fork
        self._own = settings.deployment_name is None and settings.build_id is None
        self._watches = settings.dev_reload and self._own and not (settings.health_port or settings.metrics)
        self._current: _DevWorker | None = None
        self._former: list[_DevWorker] = []
        self._ending: list[_DevWorker] = []
        self._orphans: list[str] = []
        self._stamps: dict[Path, tuple[int, int]] = {}

    async def serve(self, interrupted: asyncio.Queue[int]) -> bool:
        """Work until interrupted, then drain. Return whether all workers have ended without an error. Raises
        `SettingsError` if tools or agents are invalid at the start.
        """
        self._orphans = await self._left_behind()
        try:
            stopped = asyncio.ensure_future(interrupted.get())
            try:
                if not await self._start_current(stopped, self._orphans):
                    return True
                await self._go_on(stopped)
            finally:
                stopped.cancel()
            return await self._drained(interrupted)
        finally:
            for each in self._all:
                if not each.has_ended:
                    with contextlib.suppress(ProcessLookupError):
                        each.process.send_signal(signal.SIGKILL)

    @property
    def _all(self) -> list[_DevWorker]:
        return [*([self._current] if self._current else []), *self._former, *self._ending]

    async def _start_current(self, stopped: asyncio.Future[int], adopted: Sequence[str]) -> bool:
        """Start the current worker. Return whether it started before an interrupt.

        `adopted`: the build ids whose runs it continues. Raises `SettingsError` if it cannot start.
        """
        starting = asyncio.ensure_future(self._start(adopted))
        await _first(starting, stopped)
        if not starting.done():
            await cancel_all(starting)
            return False
        try:
            self._current = starting.result()
        except _FaultError as error:
            raise SettingsError(str(error)) from None
        return True

    async def _go_on(self, stopped: asyncio.Future[int]) -> None:
        """Reload until interrupted, or until the current worker has ended by itself too often in a row."""
        assert self._current is not None
        clock, ends = asyncio.get_running_loop().time, 0
        began = clock()
        while not stopped.done():
            gone = asyncio.ensure_future(self._current.process.wait())
            changes = asyncio.ensure_future(self._changed())
            try:
                await _first(stopped, gone, changes)
                if self._current.has_ended:
                    ends = 1 if clock() - began >= _STEADY else ends + 1
                    if not await self._restart(stopped, ends):
                        return
                    began = clock()
                elif changes.done():
                    await self._reload_until(stopped, changes.result())
            finally:
                await cancel_all(gone, changes)

    async def _restart(self, stopped: asyncio.Future[int], ends: int) -> bool:
        """Start a worker that also continues the runs of one that has ended. Return false after too many ends, or if none
        can start. `ends`: the number of ends in a row.
        """
        assert self._current is not None
        code = self._current.process.returncode or 0
        line = f"the worker ended unexpectedly ({f'signal {-code}' if code < 0 else f'exit code {code}'})"
        if ends <= RESTARTS:
            served = [build for each in self._former if not each.has_ended for build in each.serves]
            try:
                if await self._start_current(stopped, [each for each in await self._versions() if each not in served]):
                    print(f"{line}; another one has started", file=sys.stderr, flush=True)
                return True
            except SettingsError as error:
                line = f"{line}, and no other can start: {error}"
        database = self._settings.dev_db
        outcome = (
            "its runs are lost: start dev with --db FILE to keep the runs of a later end"
            if database is None
            else f"its runs go on at the next start with --db {database}"
        )
        print(f"{line}; dev stops, and {outcome}", file=sys.stderr, flush=True)
        return False

    async def _reload_until(self, stopped: asyncio.Future[int], names: list[str]) -> None:
        """Reload, unless an interrupt comes first: a module may hang while it is imported."""
        reloading = asyncio.ensure_future(self._reload(names))
        await _first(stopped, reloading)
        if reloading.done():
            reloading.result()
        await cancel_all(reloading)

    async def _drained(self, interrupted: asyncio.Queue[int]) -> bool:
        """Let all workers drain; forward each further interrupt. Return whether all have ended without an error."""
        workers = [each for each in self._all if not (each.has_ended and each.drains)]
        for each in workers:
            if not each.has_ended and not each.drains:
                each.interrupt()
        ended = asyncio.ensure_future(asyncio.gather(*(each.process.wait() for each in workers)))
        while not ended.done():
            again = asyncio.ensure_future(interrupted.get())
            await _first(ended, again)
            if again.done():
                for each in workers:
                    each.interrupt()
            again.cancel()
        failed = [each for each in workers if each.has_failed]
        for each in failed:
            print(f"a worker has ended with code {each.process.returncode}", file=sys.stderr, flush=True)
        return not failed

    async def _reload(self, names: list[str]) -> None:
        """Start a worker with the changed code, and make it current."""
        assert self._current is not None
        listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        self._ending = [each for each in self._ending if not each.has_ended]
        for each in [each for each in self._former if each.has_ended]:
            self._former.remove(each)
            self._orphans += each.serves
        replaced, builds = await self._find_replaced()
        taken_over = [*self._orphans, *builds]
        try:
            started = await self._start(taken_over)
        except _FaultError as error:
            self._current.files = sorted({*self._current.files, *error.files})
            self._stamps = {**self._files(), **self._stamps}
            print(f"{listed} changed: {error}; the previous code stays in use", file=sys.stderr, flush=True)
            return
        self._former.append(self._current)
        self._current = started
        self._orphans = [each for each in self._orphans if each not in taken_over]
        print(f"{listed} changed: new runs use the new code", file=sys.stderr, flush=True)
        for each in replaced:  # after that line, because they print lines too
            self._former.remove(each)
            self._ending.append(each)
            each.interrupt()

    async def _start(self, adopted: Sequence[str]) -> _DevWorker:
        """Start a worker, and make its version current. Raises `_FaultError`."""
        build = uuid.uuid4().hex[:8]
        version = {"deployment_name": DEV_DEPLOYMENT, "build_id": build, "keep_version": True} if self._own else {}
        self._stamps = self._files()
        reading, writing = os.pipe()
        given: JsonObject = {
            "settings": replace_settings(self._settings, version).model_dump(mode="json"),
            "path": sys.path,
            "address": self._client.service_client.config.target_host,
            "namespace": self._client.namespace,
            "adopted": [*adopted],
        }
        try:
            process = self._fork.start(given, writing)
        finally:
            os.close(writing)
        worker = _DevWorker(build, process, [], [build, *adopted])
        try:
            line = await _line(reading)
            report: JsonObject = json.loads(line) if line else {}
            worker.files = report.get("files", [])
            if "files" not in report or "fault" in report:
                code = await process.wait()
                raise _FaultError(report.get("fault", f"the worker has ended with code {code}"), worker.files)
            if self._own:
                await self._make_current(worker)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), self._settings.grace + LEAVES_AFTER)
            except TimeoutError:
                process.send_signal(signal.SIGKILL)
            raise
        self._stamps = {**self._files(worker), **self._stamps}
        return worker

    async def _make_current(self, worker: _DevWorker) -> None:
        """Route new runs to the worker. The server knows its version once it polls."""
        wanted = SetWorkerDeploymentCurrentVersionRequest(
            namespace=self._client.namespace,
            deployment_name=DEV_DEPLOYMENT,
            build_id=worker.build,
            identity="perdure dev",
            ignore_missing_task_queues=True,
        )
        while True:
            try:
                await self._client.workflow_service.set_worker_deployment_current_version(wanted)
                return
            except RPCError:
                if worker.has_ended:
                    raise _FaultError("the worker ended before it was ready", worker.files) from None
                await asyncio.sleep(_AGAIN)

    async def _find_replaced(self) -> tuple[list[_DevWorker], list[str]]:
        """Return the former workers that the next worker replaces, and the build ids that it adopts from them.

        It replaces workers whose runs have all ended, so that these runs stay readable. If there are none, and too many
        workers, it replaces the oldest one.
        """
        replaced = []
        for each in reversed(self._former):
            listed = ", ".join(f"'{DEV_DEPLOYMENT}:{build}'" for build in each.serves)
            query = f"TemporalWorkerDeploymentVersion IN ({listed}) AND {_PINNED}"
            try:
                idle = not (await self._client.count_workflows(query)).count
            except RPCError as error:
                _log.debug("runs of an earlier version cannot be counted: %s", error)
                continue
            if idle:
                replaced.append(each)
        if not replaced and len(self._former) >= MOST:
            return self._former[:1], self._former[0].serves
        return replaced, list(dict.fromkeys(build for each in replaced for build in each.serves))[:MOST]

    async def _left_behind(self) -> list[str]:
        """Return the build ids of an earlier `dev` with the same database.

        The first worker continues their runs, and answers queries about runs that have ended.
        """
        return [] if self._settings.dev_db is None else await self._versions()

    async def _versions(self) -> list[str]:
        """Return the build ids that the server knows: all with running runs, and the newest `MOST` others."""
        if not self._own:
            return []
        wanted = DescribeWorkerDeploymentRequest(namespace=self._client.namespace, deployment_name=DEV_DEPLOYMENT)
        try:
            found = await self._client.workflow_service.describe_worker_deployment(wanted)
        except RPCError:
            return []
        drained = VersionDrainageStatus.VERSION_DRAINAGE_STATUS_DRAINED
        newest = sorted(found.worker_deployment_info.version_summaries, key=_created, reverse=True)
        ended = [each for each in newest if each.drainage_status == drained]
        return [each.deployment_version.build_id for each in newest if each not in ended[MOST:]]

    async def _changed(self) -> list[str]:
        """Wait until files of the code or agents differ from the current worker's. Return their names."""
        if not self._watches:
            await asyncio.Event().wait()
        async for _ in _wakes(self._folders()):
            now, before = self._files(), self._stamps
            if names := sorted({path.name for path in now.keys() | before.keys() if now.get(path) != before.get(path)}):
                return names
        raise ServerError("files are no longer watched")

    def _folders(self) -> list[Path]:
        files = [] if self._current is None else self._current.files
        places = {Path.cwd(), *(Path(file).parent for file in files)}
        places |= {self._settings.agents_folder, *([self._settings.mcp.parent] if self._settings.mcp else [])}
        return sorted(place for place in places if place.is_dir())

    def _files(self, worker: _DevWorker | None = None) -> dict[Path, tuple[int, int]]:
        """Return the change time and the size of each file that the code uses, or may use next time."""
        worker = worker or self._current
        found = {Path(file) for file in ([] if worker is None else worker.files)}
        found |= {path for place in {path.parent for path in found} for path in place.glob("*.py")}
        found |= {*Path.cwd().glob("*.py"), *self._settings.agents_folder.glob("*.json")}
        found |= {self._settings.mcp} if self._settings.mcp else set()
        stamps = {}
        for path in found:
            with contextlib.suppress(OSError):
                stat = path.stat()
                stamps[path] = (stat.st_mtime_ns, stat.st_size)
        return stamps


def _created(version: WorkerDeploymentInfo.WorkerDeploymentVersionSummary) -> int:
    return version.create_time.ToNanoseconds()


async def _wakes(folders: list[Path]) -> AsyncIterator[None]:
    """Yield when a file of the folders changes, and each second, for changes before the watch began."""
    try:
        from watchfiles import awatch
    except ImportError:
        print("files are not watched: pip install 'perdure[embedded]'", file=sys.stderr, flush=True)
        await asyncio.Event().wait()
        return
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    yield
    async for _ in awatch(
        *folders, watch_filter=None, recursive=False, rust_timeout=1000, yield_on_timeout=True, raise_interrupt=False
    ):
        yield


async def _first(*futures: asyncio.Future[Any]) -> None:
    """Return once one of them is done."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def _line(reading: int) -> bytes:
    """Return a line of a pipe; empty if the other end was closed before."""
    reader = asyncio.StreamReader(limit=2**24)
    pipe = os.fdopen(reading, "rb")
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        return await reader.readline()
    finally:
        transport.close()
