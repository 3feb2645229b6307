"""What a run that waits is told: the results and decisions of a request, each as the decision on its offer."""

from __future__ import annotations

from perdure.gateway.openai.answers import Ask, Found, via
from perdure.gateway.openai.errors import refused
from perdure.gateway.openai.ids import ResponseId
from perdure.gateway.openai.reading.asked import Asked
from perdure.values.jsons import Json, JsonObject

_WORDS = {"approve": True, "reject": False}


def decisions(asked: Asked, id: ResponseId, found: Found, by: str) -> tuple[list[JsonObject], bool]:
    """The decisions, and whether any is a person's own. Raises `HttpError` where a result is missing, or nothing waits for one."""
    asks = found.asks(id.leg)
    calls = {id.call(ask.offer): ask for ask in asks if not ask.approval}
    approvals = {id.item("mcpr", ask.offer): ask for ask in asks if ask.approval}
    outputs, verdicts = dict(asked.said.outputs), dict(asked.said.verdicts)
    if asked.chat:  # which has no items for approvals: they are calls of a tool
        named = {id.call(ask.offer): item for item, ask in approvals.items()}
        for call in [call for call in outputs if call in named]:
            verdicts[named[call]] = read_verdict(outputs.pop(call), question=approvals[named[call]].question)
    for call in calls:
        if call not in outputs:
            raise refused(f"No tool output found for function call {call}.", "input", "missing_tool_output")
    for name in [*(set(outputs) - set(calls)), *(set(verdicts) - set(approvals))]:
        raise refused(f"nothing waits for {name!r} in {id}", "input", "invalid_value")
    if not outputs and not verdicts:
        wanted = ", ".join(approvals)
        raise refused(f"{id} waits for a decision: send an 'mcp_approval_response' for {wanted}", "input", "conflict")
    said: list[JsonObject] = [
        {"call": ask.offer, "decision": "answer", "answer": outputs[call]} for call, ask in calls.items()
    ]
    said += [_decision(approvals[name], verdict) for name, verdict in verdicts.items()]
    return [each | {"by": by, "via": via(id.next(), str(each["call"]))} for each in said], bool(verdicts)


def _decision(ask: Ask, verdict: JsonObject) -> JsonObject:
    """What a person answers is a decision on a call; of a question the reason is the answer."""
    if ask.question and verdict["decision"] == "approve":
        return {"call": ask.offer, "decision": "answer", "answer": verdict["reason"]}
    return {"call": ask.offer, **verdict}


def read_verdict(said: Json, *, question: bool) -> JsonObject:
    """What a tool that asks for approval has given: `approve`, `reject`, or `{"approve", "reason"}`; of a question the answer."""
    approve = said.get("approve") if isinstance(said, dict) else _WORDS.get(str(said).strip().lower())
    reason = said.get("reason") if isinstance(said, dict) else None
    if question and not isinstance(said, dict):
        return {"decision": "approve", "reason": str(said)}
    if not isinstance(approve, bool):
        words = "'approve', 'reject', or {\"approve\": true or false, \"reason\": …}"
        raise refused(f"an approval's result must be {words}", "messages", "invalid_value")
    return {"decision": "approve" if approve else "reject", "reason": str(reason or "")}
