"""A supervised heartbeat: signs of life while a body works, for every long activity."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from temporalio import activity

INTERVAL: Final = 0.5
"""Seconds. A cancellation reaches an activity in the answer to a heartbeat: half a second, to be through within one."""


@asynccontextmanager
async def supervised_heartbeat() -> AsyncIterator[None]:
    """Heartbeat for as long as the body runs, at half the activity's heartbeat timeout or every `INTERVAL`.

    Also where there is no such timeout: it is how a cancellation is learnt of. The body's own error is never hidden.
    """
    timeout = activity.info().heartbeat_timeout
    every = min(INTERVAL, timeout.total_seconds() / 2) if timeout else INTERVAL

    async def beat() -> None:
        while True:
            await asyncio.sleep(every)
            activity.heartbeat()

    supervisor = asyncio.create_task(beat())
    try:
        yield
    finally:
        supervisor.cancel()
        await asyncio.gather(supervisor, return_exceptions=True)
