"""Resets of an execution, and the decisions that came before them: they do not count after a reset (R7.2).

The server puts signals and updates from behind the reset point into the new execution, before its first task. A
workflow learns of a reset by its new random seed, in the same task, but possibly behind those messages. So each
decision waits for an activity. After it, the workflow knows whether its task is that of a reset.

It is not a local activity. Where a query comes with a task, the SDK's core ends that task with the marker of the result,
and returns the result in the next task. A replay returns it in the first one: commands then come in another order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

from perdure.workflows.internal_activities import UNTIL_READABLE, execute_internal, execute_typed

with workflow.unsafe.imports_passed_through():
    from perdure.approvals.requests import EXECUTION_ACTIVITY, LEFT_BEHIND
    from perdure.errors import DecisionError
    from perdure.rules import RuleBook, RuleRecord
    from perdure.runs.delegates import END_FORMER_ACTIVITY, END_LEFT_ACTIVITY, FORMER_RECORD_ACTIVITY
    from perdure.runs.version_switches import FORMER_CHILDREN_END

RESET: Final = "the run was reset after this decision: decisions before a reset do not count"
RESET_ABOVE: Final = (
    "the parent run was reset to a point before it started this run: decisions on this run no longer count"
)
_ASKED: Final = timedelta(seconds=10)
"""For an activity that only reads its own description. If all workers are busy for longer, a decision is judged without
it.
"""


class Resets:
    """The resets of one execution. `on_reset` is called in the first task after each."""

    def __init__(self, on_reset: Callable[[], None]) -> None:
        self.pending = 0
        """The number of decisions that may be earlier than a reset."""
        self._on_reset = on_reset
        self._first_tasks: set[int] = set()
        """The length of the history in the first task after each reset. A decision may wait while the run is reset once more."""
        self._execution_known: asyncio.Future[str] | None = None
        self._task: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        self._counted: asyncio.Future[bool] = loop.create_future()
        """Whether resets count in the run: in one that began with 0.1.0 they do not. Done when the run's start was
        read.
        """

        def seeded(_: int) -> None:  # the workflow's own functions may not be used here
            loop.call_soon(self._note)

        workflow.register_random_seed_callback(seeded)
        self.was_reset_to_start = was_reset_to_start()
        """Whether a reset to the first task came before: `on_reset` is not called for it."""
        if self.was_reset_to_start:
            self._first_tasks.add(workflow.info().get_current_history_length())

    def is_own(self, update_id: str) -> bool:
        """Whether an update was sent to this very execution. Only for validators, which no history replays."""
        return _execution_of(update_id) == workflow.info().run_id

    async def check(self, update_id: str = "") -> None:
        """Wait until it is known whether a new decision counts. Raises `DecisionError` if it came before a reset.

        `update_id`: Perdure's client begins it with the execution that the update was sent to.
        """
        at, sent_to = workflow.info().get_current_history_length(), _execution_of(update_id)
        self.pending += 1
        try:
            if not (self._counted.result() if self._counted.done() else await asyncio.shield(self._counted)):
                return
            execution = await self._execution()
        finally:
            self.pending -= 1
        if execution == LEFT_BEHIND:
            raise DecisionError(RESET_ABOVE)
        if at in self._first_tasks or (sent_to and sent_to not in (execution, workflow.info().continued_run_id)):
            raise DecisionError(RESET)

    def begin(self, counted: bool) -> None:
        """Set whether resets count in the run. Called once its start was read."""
        if not self._counted.done():
            self._counted.set_result(counted)

    @property
    def counted(self) -> bool:
        """Whether resets count in the run, as far as that is known."""
        return self._counted.done() and self._counted.result()

    def _note(self) -> None:
        self._first_tasks.add(workflow.info().get_current_history_length())
        self._on_reset()

    async def _execution(self) -> str:
        """Return the id of this execution, queried once for all simultaneous decisions.

        The query follows them, because a replay delivers the signals and updates of a reset in another order.
        """
        if self._execution_known is None:
            loop = asyncio.get_running_loop()
            self._execution_known = loop.create_future()
            loop.call_soon(self._ask, self._execution_known)
        return await asyncio.shield(self._execution_known)

    def _ask(self, execution_known: asyncio.Future[str]) -> None:
        self._task = asyncio.create_task(self._answer(execution_known))

    async def _answer(self, execution_known: asyncio.Future[str]) -> None:
        execution = ""
        with contextlib.suppress(ActivityError):  # the first tasks after resets are known without it
            execution = await execute_typed(
                EXECUTION_ACTIVITY,
                [],
                str,
                schedule_to_close_timeout=_ASKED,
                summary="check for a reset of this workflow",
            )
        self._execution_known = None
        execution_known.set_result(execution)


_ENDS_WITHIN: Final = timedelta(minutes=1)
"""Time of one attempt of an activity that waits until a child has ended."""


def on_reset(act: Callable[[], None]) -> None:
    """Call a function after each reset of this execution, in the first task. Called while the workflow's object is made."""
    loop = asyncio.get_running_loop()

    def seeded(_: int) -> None:  # the workflow's own functions may not be used here
        loop.call_soon(act)

    workflow.register_random_seed_callback(seeded)
    if was_reset_to_start():
        loop.call_soon(act)


