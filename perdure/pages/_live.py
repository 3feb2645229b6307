"""Live parts of pages: one look for all who watch, and a sign where nothing comes."""

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
"""Seconds between looks, while anybody watches."""
SHOWN: Final = 50
"""Runs on a page of the list."""
KEEP_ALIVE: Final = 15.0
"""Seconds after which a silent stream sends a sign of life."""


class LiveApprovals:
    """One loop of looking, however many pages are open."""

    def __init__(self, perdure: Perdure, tenant: str | None) -> None:
        """`tenant`: whose runs; `None`: all."""
        self._perdure = perdure
        self._tenant = tenant
        self._fingerprint = ""
        self._watchers = 0
        self._changed = asyncio.Condition()
        self._looking: asyncio.Task[None] | None = None

    async def look(self, page: str | None = None) -> WaitingPage:
        """Return a page of what waits; asks visibility and no run. Raises `RunError` or `ServerError`."""
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
        """Server-sent events: `changed` whenever the list did."""
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
            # The page says it when it is loaded; a server that comes back is found again.
            with contextlib.suppress(RunError, ServerError):
                await self.look()
            await asyncio.sleep(INTERVAL)
