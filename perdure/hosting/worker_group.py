"""A worker and one worker for each rate-limited queue: they start, drain, and stop together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from types import TracebackType
from typing import Any, Final

from temporalio.client import Client
from temporalio.worker import PollerBehaviorSimpleMaximum, Worker

from perdure.activities.active_executions import ActiveExecutions
from perdure.activities.queue_rates import set_queue_rate
from perdure.hosting.codec import worker_context
from perdure.hosting.settings import Settings
from perdure.models.token_rates import MINUTE, initial_rate, limited_names
from perdure.tools.invocation import model_queue, runs_queue, tool_queue

_POLLERS: Final = PollerBehaviorSimpleMaximum(2)
"""A limited queue dispatches so few tasks that two pollers are enough."""


class WorkerGroup:
    """Workers with the interface of one `temporalio.worker.Worker`."""

    def __init__(self, *workers: Worker) -> None:
        self.all = workers
        self._stack = AsyncExitStack()
        self._abandoned = False

    def abandon(self) -> None:
        """Do not wait for the workers when the context ends: the process ends with `leave_at_once`."""
        self._abandoned = True

    @property
    def task_queue(self) -> str:
        """Return the task queue of runs and of activities without a rate limit."""
        return self.all[0].task_queue

    @property
    def is_running(self) -> bool:
        """Whether all workers poll."""
        return all(worker.is_running for worker in self.all)

    async def run(self) -> None:
        """Work until `shutdown`. Raises a worker's error once all workers have ended."""
        try:
            with worker_context():
                async with asyncio.TaskGroup() as running:
                    for worker in self.all:
                        running.create_task(worker.run())
        except BaseExceptionGroup as error:
            raise error.exceptions[0] from None

    async def shutdown(self) -> None:
        """Poll no longer, and wait for running tasks, up to the grace period."""
        await asyncio.gather(*(worker.shutdown() for worker in self.all))

    async def __aenter__(self) -> WorkerGroup:
        async with AsyncExitStack() as stack:
            with worker_context():
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


class _LimitedWorker(Worker):
    """The worker of a limited queue. It first sets the rate of its settings, because the server may have another one."""

    def __init__(self, client: Client, *, set_rate: float | None, **options: Any) -> None:
        super().__init__(client, **options)
        self._set_rate = set_rate

    async def run(self) -> None:
        await set_queue_rate(self.client, self.task_queue, self._set_rate)
        await super().run()


def model_rates(settings: Settings) -> dict[str, tuple[float | None, float | None]]:
    """Return the limits of models by name: Requests and tokens per minute."""
    requests, tokens = settings.model_limits, settings.model_token_limits
    return {name: (requests.get(name), tokens.get(name)) for name in limited_names(requests, tokens)}


def limited_queues(settings: Settings, task_queue: str) -> set[str]:
    """Return the queues of all `limited_workers`."""
    models, tools = _rates_by_queue(settings, task_queue)
    return {*models, *tools, *([runs_queue(task_queue)] if _gives_turns(settings) else [])}


