"""Temporal servers of tests: new, already running, or one for a session of pytest."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Literal, TypeAlias

from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.testing import WorkflowEnvironment

from perdure.client.histories import quiet_runtime
from perdure.hosting.codec import PayloadConverter
from perdure.hosting.sdk_internals import Converter
from perdure.hosting.server import embedded_server, find_program, start_patiently
from perdure.queries import add_attributes
from perdure.runs.wire import ATTRIBUTES

Server: TypeAlias = "Literal['time-skipping', 'dev'] | str | Client | WorkflowEnvironment"
"""One started anew, the address of one, a client of one, or an environment of Temporal's own."""


class FilesInMemory:
    """A storage that keeps the files of one test in memory."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    async def put_named(self, name: str, data: bytes) -> None:
        """Store the bytes under a name."""
        self._files.setdefault(name, data)

    async def get_named(self, name: str) -> bytes | None:
        """Return the bytes; `None`: there are none of this name."""
        return self._files.get(name)


async def serve(
    stack: AsyncExitStack, server: Server, data_converter: DataConverter | None = None
) -> WorkflowEnvironment:
    """Return the server, for as long as the stack; nothing is read of the environment, but for what the converter was made of."""
    converter = data_converter or Converter(payload_converter_class=PayloadConverter, files=FilesInMemory())
    if isinstance(server, WorkflowEnvironment):
        return server
    if isinstance(server, Client):
        return WorkflowEnvironment.from_client(server)
    if server == "dev":
        return await stack.enter_async_context(_dev_server(converter))
    if server != "time-skipping":
        client = await Client.connect(server, data_converter=converter, runtime=quiet_runtime())
        return WorkflowEnvironment.from_client(client)
    started = await stack.enter_async_context(
        await start_patiently(
            lambda: WorkflowEnvironment.start_time_skipping(
                data_converter=converter,
                test_server_existing_path=find_program("temporal-test-server"),
                runtime=quiet_runtime(),
            )
        )
    )
    # It cannot say which it knows, and a start that names others leaves half a run behind.
    await add_attributes(started.client, list(ATTRIBUTES))
    return started


@asynccontextmanager
async def _dev_server(converter: DataConverter) -> AsyncIterator[WorkflowEnvironment]:
    """Start a dev server that knows the search attributes before its first run: lists would not find that run otherwise."""
    async with embedded_server(ui=False, converter=converter) as server:
        await add_attributes(server.client, list(ATTRIBUTES))
        yield server


@contextmanager
def dev_server_in_thread() -> Iterator[str]:
    """Start a dev server on an event loop of its own, and yield its address: tests have loops of their own."""
    address: list[str] = []
    problem: list[BaseException] = []
    started, ending = threading.Event(), asyncio.Event()

    async def keep(loop: list[asyncio.AbstractEventLoop]) -> None:
        async with _dev_server(Converter(payload_converter_class=PayloadConverter)) as server:
            loop.append(asyncio.get_running_loop())
            address.append(server.client.service_client.config.target_host)
            started.set()
            await ending.wait()

    loops: list[asyncio.AbstractEventLoop] = []

    def work() -> None:
        try:
            asyncio.run(keep(loops))
        except BaseException as error:
            problem.append(error)
            started.set()

    thread = threading.Thread(target=work, name="perdure dev server", daemon=True)
    thread.start()
    started.wait()
    if problem:
        raise problem[0]
    try:
        yield address[0]
    finally:
        loops[0].call_soon_threadsafe(ending.set)
        thread.join()
