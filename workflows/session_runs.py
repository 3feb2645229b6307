"""Runs of a session: child workflows, and their turn where workers limit them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

from temporalio import workflow
from temporalio.common import Priority, RetryPolicy, SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    FailureError,
    TerminatedError,
    TimeoutError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)
from temporalio.workflow import (
    ActivityCancellationType,
    ChildWorkflowCancellationType,
    ChildWorkflowHandle,
    ParentClosePolicy,
)

from perdure.workflows.dispatch import WAIT, ask_limited
from perdure.workflows.failures import not_taken_up
from perdure.workflows.resets import end_former, ends_former

with workflow.unsafe.imports_passed_through():
    from perdure.approvals.requests import STEER
    from perdure.errors import clip
    from perdure.hooks.events import RunOwner
    from perdure.rules import RuleRecord
    from perdure.runs.delegates import input_size, referred
    from perdure.runs.version_switches import ASKS_BY_ACTIVITY
    from perdure.runs.wire import (
        AGENT_ATTRIBUTE,
        AGENT_WORKFLOW,
        LONGEST_KEYWORD,
        SENDER_ATTRIBUTE,
        TENANT_ATTRIBUTE,
        RunInput,
        RunResult,
        RunStatus,
    )
    from perdure.sessions.message_queue import Queued
    from perdure.sessions.wire import (
        AFTER_ACTIVITY,
        TURN_ACTIVITY,
        UNLIMITED_RUNS_PATCH,
        UPDATE_RUN_ACTIVITY,
        RunUpdate,
        RunUpdateResult,
    )
    from perdure.tools.invocation import runs_queue
    from perdure.values.json import JsonObject
    from perdure.values.limits import INLINE_INPUT, MAX_PAYLOAD, MAX_SHOWN_MESSAGE, MAX_STORED, bytes_text
    from perdure.values.sizes import Sizes


_TELLS_WITHIN: Final = timedelta(minutes=5)
"""Time for the query of a run's result that its end did not hold: a worker may have to start first."""
_ANSWERS_WITHIN: Final = timedelta(seconds=10)


