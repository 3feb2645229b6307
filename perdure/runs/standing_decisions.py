"""Decisions of standing approvals: for which requests of a run they can stand, and which of them holds (R23.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perdure.approvals.decisions import Decision
from perdure.approvals.requests import ApprovalRequest
from perdure.runs.procedures import PROCEDURE
from perdure.runs.run import RunState
from perdure.runs.standing_approvals import StandingApproval, StandingClaim
from perdure.values.json import Json
from perdure.values.provenance import foreign_words

_VIA: Final = "standing approval {name}"


def follows_procedure(run: RunState) -> bool:
    """Whether a run plays the plan of a procedure, or a part of it, and no model has left it."""
    return (_is_own(run) or run.standing is not None) and not run.progress.number


def claim(run: RunState, run_id: str, digest: str, approvals: Sequence[StandingApproval]) -> StandingClaim | None:
    """Return the approvals that hold for the run's input, for the parts of its loops; `None`: there are none."""
    names = [each.name for each in approvals if each.problem(_input_of(run)) is None]
    return StandingClaim(digest=digest, run=run_id, names=names) if names else None


def may_stand(request: ApprovalRequest) -> bool:
    """Whether a standing approval can decide a request.

    None answers a question, stands for several people, for the person whom the worker's floor or a rule wants, or for a
    call that a hook has changed.
    """
    call = request.call
    return not (request.question or request.floor or request.quorums) and (call is None or not call.inputs.changed)


def why_not_standing(approval: StandingApproval, run: RunState, request: ApprovalRequest) -> str | None:
    """Return why an approval does not hold for a request, or `None`. Of a plan the values of a call are judged when it is ready."""
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
    """Return the decision of a standing approval, in the name of the person who has granted it."""
    name = _VIA.format(name=approval.name)
    reason = f"{name}, run {approval.used} of {approval.uses}, until {approval.until[:10]}"
    return Decision(call=request.id, decision="approve", by=approval.by, reason=reason, via=name)


def not_covered(approval: StandingApproval, why: str) -> str:
    """Return why an approval does not hold, as the end of a request's reason."""
    return f"; the {_VIA.format(name=approval.name)} does not cover it: {why}"
