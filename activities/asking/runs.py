"""What an activity asks its own run, or one beside it: by query, which no history records, so that commands and histories stay small (R18.2)."""

from __future__ import annotations

import asyncio
import functools
import itertools
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from temporalio import activity
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.asking.answers import TIMEOUT, answer_of
from perdure.run.delegates import GIVEN_QUERY, GivenInput
from perdure.run.wire import CLAIM, PARAMETERS_QUERY
from perdure.tools.wire import ToolReads
from perdure.values.limits import polling

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
            pause = None if error.status in _LASTING else polling.after_failure(attempt)
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
class Look:
    """What the server says of an attempt."""

    wanted: bool = False
    """Whether it still has it as one that works: not cancelled or paused, and its run open. `False` too where nobody answers."""
    events: int = 0
    """Of its run's history."""


async def look() -> Look:
    """Look at what the server has of this attempt: no Action is billed. Activities of one run that look at the same time do so together."""
    info = activity.info()
    key = (info.workflow_id or "", info.workflow_run_id or "")
    try:
        if (looking := _looks.get(key)) is None:
            looking = _looks[key] = asyncio.create_task(_look(own_run()))
            looking.add_done_callback(functools.partial(_looked, key))
        working, events = await asyncio.shield(looking)
    except (RPCError, RuntimeError):
        return Look()
    return Look(working.get(info.activity_id) == info.attempt, events)


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
        pause = polling.SHORTEST_PAUSE
        try:
            while self._wanted:
                told: dict[str, Any] = await _ask(self._run, self._query, list(self._wanted), self._answers)
                for call_id, answer in told.items():
                    self._wanted.pop(call_id).set_result(answer)
                pause = polling.after_answer(pause, told=bool(told))
                if self._wanted and not told:
                    await asyncio.sleep(pause)
        except Exception as error:
            for answer in self._wanted.values():
                answer.set_exception(error)
        finally:
            _lines.pop((self._run.id, self._run.run_id, self._query), None)


_looks: dict[tuple[str, str], asyncio.Task[tuple[dict[str, int], int]]] = {}
_lines: dict[tuple[str, str | None, str], _Line] = {}
