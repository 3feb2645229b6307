"""Queries of activities and workers to runs and sessions. No history records them."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
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
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.errors import RunError
from perdure.runs.delegates import GIVEN_ACTIVITY, GIVEN_QUERY, SPENT_ACTIVITY, SPENT_QUERY, GivenInput, SpentBudget
from perdure.runs.wire import CLAIM, PARAMETERS_QUERY, RUN_QUERY, RunResult, RunView
from perdure.sessions.wire import AFTER_ACTIVITY, SAY_ACTIVITY, TURN, TURN_ACTIVITY, RunUpdate, RunUpdateResult
from perdure.tools.invocation import ToolReads
from perdure.values import limits

TIMEOUT: Final = timedelta(seconds=limits.QUERY_TIMEOUT)
"""For one question."""
BESIDE: Final = 0.3
"""Of its time, after which a question is asked once more beside itself: whoever replays a long history first may need all of it."""
_PAUSE: Final = 0.05
"""Seconds until a question that the server took back is asked again; twice as long each time."""
_TAKEN_BACK: Final = {RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED}
_NOT_YET: Final = "not scheduled yet"
"""What the server says of an execution whose first task it puts off, as that of one that has just gone on as new."""
_PASSING: Final = ("[TMPRL1100]", "[TMPRL1101]")
"""What a worker says that was given a question with a history which grew meanwhile, or that had no processor time for two seconds; and of a
workflow that it cannot replay or that takes too long, each time."""
_ENOUGH: Final = 3
"""Times that a worker has to say so."""


@contextmanager
def cancellable() -> Iterator[None]:
    """Raise `CancelledError` where a caller cancels an update, or its time limit is over: the SDK reports that as if the server had done it."""
    try:
        yield
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        if isinstance(error.__cause__, asyncio.CancelledError):
            raise asyncio.CancelledError(*error.__cause__.args) from None
        raise


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
    failed = 0
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
                failed += _may_pass(error)
                passes = _is_lost(error) or (_may_pass(error) and failed < _ENOUGH)
                if not passes or loop.time() + pause >= ends:
                    return question.result()
            if done:
                await asyncio.sleep(pause)
                pause *= 2
    finally:
        for question in asking:
            question.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def execution_before(client: Client, handle: WorkflowHandle[Any, Any]) -> WorkflowHandle[Any, Any]:
    """The execution that this one went on from. Raises `RPCError` where it is not kept any more."""
    async for event in handle.fetch_history_events(page_size=1):
        started = event.workflow_execution_started_event_attributes
        if started.continued_execution_run_id:
            return client.get_workflow_handle(handle.id, run_id=started.continued_execution_run_id)
        break
    raise RunError(f"{handle.id!r} went on from no other execution")


def _may_pass(error: BaseException | None) -> bool:
    return isinstance(error, WorkflowQueryFailedError) and str(error).startswith(_PASSING)


def _is_lost(error: BaseException | None) -> bool:
    return isinstance(error, RPCError) and (error.status in _TAKEN_BACK or _NOT_YET in error.message)


_LASTING: Final = {
    RPCStatusCode.INVALID_ARGUMENT,
    RPCStatusCode.NOT_FOUND,
    RPCStatusCode.PERMISSION_DENIED,
    RPCStatusCode.UNIMPLEMENTED,
}
OWN_CLIENT: Final[ContextVar[Client]] = ContextVar("client")
"""With Perdure's converter, where the worker's own client has another."""
_Run: TypeAlias = WorkflowHandle[Any, Any]


def own_run() -> _Run:
    """The execution that this activity belongs to."""
    info = activity.info()
    assert info.workflow_id is not None
    return client().get_workflow_handle(info.workflow_id, run_id=info.workflow_run_id)


def client() -> Client:
    """The worker's, with Perdure's converter."""
    return OWN_CLIENT.get(None) or activity.client()


async def ask_run(query: str, argument: Any, result_type: Any) -> Any:
    """The answer of the activity's own run, asked again while nobody answers.

    Raises `RPCError` when nobody did, `WorkflowQueryFailedError` when the run refuses.
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
    """What a call's tool is given. Calls of one run that ask at the same time are asked for together."""
    reads: ToolReads | None = await _line(PARAMETERS_QUERY, dict[str, ToolReads | None]).ask(call_id)
    if reads is None:
        raise ApplicationError(f"call {call_id} is not running", type="not_running", non_retryable=True)
    return reads


@dataclass(frozen=True, slots=True)
class AttemptState:
    """What the server says of an attempt."""

    wanted: bool = False
    """Whether it still has it as one that works: not cancelled or paused, and its run open. `False` too where nobody answers."""
    events: int = 0
    """Of its run's history."""


async def look() -> AttemptState:
    """Look at what the server has of this attempt: no Action is billed. Activities of one run that look at the same time do so together."""
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
    """A look is over, also where it has failed and nobody waits for it any more."""
    _looks.pop(key, None)
    if not looking.cancelled():
        looking.exception()


async def _look(run: _Run) -> tuple[dict[str, int], int]:
    """The attempts that work, by the ids of their activities; the events of the run's history."""
    described = await run.describe(rpc_timeout=TIMEOUT)
    working = {
        each.activity_id: each.attempt
        for each in described.raw_description.pending_activities
        if each.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    }
    return working, described.history_length


async def ask_granted(call_id: str) -> bool:
    """Whether the call's claim was granted: waits until its turn has come."""
    granted: bool = await _line(CLAIM, dict[str, bool]).ask(call_id)
    return granted


async def ask_given(wanted: GivenInput) -> Any:
    """What a run below was given by the one above. All that ask in this process do so one after the other: it may be large."""
    above = client().get_workflow_handle(wanted.above, run_id=wanted.execution)
    return await _line(GIVEN_QUERY, dict[str, Any], above).ask(wanted.name)


async def ask_other(run_id: str, query: str, result_type: Any, *arguments: Any) -> Any:
    """What another run answers, whether it still runs or not."""
    return await answer_of(other_run(run_id), query, *arguments, result_type=result_type)


def other_run(run_id: str) -> _Run:
    """Another run, by its id."""
    return client().get_workflow_handle(run_id)


def _line(query: str, answers: Any, run: _Run | None = None) -> _Line:
    run = run or own_run()
    return _lines.setdefault((run.id, run.run_id, query), _Line(run, query, answers))


class _Line:
    """The calls of one run in this process that wait for its answer to one query: asked by one at a time, for all of them."""

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
        """The run answers for some of them; the others are asked for again."""
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
"""Type of the failure where there is no such run any more: nobody asks again."""


@activity.defn(name=GIVEN_ACTIVITY)
async def given(wanted: GivenInput) -> Any:
    """The input of a run below, as the run above has it; recorded in the history of the one below."""
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
    """What a run has used that could not tell it by its end: it was cancelled or terminated, or has timed out."""
    try:
        found: SpentBudget = await ask_other(run_id, SPENT_QUERY, SpentBudget)
    except (RPCError, WorkflowQueryFailedError) as error:
        lasting = isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND
        raise ApplicationError(str(error), type=_GONE, non_retryable=lasting) from None
    return found


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
async def say(saying: RunUpdate) -> RunUpdateResult:
    """An update of a run of this session, and its answer."""
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
