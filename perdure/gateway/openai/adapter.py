"""Routes for OpenAI's clients: responses, chat completions, models, and conversations."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from perdure.client.perdure import Perdure
from perdure.client.run import Run
from perdure.client.session import Session
from perdure.errors import RunNotFoundError
from perdure.gateway._idempotency import RequestKey
from perdure.gateway.adapter import Adapter, Gateway
from perdure.gateway.bounds import read_json
from perdure.gateway.callers import READ, SEND, Caller, caller_of, permitted_caller
from perdure.gateway.errors import HttpError
from perdure.gateway.files import with_stored_files
from perdure.gateway.openai import _events as events
from perdure.gateway.openai._agent_file import Record
from perdure.gateway.openai._objects import (
    COMPLETION,
    FoundRun,
    ResponseId,
    completion_object,
    conversation_key,
    empty_response,
    new_key,
    response_id,
    response_object,
)
from perdure.gateway.openai._requests import (
    ClientRequest,
    RequestBody,
    as_openai,
    ended_badly,
    invalid_error,
    not_found,
    note_begun,
    read_chat,
    read_request,
    refused,
    unsupported_error,
)
from perdure.gateway.openai._runs import Idempotency, RunFinder, RunStarter, is_settled
from perdure.gateway.streams import EventStream, result_before, until_disconnected
from perdure.sessions.wire import SessionInfo
from perdure.values.json import Json, JsonObject, dumps, loads

_ROLES: Final = {"message": "user", "reply": "assistant"}
"""Roles by the type of a transcript's entry."""
MOST: Final = 100


async def input_items(runs: Callable[[str], Run[object]], id: ResponseId, found: FoundRun) -> list[JsonObject]:
    """Return a response's input items in order, for a later leg the answers to its run. `runs`: a run by its path."""
    if id.leg == 1:
        return [{**_listed(item), "id": id.item("in", str(at))} for at, item in enumerate(found.record.items)]
    items: list[JsonObject] = []
    for ask in found.actions(id.leg - 1):
        before = ResponseId(id.key, id.run, id.leg - 1)
        about: JsonObject = {"id": id.item("in", ask.request_id)}
        if ask.approval:
            rejected = ask.decided is not None and ask.decided.decision == "reject"
            reason = ask.decided.reason if ask.decided is not None else ""
            about |= {"type": "mcp_approval_response", "approval_request_id": before.item("mcpr", ask.shown_id)}
            items.append(about | {"approve": not rejected, "reason": reason or None})
            continue
        value: Json = loads(await runs(ask.run).value(ask.call))
        result = value.get("result") if isinstance(value, dict) else None
        text = result if isinstance(result, str) else dumps(result)
        items.append(about | {"type": "function_call_output", "call_id": id.call(ask.request_id), "output": text})
    return items


def _listed(item: JsonObject) -> JsonObject:
    """Return a message with its content as parts, as OpenAI lists it."""
    if item.get("type") != "message" or not isinstance(item.get("content"), str):
        return item
    kind = "output_text" if item.get("role") == "assistant" else "input_text"
    return {**item, "status": "completed", "content": [{"type": kind, "text": item["content"]}]}


def page(items: list[JsonObject], query: Mapping[str, str]) -> JsonObject:
    """Return a page of a list: `order` (newest first by default), `after` an item, at most `limit`."""
    limit, order, after = query.get("limit", "20"), query.get("order", "desc"), query.get("after")
    if not limit.isdecimal() or not 1 <= int(limit[:6]) <= MOST:
        raise invalid_error("limit", f"a number from 1 to {MOST}")
    if order not in ("asc", "desc"):
        raise invalid_error("order", "'asc' or 'desc'")
    listed = items if order == "asc" else items[::-1]
    if after is not None:
        places = [at for at, item in enumerate(listed, 1) if item["id"] == after]
        if not places:
            raise invalid_error("after", "the id of an item of this list")
        listed = listed[places[0] :]
    shown = listed[: int(limit)]
    return _listed_page(shown, more=len(shown) < len(listed))


async def delete(perdure: Perdure, caller: Caller, id: ResponseId) -> None:
    """Delete a response with its session. Raises `HttpError` if the session has other responses."""
    if not id.run:
        raise refused(
            f"{id} cannot be deleted: the server keeps it as long as runs", "response_id", "unsupported_parameter"
        )
    session = perdure.session(id.key, tenant=caller.tenant)
    view = await session.show()
    runs = {entry["runId"] for entry in view.entries if entry.get("type") == "run"} | {view.run_id} - {None}
    if runs - {id.run_id(caller.tenant)} or view.queue or view.archived_through:
        raise refused(
            f"{id} is part of a conversation: delete the conversation conv_{id.key}", "response_id", "conflict"
        )
    await session.delete(sender=caller.sender, rights=caller.rights)


