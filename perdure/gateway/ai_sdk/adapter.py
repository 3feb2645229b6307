"""The routes of `useChat`, in the gateway and for an application's own routes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from perdure.agents.agent import Agent
from perdure.client.perdure import Perdure
from perdure.client.run import Run
from perdure.client.run_tree import RunTreeReader
from perdure.client.session import Session
from perdure.errors import PerdureError, RunNotFoundError, clip
from perdure.gateway._idempotency import RequestKey
from perdure.gateway.adapter import Adapter, Gateway
from perdure.gateway.ai_sdk._events import UiMessageEvents, as_frame, error_chunk
from perdure.gateway.ai_sdk._requests import PageChatRequest, read
from perdure.gateway.answers import AnswerStream, Delivery, FindRun, deliver
from perdure.gateway.bounds import read_json
from perdure.gateway.callers import APPROVE, READ, SEND, Caller, caller_of
from perdure.gateway.errors import HttpError, as_problem_json, log_problem
from perdure.gateway.files import with_stored_files
from perdure.gateway.streams import EventStream, yield_frames
from perdure.runs.caller_context import read_context
from perdure.values.json import JsonObject

HEADERS: Final = {"x-vercel-ai-ui-message-stream": "v1"}


def ai_sdk_adapter(gateway: Gateway) -> Adapter:
    """Return the adapter that lets each agent answer in the chats of `useChat`."""

    trees = RunTreeReader()

    async def answer(request: Request) -> Response:
        caller = caller_of(request)
        body = await with_stored_files(gateway.perdure, await read_json(request), "messages", caller.tenant)
        agent = gateway.agents.get(request.path_params["agent"])
        chat_request = read(body)
        source = gateway.client_source(caller, agent)
        chats = _Chats(gateway.perdure, caller, trees, lambda id: gateway.own_run(caller, id))
        frames = await chats.answer(chat_request, agent, source, RequestKey.of(gateway, request, caller, body))
        return EventStream(gateway, caller, frames, HEADERS, retry=False, problem=_problem)

    async def resume(request: Request) -> Response:
        caller = caller_of(request)
        gateway.agents.get(request.path_params["agent"])
        frames = await _Chats(gateway.perdure, caller, trees).resume(request.path_params["chat"])
        if frames is None:
            return Response(status_code=204)
        return EventStream(gateway, caller, frames, HEADERS, retry=False, problem=_problem)

    routes = [
        Route("/ai-sdk/{agent}", answer, methods=["POST"]),
        Route("/ai-sdk/{agent}/{chat}/stream", resume, methods=["GET"]),
    ]
    return Adapter("ai-sdk", routes)


def _problem(problem: HttpError) -> list[str]:
    return [as_frame(error_chunk(problem))]


@dataclass(frozen=True)
class _Chats:
    """The chats of one caller."""

    perdure: Perdure
    caller: Caller
    trees: RunTreeReader = field(default_factory=RunTreeReader)
    find_run: FindRun | None = None
    """By default the API's runs."""

    async def answer(
        self, chat_request: PageChatRequest, agent: Agent[Any], source: str, key: RequestKey | None = None
    ) -> AsyncGenerator[str, None]:
        """Send the message and the decisions, and return the frames of the answer. Raises before the first frame.

        `source`: see `Gateway.client_source`.
        """
        caller = self.caller
        session = self.perdure.session(chat_request.chat, tenant=caller.tenant, agent=agent)
        settings = chat_request.settings((session.agent or agent).document(), source)
        if chat_request.message is not None or not caller.may(APPROVE):
            caller.check(SEND, "send messages to chats")
        message, answers = chat_request.message, chat_request.answers
        delivery = await deliver(
            session, caller, self._own_run, message=message, answers=answers, settings=settings, key=key
        )
        if delivery.run_id is None:  # a command
            return yield_frames(*map(as_frame, UiMessageEvents(chat_request).done()))
        run = delivery.run_id.rpartition("/")[2]
        events = UiMessageEvents(chat_request, run, delivery.run_id, delivery.before)
        return self._stream(session, events, delivery)

    async def resume(self, chat: str) -> AsyncGenerator[str, None] | None:
        """Return the frames of the active answer, from its beginning; `None` without an active run in the chat."""
        self.caller.check(READ, "watch a chat's run")
        session = self.perdure.session(chat, tenant=self.caller.tenant)
        try:
            running = await session.run()
        except RunNotFoundError:
            return None
        if running is None:
            return None
        nothing = PageChatRequest(chat, ("", ""), [], [], [])
        events = UiMessageEvents(nothing, running.id.rpartition("/")[2], running.id)
        return self._stream(session, events, Delivery(running.id))

    async def _own_run(self, id: str) -> Run[Any]:
        if self.find_run is not None:
            return await self.find_run(id)
        return await self.perdure.find_run(id, tenant=self.caller.tenant)

    def _stream(self, session: Session, events: UiMessageEvents, delivery: Delivery) -> AsyncGenerator[str, None]:
        assert delivery.run_id is not None
        run, may_decide = self.perdure.get_run(delivery.run_id), self.caller.may(APPROVE)
        return AnswerStream(
            run, session, self.trees, events, as_frame, may_decide, delivery.late, delivery.receipt
        ).frames()


