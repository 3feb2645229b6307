"""Queries of activities and workers to runs and sessions. No history records them."""

from __future__ import annotations

import asyncio
import functools
import itertools
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from temporalio import activity
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.active_executions import uncounted_failure
from perdure.plan import NOT_BEGUN
from perdure.queries import TIMEOUT, answer_of
from perdure.queries.media_store import MediaStore
from perdure.runs.claim_check import PAYLOADS_QUERY, PayloadKind
from perdure.values import limits

LASTING: Final = {
    RPCStatusCode.INVALID_ARGUMENT,
    RPCStatusCode.NOT_FOUND,
    RPCStatusCode.PERMISSION_DENIED,
    RPCStatusCode.UNIMPLEMENTED,
}
"""Statuses that a repeated query has again."""
OWN_CLIENT: Final[ContextVar[Client]] = ContextVar("client")
"""Client with Perdure's converter, if the worker's own client has another."""
GONE: Final = "gone"
"""Type of the final failure for a run, or a run's value, that no longer exists."""
_READ_WITHIN: Final = 0.8
"""Share of an attempt's time within which its run has to send a value."""
_Run: TypeAlias = WorkflowHandle[Any, Any]
V = TypeVar("V")


def own_run() -> _Run:
    """Return the execution that this activity belongs to."""
    info = activity.info()
    assert info.workflow_id is not None
    return client().get_workflow_handle(info.workflow_id, run_id=info.workflow_run_id)


def client() -> Client:
    """Return the worker's client, with Perdure's converter."""
    return OWN_CLIENT.get(None) or activity.client()


def stores_files() -> bool:
    """Return whether this worker can store files."""
    return activity.in_activity() and MediaStore(client().data_converter).is_there


async def ask_other(run_id: str, query: str, result_type: Any, *arguments: Any) -> Any:
    """Query another run, whether it still runs or not."""
    return await answer_of(other_run(run_id), query, *arguments, result_type=result_type)


def other_run(run_id: str) -> _Run:
    """Return another run, by its id."""
    return client().get_workflow_handle(run_id)


async def fetch(kind: PayloadKind[V], name: str, run: _Run | None = None) -> V:
    """Return a value that was too large to be sent, from the activity's own run, or from `run`.

    Simultaneous fetches of one kind share one query, and a query without an answer is repeated. Raise
    `ApplicationError` of type `gone` if the value is no longer needed, `RPCError` without any answer, and
    `WorkflowQueryFailedError` when the run rejects the query.
    """
    run = run or own_run()
    fetcher = _fetchers.setdefault((run.id, run.run_id, kind.name), _Fetcher(run, kind))
    found: V | None = await fetcher.fetch(name)
    if found is None:
        words, category = f"{run.id} no longer needs {kind.name} {name}", ApplicationErrorCategory.BENIGN
        raise ApplicationError(words, type=GONE, non_retryable=True, category=category)
    return found


async def fetch_own(kind: PayloadKind[V], name: str) -> V:
    """Return a value from the activity's own run, before the activity begins its work.

    Raise `ApplicationError` of type `NOT_BEGUN` if the run does not answer, e.g. while its workers cannot replay it. The run executes
    the activity again once it continues (`perdure.workflows.internal_activities`), so no attempt is used up meanwhile.
    """
    info = activity.info()
    timeout = info.start_to_close_timeout
    try:
        async with asyncio.timeout(None if timeout is None else _READ_WITHIN * timeout.total_seconds()):
            return await fetch(kind, name)
    except (RPCError, WorkflowQueryFailedError, TimeoutError) as error:
        words = f"{info.workflow_id} did not send {kind.name} {name}: {str(error) or 'no answer'}"
        raise uncounted_failure(NOT_BEGUN, words) from None


class _Fetcher:
    """The fetches of one kind from one run in this process: a single query at a time serves them all."""

    def __init__(self, run: _Run, kind: PayloadKind[Any]) -> None:
        self._run, self._kind = run, kind
        self._wanted: dict[str, asyncio.Future[Any]] = {}
        self._fetching: asyncio.Task[None] | None = None

    async def fetch(self, name: str) -> Any:
        if (value := self._wanted.get(name)) is None or value.cancelled():
            value = self._wanted[name] = asyncio.get_running_loop().create_future()
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch_all())
        return await asyncio.shield(value)

    async def _fetch_all(self) -> None:
        """Query the run, which answers for some of the names; repeat for the others."""
        pause = limits.SHORTEST_PAUSE
        try:
            while self._wanted:
                found = await self._query()
                for name, value in found.items():
                    self._wanted.pop(name).set_result(value)
                pause = limits.after_answer(pause, found=bool(found))
                if self._wanted and not found:
                    await asyncio.sleep(pause)
        except Exception as error:
            for waiting in self._wanted.values():
                waiting.set_exception(error)
        finally:
            _fetchers.pop((self._run.id, self._run.run_id, self._kind.name), None)

    async def _query(self) -> dict[str, Any]:
        names, values = list(self._wanted), dict[str, self._kind.type | None]  # type: ignore[name-defined]
        for attempt in itertools.count(1):
            try:
                found: dict[str, Any] = await answer_of(
                    self._run, PAYLOADS_QUERY, self._kind.name, names, result_type=values
                )
                return found
            except RPCError as error:
                pause = None if error.status in LASTING else limits.after_failure(attempt)
                if pause is None:
                    raise
            await asyncio.sleep(pause)
        raise AssertionError


_fetchers: dict[tuple[str, str | None, str], _Fetcher] = {}


@dataclass(frozen=True, slots=True)
class AttemptState:
    """The state of an attempt, as the server reports it."""

    wanted: bool = False
    """Whether the attempt still counts: it is not cancelled or paused, and its run is open. `False` also without an
    answer.
    """
    events: int = 0
    """Events of its run's history."""


async def fetch_attempt_state() -> AttemptState:
    """Look at the server's state of this attempt, without a billed Action. Simultaneous looks of one run share one
    request.
    """
    info = activity.info()
    key = (info.workflow_id or "", info.workflow_run_id or "")
    try:
        if (looking := _looks.get(key)) is None:
            looking = _looks[key] = asyncio.create_task(_look(own_run()))
            looking.add_done_callback(functools.partial(_looked, key))
        working, events = await asyncio.shield(looking)
    except (RPCError, RuntimeError):
        return AttemptState()
    return AttemptState(working.get(info.activity_id) == info.attempt, events)


async def is_dropped() -> bool:
    """Whether the server has dropped this activity: no attempt runs or will run. `False` without an answer."""
    try:
        described = await own_run().describe(rpc_timeout=TIMEOUT)
    except (RPCError, RuntimeError):
        return False
    if described.status != WorkflowExecutionStatus.RUNNING:  # a closed run still lists its unfinished activities
        return True
    coming = {
        each.activity_id
        for each in described.raw_description.pending_activities
        if each.state != PendingActivityState.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED
    }
    return activity.info().activity_id not in coming


def _looked(key: tuple[str, str], looking: asyncio.Task[tuple[dict[str, int], int]]) -> None:
    """End a look, also a failed one for which nothing waits any longer."""
    _looks.pop(key, None)
    if not looking.cancelled():
        looking.exception()


async def _look(run: _Run) -> tuple[dict[str, int], int]:
    """Return the active attempts by the ids of their activities, and the events of the run's history."""
    described = await run.describe(rpc_timeout=TIMEOUT)
    working = {
        each.activity_id: each.attempt
        for each in described.raw_description.pending_activities
        if each.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    }
    return working, described.history_length


_looks: dict[tuple[str, str], asyncio.Task[tuple[dict[str, int], int]]] = {}
