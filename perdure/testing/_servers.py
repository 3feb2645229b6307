"""Temporal servers for tests: new, already running, or one for a pytest session."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Final, Literal, TypeAlias

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
"""A new server of this kind, the address of a running one, a client, or a Temporal environment."""

DEV_SETTINGS: Final[dict[str, Any]] = {
    # A session continues as new after each reply. By default, its next execution begins a second after the start of the last one.
    "history.workflowIdReuseMinimalInterval": "1ms",
    # A server deletes an execution only when it has recorded how far its queues are: by default every 30 seconds.
    "history.transferProcessorUpdateAckInterval": "20ms",
    "history.visibilityProcessorUpdateAckInterval": "20ms",
}
"""The dynamic configuration of a dev server for tests."""


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
    """Return the server, which lives as long as the stack. Only the converter may depend on the environment."""
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
    # This server cannot list its attributes, and a start with an unknown one leaves an incomplete run.
    await add_attributes(started.client, list(ATTRIBUTES))
    return started


@asynccontextmanager
async def _dev_server(converter: DataConverter) -> AsyncIterator[WorkflowEnvironment]:
    """Start a dev server with the search attributes. Otherwise lists would not find its first run."""
    async with embedded_server(ui=False, settings=DEV_SETTINGS, converter=converter) as server:
        await add_attributes(server.client, list(ATTRIBUTES))
        yield server


@contextmanager
def dev_server_in_thread() -> Iterator[str]:
    """Start a dev server on an event loop of its own, because each test has its own loop, and yield its address."""
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
