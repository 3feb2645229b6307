"""What else is asked about responses: their input, page by page, and to be forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from perdure.client.perdure import Perdure
from perdure.client.run import Run
from perdure.errors import RunNotFoundError
from perdure.gateway.callers import Caller
from perdure.gateway.openai.answers import Found
from perdure.gateway.openai.errors import invalid, not_found, refused
from perdure.gateway.openai.ids import ResponseId, conversation_key
from perdure.values.jsons import Json, JsonObject, dumps, loads

MOST: Final = 100


async def input_items(run: Run[object], id: ResponseId, found: Found) -> list[JsonObject]:
    """The items of a response's input, in their order; of a later leg what its run was told."""
    if id.leg == 1:
        return [{**_listed(item), "id": id.item("in", str(at))} for at, item in enumerate(found.record.items)]
    items: list[JsonObject] = []
    for ask in found.asks(id.leg - 1):
        before = ResponseId(id.key, id.run, id.leg - 1)
        about: JsonObject = {"id": id.item("in", ask.offer)}
        if ask.approval:
            call = next((each for each in found.view.calls if each.id == ask.offer), None)
            approval = None if call is None else call.approval
            rejected = approval is not None and approval.decision == "reject"
            reason = approval.reason if approval is not None else ""
            about |= {"type": "mcp_approval_response", "approval_request_id": before.item("mcpr", ask.offer)}
            items.append(about | {"approve": not rejected, "reason": reason or None})
            continue
        value: Json = loads(await run.value(ask.offer))
        result = value.get("result") if isinstance(value, dict) else None
        text = result if isinstance(result, str) else dumps(result)
        items.append(about | {"type": "function_call_output", "call_id": id.call(ask.offer), "output": text})
    return items


def _listed(item: JsonObject) -> JsonObject:
    """A message's content as parts, as OpenAI lists it."""
    if item.get("type") != "message" or not isinstance(item.get("content"), str):
        return item
    kind = "output_text" if item.get("role") == "assistant" else "input_text"
    return {**item, "status": "completed", "content": [{"type": kind, "text": item["content"]}]}


def page(items: list[JsonObject], asked: Mapping[str, str]) -> JsonObject:
    """A page of a list: `order` (newest first by default), `after` an item, at most `limit`."""
    limit, order, after = asked.get("limit", "20"), asked.get("order", "desc"), asked.get("after")
    if not limit.isdecimal() or not 1 <= int(limit[:6]) <= MOST:
        raise invalid("limit", f"a number from 1 to {MOST}")
    if order not in ("asc", "desc"):
        raise invalid("order", "'asc' or 'desc'")
    listed = items if order == "asc" else items[::-1]
    if after is not None:
        places = [at for at, item in enumerate(listed, 1) if item["id"] == after]
        if not places:
            raise invalid("after", "the id of an item of this list")
        listed = listed[places[0] :]
    shown = listed[: int(limit)]
    ends = {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {"first_id": None, "last_id": None}
    return {"object": "list", "data": shown, **ends, "has_more": len(shown) < len(listed)}


async def delete(perdure: Perdure, caller: Caller, id: ResponseId) -> None:
    """Have the server forget a response with its session. Raises `HttpError` where others belong to that session."""
    if not id.run:
        raise refused(f"{id} is kept as long as the server keeps runs", "response_id", "unsupported_parameter")
    session = perdure.session(id.key, tenant=caller.tenant)
    view = await session.show()
    runs = {entry["runId"] for entry in view.entries if entry.get("type") == "run"} | {view.run_id} - {None}
    if runs - {id.run_id(caller.tenant)} or view.queue:
        raise refused(f"{id} is part of a conversation: delete that, conv_{id.key}", "response_id", "conflict")
    await session.delete(sender=caller.sender, rights=caller.rights)


async def delete_conversation(perdure: Perdure, caller: Caller, conversation: str) -> None:
    """Have the server forget a session and its runs."""
    key = conversation_key(conversation)
    try:
        if key is None:
            raise RunNotFoundError(conversation)
        await perdure.session(key, tenant=caller.tenant).delete(sender=caller.sender, rights=caller.rights)
    except RunNotFoundError:
        raise not_found(conversation[:200]) from None
