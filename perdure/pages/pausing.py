"""What comes, and where nothing comes for a while, that nothing did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

T = TypeVar("T")


async def with_pauses(
    coming: AsyncGenerator[T, None], pause: Callable[[], float | None]
) -> AsyncGenerator[T | None, None]:
    """Each that comes, and `None` after as many seconds without one as `pause` says then; where it says `None`, never. Closes `coming`."""
    following: asyncio.Future[T | None] = asyncio.ensure_future(anext(coming, None))
    try:
        while True:
            await asyncio.wait({following}, timeout=pause())
            if not following.done():
                yield None
                continue
            if (found := following.result()) is None:
                return
            following = asyncio.ensure_future(anext(coming, None))
            yield found
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await coming.aclose()
