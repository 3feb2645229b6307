"""What else is asked about responses: their input, page by page, and to be forgotten."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Final

from perdure.client.perdure import Perdure
from perdure.client.run import Run
from perdure.client.session import Session
from perdure.errors import RunNotFoundError
from perdure.gateway.callers import Caller
from perdure.gateway.openai.answers import Found
from perdure.gateway.openai.errors import invalid, not_found, refused
from perdure.gateway.openai.ids import ResponseId, conversation_key
from perdure.gateway.problems import HttpError
from perdure.sessions.wire import About
from perdure.values.jsons import Json, JsonObject, dumps, loads

_ROLES: Final = {"message": "user", "reply": "assistant"}
"""By the type of a transcript's entry."""
MOST: Final = 100


async def input_items(runs: Callable[[str], Run[object]], id: ResponseId, found: Found) -> list[JsonObject]:
    """The items of a response's input, in their order; of a later leg what its run was told. `runs`: the run, or a delegate's, by its path."""
    if id.leg == 1:
        return [{**_listed(item), "id": id.item("in", str(at))} for at, item in enumerate(found.record.items)]
    items: list[JsonObject] = []
    for ask in found.asks(id.leg - 1):
        before = ResponseId(id.key, id.run, id.leg - 1)
        about: JsonObject = {"id": id.item("in", ask.offer)}
        if ask.approval:
            call = found.call(ask)
            approval = None if call is None else call.approval
            rejected = approval is not None and approval.decision in ("reject", "dropped")
            reason = approval.reason if approval is not None else ""
            about |= {"type": "mcp_approval_response", "approval_request_id": before.item("mcpr", ask.offer)}
            items.append(about | {"approve": not rejected, "reason": reason or None})
            continue
        value: Json = loads(await runs(ask.run).value(ask.call))
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
    return _listed_page(shown, more=len(shown) < len(listed))


async def delete(perdure: Perdure, caller: Caller, id: ResponseId) -> None:
    """Have the server forget a response with its session. Raises `HttpError` where others belong to that session."""
    if not id.run:
        raise refused(f"{id} is kept as long as the server keeps runs", "response_id", "unsupported_parameter")
    session = perdure.session(id.key, tenant=caller.tenant)
    view = await session.show()
    runs = {entry["runId"] for entry in view.entries if entry.get("type") == "run"} | {view.run_id} - {None}
    if runs - {id.run_id(caller.tenant)} or view.queue or view.archived_through:
        raise refused(f"{id} is part of a conversation: delete that, conv_{id.key}", "response_id", "conflict")
    await session.delete(sender=caller.sender, rights=caller.rights)


def conversation_object(about: About) -> JsonObject:
    """Return a conversation, as OpenAI lists it."""
    created = int(datetime.fromisoformat(about.created_at).timestamp()) if about.created_at else 0
    metadata: JsonObject = {**about.metadata}
    return {"id": f"conv_{about.session}", "object": "conversation", "created_at": created, "metadata": metadata}


async def conversation(
    perdure: Perdure, caller: Caller, id: str, metadata: Mapping[str, str] | None = None
) -> JsonObject:
    """Return a conversation's object, with `metadata` once it keeps them. Raises `HttpError` (404) for none of the tenant's."""
    session = _session(perdure, caller, id)
    try:
        return conversation_object(await (session.about() if metadata is None else session.describe(metadata)))
    except RunNotFoundError:
        raise not_found(id[:200], "conversation") from None


async def conversations(perdure: Perdure, caller: Caller, asked: Mapping[str, str]) -> JsonObject:
    """Return a page of the tenant's conversations: at most `limit`, `after` the id of one.

    They are in the order of their ids: one by time would change between two pages, whenever somebody says something.
    """
    limit, after = asked.get("limit", "20"), asked.get("after", "")
    if not limit.isdecimal() or not 1 <= int(limit[:6]) <= MOST:
        raise invalid("limit", f"a number from 1 to {MOST}")
    async with aclosing(perdure.list_sessions(tenant=caller.tenant)) as sessions:
        ids = [f"conv_{each.session}" async for each in sessions]
    # A session that was begun elsewhere may have a key that no id can hold.
    behind = sorted(id for id in ids if id > after and conversation_key(id) is not None)
    data: list[JsonObject] = []
    for id in behind[: int(limit)]:
        with suppress(HttpError):  # it was deleted, and the list is a moment late
            data.append(await conversation(perdure, caller, id))
    return _listed_page(data, more=len(behind) > int(limit))


def _listed_page(data: list[JsonObject], *, more: bool) -> JsonObject:
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"object": "list", "data": data, **ends, "has_more": more}


async def conversation_items(perdure: Perdure, caller: Caller, id: str) -> list[JsonObject]:
    """Return the messages of a conversation and their answers, in their order, as items."""
    items: list[JsonObject] = []
    for entry in await _entries(perdure, caller, id):
        role = _ROLES.get(str(entry.get("type")))
        if role is None or not isinstance(entry.get("text"), str):
            continue
        kind = "input_text" if role == "user" else "output_text"
        part: JsonObject = {"type": kind, "text": entry["text"]} | ({"annotations": []} if role == "assistant" else {})
        about = {"id": f"msg_{conversation_key(id)}_{entry['n']}", "type": "message", "status": "completed"}
        items.append(about | {"role": role, "content": [part]})
    return items


async def _entries(perdure: Perdure, caller: Caller, id: str) -> list[JsonObject]:
    """Return what was said and done in a conversation. Raises `HttpError` (404) for none of the tenant's."""
    try:
        return await _session(perdure, caller, id).read_entries()
    except RunNotFoundError:
        raise not_found(id[:200], "conversation") from None


def _session(perdure: Perdure, caller: Caller, id: str) -> Session:
    """Return the session of a conversation's id. Raises `HttpError` (404) for what cannot be one."""
    if (key := conversation_key(id)) is None:
        raise not_found(id[:200], "conversation")
    return perdure.session(key, tenant=caller.tenant)


async def delete_conversation(perdure: Perdure, caller: Caller, conversation: str) -> None:
    """Have the server forget a session and its runs."""
    session = _session(perdure, caller, conversation)
    try:
        await session.delete(sender=caller.sender, rights=caller.rights)
    except RunNotFoundError:
        raise not_found(conversation[:200], "conversation") from None
