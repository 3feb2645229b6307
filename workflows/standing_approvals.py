"""Standing approvals in a run: requests that they decide before a person or a program is asked (R23.3)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

from perdure.workflows.failures import message_of
from perdure.workflows.internal_activities import execute_internal

with workflow.unsafe.imports_passed_through():
    from perdure.approvals.queue import CHANGED
    from perdure.approvals.requests import ApprovalRequest, ApprovalVerdict, JudgedDecision
    from perdure.errors import DecisionError
    from perdure.plan import Call
    from perdure.runs.procedures import procedure_digest
    from perdure.runs.run import RunState
    from perdure.runs.standing_approvals import (
        FIND_STANDING_ACTIVITY,
        STANDING_SHARED,
        USE_STANDING_ACTIVITY,
        FindStandingInput,
        StandingAnswer,
        StandingApproval,
        StandingUse,
        UseStandingInput,
    )
    from perdure.runs.standing_decisions import (
        claim,
        follows_procedure,
        may_stand,
        not_covered,
        standing_decision,
        why_not_standing,
    )
    from perdure.runs.version_switches import STANDING_APPROVALS
    from perdure.runs.views import summary as line

_ATTEMPT: Final = timedelta(seconds=15)
_ATTEMPTS: Final = RetryPolicy(maximum_attempts=4)
"""Attempts for the ledger's answer, about a minute: after that a person is asked."""


class StandingApprovals:
    """The standing approvals of one run's procedure."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._found: list[StandingApproval] | None = None
        self._granted: dict[str, tuple[float, StandingAnswer]] = {}
        """The time and the answer of each approval's last use, by name."""
        self._one_by_one = asyncio.Lock()

    def may_decide(self, request: ApprovalRequest) -> bool:
        """Whether a standing approval may decide a request: the run plays a procedure, and no model has left its plan.

        In a fork no standing approval decides: edits of its calls and values do not show in the procedure's digest.
        None decides in an evaluation: its runs would use up the approval.
        """
        return self._is_there and may_stand(request)

    @property
    def _is_there(self) -> bool:
        run = self._run
        is_real = run.fork is None and not run.identity.evaluated
        return is_real and run.prepared.follows(STANDING_APPROVALS) and follows_procedure(run)

    async def decide(self, request: ApprovalRequest) -> tuple[JudgedDecision, ApprovalVerdict] | None:
        """Decide a request by the first standing approval that holds, and count the run under it.

        Return `None` if none applies: the reason is then added to the request.
        """
        queue, reasons = self._run.approval_queue, ""
        try:
            for approval in await self._approvals():
                why = why_not_standing(approval, self._run, request)
                answer = StandingAnswer(refused=why) if why is not None else await self._use(approval.name)
                if queue.waiting.get(request.id) is not request:
                    return None  # a person has decided meanwhile
                if answer.approval is not None and not queue.standing_approvals_ended:
                    return queue.apply_standing(standing_decision(answer.approval, request), approval.sources)
                reasons += not_covered(approval, answer.refused or CHANGED)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            reasons = f"; the tenant's ledger, which has the standing approvals, does not answer: {message_of(error)}"
        except DecisionError as error:
            reasons = f"; {error}"
        request.reason += reasons
        return None

    async def claim(self, call: Call) -> None:
        """Let the parts of a loop use the approvals that hold for the run's input, if any of their calls may ask."""
        guard, run = self._run.approval_queue.guard, self._run
        asks = guard.policy.scope == "plan" or any(map(guard.asks, call.written()))
        if run.standing is not None or not asks or not self._is_there:
            return
        try:
            found = await self._approvals()
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            return  # the loop's parts ask a person
        run.standing = claim(run, workflow.info().workflow_id, self._digest, found)

    @property
    def _digest(self) -> str:
        claimed = self._run.standing
        return procedure_digest(self._run.agent) if claimed is None else claimed.digest

    async def _approvals(self) -> list[StandingApproval]:
        async with self._one_by_one:
            if self._found is None:
                found: list[StandingApproval] = await execute_internal(
                    FIND_STANDING_ACTIVITY,
                    [FindStandingInput(tenant=self._run.identity.owner.tenant, digest=self._digest)],
                    list[StandingApproval],
                    timeout=_ATTEMPT,
                    retry_policy=_ATTEMPTS,
                    summary="standing approvals of the procedure",
                )
                claimed = self._run.standing
                self._found = [each for each in found if claimed is None or each.name in claimed.names]
            return self._found

    async def _use(self, name: str) -> StandingAnswer:
        """Count the run under an approval. Calls that ask at about the same time share the answer."""
        async with self._one_by_one:
            since, known = self._granted.get(name, (-STANDING_SHARED, StandingAnswer()))
            if workflow.time() - since < STANDING_SHARED:
                return known
            claimed = self._run.standing
            run_id = workflow.info().workflow_id if claimed is None else claimed.run
            use = StandingUse(name=name, digest=self._digest, run=run_id)
            answer: StandingAnswer = await execute_internal(
                USE_STANDING_ACTIVITY,
                [UseStandingInput(tenant=self._run.identity.owner.tenant, use=use)],
                StandingAnswer,
                timeout=_ATTEMPT,
                retry_policy=_ATTEMPTS,
                summary=line(f"standing approval {name}"),
            )
            self._granted[name] = (workflow.time(), answer)
            return answer
