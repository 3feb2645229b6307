"""Conversations: the list of a tenant's sessions, and one of them, with the answer as it is written."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perdure.client.session import Session
from perdure.errors import JsonError, PerdureError, RunNotFoundError
from perdure.gateway.callers import Caller, caller_of
from perdure.gateway.door import Gateway
from perdure.gateway.problems import HttpError
from perdure.gateway.streams import EventStream
from perdure.pages.deciding import Find, decide, fields_of
from perdure.pages.forms import FormError
from perdure.pages.markdown import prepare_answers
from perdure.pages.site import Site, path
from perdure.pages.talk import MODE_WORDS, Talk, answers_of, last_entry, named, title_of
from perdure.sessions.wire import Done
from perdure.values.rules import MODES

RECEIPTS: Final[Mapping[Done, str]] = {
    "started": "Sent: the agent has begun to work on it",
    "steered": "Sent: the agent takes it into account in what it does now",
    "queued": "Sent: the agent answers it after what it does now",
    "collected": "Sent: the agent answers it together with the other messages that wait",
    "interrupted": "Sent: the agent has stopped what it did, and answers it",
    "stopped": "Stopped",
    "new": "A new conversation has begun; the state stays",
    "reset": "A new conversation has begun, with the state that the agent's file says",
}
"""What has become of a message, by its receipt."""
LISTED: Final = 100
"""Conversations on the page."""


class Conversations:
    """The pages below `/conversations`."""

    def __init__(self, gateway: Gateway, site: Site, find: Find) -> None:
        self._gateway = gateway
        self._site = site
        self._find = find

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/conversations", self._list),
            Route("/conversations", self._begin, methods=["POST"]),
            Route("/conversations/{key:path}", self._show),
            Route("/conversations/{key:path}", self._send, methods=["POST"]),
            Route("/decide/{key:path}", self._decide, methods=["POST"]),
            Route("/live/conversations/{key:path}", self._live),
        ]

    async def _list(self, request: Request) -> Response:
        caller = caller_of(request)
        caller.check("read", "look at conversations")
        page = request.query_params.get("page") or None
        found = await self._gateway.perdure.page_of_sessions(tenant=caller.tenant, size=LISTED, page=page)
        return self._site.page(
            request,
            "conversations.html",
            sessions=found.rows,
            more=urlencode({"page": found.following}) if found.following else "",
            agents=self._gateway.agents.names(),
            tenants=await self._site.tenants(request, self._gateway.perdure),
        )

    async def _begin(self, request: Request) -> Response:
        """A first message, to a new key or to one that is there."""
        caller = caller_of(request)
        caller.check("send", "begin conversations")
        form = await self._site.form(request)
        key = form.get("key", "").strip() or f"{form.get('agent', '')}-{uuid.uuid4().hex[:8]}"
        session = self._gateway.session(caller, key, form.get("agent", ""))
        await session.send(form.get("text", ""), sender=caller.sender, rights=caller.rights, id=form.get("id") or None)
        return self._site.go_to(request, f"/conversations/{path(key)}")

    async def _show(self, request: Request, **more: Any) -> Response:
        caller = caller_of(request)
        caller.check("read", "look at conversations")
        session = self._session(caller, request)
        view = await session.show()
        talk = Talk(session, self._site, caller, self._site.csrf(request))
        offers = await talk.offers(view)
        await prepare_answers(answers_of(view))
        return self._site.page(
            request,
            "conversation.html",
            **{
                "key": session.key,
                "title": title_of(view) or session.key,
                "view": view,
                "last": last_entry(view),
                "offers": offers,
                "modes": MODE_WORDS,
                "said": self._site.said_of(request),
                "live": urlencode({"after": last_entry(view), "offered": named(offers)}),
                "message_id": uuid.uuid4().hex,
                "typed": {},
                "problem": "",
                "fields_of": fields_of,
                **more,
            },
        )

    async def _live(self, request: Request) -> Response:
        """What happens, as parts of the page."""
        caller = caller_of(request)
        caller.check("read", "look at conversations")
        session = self._session(caller, request)
        await session.show()  # there has to be one, of this tenant
        after = request.query_params.get("after", "")
        if not after.isdecimal() or len(after) > 12:
            raise HttpError(400, "after: the number of the last entry that the page shows")
        talk = Talk(session, self._site, caller, self._site.csrf(request))
        frames: AsyncGenerator[str, None] = talk.frames(
            int(after), request.query_params.get("offered", ""), request.headers.get("last-event-id")
        )
        return self._site.guards.finish(request, EventStream(self._gateway, caller, frames))

    async def _send(self, request: Request) -> Response:
        caller = caller_of(request)
        caller.check("send", "say something")
        form = await self._site.form(request)
        session = self._session(caller, request)
        mode: Any = form.get("mode") or None
        if mode is not None and mode not in MODES:
            raise HttpError(422, f"mode is one of {', '.join(MODES)}")
        text = form.get("command") or form.get("text", "")
        try:
            receipt = await session.send(
                text, sender=caller.sender, rights=caller.rights, id=form.get("id") or None, mode=mode
            )
        except RunNotFoundError:
            raise
        except PerdureError as error:
            return await self._refused(request, str(error), form)
        said = RECEIPTS[receipt.done] + (f": {receipt.why}" if receipt.why else "")
        if request.headers.get("hx-request"):
            return self._composer(request, session.key, said=said)
        return self._site.go_to(request, f"/conversations/{path(session.key)}?{self._site.said(request, said)}#end")

    async def _refused(self, request: Request, problem: str, form: dict[str, str]) -> Response:
        if request.headers.get("hx-request"):
            return self._composer(request, self._key(request), typed=form, problem=problem, message_id=form.get("id"))
        return await self._show(request, typed=form, problem=problem)

    def _composer(self, request: Request, key: str, **more: Any) -> Response:
        given = {"typed": {}, "problem": "", "said": "", "message_id": None} | more
        given["message_id"] = given["message_id"] or uuid.uuid4().hex
        caller = caller_of(request)
        csrf = self._site.csrf(request)
        return self._site.fragment(
            request, "composer.html", key=key, modes=MODE_WORDS, csrf=csrf, caller=caller, **given
        )

    async def _decide(self, request: Request) -> Response:
        caller = caller_of(request)
        caller.check("approve", "decide what waits")
        form = await self._site.form(request)
        key = self._key(request)
        try:
            run = await self._find(caller, form.get("run", ""))
            said = await decide(run, form, by=caller.sender)
        except (PerdureError, FormError, JsonError) as error:
            if request.headers.get("hx-request"):
                raise HttpError(422, str(error)) from None
            return await self._show(request, problem=str(error))
        if request.headers.get("hx-request"):
            return self._site.fragment(request, "said.html", said=said)
        return self._site.go_to(request, f"/conversations/{path(key)}?{self._site.said(request, said)}#end")

    def _key(self, request: Request) -> str:
        return str(request.path_params["key"])

    def _session(self, caller: Caller, request: Request) -> Session:
        return self._gateway.session(caller, self._key(request))
