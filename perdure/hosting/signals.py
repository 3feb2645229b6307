"""Waiting for Ctrl-C or a termination signal, without losing what must be closed."""

from __future__ import annotations

import asyncio
import signal


async def until_interrupted() -> None:
    """Return at the first SIGINT or SIGTERM."""
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted.set)
    try:
        await interrupted.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
