"""The parent of a run, and the handlers that runs and loops share.

A run fetches a large input from its parent, and claims room there for a large output. The parent sends its share of the
budget and the deadline.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

from perdure.workflows.arguments import any_arguments, query_arguments, read_one
from perdure.workflows.dispatch import Dispatcher
from perdure.workflows.failures import message_of
from perdure.workflows.internal_activities import execute_internal

with workflow.unsafe.imports_passed_through():
    from perdure.runs.claim_check import PAYLOADS_QUERY, Payload, read_payloads
    from perdure.runs.delegates import BUDGET, GIVEN_ACTIVITY, LATE, GivenInput
    from perdure.runs.limits import Budget
    from perdure.runs.loops import LoopInput
    from perdure.runs.run import RunState
    from perdure.runs.wire import CLAIM, GRANTED, REFUSED, RunInput, RunResult
    from perdure.tools.invocation import SpaceClaim, SpaceGrant
    from perdure.values.json import JsonObject, Sent
    from perdure.values.limits import HISTORY_FULL, MAX_PAYLOAD, RESULT_TOO_LARGE, bytes_text


_ONE_ATTEMPT: Final = timedelta(minutes=2)
_UNTIL_ANSWERED: Final = RetryPolicy(maximum_interval=timedelta(seconds=10))
"""Retries until the parent run answers. Its end cancels this run."""
_GRANTED_WITHIN: Final = timedelta(minutes=5)
"""Time for the parent run to answer a claim. After that it has ended, or accepts what arrives."""


R = TypeVar("R")
I = TypeVar("I", RunInput, LoopInput)  # noqa: E741


def payloads_query(handler: Callable[..., R]) -> Callable[..., R]:
    """Declare the handler of a workflow's query for values that are too large to be sent: their kind, and their names."""
    description = "Internal: values that are too large to be sent, by kind and name"
    return workflow.query(name=PAYLOADS_QUERY, description=description)(query_arguments(handler))


async def fetch_whole_input(argument: I) -> I:
    """Return the input with its large values. They are recorded here: the parent run may end, or be replayed, later."""
    if not argument.asks:
        return argument
    info = workflow.info()
    if info.parent is None:
        raise ApplicationError("no parent run has the requested value", type=REFUSED, non_retryable=True)
    wanted = GivenInput(
        above=info.parent.workflow_id, execution=info.parent.run_id, name=_name(info.parent.workflow_id)
    )
    try:
        fetched: I = await execute_internal(
            GIVEN_ACTIVITY,
            [wanted],
            type(argument),
            timeout=_ONE_ATTEMPT,
            retry_policy=_UNTIL_ANSWERED,
            summary="what it was given",
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        why = f"the parent run did not send this run's input: {message_of(error)}"
        raise ApplicationError(why, type=REFUSED, non_retryable=True) from None
    update: dict[str, Any] = {"free": argument.free}
    return fetched.model_copy(update=update | ({"clocked": argument.clocked} if isinstance(argument, RunInput) else {}))


def _name(above: str) -> str:
    return workflow.info().workflow_id.removeprefix(f"{above}/")


class ParentRun:
    """The parent run: its decision on a large output, its clock, and the budget that it shares.

    `raise_budget` raises the budget of a run that has begun.
    """

    def __init__(self, raise_budget: Callable[[Budget], None]) -> None:
        self.late: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the deadline has come by the parent's time (R9.5). This run adds the time that it waited for people."""
        self.raised: Budget | None = None
        """Raised share of the parent's budget; the signal may come before the run is ready."""
        self._raise_budget = raise_budget
        self._granted: bool | None = None

    def note_grant(self, grant: Sent[SpaceGrant]) -> None:
        """Record the decision on a claim of this run."""
        if (found := read_one(SpaceGrant, grant)) is not None:
            self._granted = found.granted

    def note_budget(self, raised: Sent[Budget]) -> None:
        """Raise this run's share: the parent's answer is complete, and fewer runs share its budget (R18.7)."""
        if (budget := read_one(Budget, raised)) is not None:
            self.raised = budget
            self._raise_budget(budget)

    def note_late(self) -> None:
        """Record that the deadline has come."""
        if not self.late.done():
            self.late.set_result(None)

    async def refusal(self, run: RunState, result: RunResult, free: int) -> tuple[str, str] | None:
        """Return the reason why the parent cannot receive the run's output, and its code. The parent reads all or
        nothing (R18.3).
        """
        if workflow.info().parent is None:
            return None
        size, most = run.sizes.of(run.output.value), run.prepared.max_payload
        if result.output is not run.output.value:
            why = (
                f"its output has {bytes_text(size)}, and {most:,} is the limit; the full output: perdure show {result.run_id} "
                "--value output; external storage (PERDURE_STORAGE) removes the limit"
            )
            return why, RESULT_TOO_LARGE
        no_room = await self.why_not(size, free)
        return None if no_room is None else (no_room, HISTORY_FULL)

    async def why_not(self, size: int, free: int) -> str | None:
        """Wait until a result of this size may be returned; return the reason why it may not. Without a parent it
        always may.
        """
        info = workflow.info()
        if info.parent is None or size <= free:
            return None
        above = workflow.get_external_workflow_handle(info.parent.workflow_id, run_id=info.parent.run_id)
        try:
            await above.signal(CLAIM, SpaceClaim(call_id=_name(info.parent.workflow_id), size=size))
            await workflow.wait_condition(lambda: self._granted is not None, timeout=_GRANTED_WITHIN)
        except (TimeoutError, FailureError):
            return None  # the parent has ended: the result can do no harm
        if self._granted:
            return None
        return f"its output has {bytes_text(size)}, which is too much for the parent run's history"


class InternalHandlers(ABC):
    """The handlers that runs and loops share: their activities, child runs and parent run call them.

    `raise_budget`: takes a larger share of the parent run's budget.
    """

    def __init__(self, raise_budget: Callable[[Budget], None]) -> None:
        self._parent = ParentRun(raise_budget)
        self._sender: Dispatcher | None = None
        """The dispatcher, once the input is read. Handlers may be called before."""

    @abstractmethod
    def _payload(self, kind: str, name: str) -> Payload | None: ...

    @payloads_query
    def payloads(self, kind: str, names: list[str]) -> JsonObject:
        """Return values that were too large to be sent, for their readers (R18.2)."""
        most = MAX_PAYLOAD if self._sender is None else self._sender.max_payload
        return read_payloads(lambda name: self._payload(kind, name), names, most)

    @workflow.signal(name=CLAIM, description="Internal: whether the history has room for a large result")
    @any_arguments
    def claim(self, claim: Sent[SpaceClaim]) -> None:
        """Record the claim of an activity, or a child run, for a result above its share of the history (R18.4)."""
        if self._sender is not None:
            self._sender.claim(claim)

    @workflow.signal(name=GRANTED, description="Internal: the parent run's decision about this run's output")
    @any_arguments
    def granted_above(self, grant: Sent[SpaceGrant]) -> None:
        """Record the answer to a claim of this workflow."""
        self._parent.note_grant(grant)

    @workflow.signal(name=BUDGET, description="Internal: a larger share of the parent's budget")
    @any_arguments
    def raise_budget(self, budget: Sent[Budget]) -> None:
        """Raise this workflow's share of the budget: the parent's answer is complete, and fewer runs share the budget
        (R18.7).
        """
        self._parent.note_budget(budget)

    @workflow.signal(name=LATE, description="Internal: the run's deadline has passed")
    @any_arguments
    def late(self, _: Sent[None]) -> None:
        """Record that the deadline has come by the parent's time (R9.5)."""
        self._parent.note_late()
