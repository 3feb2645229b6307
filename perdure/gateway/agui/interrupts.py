"""What waits for a person, as AG-UI's interrupts: pure."""

from __future__ import annotations

from typing import Any, Final

from ag_ui.core import Interrupt

from perdure.gateway.agui.reading import interrupt_id
from perdure.people.shown import asked_of_people
from perdure.run.wire import RunView, WaitingView
from perdure.values.jsons import JsonObject

_ANSWER: Final[JsonObject] = {"type": "object", "properties": {"answer": {}}, "required": ["answer"]}


def interrupt_of(offer: WaitingView, run: str, call: str) -> Interrupt:
    """`run`: the end of its run's id; `call`: the call, as the client knows it."""
    plan = offer.calls is not None
    shown: JsonObject = {"calls": offer.calls} if plan else {"params": offer.params}
    if offer.items is not None:
        shown["items"] = offer.items
    if offer.ways:
        shown["ways"] = list(offer.ways)
    about: JsonObject = {"tool": offer.tool, "call": offer.call, "requestedAt": offer.requested_at, **shown}
    return Interrupt(
        id=interrupt_id(run, offer.call, offer.digest),
        reason="input_required" if offer.question else "confirmation" if plan else "tool_call",
        message=offer.sentence,
        tool_call_id=None if plan else call,
        response_schema=_ANSWER if offer.question else _decision(offer),
        metadata={"perdure": about},
    )


def _decision(offer: WaitingView) -> JsonObject:
    properties: dict[str, Any] = {"approved": {"type": "boolean"}, "reason": {"type": "string"}}
    if offer.calls is None:
        properties["editedArgs"] = {"type": "object"}
    return {"type": "object", "properties": properties, "required": ["approved"]}


def pauses(view: RunView) -> bool:
    """Whether all that there is to do is a person's."""
    if view.status != "running" or not asked_of_people(view.waiting):
        return False
    if any(offer.calls is not None for offer in view.waiting):  # a whole plan, of which nothing runs
        return True
    asked = bool(view.log) and view.log[-1].status == "running"
    return not asked and not any(call.status in ("running", "ready") for call in view.calls)
