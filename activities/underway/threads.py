"""Sync tools in threads of their own: none waits for another's to be free while its timeout runs."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any, Final

LAST_MOMENTS: Final = 2.0
"""Seconds that a thread is given to end once it was told to, where its result still counts."""


async def in_thread(work: Callable[[], Any], name: str, *, tell: Callable[[], None], counts: Callable[[], bool]) -> Any:
    """What the function returns or raises. It starts at once: as many threads as the worker takes calls.

    Nothing can end a thread. When the call is given up, `tell` tells it; where its result still `counts` then, it has
    `LAST_MOMENTS` to come to its end. A thread that goes on holds nobody up, nor the worker's own end.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def end(value: Any, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result((value, error))

    def run() -> None:
        value, error = None, None
        try:
            value = context.run(work)
        except BaseException as failure:
            error = failure
        with contextlib.suppress(RuntimeError):  # the worker has ended meanwhile
            loop.call_soon_threadsafe(end, value, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        value, error = await asyncio.shield(ended)
    except asyncio.CancelledError:
        tell()
        if counts():
            await asyncio.wait([ended], timeout=LAST_MOMENTS)
        if not ended.done():
            raise
        value, error = ended.result()
    if error is not None:
        raise error
    return value
