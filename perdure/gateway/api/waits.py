"""Waiting, for as long as a request may, and not beyond the gateway's own end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import Response

from perdure.gateway.api.operations import Asked, answered
from perdure.sessions.wire import Waited


async def waited(asked: Asked[Any, Any], wait: Callable[[float], Awaitable[Waited]]) -> Response:
    """`{status, startedAt, endedAt, error?}` (R10.1)."""
    found = await until_stopping(asked, wait(asked.query.timeout))
    return answered((found or await wait(0)).as_json())


async def until_stopping(asked: Asked[Any, Any], what: Awaitable[Any]) -> Any:
    """What it gives; `None` where the gateway is about to end."""
    task, stops = asyncio.ensure_future(what), asyncio.ensure_future(asked.gateway.stopping.wait())
    try:
        await asyncio.wait([task, stops], return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (task, stops):
            each.cancel()
        await asyncio.gather(task, stops, return_exceptions=True)
