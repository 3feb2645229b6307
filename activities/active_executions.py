"""Active executions of a worker: threads, calls that must not begin twice, and the end of a worker."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn, TypeVar

from temporalio import activity
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import AsyncActivityCancelledError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from perdure.errors import ToolError
from perdure.plan import BEGUN, INTERRUPTED, NO_SUCH_TOOL, NOT_BEGUN
from perdure.runs.wire import REFUSED
from perdure.values.json import Json

_REPORTED: Final[ContextVar[list[Json]]] = ContextVar("begun")
"""Details of the activity's report that it has begun, shared with its tasks and threads."""
T = TypeVar("T")


def not_begun() -> None:
    """Report that the activity has not begun any work that must not happen twice."""
    _REPORTED.set([])


def begun_details() -> list[Json]:
    """Return the details of a heartbeat that has none of its own: an empty heartbeat would withdraw the report."""
    return _REPORTED.get([])


def is_only_attempt() -> bool:
    """Whether this attempt may not be repeated."""
    policy = activity.info().retry_policy
    return policy is not None and policy.maximum_attempts == 1


def uncounted_failure(kind: str, words: str) -> ApplicationError:
    """Return the failure of an attempt that the run does not count, or that it executes again: see `perdure.plan.RetryState`.

    `kind`: its type, such as `NOT_BEGUN`.
    """
    return ApplicationError(words, activity.info().attempt, type=kind, non_retryable=True)


async def report_begun() -> None:
    """Report to the server that an only attempt begins (`BEGUN`), and wait for the answer: an Action, and milliseconds.

    Raise an `ApplicationError` of type `NOT_BEGUN` if the server rejects the report, because the attempt counts as
    lost, or does not answer. Raise one of type `INTERRUPTED` if an earlier attempt has begun: an operator's pause or reset
    repeats an activity that has one attempt.
    """
    if not is_only_attempt():
        return
    info = activity.info()
    if any(isinstance(each, dict) and BEGUN in each for each in info.heartbeat_details):
        words = f"attempt {info.attempt} was not started, because an earlier attempt has begun (temporal activity reset --reset-heartbeats starts it anew)"
        raise uncounted_failure(INTERRUPTED, words)
    details: Json = {BEGUN: info.attempt}
    _REPORTED.get().append(details)
    try:
        await activity.client().get_async_activity_handle(task_token=info.task_token).heartbeat(details)
    except RPCError as error:
        words = f"it was not started: the server did not record its start ({error.message})"
        raise uncounted_failure(NOT_BEGUN, words) from None
    except AsyncActivityCancelledError:  # the worker's own heartbeat is also rejected, and cancels this
        activity.heartbeat()
        await asyncio.Future()


async def finish_though_paused(work: ActiveExecution, body: Coroutine[Any, Any, T]) -> T:
    """Return the body's result. An operator's pause or reset does not interrupt work that has begun and may not begin
    twice: its result counts. Every other cancellation cancels the body.
    """
    task = asyncio.create_task(body)
    while True:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            if not work.begun or details is None or not (details.paused or details.reset):
                task.cancel()
                return await task


@dataclass
class ActiveExecution:
    """An activity that is being executed."""

    begun: bool = True
    """Whether work that must not happen twice may have begun."""


