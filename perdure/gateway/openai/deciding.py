"""What a run that waits is told: the results and decisions of a request, each as the decision on its offer."""

from __future__ import annotations

from perdure.gateway.openai.answers import Ask, Found, via
from perdure.gateway.openai.errors import refused
from perdure.gateway.openai.ids import ResponseId
from perdure.gateway.openai.reading.asked import Asked
from perdure.values.jsons import Json, JsonObject

_WORDS = {"approve": True, "reject": False}


def decisions(asked: Asked, id: ResponseId, found: Found, by: str) -> tuple[list[tuple[str, JsonObject]], bool]:
    """The decisions, each with the path of the delegate's run that asks (empty: the run itself), and whether any is a person's own. Raises `HttpError` where a result is missing, or nothing waits for one."""
    asks = found.asks(id.leg)
    calls = {id.call(ask.offer): ask for ask in asks if not ask.approval}
    approvals = {id.item("mcpr", ask.offer): ask for ask in asks if ask.approval}
    outputs, verdicts = dict(asked.said.outputs), dict(asked.said.verdicts)
    if found.record.approval_tool:
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
    said: list[tuple[Ask, JsonObject]] = [
        (ask, {"decision": "answer", "answer": outputs[call]}) for call, ask in calls.items()
    ]
    said += [(approvals[name], _decision(approvals[name], verdict)) for name, verdict in verdicts.items()]
    chosen = must_call(asked, found, {ask.name for ask in calls.values()})
    made: list[tuple[str, JsonObject]] = []
    for ask, decision in said:
        own: JsonObject = {} if ask.run else {"must_call": chosen}  # a delegate's run has an agent of its own
        about: JsonObject = {"call": ask.call, "by": by, "via": via(id.next(), ask.call)}
        made.append((ask.run, decision | about | own))
    return made, bool(verdicts)


def must_call(asked: Asked, found: Found, answered: set[str]) -> list[str]:
    """Return the tools of which the run has to call one from here on: a request's choice is its own, and holds for none after it.

    Without a choice it is what the agent's file says, until such a call is done. `answered`: the tools whose results come with the request.
    """
    own = set(found.record.must_call)
    done = answered | {call.tool for call in found.view.calls if call.status == "done"}
    return asked.changes.must_call or ([] if own & done else found.record.must_call)


def _decision(ask: Ask, verdict: JsonObject) -> JsonObject:
    """What a person answers is a decision on a call; of a question the reason is the answer."""
    if ask.question and verdict["decision"] == "approve":
        return {"decision": "answer", "answer": verdict["reason"]}
    return verdict


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
