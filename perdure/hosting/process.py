"""The process: termination signals, and a clean exit of the interpreter."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from typing import Any, Final, NoReturn


@contextmanager
def queue_interrupts() -> Iterator[asyncio.Queue[int]]:
    """Queue each SIGINT and SIGTERM while the context lasts."""
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
    with queue_interrupts() as came:
        await came.get()


@asynccontextmanager
async def run_beside(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run these coroutines while the context lasts. Log an error of one of them; the others continue."""

    async def reported(each: Coroutine[Any, Any, None]) -> None:
        try:
            await each
        except Exception:
            logging.getLogger("perdure.worker").exception("a background task of the worker failed")

    tasks = [asyncio.create_task(reported(each)) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# The SDK delivers results on its own threads. Such a thread wakes the event loop while it still holds the GIL. If the
# script then ends before the thread releases the GIL, Python aborts the process with "PyGILState_Release"
# (github.com/temporalio/sdk-python/issues/300). So the process waits for these threads before the interpreter ends.

PAUSE: Final = 0.02
"""Seconds in which threads that wait for the GIL get it."""
LONGEST: Final = 1.0
"""The most seconds that a script's end is delayed."""


@cache
def leave_cleanly() -> None:
    """Let the process wait at its end, usually 20 ms, for the SDK's threads that hold the GIL. Further calls do nothing."""
    atexit.register(_settle)


def leave_at_once(code: int) -> NoReturn:
    """Flush logs and output, and end the process without a wait for its threads."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _settle() -> None:
    end = time.monotonic() + LONGEST
    time.sleep(PAUSE)
    while _strangers() and time.monotonic() < end:
        time.sleep(PAUSE / 10)


def _strangers() -> bool:
    """Whether a thread that Python has not started runs Python code."""
    return not {thread.ident for thread in threading.enumerate()}.issuperset(sys._current_frames())
