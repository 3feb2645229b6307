"""The pages as doors of the gateway: what one sees after signing in, and what it takes to sign in."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route

from perdure.client.run import Run
from perdure.gateway.callers import Caller
from perdure.gateway.door import Door, Gateway
from perdure.gateway.streams import EventStream
from perdure.pages.conversations import Conversations
from perdure.pages.costs import Costs
from perdure.pages.inbox import Inbox
from perdure.pages.runs import Runs
from perdure.pages.signing_in import signing_in
from perdure.pages.site import STATIC, Site


def pages(gateway: Gateway) -> Door:
    """Conversations, runs, the inbox and costs, each of whoever has signed in."""
    site = _site(gateway)

    async def find(caller: Caller, run_id: str) -> Run:
        return await gateway.own_run(caller, run_id)

    def streamed(caller: Caller, events: AsyncGenerator[str, None]) -> Response:
        return EventStream(gateway, caller, events)

    async def home(_: Request) -> Response:
        return RedirectResponse("/conversations", 303)

    routes = [
        Route("/", home),
        Route("/inbox", lambda _: RedirectResponse("/inbox/", 308)),
        *Conversations(gateway, site, find).routes(),
        *Runs(gateway, site, find).routes(),
        *Inbox(gateway.perdure, site, find, streamed=streamed).routes("/inbox"),
        *Costs(gateway, site).routes(),
        Route("/tenant", site.choose_tenant, methods=["POST"]),
    ]
    return Door("pages", routes, access="page", problem=site.problem)


def sign_in(gateway: Gateway) -> Door:
    """What is there for whoever has shown no token yet: the form for it, and what pages look like."""
    site = _site(gateway)
    return Door("sign-in", [*signing_in(site), Mount("/static", STATIC)], access="open", problem=site.problem)


def _site(gateway: Gateway) -> Site:
    return Site(gateway.guards, gateway.perdure.client.namespace, web_ui=gateway.settings.web_ui)
