"""What is shown of a run: calls, what waits for a person, and errors, as the wire carries them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from perdure.model.wire import RequestResult
from perdure.people.decisions import digest
from perdure.people.desk import Offer
from perdure.people.policies import Guard
from perdure.plan.calls import Call
from perdure.plan.plan import Plan
from perdure.plan.simulation import simulate
from perdure.run.wire import CallView, WaitingView
from perdure.values.jsons import Json, JsonObject, dumps, shorten
from perdure.values.state import cut

_SHOWN_IN_ERRORS: Final = 2000
"""Characters of a call that an error message repeats to the model: enough to recognise and correct it."""

SHOWN_RESULT: Final = 160
"""Characters of a result that `show` prints."""


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
        shown=_one_line(call.result) if call.status == "done" else None,
    )


def _one_line(value: Json) -> str:
    """The beginning of a result; of text as text."""
    if not isinstance(value, str):
        return shorten(value, SHOWN_RESULT)
    text = " | ".join(value.splitlines())
    return text if len(text) <= SHOWN_RESULT else f"{text[: SHOWN_RESULT - 1]}…"


def error_message(call: JsonObject | None, error: JsonObject) -> JsonObject:
    """An error message (R2.5). A very long call is shown as the start of its JSON."""
    shown: Json = call
    if call is not None and len(str(call)) > _SHOWN_IN_ERRORS:
        shown = shorten(call, _SHOWN_IN_ERRORS)
    return {"type": "error", "call": shown, "error": error}


def request_problems(plan: Plan, result: RequestResult) -> list[JsonObject]:
    """The error messages of a Request: its calls' in the order of the list, what they noted, and the answer's own (R6.6)."""
    problems = [error_message(call.as_plan_entry(), call.error.as_json()) for call in plan.errors if call.error]
    problems += [error_message(call.as_plan_entry(), note.as_json()) for call in plan.calls for note in call.notes]
    return [*problems, *([error_message(None, result.problem)] if result.problem is not None else [])]


def turn_message(plan: Plan, text: str, before: list[JsonObject]) -> JsonObject | None:
    """An answer and what became of its calls, for a dialect that shows the model its turns; `None` where it was nothing.

    Calls keep the ids that the server gave them, unless one was used already, which servers refuse.
    """
    used = {call["id"] for message in before if message["type"] == "turn" for call in message["calls"]}
    calls = []
    for call in plan.calls:
        id = call.written_id if call.written_id and call.written_id not in used else f"call_{call.id.replace('.', '_')}"
        used.add(id)
        arguments = {key: value for key, value in call.raw.items() if key != "_tool"}
        calls.append({"id": id, "tool": call.tool_name, "arguments": arguments, "result": _result_text(call)})
    return {"type": "turn", "text": text, "calls": calls} if calls or text else None


def _result_text(call: Call) -> str:
    if call.status == "done":
        value = cut(call.result)
        return value if isinstance(value, str) else dumps(value)
    if call.error is not None:
        return dumps({"error": call.error.as_json()})
    return dumps({"status": call.status, "reason": call.reason} if call.reason else {"status": call.status})


def waiting_view(offer: Offer, agent: str, guard: Guard, dry_run: Callable[[int], Plan]) -> WaitingView:
    """What a person is shown; of a plan also its simulation, played on an empty plan made by `dry_run`."""
    view = WaitingView(
        call=offer.id,
        agent=agent,
        tool="plan",
        reason=offer.reason,
        requested_at=offer.approval.requested_at,
        digest=digest(offer.shown),
        question=offer.question,
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
