"""The worker of a test, and what kills it: from one moment on nothing that it says reaches the server (R14.5).

A worker that is to be killed is connected through a relay. Cutting the relay is to the server what `kill -9` is: no goodbye, no report,
heartbeats that do not come. Code that was running there is held where it stands and never reports.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from temporalio.client import Client

from perdure.client.histories import quiet_runtime
from perdure.hosting.workers import WorkerGroup

Moment: TypeAlias = Literal["before", "during", "after"]
"""When a worker dies, seen from the tool's code: see `kill`."""


@dataclass
class Kill:
    """A worker's death: see `kill`."""

    tool: str
    moment: Moment
    call: int = 1
    seen: int = 0
    happened: bool = False

    def __str__(self) -> str:
        return f"kill({self.tool!r}, {self.moment!r})"


def kill(tool: str, moment: Moment = "during", *, call: int = 1) -> Kill:
    """Kill the worker at a call of the tool, the `call`-th time that a worker takes one up; another worker is started at once.

    `before`: it has taken the call up, and the tool's code has not run. `during`: the code has run to its end, and nobody was told: what
    it did is done, its result is lost. `after`: the result is in the history, and the worker dies before it goes on. Times at which
    an earlier one of `faults` strikes do not count. Raises `ValueError` for another moment.
    """
    if moment not in get_args(Moment):
        raise ValueError(f"a worker is killed {', '.join(get_args(Moment))} a call, not {moment!r}")
    return Kill(tool, moment, call)


class Relay:
    """Between a worker and its server, until it is cut."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumping: set[asyncio.Task[None]] = set()
        self._is_cut = False

    async def open(self) -> str:
        """Its address."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return f"127.0.0.1:{port}"

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection(self._host, self._port)
        self._writers |= {writer, back}
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._pumping.add(task)
            task.add_done_callback(self._pumping.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                sink.write(data)
                await sink.drain()
        sink.transport.abort()
        self._writers.discard(sink)

    def cut(self) -> None:
        self._is_cut = True
        for writer in list(self._writers):
            writer.transport.abort()

    def heal(self) -> None:
        """Let a worker that is being shut down say goodbye; what it reports is long settled."""
        self._is_cut = False

    async def close(self) -> None:
        self.cut()
        self._server.close()
        await asyncio.gather(*self._pumping, return_exceptions=True)


@dataclass
class _Running:
    worker: WorkerGroup
    task: asyncio.Task[None]
    relay: Relay | None
    dead: bool = False


@dataclass
class Workers:
    """At any time those that live: `build` makes them on a client."""

    client: Client
    mortal: bool
    """Whether they are going to be killed: only then there is a relay."""
    deaths: int = 0
    _running: list[_Running] = field(default_factory=list)

    async def start(self, build: Callable[[Client], list[WorkerGroup]]) -> None:
        self._build = build
        relay, client = None, self.client
        if self.mortal:
            relay = Relay(self.client.service_client.config.target_host)
            address = await relay.open()
            client = await Client.connect(
                address,
                namespace=self.client.namespace,
                data_converter=self.client.data_converter,
                runtime=quiet_runtime(),
            )
        for worker in build(client):
            self._running.append(_Running(worker, asyncio.create_task(worker.run()), relay))

    async def kill(self) -> None:
        """Kill those that live, and start others."""
        for running in self._running:
            if not running.dead and running.relay is not None:
                running.dead = True
                running.relay.cut()
        self.deaths += 1
        await self.start(self._build)

    def check(self) -> None:
        """Raises what a worker that should live has failed with."""
        for running in self._running:
            if running.task.done() and not running.task.cancelled() and (error := running.task.exception()):
                raise error

    async def close(self) -> None:
        stopping = [asyncio.create_task(running.worker.shutdown()) for running in self._running]
        await asyncio.sleep(0)
        for running in self._running:
            if running.relay is not None:
                running.relay.heal()
        await asyncio.gather(*stopping, *(running.task for running in self._running), return_exceptions=True)
        for relay in {id(each.relay): each.relay for each in self._running if each.relay is not None}.values():
            await relay.close()
