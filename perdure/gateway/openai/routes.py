"""The door's routes: responses, chat completions, models and conversations."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from perdure.gateway.bounds import read_json
from perdure.gateway.callers import READ, SEND, Caller, caller_of
from perdure.gateway.door import Door, Gateway
from perdure.gateway.keys import Key
from perdure.gateway.openai import listing, streaming
from perdure.gateway.openai.answers import Found, empty_response, response_object
from perdure.gateway.openai.completions import completion_object
from perdure.gateway.openai.documents import Record
from perdure.gateway.openai.errors import after_start, as_openai, ended_badly, invalid, not_found, refused, unsupported
from perdure.gateway.openai.following import Finder, is_settled
from perdure.gateway.openai.ids import COMPLETION, ResponseId, new_key, response_id
from perdure.gateway.openai.reading.bodies import Body
from perdure.gateway.openai.reading.chats import read_chat
from perdure.gateway.openai.reading.requests import read_request
from perdure.gateway.openai.responses import Idempotency, Starter
from perdure.gateway.streams import EventStream
from perdure.values.jsons import JsonObject

_CANCELLED_WITHIN: Final = 10.0
"""Seconds that a run has to end after it was told to, before the answer is that it is still under way."""


def openai_door(gateway: Gateway) -> Door:
    """OpenAI's clients with this address as `base_url`, and `/v1` behind it."""
    doors = Routes(gateway)
    return Door("openai", doors.routes(), problem=as_openai, below="/v1/")


