"""What a workflow answers to a query, whichever of its workers tells it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final

from temporalio.client import WorkflowHandle, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.values.limits import polling

TIMEOUT: Final = timedelta(seconds=polling.TIMEOUT)
"""For one question."""
BESIDE: Final = 0.3
"""Of its time, after which a question is asked once more beside itself: whoever replays a long history first may need all of it."""
_PAUSE: Final = 0.05
"""Seconds until a question that the server took back is asked again; twice as long each time."""
_TAKEN_BACK: Final = {RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED}
_NOT_YET: Final = "not scheduled yet"
"""What the server says of an execution whose first task it puts off, as that of one that has just gone on as new."""
_UNLIKE: Final = "[TMPRL1100]"
"""What a worker says that was given a question with a history which grew meanwhile; and of one that it cannot replay, each time."""
_ENOUGH: Final = 3
"""Times that a worker has to say so."""


async def answer_of(
    workflow: WorkflowHandle[Any, Any],
    query: str,
    *arguments: Any,
    result_type: Any = None,
    within: timedelta | None = None,
) -> Any:
    """The first answer to a question that is asked as often as it takes, `within` 10 s by default.

    A worker that leaves, as in every deploy, may leave with questions in hand. The server gives them to no other: it says that they were
    cancelled, or nothing until their time is over. Raises what `WorkflowHandle.query` raises, and where nobody answers its `RPCError`.
    """
    loop, seconds, pause = asyncio.get_running_loop(), (within or TIMEOUT).total_seconds(), _PAUSE
    ends = loop.time() + seconds
    asking: set[asyncio.Task[Any]] = set()
    unlike = 0
    try:
        while True:
            left = ends - loop.time()
            if left > _PAUSE or not asking:
                limit = timedelta(seconds=max(left, _PAUSE))
                asked = workflow.query(query, args=arguments, result_type=result_type, rpc_timeout=limit)
                asking.add(asyncio.ensure_future(asked))
            done, asking = await asyncio.wait(asking, timeout=BESIDE * seconds, return_when=asyncio.FIRST_COMPLETED)
            for question in sorted(done, key=lambda each: each.exception() is not None):
                error = question.exception()
                unlike += _is_unlike(error)
                passes = _is_lost(error) or (_is_unlike(error) and unlike < _ENOUGH)
                if not passes or loop.time() + pause >= ends:
                    return question.result()
            if done:
                await asyncio.sleep(pause)
                pause *= 2
    finally:
        for question in asking:
            question.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


def _is_unlike(error: BaseException | None) -> bool:
    return isinstance(error, WorkflowQueryFailedError) and str(error).startswith(_UNLIKE)


def _is_lost(error: BaseException | None) -> bool:
    return isinstance(error, RPCError) and (error.status in _TAKEN_BACK or _NOT_YET in error.message)
