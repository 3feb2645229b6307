"""Telling what a model is writing, by heartbeat details: read by describing the run, kept by no history (R10.14)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Final

from temporalio.client import WorkflowQueryFailedError
from temporalio.service import RPCError

from perdure.activities.asking import Look, ask_run
from perdure.activities.heartbeats import Heart
from perdure.model.answer import Answer
from perdure.run.events.wire import WATCHED, Written
from perdure.run.events.writing import Writing

UNWATCHED: Final = 0.25
"""Seconds that the first text waits where nobody watches: an answer that is whole by then is told by its result alone."""
_NOTHING_YET: Final = 0.05
"""Seconds between two looks for the first text: calls may be written before it."""
_SHORTEST: Final = 0.25
_LONGEST: Final = 1.0
"""Seconds from one telling to the next while somebody watches, at the beginning and later: each is an Action."""
_SHARE: Final = 0.05
"""Of the time since the first: how they grow from one to the other."""
_SHARE_UNWATCHED: Final = 0.25
"""The same while nobody watches, from `_LONGEST` on: who comes then sees what there is, and is seen to have come."""


def next_telling(written: float, *, watched: bool) -> float:
    """Seconds until the next telling, of an answer whose first text was told so many seconds ago."""
    if watched:
        return min(_LONGEST, max(_SHORTEST, written * _SHARE))
    return max(_LONGEST, written * _SHARE_UNWATCHED)


class Telling:
    """Tells what one attempt knows of its answer."""

    def __init__(self, heart: Heart, writing: Writing, seen: asyncio.Task[Look], watched_until: float) -> None:
        """`seen`: the history that is known to say until when somebody watches, a time as `time.time()` has it."""
        self._heart = heart
        self._writing = writing
        self._seen = seen
        self._events: int | None = None
        self._watched_until = watched_until
        self._answer: Answer | None = None
        self._news = asyncio.Event()
        self._woken = asyncio.Event()
        self._told = 0.0
        self._asking = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.told = False
        """Whether anything was."""

    def note(self) -> None:
        """More of the answer has come."""
        if not self._news.is_set():
            self._news.set()

    async def supersede(self) -> None:
        """What an attempt before this one has told does not count any more."""
        await self._heart.say(self._writing.written())

    @asynccontextmanager
    async def of(self, answer: Answer) -> AsyncIterator[None]:
        """Tell what of the answer is known, while the context lasts."""
        self._answer = answer
        self._heart.on_look, self._heart.renew = self._looked, self._renewed
        self._start(self._tell())
        try:
            yield
        finally:
            self._heart.on_look = self._heart.renew = None
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def _watched(self) -> bool:
        return time.time() < self._watched_until

    async def _tell(self) -> None:
        clock = asyncio.get_running_loop().time
        await self._more(_NOTHING_YET)
        begun = clock()
        if not self._watched:
            await self._wait(lambda: begun + UNWATCHED, begun)
        while True:
            self._take()
            await self._heart.say(self._written())
            await self._wait(lambda: self._told + next_telling(clock() - begun, watched=self._watched), clock())
            await self._more(_SHORTEST)

    async def _more(self, pause: float) -> None:
        """Until there is more to tell, looked for no more often than so many seconds."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._take():
                return
            await asyncio.sleep(pause)

    def _take(self) -> bool:
        """Take over what is known of the answer; whether there is more of it than was told."""
        return self._answer is not None and self._writing.add(self._answer.said(), self._answer.thought())

    def _written(self) -> Written:
        self.told, self._told = True, asyncio.get_running_loop().time()
        return self._writing.written()

    async def _wait(self, due: Callable[[], float], now: float) -> None:
        """Until it is due, which may be put off meanwhile; at once where somebody has begun to watch."""
        while now < due():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due()):
                    await self._woken.wait()
                    break
            now = asyncio.get_running_loop().time()
        self._woken.clear()

    def _renewed(self) -> tuple[Written, ...]:
        """What a heartbeat tells that goes out anyway."""
        return (self._written(),) if self._take() or self.told else ()

    def _looked(self, look: Look) -> None:
        if self._events is None and self._seen.done():
            self._events = self._seen.result().events
        if look.events and look.events != self._events and not self._watched and not self._asking:
            self._start(self._find_out(look))

    async def _find_out(self, look: Look) -> None:
        """Something has happened in the run: somebody may have begun to watch it."""
        self._asking = True
        with contextlib.suppress(RPCError, WorkflowQueryFailedError):
            self._watched_until = max(self._watched_until, await ask_run(WATCHED, None, float))
            self._events = look.events
            if self._watched:
                self._woken.set()
        self._asking = False
