"""What a server's program says on its stderr: not the worker's to print, but the best reason there is when it fails."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TextIO

from perdure.activities.secrets import masked

_KEPT: Final = 4096
"""Bytes of the end that are kept."""
_SHOWN: Final = 300


class LastWords:
    """Each line goes to the log as `perdure.mcp.NAME`, at the level of a detail; the last is kept."""

    def __init__(self, name: str) -> None:
        self._log = logging.getLogger(f"perdure.mcp.{name}")
        self._tail = b""

    @property
    def last(self) -> str:
        """The last line that says something, in printable characters."""
        lines = [line.strip() for line in self._tail.decode(errors="replace").splitlines() if line.strip()]
        return "".join(c if c.isprintable() else " " for c in lines[-1])[:_SHOWN] if lines else ""

    @asynccontextmanager
    async def listened(self) -> AsyncIterator[TextIO]:
        """A file for a program's stderr, read for as long as the context lasts."""
        self._tail = b""
        reading, writing = os.pipe()
        reader = asyncio.StreamReader()
        with os.fdopen(reading, "rb", 0) as source, os.fdopen(writing, "w") as file:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), source
            )
            listener = asyncio.create_task(self._listen(reader))
            try:
                yield file
            finally:
                file.close()
                # What it said while it went is there by now, or will not matter.
                await asyncio.wait([listener], timeout=0.1)
                listener.cancel()
                await asyncio.gather(listener, return_exceptions=True)
                transport.close()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(_KEPT):
            self._tail = (self._tail + data)[-_KEPT:]
            for line in data.decode(errors="replace").splitlines():
                self._log.debug("%s", masked(line))
