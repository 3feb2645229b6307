"""A time limit for requests whose Temporal server is lost or whose client has disconnected: the SDK retries for 10 to 30 seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from starlette.requests import ClientDisconnect

from perdure.client.perdure import Perdure
from perdure.client.session_operations import check_server
from perdure.errors import ServerError
from perdure.gateway.bounds import BoundedBody

LOOKS_AFTER: Final = 2.0
"""Seconds without an answer before each check of the server."""
_AGAIN: Final = 0.5
"""Seconds before a failed check is repeated: the server may be restarting."""


class ServerWatch:
    """Checks the server while requests are slow: one check for all of them."""

    def __init__(self, perdure: Perdure | None) -> None:
        self._perdure = perdure
        self._look: asyncio.Task[ServerError | None] | None = None

    async def bound(self, work: Coroutine[Any, Any, None], has_begun: Callable[[], bool], body: BoundedBody) -> None:
        """Run a request's work. `has_begun`: whether the answer has begun; then there is no time limit. `body`: the
        request's body.

        Cancels the work, and raises `ServerError` if no server answers, `ClientDisconnect` if the client has
        disconnected.
        """
        task, leaving = asyncio.ensure_future(work), asyncio.ensure_future(body.left())
        ends = asyncio.FIRST_COMPLETED
        try:
            while (
                not (await asyncio.wait([task, leaving], timeout=LOOKS_AFTER, return_when=ends))[0] and not has_begun()
            ):
                lost = await self._lost()
                if lost is not None and not task.done() and not has_begun():
                    raise lost
            if leaving.done() and body.is_watched and not task.done():
                raise ClientDisconnect
            await task
        finally:
            for each in (task, leaving):
                each.cancel()
            await asyncio.gather(task, leaving, return_exceptions=True)

    async def _lost(self) -> ServerError | None:
        """Return the error if no server answers, else `None`."""
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(self._looked())
        return await asyncio.shield(self._look)

    async def _looked(self) -> ServerError | None:
        if self._perdure is None:
            return None
        for pause in (_AGAIN, 0.0):
            try:
                await check_server(self._perdure.client)
            except ServerError as error:
                last = error
                await asyncio.sleep(pause)
            else:
                return None
        return last