class ActiveExecutions:
    """The activities of one worker."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[object], str] = {}
        self._handing_over = False

    @property
    def titles(self) -> list[str]:
        """Return the titles of active executions, oldest first."""
        return list(self._tasks.values())

    def hand_over(self) -> None:
        """Cancel the active executions: another worker runs them again."""
        self._handing_over = True
        for task in self._tasks:
            task.cancel()

    @property
    def interrupted(self) -> bool:
        """Whether the calling activity is cancelled because its worker ends, and not by its caller."""
        details = activity.cancellation_details()
        return self._handing_over or (details is not None and details.worker_shutdown)

    @asynccontextmanager
    async def working(self, title: str) -> AsyncIterator[ActiveExecution]:
        """Execute an activity. If its worker's end cancels it, it fails as `INTERRUPTED`, or as `NOT_BEGUN` if it
        reported that.

        Neither counts as the activity's own failure or as an attempt.
        """
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
            words = f"{title} was interrupted: its worker was shut down"
            raise uncounted_failure(kind, words) from None
        finally:
            del self._tasks[task]


POLLS_WITHIN: Final = timedelta(seconds=75)
"""Time since its last poll, which lasts a minute, within which a worker counts as present."""
_TIMEOUT: Final = timedelta(seconds=5)


async def others_poll() -> bool:
    """Whether other workers poll the activity's queue; `False` where that cannot be queried.

    Workers of tools alone do not count, because they poll for no workflow tasks. On the queue of a limited model or tool
    nobody does: there all pollers count.
    """
    client, queue = activity.client(), TaskQueue(name=activity.info().task_queue)
    pollers: Sequence[PollerInfo] = ()
    for kind in (TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY):
        asked = DescribeTaskQueueRequest(namespace=client.namespace, task_queue=queue, task_queue_type=kind)
        try:
            pollers = (await client.workflow_service.describe_task_queue(asked, retry=False, timeout=_TIMEOUT)).pollers
        except RPCError:
            return False  # the worker may lack the permission
        if pollers:
            break
    now = datetime.now(UTC)
    lately = (one for one in pollers if now - one.last_access_time.ToDatetime(UTC) < POLLS_WITHIN)
    return any(one.identity != client.identity for one in lately)


async def leave_to_another(problem: str) -> None:
    """Raise `NO_SUCH_TOOL` if another worker polls the queue, which may have what this worker lacks.

    The workflow executes the activity again for a minute, then fails with the last problem.
    """
    if await others_poll():
        info = activity.info()
        raise ApplicationError(
            f"{problem}. No other worker of the task queue accepted it in time",
            info.attempt,
            type=NO_SUCH_TOOL,
            non_retryable=info.is_local,
        )


async def leave_or_refuse(problem: str) -> NoReturn:
    """Leave the run to another worker of the queue. Raise `Refused` if no other worker polls the queue."""
    await leave_to_another(problem)
    raise ApplicationError(problem, type=REFUSED, non_retryable=True) from None  # the problem names the error


@contextmanager
def exits_as_errors() -> Iterator[None]:
    """Raise an exit of a user's code, such as `sys.exit`, as a `ToolError`: in a task, an exit ends the whole worker."""
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as error:
        kind = type(error).__name__
        raise ToolError(kind, f"the code tried to end its program: {kind}({error})", retry=True) from error


LAST_MOMENTS: Final = 2.0
"""Seconds for a cancelled thread to end, where its result still counts."""


async def in_thread(
    work: Callable[[], Any],
    name: str,
    *,
    notify: Callable[[], None] = lambda: None,
    counts: Callable[[], bool] = lambda: False,
) -> Any:
    """Return the function's result, or raise its error. It starts at once: the worker has a thread for each of its
    calls. An awaitable result, as of an async function inside a wrapper, is awaited here.

    Python cannot end a thread. When the call is cancelled, `notify` informs the thread; if its result still `counts`,
    it has `LAST_MOMENTS` to end. A thread that continues delays nothing, not even the worker's own end.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def end(value: Any, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result((value, error))

    def run() -> None:
        value, error = None, None
        try:
            with exits_as_errors():
                value = context.run(work)
        except BaseException as failure:
            error = failure
        with contextlib.suppress(RuntimeError):  # the worker has ended meanwhile
            loop.call_soon_threadsafe(end, value, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        value, error = await asyncio.shield(ended)
    except asyncio.CancelledError:
        notify()
        if counts():
            await asyncio.wait([ended], timeout=LAST_MOMENTS)
        if not ended.done():
            raise
        value, error = ended.result()
    if error is not None:
        raise error
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        raise TypeError(f"{value.__qualname__} is a generator function, whose code has not run: return one value")
    if not inspect.isawaitable(value):
        return value
    with exits_as_errors():
        return await value


class AttemptTrace:
    """A trace of one attempt of an activity. `content`: whether to include its input."""

    def __init__(self, *, content: bool) -> None:
        self.content = content
        self.tool: str | None = None
        """The tool's own name, if the activity's name differs."""
        self.finish_reason: str | None = None
        self.given: Any = None
        """The messages of a model, or the parameters of a tool."""


TRACE: Final[ContextVar[AttemptTrace | None]] = ContextVar("trace", default=None)