def conversation_object(about: SessionInfo) -> JsonObject:
    """Return a conversation, as OpenAI lists it."""
    created = int(datetime.fromisoformat(about.created_at).timestamp()) if about.created_at else 0
    metadata: JsonObject = {**about.metadata}
    return {"id": f"conv_{about.session}", "object": "conversation", "created_at": created, "metadata": metadata}


async def conversation(
    perdure: Perdure, caller: Caller, id: str, metadata: Mapping[str, str] | None = None
) -> JsonObject:
    """Return a conversation's object, after storing `metadata` if given. Raises `HttpError` (404) for an unknown conversation."""
    session = _session(perdure, caller, id)
    try:
        return conversation_object(await (session.about() if metadata is None else session.describe(metadata)))
    except RunNotFoundError:
        raise not_found(id[:200], "conversation") from None


async def conversations(perdure: Perdure, caller: Caller, asked: Mapping[str, str]) -> JsonObject:
    """Return a page of the tenant's conversations: at most `limit`, `after` the id of one.

    They are sorted by id: an order by time could change between two pages.
    """
    limit, after = asked.get("limit", "20"), asked.get("after", "")
    if not limit.isdecimal() or not 1 <= int(limit[:6]) <= MOST:
        raise invalid_error("limit", f"a number from 1 to {MOST}")
    async with aclosing(perdure.list_sessions(tenant=caller.tenant)) as sessions:
        ids = [f"conv_{each.session}" async for each in sessions]
    # A session of another adapter may have a key that no id can hold.
    behind = sorted(id for id in ids if id > after and conversation_key(id) is not None)
    data: list[JsonObject] = []
    for id in behind[: int(limit)]:
        with suppress(HttpError):  # it was deleted, and the list lags
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
    """Return the items of a conversation. Raises `HttpError` (404) for an unknown conversation."""
    try:
        return await _session(perdure, caller, id).read_entries()
    except RunNotFoundError:
        raise not_found(id[:200], "conversation") from None


def _session(perdure: Perdure, caller: Caller, id: str) -> Session:
    """Return the session of a conversation's id. Raises `HttpError` (404) for an invalid id."""
    if (key := conversation_key(id)) is None:
        raise not_found(id[:200], "conversation")
    return perdure.session(key, tenant=caller.tenant)


async def delete_conversation(perdure: Perdure, caller: Caller, conversation: str) -> None:
    """Delete a session and its runs."""
    session = _session(perdure, caller, conversation)
    try:
        await session.delete(sender=caller.sender, rights=caller.rights)
    except RunNotFoundError:
        raise not_found(conversation[:200], "conversation") from None


_CANCELLED_WITHIN: Final = 10.0
"""Seconds to wait for the end of a cancelled run, before the answer shows it as in progress."""


def openai_adapter(gateway: Gateway) -> Adapter:
    """Serve OpenAI's clients whose `base_url` is the gateway's address with `/v1`."""
    routes = Routes(gateway)
    return Adapter("openai", routes.routes(), problem=as_openai, below="/v1/")


