"""A supervised heartbeat: signs of life while a body works, for every long activity.

Each heartbeat is a billed Action, and looking at what the server knows of an activity is none. So what is to be given up is found out
by looking (`look`), and a heartbeat is sent for progress, before a heartbeat timeout passes, and to be told what was found.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

from temporalio import activity
from temporalio.client import AsyncActivityCancelledError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.active_executions import not_begun
from perdure.activities.queries import AttemptState, client, look
from perdure.queries import TIMEOUT

SHORTEST: Final = 1.0
"""Seconds between two looks, or heartbeats, at least."""
_SHARE: Final = 0.25
"""Of the time that the activity has run so far: what has run for a minute can be given up a quarter of a minute late."""
_SHARE_OF_NEWS: Final = 0.05
"""The same where there is progress to send."""
_MARGIN: Final = 2.5
"""Seconds of a heartbeat timeout that are left at least when a heartbeat is sent, or half of a shorter one."""
_EARLY: Final = SHORTEST / 4
"""Seconds by which a heartbeat may go early, together with a look. With half a second, an activity that ended in between cost an Action."""


def longest_silence(timeout: float) -> float:
    """Return the seconds without a heartbeat at most: three quarters of the timeout, less where little would be left."""
    return max(timeout / 2, min(0.75 * timeout, timeout - _MARGIN))


def next_heartbeat(worked: float, timeout: float | None = None, *, news: bool = False) -> float:
    """Return the seconds until the next look, or heartbeat. The activity has worked for so long, and had the last one now.

    A cancellation is noticed within the larger of `SHORTEST` and a quarter of the time so far; `timeout` is the activity's
    heartbeat timeout, of which `longest_silence` is never exceeded.
    """
    pause = max(SHORTEST, worked * (_SHARE_OF_NEWS if news else _SHARE))
    return pause if timeout is None else min(pause, longest_silence(timeout))


def start_lag(started: datetime, timeout: float) -> float:
    """Return the seconds of a heartbeat timeout that passed before the event loop took the attempt up, `timeout` at most.

    The server counts them, from `started`. Less than `SHORTEST` counts as nothing: clocks of two machines differ.
    """
    lag = (datetime.now(UTC) - started).total_seconds()
    return min(lag, timeout) if lag >= SHORTEST else 0.0


class Heartbeat:
    """Heartbeats of one activity. The last details go out with each, so that it can be read until there is more."""

    def __init__(self, info: activity.Info) -> None:
        """Create the heartbeats of an attempt. Until it has details of its own, it sends those of the attempt before it."""
        timeout = info.heartbeat_timeout
        self._timeout = timeout.total_seconds() if timeout else None
        lag = start_lag(info.started_time, self._timeout) if self._timeout else 0.0
        self._is_late = self._timeout is not None and lag > longest_silence(self._timeout)
        self._details: tuple[Any, ...] = tuple(info.heartbeat_details)
        self._news = asyncio.Event()
        self._beaten_at = self._sent_at = asyncio.get_running_loop().time() - lag
        """When the last heartbeat went through the worker, and when one went past it."""
        self.renew: Callable[[], tuple[Any, ...]] | None = None
        """The details of a heartbeat that goes out anyway, if they change by themselves."""
        self.on_look: Callable[[AttemptState], None] | None = None
        """Called at every look."""

    def record(self, *details: Any) -> None:
        """Progress, sent with the next heartbeat; that comes sooner for it. On the event loop only."""
        self._details = details
        self._news.set()

    async def begin(self) -> None:
        """Return when the body may run: at once, or with a heartbeat's answer where the attempt was taken up late.

        The server may have given such an attempt up, and the next one runs. Then this never returns, and the worker
        cancels the activity.
        """
        if self._is_late and not await self.send(*self._details):
            await asyncio.Future()

    async def send(self, *details: Any) -> bool:
        """Progress, sent at once: the worker holds back what comes close upon another. The caller masks keys.

        Return `False` where the server gave the attempt up.
        """
        self._details = details
        handle = client().get_async_activity_handle(task_token=activity.info().task_token)
        try:
            await handle.heartbeat(*details, rpc_timeout=TIMEOUT)
        except AsyncActivityCancelledError:
            self._beat()  # so that the worker is told, and cancels
            return False
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                self._beat()
                return False
        else:
            self._sent_at = asyncio.get_running_loop().time()
        return True

    def end(self) -> None:
        """Send the last details of a failed attempt, for the next attempt."""
        if self._news.is_set():
            activity.heartbeat(*self._details)

    def _beat(self) -> None:
        self._news.clear()
        if self.renew is not None:
            self._details = self.renew()
        activity.heartbeat(*self._details)
        self._beaten_at = asyncio.get_running_loop().time()

    def _due(self) -> float:
        """Return when the heartbeat timeout needs a heartbeat. The server counts all of them; the worker, which is more
        patient, counts its own."""
        if self._timeout is None:
            return float("inf")
        return min(
            max(self._beaten_at, self._sent_at) + longest_silence(self._timeout), self._beaten_at + self._timeout
        )

    async def beat(self) -> None:
        """Look, and heartbeat where it is time for that, until cancelled."""
        clock = asyncio.get_running_loop().time
        begun = seen = clock()
        while True:
            due = self._due()
            await asyncio.sleep(min(seen + next_heartbeat(seen - begun, self._timeout, news=True), due) - clock())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(seen + next_heartbeat(seen - begun, self._timeout), due)):
                    await self._news.wait()
            seen = clock()
            beats = self._news.is_set() or seen + _EARLY > self._due()
            if beats:
                self._beat()
            if not beats or self.on_look is not None:
                found = await look()
                if self.on_look is not None:
                    self.on_look(found)
                if not found.wanted and not beats:
                    self._beat()


@asynccontextmanager
async def supervised_heartbeat() -> AsyncIterator[Heartbeat]:
    """Heartbeat for as long as the body runs, and look whether it is wanted, less and less often (`next_heartbeat`).

    The body of an attempt that timed out on its way to the event loop does not run: the next attempt does its work.
    Yields the `Heartbeat`, which sends details; every later heartbeat sends them again. It heartbeats without a timeout too: so the activity
    learns of a cancellation. The body's own error is never hidden.
    """
    heart = Heartbeat(activity.info())
    not_begun()
    await heart.begin()
    supervisor = asyncio.create_task(heart.beat())
    try:
        yield heart
    except BaseException:
        heart.end()
        raise
    finally:
        supervisor.cancel()
        await asyncio.gather(supervisor, return_exceptions=True)
