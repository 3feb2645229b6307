"""The delivery of calls to the run while the model is still writing (R6.3)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final

from perdure.values.jsons import Json

Send = Callable[[int, list[Json]], Awaitable[None]]
"""Sends calls, the first of which has this index in the list."""


GATHERED: Final = 0.1
"""Seconds between two deliveries at most: each is a signal, and billed. With 0.4 the tasks of `benchmarks/latency.py` took 5 to 10 % longer."""


class Deliverer:
    """Sends calls as they come: the first at once, later ones together, after as long as two calls take to be written.

    Leaving the context waits for a delivery under way; what was not sent by then, the activity's result carries. A delivery
    that fails is not tried again, for the same reason.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._calls: list[Json] = []
        self._sent = 0
        self._begun: float | None = None
        self._sending: asyncio.Task[None] | None = None
        self._left = asyncio.Event()
        """Set when nothing more is to be sent."""
        self.attempted = 0
        """Calls of which a delivery was at least begun: the run may have them."""

    def add(self, calls: list[Json]) -> None:
        self._calls.extend(calls)
        if calls and self._begun is None:
            self._begun = asyncio.get_running_loop().time()
        if self._sending is None and self._sent < len(self._calls):
            self._sending = asyncio.create_task(self._deliver())

    async def _deliver(self) -> None:
        while self._sent < len(self._calls) and not self._left.is_set():
            first, batch = self._sent, self._calls[self._sent :]
            self._sent = self.attempted = len(self._calls)
            again = asyncio.get_running_loop().time() + self._pause()
            await self._send(first, batch)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(again):
                    await self._left.wait()
        self._sending = None

    def _pause(self) -> float:
        """Seconds from one delivery to the next: a call is held back no longer than two others take to be written."""
        if self._begun is None or len(self._calls) < 2:
            return GATHERED
        each = (asyncio.get_running_loop().time() - self._begun) / (len(self._calls) - 1)
        return min(GATHERED, 2 * each)

    async def __aenter__(self) -> Deliverer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        if self._sending is not None:
            await asyncio.gather(self._sending, return_exceptions=True)

    @property
    def calls(self) -> list[Json]:
        """Everything that has closed: what was not delivered the result carries, also that of an answer which breaks off."""
        return self._calls
