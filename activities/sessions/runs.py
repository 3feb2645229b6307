"""What a session asks of its runs through activities: a workflow can neither query nor update another (R10.3, R10.7, R10.9)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final

from temporalio import activity
from temporalio.client import WorkflowFailureError, WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.asking import ask_other, cancellable, other_run, own_run
from perdure.run.wire import RUN_QUERY, RunResult, RunView
from perdure.sessions.wire import AFTER_ACTIVITY, SAY_ACTIVITY, TURN, TURN_ACTIVITY, Answered, Saying

_TIMEOUT: Final = timedelta(seconds=5)
_LOOK: Final = 10.0
"""Seconds between two heartbeats of a turn: that its session has given it up is seen no sooner."""
UNANSWERED: Final = frozenset({RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.UNAVAILABLE})


@activity.defn(name=AFTER_ACTIVITY)
async def after(run_id: str) -> RunResult:
    """What a run that was cancelled or terminated, or has timed out, has done: it knows that when it has ended, too."""
    try:
        view: RunView = await ask_other(run_id, RUN_QUERY, RunView)
    except (RPCError, WorkflowQueryFailedError) as error:
        lasting = isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND
        raise ApplicationError(str(error), type="gone", non_retryable=lasting) from None
    return view.result()


@activity.defn(name=TURN_ACTIVITY)
async def turn(run_id: str) -> None:
    """Tell the session that there is room for its run, and hold the place until that has ended (R10.3)."""
    await own_run().signal(TURN, run_id)
    run, pause = other_run(run_id), 0.05
    while True:
        activity.heartbeat()
        try:
            await asyncio.wait_for(run.result(), _LOOK)
        except TimeoutError:
            continue
        except WorkflowFailureError:
            return
        except RPCError as error:  # it has not been started yet, or the server is away
            if error.status is not RPCStatusCode.NOT_FOUND and error.status not in UNANSWERED:
                raise
            await asyncio.sleep(pause)
            pause = min(1.0, 2 * pause)
        else:
            return


@activity.defn(name=SAY_ACTIVITY)
async def say(saying: Saying) -> Answered:
    """An update of a run of this session, and its answer."""
    try:
        with cancellable():
            answer: Any = await other_run(saying.run_id).execute_update(
                saying.update, saying.argument, rpc_timeout=_TIMEOUT
            )
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        return Answered(refused=cause.message if isinstance(cause, ApplicationError) else str(cause))
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return Answered(refused=f"the run {saying.run_id} has ended")
        raise
    return Answered(answer=answer)
