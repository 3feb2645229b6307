"""Queries of activities and workers to runs and sessions. No history records them."""

from __future__ import annotations

import asyncio
import functools
import itertools
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeAlias

from temporalio import activity
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.queries import TIMEOUT, answer_of, cancellable
from perdure.runs.delegates import GIVEN_ACTIVITY, GIVEN_QUERY, SPENT_ACTIVITY, SPENT_QUERY, GivenInput, SpentBudget
from perdure.runs.wire import CLAIM, PARAMETERS_QUERY, RUN_QUERY, RunResult, RunView
from perdure.sessions.wire import AFTER_ACTIVITY, SAY_ACTIVITY, TURN, TURN_ACTIVITY, RunUpdate, RunUpdateResult
from perdure.tools.invocation import ToolReads
from perdure.values import limits

_LASTING: Final = {
    RPCStatusCode.INVALID_ARGUMENT,
    RPCStatusCode.NOT_FOUND,
    RPCStatusCode.PERMISSION_DENIED,
    RPCStatusCode.UNIMPLEMENTED,
}
OWN_CLIENT: Final[ContextVar[Client]] = ContextVar("client")
"""Client with Perdure's converter, where the worker's own client has another."""
_Run: TypeAlias = WorkflowHandle[Any, Any]


def own_run() -> _Run:
    """Return the execution that this activity belongs to."""
    info = activity.info()
    assert info.workflow_id is not None
    return client().get_workflow_handle(info.workflow_id, run_id=info.workflow_run_id)


def client() -> Client:
    """Return the worker's client, with Perdure's converter."""
    return OWN_CLIENT.get(None) or activity.client()


async def ask_run(query: str, argument: Any, result_type: Any) -> Any:
    """Return the answer of the activity's own run; repeat the query without an answer.

    Raise `RPCError` without any answer, `WorkflowQueryFailedError` when the run rejects the query.
    """
    return await _ask(own_run(), query, argument, result_type)


async def _ask(run: _Run, query: str, argument: Any, result_type: Any) -> Any:
    for attempt in itertools.count(1):
        try:
            return await answer_of(run, query, argument, result_type=result_type)
        except RPCError as error:
            pause = None if error.status in _LASTING else limits.after_failure(attempt)
            if pause is None:
                raise
        await asyncio.sleep(pause)
    raise AssertionError


async def ask_reads(call_id: str) -> ToolReads:
    """Return the input of a call's tool. Simultaneous queries of one run share one query."""
    reads: ToolReads | None = await _line(PARAMETERS_QUERY, dict[str, ToolReads | None]).ask(call_id)
    if reads is None:
        raise ApplicationError(f"call {call_id} is not running", type="not_running", non_retryable=True)
    return reads


@dataclass(frozen=True, slots=True)
class AttemptState:
    """The state of an attempt, as the server reports it."""

    wanted: bool = False
    """Whether the attempt still counts: not cancelled or paused, and its run open. `False` too without an answer."""
    events: int = 0
    """Events of its run's history."""


async def look() -> AttemptState:
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


def _looked(key: tuple[str, str], looking: asyncio.Task[tuple[dict[str, int], int]]) -> None:
    """End a look, also where it has failed and nobody waits for it any more."""
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


async def ask_granted(call_id: str) -> bool:
    """Wait for the turn of the call's claim; return whether it was granted."""
    granted: bool = await _line(CLAIM, dict[str, bool]).ask(call_id)
    return granted


async def ask_given(wanted: GivenInput) -> Any:
    """Return a child run's input from its parent. This process sends such queries one after the other: inputs may be
    large.
    """
    above = client().get_workflow_handle(wanted.above, run_id=wanted.execution)
    return await _line(GIVEN_QUERY, dict[str, Any], above).ask(wanted.name)


async def ask_other(run_id: str, query: str, result_type: Any, *arguments: Any) -> Any:
    """Query another run, whether it still runs or not."""
    return await answer_of(other_run(run_id), query, *arguments, result_type=result_type)


def other_run(run_id: str) -> _Run:
    """Return another run, by its id."""
    return client().get_workflow_handle(run_id)


def _line(query: str, answers: Any, run: _Run | None = None) -> _Line:
    run = run or own_run()
    return _lines.setdefault((run.id, run.run_id, query), _Line(run, query, answers))


