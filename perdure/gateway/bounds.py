"""Limits of each caller: bytes of a body, requests per minute, concurrent streams, and the time of a request whose server is lost."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from perdure.client.perdure import Perdure
from perdure.client.session_operations import check_server
from perdure.errors import ServerError
from perdure.gateway.callers import Caller
from perdure.gateway.errors import HttpError
from perdure.queries import cancel_all
from perdure.values.json import Json, JsonObject, loads

HEADERS: Final = 32_768
"""The most bytes of a request's headers."""
MINUTE: Final = 60.0
BURST: Final = 0.25
"""The share of a minute's requests that may arrive at once."""
VALUES: Final = 20_000
"""The most keys, items and texts of a body.

Such a body blocks the event loop for 5 to 10 laps of `tests/cpu.py`; 17 laps were measured for AG-UI's messages, all of
them invalid. The parser holds the GIL for 1 lap. A body with more is rejected after 2 laps, before it is parsed. A
table of 4,000 rows and 5 columns reaches the limit. `make bench ARGS=gateway` measures the latency of `/livez`
meanwhile.
"""
LARGE: Final = 65_536
"""The size in bytes from which a body is parsed in a thread, one at a time: a parser holds the GIL."""
_parsing: Final = ThreadPoolExecutor(1, "bodies")
SENT_WITHIN: Final = 60.0
"""Seconds in which a whole body must arrive: clients without a token hold connections too."""
_LINGER: Final = 2.0
_REMEMBERED: Final = 10_000
"""The most callers whose rates are kept. The least recent caller is forgotten first."""


class Rates:
    """Requests per minute of each caller: a token bucket of this process. Each of several gateways has its own."""

    def __init__(self, a_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._fills = a_minute / MINUTE
        self._most = max(1.0, a_minute * BURST)
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, who: str, words: str = "by this token") -> None:
        """Count one request of `who`; `words` name it. Raises `HttpError` (429) with the seconds to wait if none is left."""
        now = self._clock()
        left, since = self._left.pop(who, (self._most, now))
        left = min(self._most, left + (now - since) * self._fills)
        self._left[who] = (left - 1 if left >= 1 else left, now)
        while len(self._left) > _REMEMBERED:
            del self._left[next(iter(self._left))]
        if left < 1:
            seconds = int((1 - left) / self._fills) + 1
            problem = f"more than {self._fills * MINUTE:g} requests a minute {words}: try again in {seconds} s"
            raise HttpError(429, problem, headers={"Retry-After": str(seconds)})


class OpenWork:
    """The open streams, or the active requests, of each caller, up to a limit that leaves connections for other callers."""

    def __init__(self, most: int, problem: str, kind: str = "") -> None:
        """`most`: the limit for each token. `problem`: the text of the error (429), after that number. `kind`: the
        problem's kind; by default that of its status."""
        self._most, self._problem, self._kind = most, problem, kind
        self.open: Counter[str] = Counter()
        """The number of streams or requests by token."""

    @contextmanager
    def one_of(self, caller: Caller) -> Iterator[None]:
        """Count as one while the context lasts. Raise `HttpError` (429) above the limit."""
        if self.open[caller.token] >= self._most:
            raise HttpError(429, f"{self._most} {self._problem}", kind=self._kind, headers={"Retry-After": "10"})
        self.open[caller.token] += 1
        try:
            yield
        finally:
            self.open[caller.token] -= 1
            if not self.open[caller.token]:
                del self.open[caller.token]


def open_streams(most: int) -> OpenWork:
    """Return the limit of open event streams: `most` for each token."""
    return OpenWork(most, "event streams of this token are open: close one first", "too-many-streams")


class BoundedBody:
    """A `receive` with limits. Raises `HttpError` (413) for more than `most` bytes, and (408) after `SENT_WITHIN`
    seconds. `left` reports a disconnect, until the answer begins or the handler itself waits for a disconnect.
    """

    def __init__(self, receive: Receive, most: int, *, empty: bool = False) -> None:
        """`empty`: whether the request's head excludes a body."""
        self._receive = receive
        self._most = most
        self._seen = 0
        self._whole = asyncio.Event()
        self._empty = empty
        self._until = time.monotonic() + SENT_WITHIN
        self.is_watched = True
        """Whether the work of the request ends with its client. The frame ends this when the answer begins."""
        if empty:
            self._whole.set()

    @property
    def _ended(self) -> bool:
        return self._whole.is_set()

    async def left(self) -> None:
        """Return once the client has sent its whole body and disconnected."""
        await self._whole.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def __call__(self) -> Message:
        if self._empty:
            self._empty = False
            return {"type": "http.request", "body": b"", "more_body": False}
        if self._ended:  # the handler itself waits for a disconnect, and ends its work
            self.is_watched = False
            return await self._receive()
        try:
            async with asyncio.timeout(max(0.0, self._until - time.monotonic())):
                message = await self._next()
        except TimeoutError:
            words = f"the body was not received within {SENT_WITHIN:g} seconds"
            raise HttpError(408, words, kind="too-slow") from None
        if self._seen > self._most:
            raise too_large(self._most)
        return message

    async def discard(self) -> bool:
        """Read the rest of a rejected body: at most as many bytes again, for two seconds. Return whether it has ended.

        A client reads the response only after it has sent its body.
        """
        self._most *= 2
        try:
            async with asyncio.timeout(_LINGER):
                while not self._ended and self._seen <= self._most:
                    await self._next()
        except TimeoutError:
            pass
        return self._ended

    async def _next(self) -> Message:
        message = await self._receive()
        self._seen += len(message.get("body", b""))
        if not message.get("more_body", False):
            self._whole.set()
        return message


def too_large(most: int) -> HttpError:
    return HttpError(413, f"the body is too large: the limit is {most:,} bytes")


async def read_json(request: Request) -> JsonObject:
    """Return a body's JSON object; no body is an empty one. Raises `JsonError`, `TooLargeError` above `VALUES`, and
    `HttpError` (415, 422) for other bodies.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not kind and not await request.body():
        return {}
    if kind != "application/json" and not kind.endswith("+json"):
        found = f"not {kind[:80]!r}" if kind else "and the request has no Content-Type"
        raise HttpError(415, f"the body must be application/json, {found}")
    value = await read_value(request)
    if not isinstance(value, dict):
        raise HttpError(422, "the body must be a JSON object")
    return value


async def read_value(request: Request) -> Json:
    """Return the JSON value of a body. Raises `JsonError`, and `TooLargeError` for more than `VALUES`."""
    body = await request.body()

    def parse() -> Json:
        return loads(body, source="the body", most=VALUES)

    if len(body) < LARGE:
        return parse()
    return await asyncio.get_running_loop().run_in_executor(_parsing, parse)


LOOKS_AFTER: Final = 2.0
"""Seconds without an answer before each check of the server."""
_CHECKED_AGAIN_AFTER: Final = 0.5
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
            await cancel_all(task, leaving)

    async def _lost(self) -> ServerError | None:
        """Return the error if no server answers, else `None`."""
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(self._looked())
        return await asyncio.shield(self._look)

    async def _looked(self) -> ServerError | None:
        if self._perdure is None:
            return None
        for pause in (_CHECKED_AGAIN_AFTER, 0.0):
            try:
                await check_server(self._perdure.client)
            except ServerError as error:
                last = error
                await asyncio.sleep(pause)
            else:
                return None
        return last
