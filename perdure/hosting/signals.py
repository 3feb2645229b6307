"""Waiting for Ctrl-C or a termination signal, with what goes on meanwhile, without losing what must be closed."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any


@contextmanager
def interrupts() -> Iterator[asyncio.Queue[int]]:
    """Each SIGINT and SIGTERM while the context lasts, as it comes."""
    came: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, came.put_nowait, number)
    try:
        yield came
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def until_interrupted() -> None:
    """Return at the first SIGINT or SIGTERM."""
    with interrupts() as came:
        await came.get()


@asynccontextmanager
async def beside(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do these while the context lasts. One that breaks down is told in the log, and ends nothing else."""

    async def told(each: Coroutine[Any, Any, None]) -> None:
        try:
            await each
        except Exception:
            logging.getLogger("perdure.worker").exception("what goes on beside the worker broke down")

    tasks = [asyncio.create_task(told(each)) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