class _Line:
    """The calls of one run in this process that wait for one query: a single one at a time serves them all."""

    def __init__(self, run: _Run, query: str, answers: Any) -> None:
        self._run, self._query, self._answers = run, query, answers
        self._wanted: dict[str, asyncio.Future[Any]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def ask(self, call_id: str) -> Any:
        if (answer := self._wanted.get(call_id)) is None or answer.cancelled():
            answer = self._wanted[call_id] = asyncio.get_running_loop().create_future()
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_all())
        return await asyncio.shield(answer)

    async def _ask_all(self) -> None:
        """Query the run, which answers for some of them; repeat for the others."""
        pause = limits.SHORTEST_PAUSE
        try:
            while self._wanted:
                told: dict[str, Any] = await _ask(self._run, self._query, list(self._wanted), self._answers)
                for call_id, answer in told.items():
                    self._wanted.pop(call_id).set_result(answer)
                pause = limits.after_answer(pause, told=bool(told))
                if self._wanted and not told:
                    await asyncio.sleep(pause)
        except Exception as error:
            for answer in self._wanted.values():
                answer.set_exception(error)
        finally:
            _lines.pop((self._run.id, self._run.run_id, self._query), None)


_looks: dict[tuple[str, str], asyncio.Task[tuple[dict[str, int], int]]] = {}
_lines: dict[tuple[str, str | None, str], _Line] = {}


_GONE: Final = "gone"
"""Type of the failure where the run does not exist any more: nobody retries."""


@activity.defn(name=GIVEN_ACTIVITY)
async def given(wanted: GivenInput) -> Any:
    """Return a child run's input from its parent; the child's history records it."""
    try:
        found = await ask_given(wanted)
    except RPCError as error:
        raise ApplicationError(str(error), type=_GONE, non_retryable=error.status is RPCStatusCode.NOT_FOUND) from None
    if found is None:
        message = f"{wanted.above} does not run {wanted.name} any more"
        raise ApplicationError(message, type=_GONE, non_retryable=True)
    return found


@activity.defn(name=SPENT_ACTIVITY)
async def spent(run_id: str) -> SpentBudget:
    """Return the usage of a run whose end did not hold it: it was cancelled or terminated, or has timed out."""
    try:
        found: SpentBudget = await ask_other(run_id, SPENT_QUERY, SpentBudget)
    except (RPCError, WorkflowQueryFailedError) as error:
        lasting = isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND
        raise ApplicationError(str(error), type=_GONE, non_retryable=lasting) from None
    return found


_TIMEOUT: Final = timedelta(seconds=5)
_LOOK: Final = 10.0
"""Seconds between two heartbeats of a turn: a session's cancellation is noticed no sooner."""
UNANSWERED: Final = frozenset({RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.UNAVAILABLE})


@activity.defn(name=AFTER_ACTIVITY)
async def after(run_id: str) -> RunResult:
    """Return the result of a run that was cancelled or terminated, or has timed out: it knows that after its end too."""
    try:
        view: RunView = await ask_other(run_id, RUN_QUERY, RunView)
        closed = (await other_run(run_id).describe()).close_time
    except (RPCError, WorkflowQueryFailedError) as error:
        lasting = isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND
        raise ApplicationError(str(error), type="gone", non_retryable=lasting) from None
    result = view.result()
    result.ended_at = None if closed is None else closed.isoformat(timespec="milliseconds")
    return result


@activity.defn(name=TURN_ACTIVITY)
async def turn(run_id: str) -> None:
    """Signal the session that there is room for its run, and hold the place until the run has ended (R10.3)."""
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
async def say(saying: RunUpdate) -> RunUpdateResult:
    """Send an update to a run of this session, and return its answer."""
    try:
        with cancellable():
            answer: Any = await other_run(saying.run_id).execute_update(
                saying.update, saying.argument, rpc_timeout=_TIMEOUT
            )
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        return RunUpdateResult(refused=cause.message if isinstance(cause, ApplicationError) else str(cause))
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return RunUpdateResult(refused=f"the run {saying.run_id} has ended")
        raise
    return RunUpdateResult(answer=answer)
