"""A supervised heartbeat: signs of life while a body works, for every long activity."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from temporalio import activity

INTERVAL: Final = 0.5
"""Seconds. A cancellation reaches an activity in the answer to a heartbeat: half a second, to be through within one."""


@asynccontextmanager
async def supervised_heartbeat() -> AsyncIterator[Callable[..., None]]:
    """Heartbeat for as long as the body runs, at half the activity's heartbeat timeout or every `INTERVAL`.

    Gives a function that says details; every beat after it says them again, for a heartbeat takes the place of the last. Also where there is no such timeout: it is how a cancellation is learnt of. The body's own error is never hidden.
    """
    timeout = activity.info().heartbeat_timeout
    every = min(INTERVAL, timeout.total_seconds() / 2) if timeout else INTERVAL

    details: tuple[Any, ...] = ()

    def say(*said: Any) -> None:
        nonlocal details
        details = said
        activity.heartbeat(*details)

    async def beat() -> None:
        while True:
            await asyncio.sleep(every)
            activity.heartbeat(*details)

    supervisor = asyncio.create_task(beat())
    try:
        yield say
    finally:
        supervisor.cancel()
        await asyncio.gather(supervisor, return_exceptions=True)
