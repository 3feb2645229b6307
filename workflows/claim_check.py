"""Inputs and results of child runs that are too large to send."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

from perdure.workflows.arguments import read_one
from perdure.workflows.dispatch import Dispatcher
from perdure.workflows.failures import message_of

with workflow.unsafe.imports_passed_through():
    from perdure.runs.delegates import BUDGET, GIVEN_ACTIVITY, GIVEN_QUERY, LATE, GivenInput
    from perdure.runs.limits import Budget
    from perdure.runs.loops import LoopInput
    from perdure.runs.run import Run
    from perdure.runs.wire import CLAIM, GRANTED, REFUSED, RunInput, RunResult
    from perdure.tools.invocation import SpaceClaim, SpaceGrant
    from perdure.values.limits import HISTORY_FULL, RESULT_TOO_LARGE, said


_ONE_ATTEMPT: Final = timedelta(minutes=2)
_PATIENCE: Final = timedelta(minutes=5)
"""A run above that does not answer by then has ended, or takes what comes."""


I = TypeVar("I", RunInput, LoopInput)  # noqa: E741


async def whole(argument: I) -> I:
    """The input with what was too large to be sent. It is recorded here then: the run above may end, or be replayed, later."""
    if not argument.asks:
        return argument
    info = workflow.info()
    if info.parent is None:
        raise ApplicationError("no run above has what this one asks for", type=REFUSED, non_retryable=True)
    asked = GivenInput(above=info.parent.workflow_id, execution=info.parent.run_id, name=_name(info.parent.workflow_id))
    try:
        given: I = await workflow.execute_activity(
            GIVEN_ACTIVITY,
            asked,
            result_type=type(argument),
            schedule_to_close_timeout=_PATIENCE,
            start_to_close_timeout=_ONE_ATTEMPT,
            retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=10)),
            summary="what it was given",
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        why = f"the run above did not say what this one was given: {message_of(error)}"
        raise ApplicationError(why, type=REFUSED, non_retryable=True) from None
    update: dict[str, Any] = {"free": argument.free}
    return given.model_copy(update=update | ({"clocked": argument.clocked} if isinstance(argument, RunInput) else {}))


def _name(above: str) -> str:
    return workflow.info().workflow_id.removeprefix(f"{above}/")


class ParentClaims:
    """What one run below another asks of it."""

    def __init__(self) -> None:
        self._granted: bool | None = None

    def note(self, answer: Sequence[Any]) -> None:
        """The run above has decided."""
        if (grant := read_one(SpaceGrant, answer)) is not None:
            self._granted = grant.granted

    async def refusal(self, run: Run, result: RunResult, free: int) -> tuple[str, str] | None:
        """Why a run's output cannot come in, and the code of that: it is all that the run above reads, whole or not at all (R18.3)."""
        if workflow.info().parent is None:
            return None
        size, most = run.sizes.of(run.output), run.prepared.max_payload
        if result.output is not run.output:
            why = (
                f"its output has {said(size)}, and {most:,} is the most that it can return; whole: perdure show {result.run_id} "
                "--value output; external storage (PERDURE_STORAGE) would carry it"
            )
            return why, RESULT_TOO_LARGE
        no_room = await self.why_not(size, free)
        return None if no_room is None else (no_room, HISTORY_FULL)

    async def why_not(self, size: int, free: int) -> str | None:
        """Wait until a result of so many bytes may come; why it may not, in words. A run that has none above may always."""
        info = workflow.info()
        if info.parent is None or size <= free:
            return None
        above = workflow.get_external_workflow_handle(info.parent.workflow_id, run_id=info.parent.run_id)
        try:
            await above.signal(CLAIM, SpaceClaim(call_id=_name(info.parent.workflow_id), size=size))
            await workflow.wait_condition(lambda: self._granted is not None, timeout=_PATIENCE)
        except (TimeoutError, FailureError):
            return None  # there is nobody any more who could be harmed
        if self._granted:
            return None
        return (
            f"its output has {said(size)}, and the history of the run above it has no room for that beside the others"
        )


class RunFamily:
    """What a workflow answers to those below it and the one above it: an agent's run, and a loop."""

    def __init__(self) -> None:
        super().__init__()
        self._sender: Dispatcher | None = None
        self._upward = ParentClaims()
        self._late: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._raised: Budget | None = None
        """A share of the budget above that has grown; told before the run was ready, too."""

    @workflow.signal(name=CLAIM, description="The engine's own: may the history hold a large result?")
    def claim(self, *said: Any) -> None:
        """An activity, or a run below, has a result that is larger than its share of the history (R18.4)."""
        if self._sender is not None and (claim := read_one(SpaceClaim, said)) is not None:
            self._sender.claim(claim)

    @workflow.signal(name=GRANTED, description="The engine's own: what the run above has decided of this one's output")
    def granted_above(self, *answer: Any) -> None:
        """The answer to a claim of this run."""
        self._upward.note(answer)

    @workflow.signal(name=BUDGET, description="The engine's own: this run's share of the budget above is larger now")
    def raise_budget(self, *said: Any) -> None:
        """The answer of the run above is whole, and fewer than there might have been share its budget (R18.7)."""
        if (budget := read_one(Budget, said)) is not None:
            self._raised = budget
            if self._sender is not None:
                self._use_raised(budget)

    def _use_raised(self, raised: Budget) -> None:
        raise NotImplementedError

    @workflow.signal(name=LATE, description="The engine's own: the time has passed that this run may work for")
    def late(self, *_: Any) -> None:
        """The run above has kept the time (R9.5). What this one has waited for people meanwhile it adds itself."""
        if not self._late.done():
            self._late.set_result(None)

    @workflow.query(name=GIVEN_QUERY)
    def given_below(self, names: list[str]) -> dict[str, Any]:
        """What runs below were given, for them to ask where it is too large to be sent (R18.2); `None`: it does not run."""
        return dict.fromkeys(names) if self._sender is None else self._sender.given(names)
