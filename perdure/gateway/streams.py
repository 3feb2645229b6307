"""Server-sent events: answers that go on, and the bounds that they have."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from perdure.gateway.callers import Caller
from perdure.gateway.door import Gateway
from perdure.gateway.problems import HttpError, problem_of
from perdure.values.jsons import dumps

KEEP_ALIVE: Final = 15.0
"""Seconds after which a silent stream says that it is there; then also whether its token is still let in is looked at."""
READS_WITHIN: Final = 30.0
"""Seconds in which a reader takes what is sent; one that does not is dropped, and goes on at its event when it comes back."""
RETRY: Final = 2_000
"""Milliseconds after which a browser comes back."""
_log: Final = logging.getLogger("perdure.gateway")


def frame(data: str, *, event: str = "", id: str = "") -> str:
    """One event as it goes over the wire; `data` in as many lines as it has."""
    head = (f"id: {id}\n" if id else "") + (f"event: {event}\n" if event else "")
    # Only these end a line for every reader; one that is alone would be read as a field.
    lines = data.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return head + "".join(f"data: {line}\n" for line in lines) + "\n"


class EventStream(Response):
    """Frames, as they come, until they end, whoever reads has gone, or the gateway ends.

    What goes wrong on the way is the last event, `error`, with the problem as its data. Raises `HttpError` (429) before anything was
    sent where too many streams are open by the caller's token.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        gateway: Gateway,
        caller: Caller,
        frames: AsyncGenerator[str, None],
        headers: Mapping[str, str] | None = None,
        *,
        retry: bool = True,
    ) -> None:
        """`retry`: whether a browser is told when to come back; to some clients that is an event, and one that they cannot read."""
        super().__init__(headers={"X-Accel-Buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._gateway = gateway
        self._caller = caller
        self._frames = frames
        self._retry = retry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        async with contextlib.aclosing(self._frames):
            with self._gateway.streams.one_of(self._caller):
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                try:
                    await self._send_all(receive, send)
                    async with asyncio.timeout(READS_WITHIN):
                        await send({"type": "http.response.body", "body": b""})
                except (TimeoutError, OSError):
                    _log.info("a reader was dropped", extra={"perdure": {"token": self._caller.token}})

    async def _send_all(self, receive: Receive, send: Send) -> None:
        async def write(text: str) -> None:
            async with asyncio.timeout(READS_WITHIN):
                await send({"type": "http.response.body", "body": text.encode(errors="replace"), "more_body": True})

        gone: asyncio.Future[Any] = asyncio.ensure_future(_gone(receive))
        stops: asyncio.Future[Any] = asyncio.ensure_future(self._gateway.stopping.wait())
        coming: asyncio.Future[Any] = asyncio.ensure_future(anext(self._frames))
        try:
            if self._retry:
                await write(f"retry: {RETRY}\n\n")
            while True:
                await asyncio.wait({coming, gone, stops}, timeout=KEEP_ALIVE, return_when=asyncio.FIRST_COMPLETED)
                if gone.done() or (stops.done() and not coming.done()):
                    return
                if not coming.done():
                    if not self._is_let_in():
                        return
                    await write(": still here\n\n")
                    continue
                try:
                    text = coming.result()
                except StopAsyncIteration:
                    return
                except Exception as error:
                    await write(frame(dumps(_told(error).as_json()), event="error"))
                    return
                coming = asyncio.ensure_future(anext(self._frames))
                await write(text)
        finally:
            for each in (gone, stops, coming):
                each.cancel()
            await asyncio.gather(gone, stops, coming, return_exceptions=True)

    def _is_let_in(self) -> bool:
        return self._gateway.guards.is_let_in(self._caller)


def _told(error: Exception) -> HttpError:
    problem = problem_of(error)
    if problem is None:
        _log.error("a stream broke down", exc_info=error)
        return HttpError(500, "the gateway could not go on with this; its log says why")
    return problem


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def last_event_id(request: Request) -> str | None:
    """Where a reader that comes back goes on (`Last-Event-ID`), or one that begins (`?from=`)."""
    return request.headers.get("last-event-id") or request.query_params.get("from") or None