async def chat_response(
    perdure: Perdure,
    agent: Agent[Any],
    body: JsonObject,
    *,
    sender: str,
    tenant: str = "",
    context: object = None,
    rights: Iterable[str] = (READ, SEND, APPROVE),
    roles: Iterable[str] = (),
    key: str | None = None,
) -> Response:
    """Return the response of an application's own route to a request of `useChat`.

    `body`: the request's JSON. `sender`, `tenant` and `context`: the user, verified by your application; they are never
    taken from the body. `rights`: the user's rights; without `approve`, a stream continues once somebody else has
    decided. `roles`: the user's roles, for quorums. `key`: the session's key (default: the sender and the chat's id, so
    that nobody reads another's chat). An error is a response with its status.

        @app.post("/api/chat")
        async def chat(request: Request, who: Annotated[Customer, Depends(signed_in)]) -> Response:
            return await chat_response(perdure, desk, await request.json(), sender=who.name, context=who)
    """
    try:
        caller = replace(_caller(sender, tenant, rights, roles), context=read_context(context))
        if not isinstance(body, dict):
            raise HttpError(422, "the body must be a JSON object")
        chat_request = read(await with_stored_files(perdure, body, "messages", caller.tenant))
        chat_request = replace(chat_request, chat=_own_key(sender, chat_request.chat) if key is None else key)
        frames = await _Chats(perdure, caller).answer(chat_request, agent, "")
    except (HttpError, PerdureError) as error:
        return _refusal(error)
    return StreamingResponse(frames, headers=HEADERS, media_type="text/event-stream")


async def resume_response(
    perdure: Perdure,
    chat: str,
    *,
    sender: str,
    tenant: str = "",
    rights: Iterable[str] = (READ, SEND, APPROVE),
    key: str | None = None,
) -> Response:
    """Return the response of an application's own route to `useChat({resume: true})`: the active answer, or 204.

    `rights`, `key`: as in `chat_response`.

    @app.get("/api/chat/{id}/stream")
    async def resume(id: str, who: Annotated[Customer, Depends(signed_in)]) -> Response:
        return await resume_response(perdure, id, sender=who.name)
    """
    try:
        frames = await _Chats(perdure, _caller(sender, tenant, rights)).resume(
            _own_key(sender, chat) if key is None else key
        )
    except (HttpError, PerdureError) as error:
        return _refusal(error)
    if frames is None:
        return Response(status_code=204)
    return StreamingResponse(frames, headers=HEADERS, media_type="text/event-stream")


def _own_key(sender: str, chat: str) -> str:
    if "/" in chat:  # it could be the chat of a sender whose name has a slash
        raise HttpError(
            422, f"the chat's id {clip(chat, 60)!r} has a slash: use another id, or name the session with key="
        )
    return f"{sender}/{chat}"


def _caller(sender: str, tenant: str, rights: Iterable[str], roles: Iterable[str] = ()) -> Caller:
    return Caller(tenant, sender, frozenset(rights), "", frozenset(roles))


def _refusal(error: Exception) -> Response:
    return as_problem_json(log_problem(error))
