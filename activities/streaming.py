"""The delivery of calls to the run while the model is still writing (R6.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType

from perdure.values.jsons import Json

Send = Callable[[int, list[Json]], Awaitable[None]]
"""Sends calls, the first of which has this index in the list."""


class Deliverer:
    """Sends calls as they come: the first at once, later ones together while a delivery is under way.

    Leaving the context waits for a delivery under way; what was not sent by then, the activity's result carries. A delivery
    that fails is not tried again, for the same reason.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._calls: list[Json] = []
        self._sent = 0
        self._sending: asyncio.Task[None] | None = None
        self.attempted = 0
        """Calls of which a delivery was at least begun: the run may have them."""

    def add(self, calls: list[Json]) -> None:
        self._calls.extend(calls)
        if self._sending is None and self._sent < len(self._calls):
            self._sending = asyncio.create_task(self._deliver())

    async def _deliver(self) -> None:
        while self._sent < len(self._calls):
            first, batch = self._sent, self._calls[self._sent :]
            self._sent = self.attempted = len(self._calls)
            await self._send(first, batch)
        self._sending = None

    async def __aenter__(self) -> Deliverer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sending is not None:
            await asyncio.gather(self._sending, return_exceptions=True)

    @property
    def calls(self) -> list[Json]:
        """Everything that a delivery was begun of."""
        return self._calls[: self.attempted]