def _rates_by_queue(settings: Settings, task_queue: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return the rates of limited models, and the rates of limited tools, by queue."""
    models = {} if settings.tools_only else model_rates(settings)
    return (
        {model_queue(task_queue, name): initial_rate(*limit) for name, limit in models.items()},
        {tool_queue(task_queue, name): rate / MINUTE for name, rate in settings.tool_limits.items()},
    )


def _gives_turns(settings: Settings) -> bool:
    return settings.session_runs > 0 and not settings.tools_only


def limited_workers(
    client: Client,
    settings: Settings,
    task_queue: str,
    request: Callable[..., Any],
    tool: Callable[..., Any],
    turn: Callable[..., Any],
    options: Mapping[str, Any],
) -> Iterator[Worker]:
    """Yield a worker for each limited model and tool, and one for turns of sessions' runs.

    The server keeps the rates, for any number of workers.
    """
    models, tools = _rates_by_queue(settings, task_queue)
    counted = {model_queue(task_queue, name) for name in settings.model_token_limits}
    for queue, rate in {**models, **tools}.items():
        yield _LimitedWorker(
            client,
            set_rate=rate if queue in counted else None,
            task_queue=queue,
            activities=[request if queue in models else tool],
            max_task_queue_activities_per_second=rate,
            **{**options, "activity_task_poller_behavior": _POLLERS},
        )
    if _gives_turns(settings):
        # Each active run of a session holds one slot (R10.3).
        own = {key: value for key, value in options.items() if key not in ("tuner", "max_concurrent_activities")}
        yield Worker(
            client,
            task_queue=runs_queue(task_queue),
            activities=[turn],
            max_concurrent_activities=settings.session_runs,
            **{**own, "activity_task_poller_behavior": PollerBehaviorSimpleMaximum(1)},
        )


_under_way: Final[dict[object, str]] = {}
"""The workflow id of each activation that is executed now."""


@contextmanager
def carried_out(workflow_id: str, *, evicts: bool) -> Iterator[None]:
    """Count an activation of a run while it lasts. A failed eviction is repeated, and counts until it succeeds."""
    key: object = workflow_id if evicts else object()
    _under_way[key] = workflow_id
    try:
        yield
    except BaseException:
        if not evicts:
            del _under_way[key]
        raise
    _under_way.pop(key, None)


def held_runs() -> list[str]:
    """Return the workflow ids of runs with an activation that is executed now, sorted."""
    return sorted(set(_under_way.values()))


REPORTED_EVERY: Final = 15.0
"""Seconds between log lines about running calls."""
LEAVES_AFTER: Final = 10.0
"""Seconds after the grace period, or after the second interrupt, in which the SDK must evict the worker's runs."""
_NAMED: Final = 5
_log: Final = logging.getLogger("perdure.worker")


async def drain(worker: WorkerGroup, underway: ActiveExecutions, interrupted: asyncio.Queue[int], grace: float) -> bool:
    """Shut the worker down, and log the running calls. Return whether the worker has ended.

    A call that still runs after `grace` seconds (the worker's own grace period), or at the next interrupt, fails as
    interrupted. Another worker then executes it. A worker that has not ended `LEAVES_AFTER` seconds later is abandoned,
    because the SDK waits forever for a run that it cannot evict. The caller then ends the process with `leave_at_once`.
    """
    stopping = asyncio.ensure_future(worker.shutdown())
    again = asyncio.ensure_future(interrupted.get())
    clock = asyncio.get_running_loop().time
    end = clock() + grace + LEAVES_AFTER
    waits = f", waiting up to {grace:g} s for {_listed(underway.titles)}; send the signal again to hand over now"
    _print(f"draining: accepts no new work{waits if underway.titles else ''}")
    try:
        while not stopping.done():
            left = max(0.0, end - clock())
            await asyncio.wait(
                {stopping, again}, timeout=min(REPORTED_EVERY, left), return_when=asyncio.FIRST_COMPLETED
            )
            if not stopping.done() and clock() >= end:
                _print_held(held_runs(), underway.titles)
                worker.abandon()
                stopping.cancel()
                return False
            if again.done():
                end = min(end, clock() + LEAVES_AFTER)
                if underway.titles:
                    _print(f"hands over {_listed(underway.titles)}")
                underway.hand_over()
                again = asyncio.ensure_future(interrupted.get())
            elif not stopping.done() and underway.titles:
                _print(f"still waits for {_listed(underway.titles)}")
    finally:
        again.cancel()
    await stopping
    return True


def _print_held(runs: list[str], titles: list[str]) -> None:
    """Log the runs and calls that this worker abandons. Other workers continue them."""
    if runs:
        _log.error("stops with runs that could not be evicted; other workers continue them: %s", _listed(runs))
    if titles or not runs:
        _log.error("stops without waiting for %s", _listed(titles) or "its pollers")


def _listed(titles: list[str]) -> str:
    more = f" and {len(titles) - _NAMED} more" if len(titles) > _NAMED else ""
    return ", ".join(titles[:_NAMED]) + more


def _print(line: str) -> None:
    _log.info("%s", line)