class Routes:
    """What each address does."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._finder = Finder(gateway.perdure)
        self._starter = Starter(gateway, self._finder)

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
        """The agents, as models."""
        caller_of(request).check(READ, "look at agents")
        data = [_model(name) for name in self._gateway.agents.names()]
        return JSONResponse({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        caller_of(request).check(READ, "look at agents")
        name = request.path_params["model"]
        if name not in self._gateway.agents.names():
            raise refused(f"The model {name!r} does not exist", "model", "model_not_found", status=404)
        return JSONResponse(_model(name))

    async def create(self, request: Request) -> Response:
        caller = caller_of(request)
        caller.check(SEND, "start runs")
        asked = read_request(body := await read_json(request))
        id, record = await self._starter.begin(caller, asked, self._idempotency(request, caller, body))
        if asked.stream:
            return self._stream(caller, id, record)
        if asked.background:
            return JSONResponse(empty_response(id, record, id.run_id(caller.tenant), "queued"))
        try:
            found = await self._settled(request, caller, id)
        except Exception as error:
            raise after_start(error, id) from None
        if found is None:
            return JSONResponse(empty_response(id, record, id.run_id(caller.tenant), "in_progress"))
        return JSONResponse(response_object(id, found))

    async def complete(self, request: Request) -> Response:
        caller = caller_of(request)
        caller.check(SEND, "start runs")
        asked = read_chat(body := await read_json(request))
        id, record = await self._starter.begin(caller, asked, self._idempotency(request, caller, body))
        if asked.stream:
            frames = streaming.chunk_frames(self._finder, caller.tenant, id, record, with_usage=asked.with_usage)
            return EventStream(self._gateway, caller, frames, retry=False)
        try:
            found = await self._settled(request, caller, id)
        except Exception as error:
            raise after_start(error, id.completion) from None
        if found is None:
            raise ended_badly(f"the gateway ends; the run goes on as {id.completion}", "still_running")
        return JSONResponse(completion_object(id, found))

    async def completion(self, request: Request) -> Response:
        """One that was stored, by whoever has the tenant."""
        caller = caller_of(request)
        caller.check(READ, "look at runs")
        name = request.path_params["id"]
        id = response_id(name, COMPLETION)
        found = None if id is None else await self._finder.find(caller.tenant, id)
        if id is None or found is None or not (found.record.stored and found.record.chat):
            raise not_found(name[:200], "completion")
        if not is_settled(found, id):
            raise refused(f"{name} is still under way", "completion_id", "still_running")
        return JSONResponse(completion_object(id, found))

    async def retrieve(self, request: Request) -> Response:
        caller = caller_of(request)
        caller.check(READ, "look at runs")
        id = _id(request)
        found = await self._finder.stored(caller.tenant, id)
        if request.query_params.get("stream", "").lower() in ("true", "1"):
            return self._stream(caller, id, None if found is None else found.record, _after(request))
        if found is None:
            return JSONResponse(empty_response(id, Record(echo={}), id.run_id(caller.tenant), "queued"))
        return JSONResponse(response_object(id, found))

    async def cancel(self, request: Request) -> Response:
        """The run is told to end; what it has done stays done (R6.10)."""
        caller = caller_of(request)
        id = _id(request)
        found = await self._stored(caller, id)
        if found.record.sender != caller.sender:
            caller.check("stop", "cancel what others have started")
        elif not caller.may("stop"):  # a sender may have tokens that only read
            caller.check(SEND, "cancel responses")
        if not is_settled(found, id) or (found.view.status == "running" and id.leg == found.leg):
            with contextlib.suppress(TimeoutError):
                await self._finder.run(caller.tenant, id).cancel()
                async with asyncio.timeout(_CANCELLED_WITHIN):
                    found = await self._ended(caller, id)
        return JSONResponse(response_object(id, found))

    async def _ended(self, caller: Caller, id: ResponseId) -> Found:
        await self._finder.run(caller.tenant, id).wait()
        return await self._stored(caller, id)

    async def delete(self, request: Request) -> Response:
        """Of a response that is all of its conversation."""
        caller = caller_of(request)
        caller.check("delete", "delete responses")
        id = _id(request)
        await self._stored(caller, id)
        await listing.delete(self._gateway.perdure, caller, id)
        return JSONResponse({"id": str(id), "object": "response", "deleted": True})

    async def input_items(self, request: Request) -> Response:
        caller = caller_of(request)
        caller.check(READ, "look at runs")
        id = _id(request)
        found = await self._stored(caller, id)
        items = await listing.input_items(lambda path: self._finder.run(caller.tenant, id, path), id, found)
        return JSONResponse(listing.page(items, request.query_params))

    async def new_conversation(self, request: Request) -> Response:
        """A session in which nothing was said yet: the agent of its first response answers in it."""
        caller = caller_of(request)
        caller.check(SEND, "start runs")
        body = Body(await read_json(request))
        if body.list("items"):
            raise invalid("items", "left out: a conversation begins with its first response")
        session = self._gateway.perdure.session(new_key(), tenant=caller.tenant)
        return JSONResponse(listing.conversation_object(await session.begin(body.metadata())))

    async def conversations(self, request: Request) -> Response:
        """Those of the tenant, the last that did something first."""
        caller = caller_of(request)
        caller.check(READ, "look at conversations")
        return JSONResponse(await listing.conversations(self._gateway.perdure, caller, request.query_params))

    async def conversation(self, request: Request) -> Response:
        """A conversation, also one in which nothing was said yet."""
        caller = caller_of(request)
        caller.check(READ, "look at conversations")
        return JSONResponse(await listing.conversation(self._gateway.perdure, caller, request.path_params["id"]))

    async def update_conversation(self, request: Request) -> Response:
        """Its `metadata` take the place of those it had; nothing else of it can be changed."""
        caller = caller_of(request)
        caller.check(SEND, "change conversations")
        body = Body(await read_json(request))
        for name in body.json.keys() - {"metadata"}:
            raise unsupported(name, "of a conversation 'metadata' can be changed")
        id, given = request.path_params["id"], body.metadata() if body.get("metadata") is not None else None
        return JSONResponse(await listing.conversation(self._gateway.perdure, caller, id, given))

    async def conversation_items(self, request: Request) -> Response:
        """What was said and answered, page by page."""
        caller = caller_of(request)
        caller.check(READ, "look at conversations")
        items = await listing.conversation_items(self._gateway.perdure, caller, request.path_params["id"])
        return JSONResponse(listing.page(items, request.query_params))

    async def delete_conversation(self, request: Request) -> Response:
        caller = caller_of(request)
        caller.check("delete", "delete conversations")
        id = request.path_params["id"]
        await listing.delete_conversation(self._gateway.perdure, caller, id)
        return JSONResponse({"id": id, "object": "conversation.deleted", "deleted": True})

    def _idempotency(self, request: Request, caller: Caller, body: JsonObject) -> Idempotency | None:
        owned = Key.of(self._gateway, request, caller, body)
        return None if owned is None else Idempotency.of(caller, owned)

    async def _stored(self, caller: Caller, id: ResponseId) -> Found:
        found = await self._finder.stored(caller.tenant, id)
        if found is None:
            raise refused(f"{id} has not begun", "response_id", "conflict")
        return found

    async def _settled(self, request: Request, caller: Caller, id: ResponseId) -> Found | None:
        """The response once it has ended; `None`: whoever asked has gone, or the gateway is about to end, and the run goes on."""
        waits = asyncio.ensure_future(self._finder.settled(caller.tenant, id))
        others: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._gateway.stopping.wait()),
            asyncio.ensure_future(_gone(request)),
        ]
        try:
            await asyncio.wait([waits, *others], return_when=asyncio.FIRST_COMPLETED)
            return await waits if waits.done() else None
        finally:
            for each in (waits, *others):
                each.cancel()
            await asyncio.gather(waits, *others, return_exceptions=True)

    def _stream(self, caller: Caller, id: ResponseId, record: Record | None, after: int = -1) -> Response:
        frames: AsyncGenerator[str, None] = streaming.response_frames(self._finder, caller.tenant, id, record, after)
        return EventStream(self._gateway, caller, frames, retry=False)


def _id(request: Request) -> ResponseId:
    id = response_id(request.path_params["id"])
    if id is None:
        raise not_found(request.path_params["id"][:200])
    return id


def _after(request: Request) -> int:
    text = request.query_params.get("starting_after", "-1")
    if not text.removeprefix("-").isdecimal() or len(text) > 18:
        raise invalid("starting_after", "a sequence number")
    return int(text)


def _model(name: str) -> JsonObject:
    return {"id": name, "object": "model", "created": 0, "owned_by": "perdure"}


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
