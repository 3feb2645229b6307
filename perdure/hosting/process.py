"""The process: termination signals, and an exit that the interpreter survives."""

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
def interrupts() -> Iterator[asyncio.Queue[int]]:
    """Queue each SIGINT and SIGTERM while the context lasts, as it comes."""
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
    """Do these while the context lasts. One that breaks down is logged, and ends nothing else."""

    async def reported(each: Coroutine[Any, Any, None]) -> None:
        try:
            await each
        except Exception:
            logging.getLogger("perdure.worker").exception("what goes on beside the worker broke down")

    tasks = [asyncio.create_task(reported(each)) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# The SDK answers on threads of its own. One that hands over an answer wakes the event loop while it still holds on to the interpreter: a script whose last answer this was may be taken down before that thread has let go, and Python aborts the process with "PyGILState_Release" (github.com/temporalio/sdk-python/issues/300). So what is left to say is waited for before the interpreter ends.

PAUSE: Final = 0.02
"""Seconds in which threads that wait for the interpreter get it."""
LONGEST: Final = 1.0
"""Seconds that a script's end is held back at most."""


@cache
def leave_cleanly() -> None:
    """Have the process wait at its end, 20 ms as a rule, for threads of the SDK that are in the interpreter. Once is enough."""
    atexit.register(_settle)


def leave_at_once(code: int) -> NoReturn:
    """End the process although threads of it do not come back; what is printed is flushed."""
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
    """Whether a thread that Python has not started is in Python."""
    return not {thread.ident for thread in threading.enumerate()}.issuperset(sys._current_frames())
