"""A supervised heartbeat: signs of life while a body works, for every long activity."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio import activity


@asynccontextmanager
async def supervised_heartbeat() -> AsyncIterator[None]:
    """Heartbeat at half the activity's heartbeat timeout for as long as the body runs; nothing where it has none.

    A heartbeat is also how the worker learns of a cancellation. The body's own error is never hidden.
    """
    timeout = activity.info().heartbeat_timeout
    if timeout is None or not timeout.total_seconds():
        yield
        return

    async def beat(every: float) -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(every)

    supervisor = asyncio.create_task(beat(timeout.total_seconds() / 2))
    try:
        yield
    finally:
        supervisor.cancel()
        await asyncio.gather(supervisor, return_exceptions=True)