class ChildRun:
    """A run of a session, from its start to its result."""

    def __init__(
        self, run_id: str, run_input: RunInput, *, sender: str, tenant: str, searchable: bool, priority: int | None
    ) -> None:
        self.id = run_id
        self.run_input = run_input
        self._sender = sender
        self._tenant = tenant
        self._searchable = searchable
        self._priority = Priority(priority_key=priority)
        """That of the session where it has none."""
        self._handle: ChildWorkflowHandle[Any, RunResult] | None = None
        self._to_send: list[Queued] = []
        self._sending: asyncio.Task[None] | None = None
        self._ends = False

    def steer(self, message: Queued) -> None:
        """Send it a message, in the order of acceptance; a run that has not started receives it afterwards."""
        self._to_send.append(message)
        self._send_waiting()

    def end(self) -> None:
        """Cancel it; finished calls stay finished (R10.6)."""
        self._ends = True
        if self._handle is not None:
            self._handle.cancel()

    async def result(self, title: str) -> RunResult:
        """Run it, and return its result; its failure is a result too."""
        asks = self._size() > INLINE_INPUT
        if (size := self._size()) > MAX_PAYLOAD:
            return self._without("failed", f"what it is given has {bytes_text(size)}, and {MAX_PAYLOAD:,} is the most")
        try:
            try:
                self._handle = await self._start(title, asks=asks)
            except WorkflowAlreadyStartedError:
                if not (ends_former() and await end_former(self.id)):
                    raise
                self._handle = await self._start(title, asks=asks)
        except WorkflowAlreadyStartedError:
            return self._without(
                "failed",
                f"there is already a workflow {self.id!r}: end it with 'perdure cancel {self.id}', and send the message again",
            )
        except FailureError as error:
            return self._without("failed", f"it could not be started: {error}")
        if self._ends:
            self._handle.cancel()
        self._send_waiting()
        try:
            await workflow.wait([self._handle])
            return await self._ended(self._handle)
        finally:
            if self._sending is not None:
                self._sending.cancel()

    async def _start(self, title: str, *, asks: bool) -> ChildWorkflowHandle[Any, RunResult]:
        return await workflow.start_child_workflow(
            AGENT_WORKFLOW,
            referred(self.run_input) if asks else self.run_input,
            id=self.id,
            result_type=RunResult,
            parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
            cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
            static_summary=title[:200],
            search_attributes=self._attributes() if self._searchable else None,
            priority=self._priority,
        )

    def _size(self) -> int:
        return input_size(self.run_input, Sizes())

    def _attributes(self) -> TypedSearchAttributes:
        named = (
            (AGENT_ATTRIBUTE, str(self.run_input.agent.get("name"))),
            (SENDER_ATTRIBUTE, self._sender),
            (TENANT_ATTRIBUTE, self._tenant),
        )
        return TypedSearchAttributes(
            [
                SearchAttributePair(SearchAttributeKey.for_keyword(name), value[:LONGEST_KEYWORD])
                for name, value in named
                if value
            ]
        )

    def _send_waiting(self) -> None:
        if self._handle is not None and self._to_send and (self._sending is None or self._sending.done()):
            self._sending = asyncio.create_task(self._send_all(self._handle))

    async def _send_all(self, handle: ChildWorkflowHandle[Any, RunResult]) -> None:
        while self._to_send:
            message = self._to_send.pop(0)
            sent = {"id": message.message_id, "text": message.text, "sender": message.sender}
            try:
                await handle.signal(STEER, sent)
            except FailureError:
                return  # it has just ended: what it was not given begins the next run

    async def _ended(self, handle: ChildWorkflowHandle[Any, RunResult]) -> RunResult:
        failure = handle.exception()
        if failure is None:
            result: RunResult = handle.result()
            return result.model_copy(update={"status": "completed"})
        cause = failure.cause if isinstance(failure, ChildWorkflowError) else failure
        if isinstance(cause, ApplicationError) and cause.details:
            try:
                return RunResult.model_validate(cause.details[0])
            except ValueError:
                pass  # it is no failure of the engine's own
        status: RunStatus = (
            "cancelled"
            if isinstance(cause, CancelledError)
            else "terminated"
            if isinstance(cause, TerminatedError)
            else "timed_out"
            if isinstance(cause, TimeoutError)
            else "failed"
        )
        words = cause.message if isinstance(cause, ApplicationError) else f"the run was {status.replace('_', ' ')}"
        left = await self._ask()
        if left is None:
            return self._without(status, words)
        return left.model_copy(update={"status": status, "error": words, "output": None})

    async def _ask(self) -> RunResult | None:
        """Query the run's result, which it knows after its end too."""
        try:
            left: RunResult = await workflow.execute_activity(
                AFTER_ACTIVITY,
                self.id,
                result_type=RunResult,
                schedule_to_close_timeout=_TELLS_WITHIN,
                start_to_close_timeout=timedelta(seconds=30),
                retry_policy=RetryPolicy(maximum_attempts=5),
                summary=f"what {self.id} has left",
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            return None
        return left

    def _without(self, status: RunStatus, error: str) -> RunResult:
        return RunResult(run_id=self.id, status=status, error=error)


async def update_run(update: RunUpdate) -> RunUpdateResult:
    """Send an update to a run and return its answer, through an activity: a workflow cannot send an update itself."""
    try:
        answered: RunUpdateResult = await workflow.execute_activity(
            UPDATE_RUN_ACTIVITY,
            update,
            result_type=RunUpdateResult,
            schedule_to_close_timeout=_ANSWERS_WITHIN,
            retry_policy=RetryPolicy(maximum_attempts=3),
            summary=f"{update.update} → {update.run_id}"[:200],
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        return RunUpdateResult(refused=f"the run {update.run_id} does not answer")
    return answered


def run_input(
    agent: JsonObject,
    delegates: JsonObject,
    sources: dict[str, list[str]],
    whose: RunOwner,
    *,
    last_message: str = "",
    requesters: Sequence[str] = (),
    reasons: bool = False,
    rule_record: RuleRecord | None = None,
) -> RunInput:
    """Return the input of a run; `last_message`: the one that it answers. `requesters`: who else has sent it messages. With `reasons` its model's reasoning is recorded.

    Its result may have any size that the workflow can receive: there is one at a time.
    """
    fields = {"agent": agent, "delegates": delegates, "sources": sources, "whose": whose}
    fields |= {"said": clip(last_message, MAX_SHOWN_MESSAGE), "rule_record": rule_record, "requesters": [*requesters]}
    return RunInput(**fields, records=True, reasons=reasons, free=MAX_STORED)


_BEATS: Final = timedelta(seconds=60)
_LONGEST: Final = timedelta(days=365)


class RunTurns:
    """The turns of this execution's runs: those that wait for one, or hold one."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._holding: asyncio.Task[None] | None = None

    def give(self, run_id: str) -> None:
        """Give a run its turn: a worker has room for it."""
        self._taken.add(run_id)

    async def take(self, run_id: str, wanted: Callable[[], bool], *, local: bool) -> None:
        """Wait until a worker has room for the run, or it is not `wanted` any more. Return at once where there is no
        limit. `local`: ask for the limit as 0.1.0 did.
        """
        while wanted() and await self._are_limited(local=local):
            holding = self._holding = asyncio.create_task(_hold(run_id))
            await self._until_taken(run_id, holding, wanted)
            if run_id in self._taken or not holding.done() or not _not_taken_up(holding):
                return

    async def _are_limited(self, *, local: bool) -> bool:
        """Whether workers limit the number of active runs. Where a worker begins to limit it, the next execution follows."""
        if not local and workflow.patched(UNLIMITED_RUNS_PATCH):
            return False
        return (await ask_limited(local=local or not workflow.patched(ASKS_BY_ACTIVITY))).runs

    async def _until_taken(self, run_id: str, holding: asyncio.Task[None], wanted: Callable[[], bool]) -> None:
        await workflow.wait_condition(lambda: run_id in self._taken or holding.done() or not wanted())

    def leave(self) -> None:
        """Return the turn: the run has ended, or will not begin."""
        if self._holding is not None:
            self._holding.cancel()
            self._holding = None


def _not_taken_up(holding: asyncio.Task[None]) -> bool:
    """Whether no worker gives turns any more. The caller then queries whether there is still a limit."""
    error = None if holding.cancelled() else holding.exception()
    return isinstance(error, ActivityError) and not_taken_up(error)


async def _hold(run_id: str) -> None:
    try:
        await workflow.execute_activity(
            TURN_ACTIVITY,
            run_id,
            task_queue=runs_queue(workflow.info().task_queue),
            start_to_close_timeout=_LONGEST,
            schedule_to_start_timeout=WAIT,
            heartbeat_timeout=_BEATS,
            cancellation_type=ActivityCancellationType.TRY_CANCEL,
            summary=f"room for {run_id}"[:200],
        )
    except ActivityError as error:
        if not is_cancelled_exception(error):
            raise
