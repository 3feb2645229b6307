"""A loop over a delegate as a workflow of its own, which continues as new (R8.5 to R8.7)."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.exceptions import ApplicationError

from perdure.workflows.arguments import read_input
from perdure.workflows.delegates import run_child
from perdure.workflows.purse import Purse

with workflow.unsafe.imports_passed_through():
    from perdure.errors import CallError, PerdureError
    from perdure.model.usage import RunUsage
    from perdure.plan.iteration import is_satisfied
    from perdure.plan.outcomes import Failed, Returned
    from perdure.run.loops import LOOP_WORKFLOW, IterationError, LoopInput, LoopState
    from perdure.run.shares import Shares
    from perdure.run.stopping import Limit
    from perdure.run.wire import RunInput


@workflow.defn(name=LOOP_WORKFLOW, failure_exception_types=[PerdureError, ValidationError])
class LoopWorkflow:
    """Iterations of one delegate; each is a run of its own, named after the loop and its index."""

    @workflow.run
    async def run(self, *given: Any) -> LoopState:
        """All that the iterations have given, and what went wrong with which. Takes one `LoopInput`."""
        loop = read_input(LoopInput, given)
        self._loop, self._state = loop, loop.state
        shares = Shares(loop.budget, loop.state.expected)
        self._purse = Purse(
            shares,
            usage=lambda: self._state.usage,
            # As many as run at once at most, and as there are left.
            rivals=lambda: max(1, min(loop.lanes, loop.count - self._state.done) - len(shares.takers)),
        )
        if loop.kind == "each":
            self._state.results += [None] * (len(loop.items) - len(self._state.results))
            lanes = [asyncio.create_task(self._lane()) for _ in range(loop.lanes)]
            try:
                await asyncio.gather(*lanes)
            except BaseException:
                for lane in lanes:
                    lane.cancel()
                raise
        else:
            await self._until()
        if (size := len(loop.model_dump_json().encode())) > loop.max_payload:
            message = f"the loop's items and results have {size:,} bytes, and {loop.max_payload:,} is the most"
            used = {"usage": self._state.usage.as_json()}
            raise ApplicationError(message, used, type="result_too_large", non_retryable=True)
        if not self._over:
            workflow.continue_as_new(loop)
        return self._state

    @property
    def _over(self) -> bool:
        return self._state.satisfied or self._state.next >= self._loop.count

    async def _lane(self) -> None:
        """One iteration after the other, as long as there are any and this execution's history is not too long."""
        while not self._over and not workflow.info().is_continue_as_new_suggested():
            index = self._state.next
            self._state.next += 1
            await self._iterate(index)

    async def _until(self) -> None:
        while not self._over and not workflow.info().is_continue_as_new_suggested():
            index = self._state.next
            output = await self._iterate(index)
            self._state.next += 1
            if self._state.failed:
                return  # the next one would go on from nothing
            self._state.satisfied = is_satisfied(self._loop.until, output)

    async def _iterate(self, index: int) -> object:
        loop, state = self._loop, self._state
        agent, child_input = loop.iteration(index)
        share = await self._purse.take(str(index))
        if isinstance(share, Limit):
            return self._note(index, Failed(CallError(share.reason, f"not run: {share.words}")))
        used: RunUsage | None = None

        def spent(usage: RunUsage, _: float) -> None:
            nonlocal used
            used = usage
            state.usage.include(usage)

        child = RunInput(
            agent=agent,
            input=child_input,
            has_input=True,
            approval=loop.approval,
            lineage=loop.lineage,
            delegates=loop.delegates,
            budget=share,
        )
        outcome = await run_child(child, loop.max_payload, str(index), f"{loop.title} [{index}]", spent)
        self._purse.settle(str(index), used)
        return self._note(index, outcome)

    def _note(self, index: int, outcome: Returned | Failed) -> object:
        """What an iteration has given, or how it failed, as the state keeps it."""
        loop, state = self._loop, self._state
        if isinstance(outcome, Failed):
            error = IterationError(index=index, code=outcome.error.code, message=outcome.error.message)
            state.failed.append(error)
            value: object = {"error": error.as_json()}
            state.satisfied = loop.kind == "until"
        else:
            value = outcome.value
        state.done += 1
        if loop.kind == "each":
            state.results[index] = value
        else:
            state.results = [value]
        workflow.set_current_details(f"**{loop.title}**: {loop.progress()}")
        return value