class Routes:
    """The handlers of all addresses."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._finder = RunFinder(gateway.perdure)
        self._starter = RunStarter(gateway, self._finder)

    def routes(self) -> list[Route]:
        return [
            Route("/v1/models", self.models),
            Route("/v1/models/{model}", self.model),
            Route("/v1/responses", self.create, methods=["POST"]),
            Route("/v1/responses/{id}", self.retrieve),
            Route("/v1/responses/{id}", self.delete, methods=["DELETE"]),
            Route("/v1/responses/{id}/cancel", self.cancel, methods=["POST"]),
            Route("/v1/responses/{id}/input_items", self.input_items),
            Route("/v1/chat/completions", self.complete, methods=["POST"]),
            Route("/v1/chat/completions/{id}", self.completion),
            Route("/v1/conversations", self.new_conversation, methods=["POST"]),
            Route("/v1/conversations", self.conversations),
            Route("/v1/conversations/{id}", self.conversation),
            Route("/v1/conversations/{id}", self.update_conversation, methods=["POST"]),
            Route("/v1/conversations/{id}", self.delete_conversation, methods=["DELETE"]),
            Route("/v1/conversations/{id}/items", self.conversation_items),
        ]

    async def models(self, request: Request) -> Response:
        """Return the agents, as models."""
        caller_of(request).check(READ, "list agents")
        data = [_model(name) for name in self._gateway.agents.names()]
        return JSONResponse({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        caller_of(request).check(READ, "list agents")
        name = request.path_params["model"]
        if name not in self._gateway.agents.names():
            raise refused(f"The model {name!r} does not exist", "model", "model_not_found", status=404)
        return JSONResponse(_model(name))

    async def create(self, request: Request) -> Response:
        caller = permitted_caller(request, SEND, "start runs")
        body = await with_stored_files(self._gateway.perdure, await read_json(request), "input", caller.tenant)
        client_request = read_request(body)
        id, record, place = await self._begin(request, client_request, body)
        if client_request.stream:
            return self._stream(caller, id, record, place=place)
        if client_request.background:
            return JSONResponse(empty_response(id, record, id.run_id(caller.tenant), "queued"))
        found = await self._settled(request, caller, id)
        if found is None:
            return JSONResponse(empty_response(id, record, id.run_id(caller.tenant), "in_progress"))
        return JSONResponse(response_object(id, found))

    async def complete(self, request: Request) -> Response:
        caller = permitted_caller(request, SEND, "start runs")
        body = await with_stored_files(self._gateway.perdure, await read_json(request), "messages", caller.tenant)
        client_request = read_chat(body)
        id, record, place = await self._begin(request, client_request, body)
        if client_request.stream:
            frames = events.chunk_frames(self._finder, caller.tenant, id, record, with_usage=client_request.with_usage)

            def problem(error: HttpError) -> list[str]:
                return [events.failed_chunk(error, id), events.DONE]

            return EventStream(self._gateway, caller, frames, retry=False, place=place, problem=problem)
        found = await self._settled(request, caller, id)
        if found is None:
            raise ended_badly(f"the gateway is stopping; the run continues as {id.completion}", "still_running")
        return JSONResponse(completion_object(id, found))

    async def completion(self, request: Request) -> Response:
        """Return a stored completion, to any caller of its tenant."""
        caller = permitted_caller(request, READ, "read runs")
        name = request.path_params["id"]
        id = response_id(name, COMPLETION)
        found = None if id is None else await self._finder.find(caller.tenant, id)
        if id is None or found is None or not (found.record.stored and found.record.chat):
            raise not_found(name[:200], "completion")
        if not is_settled(found, id):
            raise refused(f"{name} is still running", "completion_id", "still_running")
        return JSONResponse(completion_object(id, found))

    async def retrieve(self, request: Request) -> Response:
        caller = permitted_caller(request, READ, "read runs")
        id = _id(request)
        found = await self._finder.stored(caller.tenant, id)
        if request.query_params.get("stream", "").lower() in ("true", "1"):
            return self._stream(caller, id, None if found is None else found.record, _after(request))
        if found is None:
            return JSONResponse(empty_response(id, Record(echo={}), id.run_id(caller.tenant), "queued"))
        return JSONResponse(response_object(id, found))

    async def cancel(self, request: Request) -> Response:
        """Cancel the run; the effects of its calls stay (R6.10)."""
        caller = caller_of(request)
        id = _id(request)
        found = await self._stored(caller, id)
        if found.record.sender != caller.sender or caller.may("stop"):
            caller.check("stop", "cancel other senders' runs")
        else:  # a sender may also have read-only tokens
            caller.check(SEND, "cancel responses")
        if not is_settled(found, id) or (found.view.status == "running" and id.leg == found.leg):
            with contextlib.suppress(TimeoutError):
                await self._finder.run(caller.tenant, id).cancel()
                async with asyncio.timeout(_CANCELLED_WITHIN):
                    found = await self._ended(caller, id)
        return JSONResponse(response_object(id, found))

    async def _ended(self, caller: Caller, id: ResponseId) -> FoundRun:
        await self._finder.run(caller.tenant, id).wait()
        return await self._stored(caller, id)

    async def delete(self, request: Request) -> Response:
        """Delete a response that is its whole conversation."""
        caller = permitted_caller(request, "delete", "delete responses")
        id = _id(request)
        await self._stored(caller, id)
        await delete(self._gateway.perdure, caller, id)
        return JSONResponse({"id": str(id), "object": "response", "deleted": True})

    async def input_items(self, request: Request) -> Response:
        caller = permitted_caller(request, READ, "read runs")
        id = _id(request)
        found = await self._stored(caller, id)
        items = await input_items(lambda path: self._finder.run(caller.tenant, id, path), id, found)
        return JSONResponse(page(items, request.query_params))

    async def new_conversation(self, request: Request) -> Response:
        """Create a session without a message: its first response's agent answers in it."""
        caller = permitted_caller(request, SEND, "start runs")
        body = RequestBody(await read_json(request))
        if body.list("items"):
            raise invalid_error("items", "left out: a conversation starts with its first response")
        session = self._gateway.perdure.session(new_key(), tenant=caller.tenant)
        return JSONResponse(conversation_object(await session.begin(body.metadata())))

    async def conversations(self, request: Request) -> Response:
        """List the tenant's conversations, sorted by id."""
        caller = permitted_caller(request, READ, "read conversations")
        return JSONResponse(await conversations(self._gateway.perdure, caller, request.query_params))

    async def conversation(self, request: Request) -> Response:
        """Return a conversation, also one without a message yet."""
        caller = permitted_caller(request, READ, "read conversations")
        return JSONResponse(await conversation(self._gateway.perdure, caller, request.path_params["id"]))

    async def update_conversation(self, request: Request) -> Response:
        """Replace the conversation's `metadata`, its only mutable part."""
        caller = permitted_caller(request, SEND, "change conversations")
        body = RequestBody(await read_json(request))
        for name in body.json.keys() - {"metadata"}:
            raise unsupported_error(name, "only a conversation's 'metadata' can change")
        id, given = request.path_params["id"], body.metadata() if body.get("metadata") is not None else None
        return JSONResponse(await conversation(self._gateway.perdure, caller, id, given))

    async def conversation_items(self, request: Request) -> Response:
        """List messages and answers of a conversation, page by page."""
        caller = permitted_caller(request, READ, "read conversations")
        items = await conversation_items(self._gateway.perdure, caller, request.path_params["id"])
        return JSONResponse(page(items, request.query_params))

    async def delete_conversation(self, request: Request) -> Response:
        caller = permitted_caller(request, "delete", "delete conversations")
        id = request.path_params["id"]
        await delete_conversation(self._gateway.perdure, caller, id)
        return JSONResponse({"id": id, "object": "conversation.deleted", "deleted": True})

    async def _begin(
        self, request: Request, client_request: ClientRequest, body: JsonObject
    ) -> tuple[ResponseId, Record, contextlib.ExitStack]:
        """Begin the run, and note it for `as_openai`. Return also the place of the request's stream."""
        caller = caller_of(request)
        owned = RequestKey.of(self._gateway, request, caller, body)
        with contextlib.ExitStack() as place:
            if client_request.stream:  # a stream too many begins no run
                place.enter_context(self._gateway.streams.one_of(caller))
            idempotency = None if owned is None else Idempotency.of(caller, owned)
            id, record = await self._starter.begin(caller, client_request, idempotency)
            note_begun(request, id.completion if client_request.chat else id)
            return id, record, place.pop_all()

    async def _stored(self, caller: Caller, id: ResponseId) -> FoundRun:
        found = await self._finder.stored(caller.tenant, id)
        if found is None:
            raise refused(f"{id} has not started", "response_id", "conflict")
        return found

    async def _settled(self, request: Request, caller: Caller, id: ResponseId) -> FoundRun | None:
        """Return the response once it has ended; `None` after a disconnect or at the gateway's end: the run continues."""
        return await result_before(
            self._finder.settled(caller.tenant, id),
            self._gateway.stopping.wait(),
            until_disconnected(request.receive),
        )

    def _stream(
        self,
        caller: Caller,
        id: ResponseId,
        record: Record | None,
        after: int = -1,
        place: contextlib.ExitStack | None = None,
    ) -> Response:
        stream = events.ResponseStream(self._finder, caller.tenant, id, record, after)

        def problem(error: HttpError) -> list[str]:
            return [stream.failed(error), events.DONE]

        return EventStream(self._gateway, caller, stream.frames(), retry=False, place=place, problem=problem)


def _id(request: Request) -> ResponseId:
    id = response_id(request.path_params["id"])
    if id is None:
        raise not_found(request.path_params["id"][:200])
    return id


def _after(request: Request) -> int:
    text = request.query_params.get("starting_after", "-1")
    if not text.removeprefix("-").isdecimal() or len(text) > 18:
        raise invalid_error("starting_after", "a sequence number")
    return int(text)


def _model(name: str) -> JsonObject:
    return {"id": name, "object": "model", "created": 0, "owned_by": "perdure"}
