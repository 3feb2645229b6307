"""Timers, which are billed Actions: one for all tasks that wait for a time, and one for a run's deadline."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Awaitable, Callable
from typing import Final

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.runs.limits import Limit, WorkClock
    from perdure.runs.run import RunState
    from perdure.runs.version_switches import CLOCK_FOLLOWS, OUTAGE_STOPS_CLOCK
    from perdure.runs.views import summary as line
    from perdure.values.limits import SHORTEST


_SHORT_GRAIN: Final = 0.1
"""Seconds to which a wait of six seconds is rounded up; a wait of a minute is rounded up to whole seconds."""


class Alarm:
    """A timer for the earliest time that a task waits for."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, str, asyncio.Future[None]]] = []
        self._count = 0
        self._rings = 0.0
        self._timer: asyncio.Task[None] | None = None
        self._setting = False

    def at(self, time: float, words: str = "") -> asyncio.Future[None]:
        """Return a future that is done at this `workflow.time()`, never before.

        It is done up to a sixtieth of the wait later, a second at most, so that close times share one timer. Cancel it
        when nothing waits for it any longer.
        """
        grain = min(1.0, (time - workflow.time()) / 60)
        if grain >= _SHORT_GRAIN:
            grain = 1.0 if grain >= 1 else _SHORT_GRAIN
            time = math.ceil(time / grain) * grain
        ring: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._waiting, (time, self._count, words, ring))
        ring.add_done_callback(lambda _: self._set_soon())
        self._set_soon()
        return ring

    def _set_soon(self) -> None:
        if not self._setting:
            self._setting = True
            asyncio.get_running_loop().call_soon(self._set)

    def _set(self) -> None:
        """Keep one timer for the earliest time, and none without waits. A timer that fires too early does no harm."""
        self._setting = False
        while self._waiting and self._waiting[0][-1].done():
            heapq.heappop(self._waiting)
        timer = None if self._timer is None or self._timer.done() else self._timer
        if timer is not None and (not self._waiting or self._waiting[0][0] < self._rings):
            timer.cancel()
            timer = None
        if self._waiting and timer is None:
            self._rings, _, words, _ = self._waiting[0]
            self._timer = asyncio.create_task(self._ring(words))

    async def _ring(self, words: str) -> None:
        await workflow.sleep(max(self._rings - workflow.time(), SHORTEST), summary=line(words) or None)
        while self._waiting and self._waiting[0][0] <= workflow.time():
            ring = heapq.heappop(self._waiting)[-1]
            if not ring.done():
                ring.set_result(None)
        self._set_soon()


def watch(
    run: RunState,
    clock: WorkClock,
    waits: Callable[[], bool],
    on_reached: Callable[[Limit], None],
    late: Awaitable[None] | None,
) -> asyncio.Task[None]:
    """Start the clock, and call `on_reached` at the run's deadline of work. Cancel the task at the run's end.

    The clock follows `waits`: it stops while none of the run's own work is under way. There is one timer, which waits
    as long as the run waits for people (R9.5). It starts again if no worker was there at the deadline. Where the parent
    run keeps the time, one timer serves all its child runs. Then no timer starts here before the parent has reported by
    `late` that the time has passed.
    """
    clock.work(workflow.time())
    if run.prepared.follows(OUTAGE_STOPS_CLOCK):
        clock.deadline = run.limits.pool.budget.deadline
    return asyncio.create_task(_watch(run, clock, waits, on_reached, late))


async def _watch(
    run: RunState,
    clock: WorkClock,
    waits: Callable[[], bool],
    on_reached: Callable[[Limit], None],
    late: Awaitable[None] | None,
) -> None:
    following = asyncio.create_task(_follow(clock, waits)) if run.prepared.follows(CLOCK_FOLLOWS) else None
    try:
        await _until_late(run, clock, on_reached, late)
        if following is not None:
            await following
    finally:
        if following is not None:
            following.cancel()


async def _follow(clock: WorkClock, waits: Callable[[], bool]) -> None:
    """Update the clock. Conditions are evaluated after all other work of a task, so that no change is missed."""

    def turns() -> bool:
        clock.look(workflow.time())
        return clock.paused != waits()

    while True:
        await workflow.wait_condition(turns)
        if waits():
            clock.pause(workflow.time())
        else:
            clock.work(workflow.time())


async def _until_late(
    run: RunState, clock: WorkClock, on_reached: Callable[[Limit], None], late: Awaitable[None] | None
) -> None:
    deadline = run.limits.pool.budget.deadline
    if deadline is None:
        return
    if late is not None:
        await late
    while (limit := run.limits.pool.budget.late(clock.worked(workflow.time()))) is None:
        await workflow.sleep(max(deadline - clock.worked(workflow.time()), SHORTEST), summary="deadline")
        # The wait may take days: one timer then, not one after another.
        await workflow.wait_condition(lambda: not clock.paused)
    on_reached(limit)
