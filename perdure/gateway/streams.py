"""Server-sent events: long answers, and their limits."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from perdure.gateway.bounds import OpenWork
from perdure.gateway.callers import Caller
from perdure.gateway.errors import HttpError, log_problem
from perdure.gateway.guards import Guards
from perdure.queries import cancel_all
from perdure.runs.events import Event
from perdure.values.json import dumps

T = TypeVar("T")

KEEP_ALIVE: Final = 15.0
"""Seconds after which a silent stream sends a keep-alive. Its token is checked again at the same interval."""
READS_WITHIN: Final = 30.0
"""Seconds in which a reader must take sent data. A slower reader is dropped, and continues at its event after a reconnect."""
AT_ONCE: Final = 0.25
"""Seconds in which an error sets the response's status; later it is an event."""
RETRY: Final = 2_000
"""Milliseconds after which a browser reconnects."""
_log: Final = logging.getLogger("perdure.gateway")


def encode_event(data: str, *, event: str = "", id: str = "") -> str:
    """Return one event in the wire format, with one `data` field for each line."""
    head = (f"id: {id}\n" if id else "") + (f"event: {event}\n" if event else "")
    # Only these characters end a line for every reader.
    lines = data.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return head + "".join(f"data: {line}\n" for line in lines) + "\n"


NO_PAUSE: Final = (math.inf, math.inf)
"""For `with_pauses`: wait for the next event without a limit."""


async def with_pauses(
    events: AsyncGenerator[Event, None], pauses: Callable[[], tuple[float, float]]
) -> AsyncGenerator[Event | None, None]:
    """Yield the events, and `None` after each pause without one. Close `events` at the end.

    `pauses` returns the first pause after an event, and the longest, in seconds. Each pause is twice the previous one.
    """
    coming: asyncio.Future[Event | None] | None = None
    pause = 0.0
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(events, None))
            first, longest = pauses()
            pause = min(max(2 * pause, first), longest)
            await asyncio.wait([coming], timeout=pause)
            if not coming.done():
                yield None
                continue
            if (event := coming.result()) is None:
                return
            coming, pause = None, 0.0
            yield event
    finally:
        if coming is not None:
            await cancel_all(coming)
        await events.aclose()


async def poll(look: Callable[[], Awaitable[T | None]]) -> T:
    """Call `look` until its result is not `None`, and return this result. Each pause is twice the previous one."""
    pause = 0.02
    while (found := await look()) is None:
        await asyncio.sleep(pause)
        pause = min(2 * pause, 1.0)
    return found


async def yield_frames(*frames: str) -> AsyncGenerator[str, None]:
    """Yield the frames of an answer whose events are known in advance."""
    for each in frames:
        yield each


class StreamHost(Protocol):
    """The server of streams: a `Gateway`, or an app of fewer pages."""

    guards: Guards
    streams: OpenWork
    stopping: asyncio.Event


class EventStream(Response):
    """A response that streams frames until they end, the client disconnects, or the gateway ends.

    An early error is raised before the response begins, as is `HttpError` (429) for too many streams of the caller's
    token, unless the stream already has its place. A later error is the last event, `error`, with the problem as its data.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        host: StreamHost,
        caller: Caller,
        frames: AsyncGenerator[str, None],
        headers: Mapping[str, str] | None = None,
        *,
        retry: bool = True,
        place: AbstractContextManager[Any] | None = None,
        problem: Callable[[HttpError], Iterable[str]] = lambda _: (),
    ) -> None:
        """`retry`: whether to send the reconnection time. Some clients fail on it, because they read it as an event.
        `place`: the stream's place in `OpenWork.one_of`, if it was taken before. `problem`: returns the last frames for
        the error if the gateway or the token ends first; by default none, for readers that go on after a reconnect.
        """
        super().__init__(headers={"X-Accel-Buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._host = host
        self._caller = caller
        self._frames = frames
        self._retry = retry
        self._problem = problem
        self._place = place or host.streams.one_of(caller)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        with self._place:
            coming = _NextFrame(self._frames)
            try:
                await coming.fails_at_once()
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                try:
                    await self._send_all(coming, receive, send)
                    async with asyncio.timeout(READS_WITHIN):
                        await send({"type": "http.response.body", "body": b""})
                except (TimeoutError, OSError):
                    _log.info("a reader was dropped", extra={"perdure": {"token": self._caller.token}})
            finally:
                await coming.close()

    async def _send_all(self, coming: _NextFrame, receive: Receive, send: Send) -> None:
        async def write(text: str) -> None:
            async with asyncio.timeout(READS_WITHIN):
                await send({"type": "http.response.body", "body": text.encode(errors="replace"), "more_body": True})

        left: asyncio.Future[Any] = asyncio.ensure_future(until_disconnected(receive))
        stops: asyncio.Future[Any] = asyncio.ensure_future(self._host.stopping.wait())
        looked = asyncio.get_running_loop().time()
        try:
            if self._retry:
                await write(f"retry: {RETRY}\n\n")
            while not left.done():
                await asyncio.wait({coming.next, left, stops}, timeout=KEEP_ALIVE, return_when=asyncio.FIRST_COMPLETED)
                if asyncio.get_running_loop().time() - looked >= KEEP_ALIVE:
                    looked += KEEP_ALIVE
                    if not self._host.guards.is_valid(self._caller):
                        await write(self._last_frames())
                        return
                if coming.next.done():
                    if (text := coming.take()) is None:
                        return
                    await write(text)
                elif stops.done():
                    await write(self._last_frames())
                    return
                elif not left.done():
                    await write(": still here\n\n")
        finally:
            await cancel_all(left, stops)

    def _last_frames(self) -> str:
        """Return the frames that end an incomplete answer, with the reason."""
        words = "the gateway is stopping, or the token has ended: the answer is not complete, and the run continues"
        return "".join(self._problem(HttpError(503, words, kind="still-running")))


class _NextFrame:
    """The next frame, read ahead while the client reads."""

    def __init__(self, frames: AsyncGenerator[str, None]) -> None:
        self._frames = frames
        self.next: asyncio.Future[str] = asyncio.ensure_future(anext(frames))

    async def fails_at_once(self) -> None:
        """Raise the error that prevents the first frame, while the response's status can still be chosen."""
        await asyncio.wait({self.next}, timeout=AT_ONCE)
        error = self.next.exception() if self.next.done() else None
        if error is not None and not isinstance(error, StopAsyncIteration):
            raise error

    def take(self) -> str | None:
        """Return the next frame, and begin to read the one after it; `None` at the end. An error is the last frame."""
        if self.next.cancelled():
            return None
        error = self.next.exception()
        if isinstance(error, StopAsyncIteration):
            return None
        text = self.next.result() if error is None else encode_event(dumps(log_problem(error).as_json()), event="error")
        self.next = asyncio.ensure_future(anext(self._frames))
        return text

    async def close(self) -> None:
        await cancel_all(self.next)
        await self._frames.aclose()


async def until_disconnected(receive: Receive) -> None:
    """Return once the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def result_before(work: Awaitable[T], *ends: Awaitable[Any]) -> T | None:
    """Return the result of `work`; cancel it and return `None` if one of `ends` comes first."""
    task, others = asyncio.ensure_future(work), [asyncio.ensure_future(each) for each in ends]
    try:
        await asyncio.wait([task, *others], return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        await cancel_all(task, *others)
