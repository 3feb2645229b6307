"""A worker, and beside it one for each queue whose rate is limited: they begin, drain and end together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final

from temporalio.client import Client
from temporalio.worker import PollerBehaviorSimpleMaximum, Worker

from perdure.hosting.settings import Settings
from perdure.tools.limited import model_queue, runs_queue, tool_queue

_MINUTE: Final = 60.0
_POLLERS: Final = PollerBehaviorSimpleMaximum(2)
"""Such a queue gives out so little that few need to ask."""


class WorkerGroup:
    """Used as one `temporalio.worker.Worker` is."""

    def __init__(self, *workers: Worker) -> None:
        self.all = workers
        self._stack = AsyncExitStack()
        self._abandoned = False

    def abandon(self) -> None:
        """Do not wait for its end when its context is left: the process ends with `leave_at_once`."""
        self._abandoned = True

    @property
    def task_queue(self) -> str:
        """Where runs, and what is not limited, come from."""
        return self.all[0].task_queue

    @property
    def is_running(self) -> bool:
        """Whether every one of them polls."""
        return all(worker.is_running for worker in self.all)

    async def run(self) -> None:
        """Work until `shutdown`. Raises what makes one of them fail, once all have ended."""
        try:
            async with asyncio.TaskGroup() as running:
                for worker in self.all:
                    running.create_task(worker.run())
        except BaseExceptionGroup as error:
            raise error.exceptions[0] from None

    async def shutdown(self) -> None:
        """Take nothing new, and wait for what runs, up to the grace."""
        await asyncio.gather(*(worker.shutdown() for worker in self.all))

    async def __aenter__(self) -> WorkerGroup:
        async with AsyncExitStack() as stack:
            for worker in self.all:
                await stack.enter_async_context(worker)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._abandoned:
            return
        await self.shutdown()
        await self._stack.__aexit__(kind, error, trace)


def limited_workers(
    client: Client,
    settings: Settings,
    task_queue: str,
    request: Callable[..., Any],
    tool: Callable[..., Any],
    turn: Callable[..., Any],
    options: Mapping[str, Any],
) -> Iterator[Worker]:
    """Workers for the Requests and the calls that are limited. The server keeps the rate: it gives out no more, however many ask."""
    models = {} if settings.tools_only else settings.model_limits
    queues = [(model_queue(task_queue, name), rate, request) for name, rate in models.items()]
    queues += [(tool_queue(task_queue, name), rate, tool) for name, rate in settings.tool_limits.items()]
    for queue, rate, activity in queues:
        yield Worker(
            client,
            task_queue=queue,
            activities=[activity],
            max_task_queue_activities_per_second=rate / _MINUTE,
            **{**options, "activity_task_poller_behavior": _POLLERS},
        )
    if settings.session_runs and not settings.tools_only:
        # Each run that is under way holds one of them (R10.3).
        own = {key: value for key, value in options.items() if key not in ("tuner", "max_concurrent_activities")}
        yield Worker(
            client,
            task_queue=runs_queue(task_queue),
            activities=[turn],
            max_concurrent_activities=settings.session_runs,
            **{**own, "activity_task_poller_behavior": PollerBehaviorSimpleMaximum(1)},
        )
