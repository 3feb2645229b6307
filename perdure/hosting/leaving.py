"""How a process that has talked to Temporal comes to its end without being aborted.

The SDK answers on threads of its own. One that hands over an answer wakes the event loop while it still holds on to the interpreter: a
script whose last answer this was may be taken down before that thread has let go, and Python aborts the process with
"PyGILState_Release" (github.com/temporalio/sdk-python/issues/300). So what is left to say is waited for before the interpreter ends.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from functools import cache
from typing import Final, NoReturn

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
