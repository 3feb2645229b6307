"""Executions of a worker: threads, calls that must not begin twice, and the end of a worker."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from temporalio import activity
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import AsyncActivityCancelledError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from perdure.plan.retry import BEGUN, INTERRUPTED, NOT_BEGUN
from perdure.values.json import Json

_SAID: Final[ContextVar[list[Json]]] = ContextVar("begun")
"""What the activity has said of its beginning; shared with the tasks and threads that it starts."""


def not_begun() -> None:
    """The activity has not begun what may not be done twice."""
    _SAID.set([])


def said_begun() -> list[Json]:
    """What a heartbeat without details says in their place: without any it would take back what was said."""
    return _SAID.get([])


def is_only_attempt() -> bool:
    """Whether this attempt may not be repeated."""
    policy = activity.info().retry_policy
    return policy is not None and policy.maximum_attempts == 1


async def say_begun() -> None:
    """Return when an attempt that is the only one may begin: its server has it that it did (`BEGUN`). An Action, and milliseconds.

    Raises an `ApplicationError` of type `NOT_BEGUN` where it is not taken: the attempt was taken for lost meanwhile, or nobody answers.
    """
    if not is_only_attempt():
        return
    info = activity.info()
    said: Json = {BEGUN: info.attempt}
    _SAID.get().append(said)
    try:
        await activity.client().get_async_activity_handle(task_token=info.task_token).heartbeat(said)
    except RPCError as error:
        words = f"it was not begun: its server did not take that it would ({error.message})"
        raise ApplicationError(words, info.attempt, type=NOT_BEGUN, non_retryable=True) from None
    except AsyncActivityCancelledError:  # the worker learns of it by a heartbeat of its own, and ends this
        activity.heartbeat()
        await asyncio.Future()


@dataclass
class ActiveExecution:
    """An activity that is carried out."""

    begun: bool = True
    """Whether what may not be done twice may have been done."""


class ActiveExecutions:
    """The activities of one worker."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[object], str] = {}
        self._handing_over = False

    @property
    def titles(self) -> list[str]:
        """What runs, oldest first."""
        return list(self._tasks.values())

    def hand_over(self) -> None:
        """Wait for nothing more: what runs is cut off, and run again by another worker."""
        self._handing_over = True
        for task in self._tasks:
            task.cancel()

    @property
    def interrupted(self) -> bool:
        """Whether the activity that asks is cut off because its worker ends, and not because anybody gave it up."""
        details = activity.cancellation_details()
        return self._handing_over or (details is not None and details.worker_shutdown)

    @asynccontextmanager
    async def working(self, title: str) -> AsyncIterator[ActiveExecution]:
        """Carry out an activity. Cut off by its worker's end, it fails as `INTERRUPTED`, or as `NOT_BEGUN` where the work says so: no
        failure of its own, and no attempt used."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = title
        work = ActiveExecution()
        try:
            yield work
        except asyncio.CancelledError:
            if not self.interrupted:
                raise
            kind = INTERRUPTED if work.begun else NOT_BEGUN
            words = f"{title} was cut off: its worker was shut down"
            raise ApplicationError(words, activity.info().attempt, type=kind, non_retryable=True) from None
        finally:
            del self._tasks[task]


POLLS_WITHIN: Final = timedelta(seconds=75)
"""Since its last poll, which lasts a minute, a worker is taken for one that is there."""
_TIMEOUT: Final = timedelta(seconds=5)


async def others_poll() -> bool:
    """Whether further workers take runs from the queue of the activity under way; not where that cannot be asked."""
    client, info = activity.client(), activity.info()
    queue, kind = TaskQueue(name=info.task_queue), TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    asked = DescribeTaskQueueRequest(namespace=client.namespace, task_queue=queue, task_queue_type=kind)
    try:
        pollers = (await client.workflow_service.describe_task_queue(asked, retry=False, timeout=_TIMEOUT)).pollers
    except RPCError:
        return False  # not everybody may ask
    now = datetime.now(UTC)
    lately = (one for one in pollers if now - one.last_access_time.ToDatetime(UTC) < POLLS_WITHIN)
    return any(one.identity != client.identity for one in lately)


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


class AttemptTrace:
    """By one attempt of an activity. `content`: whether what it was given is wanted, too."""

    def __init__(self, *, content: bool) -> None:
        self.content = content
        self.tool: str | None = None
        """The tool's own name, where the activity has another."""
        self.finish_reason: str | None = None
        self.given: Any = None
        """The messages of a model, or the parameters of a tool."""


TOLD: Final[ContextVar[AttemptTrace | None]] = ContextVar("told", default=None)
