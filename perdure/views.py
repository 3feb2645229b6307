"""What is shown of a run: calls, what waits for a person, and errors, as the wire carries them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from perdure.approvals import Offer
from perdure.calls import Call
from perdure.decisions import digest
from perdure.jsons import Json, JsonObject, shorten
from perdure.plan import Plan
from perdure.policies import Guard
from perdure.runs import CallView, WaitingView
from perdure.simulation import simulate

_SHOWN_IN_ERRORS: Final = 2000
"""Characters of a call that an error message repeats to the model: enough to recognise and correct it."""


def plan_reads(plan: Plan) -> dict[str, list[str]]:
    return {call.id: call.reads for call in plan.calls if call.template.sites}


def plan_writes(plan: Plan) -> dict[str, str]:
    return {call.id: call.target for call in plan.calls if call.paths}


def call_view(call: Call) -> CallView:
    return CallView(
        id=call.id,
        tool=call.tool_name,
        params=call.params,
        status=call.status,
        started_at=call.started,
        ended_at=call.ended_at,
        attempts=call.attempts,
        reason=call.reason or None,
        error=call.error.as_json() if call.error else None,
        approval=call.approval,
    )


def error_message(call: JsonObject | None, error: JsonObject) -> JsonObject:
    """An error message (R2.5). A very long call is shown as the start of its JSON."""
    shown: Json = call
    if call is not None and len(str(call)) > _SHOWN_IN_ERRORS:
        shown = shorten(call, _SHOWN_IN_ERRORS)
    return {"type": "error", "call": shown, "error": error}


def waiting_view(offer: Offer, agent: str, guard: Guard, dry_run: Callable[[int], Plan]) -> WaitingView:
    """What a person is shown; of a plan also its simulation, played on an empty plan made by `dry_run`."""
    view = WaitingView(
        call=offer.id,
        agent=agent,
        tool="plan",
        reason=offer.reason,
        requested_at=offer.approval.requested_at,
        digest=digest(offer.shown),
    )
    call = offer.call
    if call is not None:
        assert call.tool is not None
        view.tool, view.description = call.tool_name, call.tool.description
        view.params, view.parameters = call.params, call.tool.parameters
        return view
    view.calls = [each.raw for each in offer.plan.calls]
    dry = simulate(dry_run(offer.plan.request), view.calls, guard=guard)
    view.simulation = {
        "makespan": dry.makespan,
        "levels": [[step.call.id for step in steps] for steps in dry.levels().values()],
        "asks": [step.call.id for step in dry.steps if step.asks],
    }
    return view