class ResetFlag:
    """Whether this execution was reset. Created while the workflow's object is made."""

    def __init__(self) -> None:
        self.is_set = False
        on_reset(self._set)

    def _set(self) -> None:
        self.is_set = True


def ends_former() -> bool:
    """Whether a workflow that records no rules of its own ends children of before a reset: a marker in its history shows it."""
    return workflow.patched(FORMER_CHILDREN_END)


async def end_former(child_id: str, *, forces: bool = True) -> bool:
    """End the child with this id that this workflow has started before a reset; return whether the id is free then.

    A workflow cannot know who uses the id: an activity asks the server. With `forces` a child that does not end by its
    cancellation is terminated.
    """
    args: list[str | bool] = [child_id] if forces else [child_id, False]
    return await _end_children(END_FORMER_ACTIVITY, args, f"end {child_id} of before the reset"[:200])


async def _end_children(activity: str, args: list[str | bool], summary: str) -> bool:
    """Execute an activity that ends children of before a reset; return its answer, `False` where it fails."""
    try:
        return bool(
            await execute_internal(
                activity, args, Any, timeout=_ENDS_WITHIN, retry_policy=RetryPolicy(maximum_attempts=5), summary=summary
            )
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        return False


class LeftBehind:
    """The children that a reset of this execution leaves behind: an activity cancels them after each reset.

    `applies` returns whether this workflow does so. It is called only after a reset.
    """

    def __init__(self, applies: Callable[[], bool]) -> None:
        self._applies = applies
        self._ending: set[asyncio.Task[None]] = set()
        on_reset(self._begin)

    @property
    def busy(self) -> bool:
        """Whether the activity is under way: an execution that ends would not wait for it."""
        return bool(self._ending)

    async def until_ended(self) -> None:
        """Wait for the activity."""
        if self._ending:
            await workflow.wait([*self._ending])

    def _begin(self) -> None:
        if self._applies():
            self._ending.add(task := asyncio.create_task(self._end()))
            task.add_done_callback(self._ending.discard)

    async def _end(self) -> None:
        await _end_children(END_LEFT_ACTIVITY, [], "end what the reset has left behind")


class FormerRecord:
    """The record, for a run's rules, of executions that a reset has ended: after a reset an activity reads it.

    Until then no call begins to which a rule with a record applies.
    """

    def __init__(self, rules: RuleBook) -> None:
        self._rules = rules
        self._reading: set[asyncio.Task[None]] = set()
        on_reset(self._begin)

    async def until_read(self) -> None:
        """Wait for the activity."""
        if self._reading:
            await workflow.wait([*self._reading])

    def _begin(self) -> None:
        if self._rules.recorded:
            self._rules.is_stale = True
            self._reading.add(task := asyncio.create_task(self._read()))
            task.add_done_callback(self._reading.discard)

    async def _read(self) -> None:
        record: RuleRecord | None = None
        try:
            record = await execute_internal(
                FORMER_RECORD_ACTIVITY,
                [],
                RuleRecord,
                timeout=_ENDS_WITHIN,
                retry_policy=UNTIL_READABLE,
                summary="what has happened before the reset, for the run's rules",
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
        self._rules.take_back(record)
        self._rules.is_stale = len(self._reading) > 1


def was_reset_to_start() -> bool:
    """Whether a reset to the first task came before this workflow's object was made, which is asked while it is made.

    The SDK's core seeds a workflow with the id of the original execution, and again with the new id after each reset.
    Nothing else shows this one: a first task has a longer history, too, where it failed, or waited for a local activity.
    """
    return workflow.random_seed() != _seed_of(workflow.info().original_execution_run_id)


def _seed_of(execution: str) -> int:
    """Return the seed that the SDK's core makes of an execution's id: SipHash-1-3 of a Rust string, with the keys 0."""
    data = execution.encode() + b"\xff"
    data += bytes(-(len(data) + 1) % 8) + bytes([len(data) % 256])
    state = [0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573]
    for start in range(0, len(data), 8):
        word = int.from_bytes(data[start : start + 8], "little")
        state[3] ^= word
        _mix(state)
        state[0] ^= word
    state[2] ^= 0xFF
    for _ in range(3):
        _mix(state)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def _mix(state: list[int]) -> None:
    """Mix the four words of a SipHash once."""
    a, b, c, d = state
    a = (a + b) & _WORD
    b = _rotated(b, 13) ^ a
    a = _rotated(a, 32)
    c = (c + d) & _WORD
    d = _rotated(d, 16) ^ c
    a = (a + d) & _WORD
    d = _rotated(d, 21) ^ a
    c = (c + b) & _WORD
    b = _rotated(b, 17) ^ c
    state[:] = a, b, _rotated(c, 32), d


_WORD: Final = (1 << 64) - 1


def _rotated(word: int, bits: int) -> int:
    return ((word << bits) | (word >> (64 - bits))) & _WORD


def _execution_of(update_id: str) -> str:
    """Return the execution to which Perdure's client sent an update; empty for an update of another client."""
    execution, slash, _ = update_id.partition("/")
    return execution if slash else ""
