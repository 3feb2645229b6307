"""A bound for requests whose Temporal server is lost, or whose client has gone: the SDK tries again for 10 seconds, and a message is sent for 30."""

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
"""Seconds without an answer after which the server is looked at, and again after as long."""
_AGAIN: Final = 0.5
"""Seconds between the two looks that find no server: one may meet a restart."""


class ServerWatch:
    """Looks at the server while requests are answered slowly: one look for all of them."""

    def __init__(self, perdure: Perdure | None) -> None:
        self._perdure = perdure
        self._look: asyncio.Task[ServerError | None] | None = None

    async def bound(self, work: Coroutine[Any, Any, None], has_begun: Callable[[], bool], body: BoundedBody) -> None:
        """Do the work of a request. `has_begun`: whether its answer has, which may then take its time. `body`: of the request.

        Raises `ServerError`, and ends the work, if no server answers meanwhile, and `ClientDisconnect` if its client has gone.
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
        """Return why no server answers; `None`: one does."""
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
