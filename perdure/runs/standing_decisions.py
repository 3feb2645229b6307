"""Decisions of standing approvals: the requests that they can decide, and the approval that applies (R23.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perdure.approvals.decisions import Decision
from perdure.approvals.queue import CHANGED
from perdure.approvals.requests import ApprovalRequest
from perdure.runs.procedures import PROCEDURE
from perdure.runs.run import RunState
from perdure.runs.standing_approvals import StandingApproval, StandingClaim
from perdure.values.json import Json
from perdure.values.provenance import foreign_words

_VIA: Final = "standing approval {name}"


def follows_procedure(run: RunState) -> bool:
    """Whether a run executes the plan of a procedure, or a part of it, and has begun no Request."""
    return (_is_own(run) or run.standing is not None) and not run.progress.number


def claim(run: RunState, run_id: str, digest: str, approvals: Sequence[StandingApproval]) -> StandingClaim | None:
    """Return the approvals that apply to the run's input, for the parts of its loops; `None`: there are none."""
    if run.approval_queue.standing_approvals_ended:
        return None
    names = [each.name for each in approvals if each.problem(_input_of(run)) is None]
    return StandingClaim(digest=digest, run=run_id, names=names) if names else None


def may_stand(request: ApprovalRequest) -> bool:
    """Whether a standing approval can decide a request.

    No standing approval decides a question, a quorum, a request that the worker's floor or a rule requires, or a call
    that a hook has changed.
    """
    call = request.call
    return not (request.question or request.floor or request.quorums) and (call is None or not call.inputs.changed)


def why_not_standing(approval: StandingApproval, run: RunState, request: ApprovalRequest) -> str | None:
    """Return the reason why an approval does not apply to a request, or `None`. The values of a plan's call are judged
    when the call is ready.
    """
    if run.approval_queue.standing_approvals_ended:
        return CHANGED
    if _is_own(run) and (problem := approval.problem(_input_of(run))) is not None:
        return problem
    if request.call is None:
        return None
    return foreign_words(request.call.spec.tool_name, request.call.inputs.origins, approval.sources)


def _is_own(run: RunState) -> bool:
    return PROCEDURE in run.agent.metadata and run.context.starts_with_plan


def _input_of(run: RunState) -> Json:
    value: Json = run.context.values().get("input", {})
    return value


def standing_decision(approval: StandingApproval, request: ApprovalRequest) -> Decision:
    """Return the decision of a standing approval, in the name of the person who granted it."""
    name = _VIA.format(name=approval.name)
    reason = f"{name}, run {approval.used} of {approval.uses}, until {approval.until[:10]}"
    return Decision(call=request.id, decision="approve", by=approval.by, reason=reason, via=name)


def is_standing(decision: Decision) -> bool:
    """Whether a decision that no person made is that of a standing approval."""
    return decision.via.startswith(_VIA.format(name=""))


def not_covered(approval: StandingApproval, why: str) -> str:
    """Return the reason why an approval does not apply, as the end of a request's reason."""
    return f"; the {_VIA.format(name=approval.name)} does not cover it: {why}"
