"""Waiting for Ctrl-C or a termination signal, without losing what must be closed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager


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
