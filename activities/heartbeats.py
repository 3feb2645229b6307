"""A supervised heartbeat: heartbeats while a body works, for every long activity.

Each heartbeat is a billed Action; a query of the server's state of an activity is not. So a query (`fetch_attempt_state`) detects that
the activity is no longer wanted. A heartbeat is sent for progress, before the heartbeat timeout, and to receive a
cancellation that a query has found.
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
from perdure.activities.queries import AttemptState, client, fetch_attempt_state
from perdure.queries import TIMEOUT, cancel_all

SHORTEST: Final = 1.0
"""Minimum of seconds between two looks or heartbeats."""
_SHARE: Final = 0.25
"""Share of the activity's time so far: the end of an activity that has run for a minute is noticed within a quarter of
a minute.
"""
_SHARE_OF_NEWS: Final = 0.05
"""The same if there is progress to send."""
_MARGIN: Final = 2.5
"""Minimum of seconds left of the heartbeat timeout when a heartbeat is sent; half of a shorter timeout."""
_EARLY: Final = SHORTEST / 4
"""Seconds by which a heartbeat may be early, at the time of a look. With half a second, an activity that ended in
between cost an Action.
"""


def longest_silence(timeout: float) -> float:
    """Return the maximum of seconds without a heartbeat: three quarters of the timeout, or less if too little would be
    left.
    """
    return max(timeout / 2, min(0.75 * timeout, timeout - _MARGIN))


def next_heartbeat(worked: float, timeout: float | None = None, *, news: bool = False) -> float:
    """Return the seconds until the next look or heartbeat, counted from the last one. `worked`: the activity's time so
    far.

    A cancellation is noticed within the larger of `SHORTEST` and a quarter of the time so far. `timeout` is the
    activity's heartbeat timeout, whose `longest_silence` is never exceeded.
    """
    pause = max(SHORTEST, worked * (_SHARE_OF_NEWS if news else _SHARE))
    return pause if timeout is None else min(pause, longest_silence(timeout))


def start_lag(started: datetime, timeout: float) -> float:
    """Return the seconds of a heartbeat timeout that passed before the event loop began the attempt, `timeout` at most.

    The server counts them, from `started`. Less than `SHORTEST` counts as nothing: clocks of two machines differ.
    """
    lag = (datetime.now(UTC) - started).total_seconds()
    return min(lag, timeout) if lag >= SHORTEST else 0.0


class Heartbeat:
    """The heartbeats of one activity. Each sends the last details, so that they can be read until new ones come."""

    def __init__(self, info: activity.Info) -> None:
        """Create the heartbeats of an attempt. Until it has details of its own, it sends those of the previous attempt."""
        timeout = info.heartbeat_timeout
        self._timeout = timeout.total_seconds() if timeout else None
        lag = start_lag(info.started_time, self._timeout) if self._timeout else 0.0
        self._is_late = self._timeout is not None and lag > longest_silence(self._timeout)
        self._details: tuple[Any, ...] = tuple(info.heartbeat_details)
        self._news = asyncio.Event()
        self._beaten_at = self._sent_at = asyncio.get_running_loop().time() - lag
        """The times of the last heartbeat that the worker sent, and of the last one sent directly to the server."""
        self.renew: Callable[[], tuple[Any, ...]] | None = None
        """Function that returns the details of a heartbeat that is due, if they change by themselves."""
        self.on_look: Callable[[AttemptState], None] | None = None
        """Called at every look."""

    def record(self, *details: Any) -> None:
        """Record progress, which the next heartbeat sends; that heartbeat is sent earlier. On the event loop only."""
        self._details = details
        self._news.set()

    async def begin(self) -> None:
        """Wait until the body may run: at once, or after a heartbeat's answer if the attempt began late.

        The server may have given up a late attempt and begun the next one. Then this never returns, and the worker
        cancels the activity.
        """
        if self._is_late and not await self.send(*self._details):
            await asyncio.Future()

    async def send(self, *details: Any) -> bool:
        """Send progress at once: the worker would delay a heartbeat that closely follows another. The caller masks
        keys.

        Return `False` if the server gave up the attempt.
        """
        self._details = details
        # The server counts from the receipt. Its answer may come much later.
        sent_at = asyncio.get_running_loop().time()
        handle = client().get_async_activity_handle(task_token=activity.info().task_token)
        try:
            await handle.heartbeat(*details, rpc_timeout=TIMEOUT)
        except AsyncActivityCancelledError:
            self._beat()  # so that the worker learns of it, and cancels
            return False
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                self._beat()
                return False
        else:
            self._sent_at = sent_at
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
        """Return the time at which the next heartbeat is due. The server counts all heartbeats; the worker, which waits
        longer, counts its own.
        """
        if self._timeout is None:
            return float("inf")
        return min(
            max(self._beaten_at, self._sent_at) + longest_silence(self._timeout), self._beaten_at + self._timeout
        )

    async def beat(self) -> None:
        """Look, and heartbeat when one is due, until cancelled."""
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
                await self._look(sent=beats)

    async def _look(self, *, sent: bool) -> None:
        """Look, and send the heartbeats that are due until the server answers.

        An attempt that is not wanted learns it from the answer to a heartbeat, so at least one is sent then. `sent`:
        whether one was sent just before.
        """
        looking = asyncio.create_task(fetch_attempt_state())
        try:
            while not (await asyncio.wait([looking], timeout=self._until_due()))[0]:
                self._beat()
                sent = True
        finally:
            looking.cancel()
        found = looking.result()
        if self.on_look is not None:
            self.on_look(found)
        if not found.wanted and not sent:
            self._beat()

    def _until_due(self) -> float | None:
        """Return the seconds until the next heartbeat is due; `None` if it is never due."""
        return None if self._timeout is None else max(0.0, self._due() - asyncio.get_running_loop().time())


@asynccontextmanager
async def supervised_heartbeat() -> AsyncIterator[Heartbeat]:
    """Heartbeat while the body runs, and look whether it is still wanted, less often over time (`next_heartbeat`).

    The body of an attempt that timed out on its way to the event loop does not run: the next attempt does its work.
    Yields the `Heartbeat`, which sends details; every later heartbeat sends them again. It heartbeats without a timeout
    too, so that the activity learns of a cancellation. The body's own error is never hidden.
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
        await cancel_all(supervisor)
