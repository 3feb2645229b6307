"""Live parts of pages: one loop queries the list for all open pages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final

from perdure.client.perdure import Perdure
from perdure.client.selection import WaitingPage
from perdure.errors import RunError, ServerError
from perdure.values.json import dumps

INTERVAL: Final = 1.0
"""Seconds between queries while a page is open."""
SHOWN: Final = 50
"""Runs on a page of the list."""
KEEP_ALIVE: Final = 15.0
"""Seconds after which a silent stream sends a keep-alive."""


class LiveApprovals:
    """The list of approval requests, queried by one loop for any number of open pages."""

    def __init__(self, perdure: Perdure, tenant: str | None) -> None:
        """`tenant`: the tenant of the runs; `None`: all."""
        self._perdure = perdure
        self._tenant = tenant
        self._fingerprint = ""
        self._watchers = 0
        self._changed = asyncio.Condition()
        self._looking: asyncio.Task[None] | None = None

    async def look(self, page: str | None = None) -> WaitingPage:
        """Return a page of waiting requests. Query visibility only, no run. Raises `RunError` or `ServerError`."""
        found = await self._perdure.approvals(size=SHOWN, page=page, tenant=self._tenant)
        if page is not None:
            return found
        fingerprint = dumps([(one.run_id, one.entry.call, one.entry.digest) for one in found.waiting])
        if fingerprint != self._fingerprint:
            self._fingerprint = fingerprint
            async with self._changed:
                self._changed.notify_all()
        return found

    async def events(self) -> AsyncGenerator[str, None]:
        """Yield server-sent events: `changed` after each change of the list."""
        self._watchers += 1
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_on())
        seen = [self._fingerprint]
        try:
            yield "retry: 2000\n\n"
            while True:
                try:
                    async with asyncio.timeout(KEEP_ALIVE), self._changed:
                        await self._changed.wait_for(lambda: self._fingerprint not in seen)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                seen[:] = [self._fingerprint]
                yield "event: changed\ndata: {}\n\n"
        finally:
            self._watchers -= 1

    async def _look_on(self) -> None:
        while self._watchers:
            # A page shows the error when it is loaded. The loop continues, because the server may come back.
            with contextlib.suppress(RunError, ServerError):
                await self.look()
            await asyncio.sleep(INTERVAL)
