"""The pages as adapters of the gateway."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route

from perdure.client.run import Run
from perdure.gateway.adapter import Adapter, Gateway
from perdure.gateway.callers import Caller
from perdure.gateway.streams import EventStream
from perdure.pages._conversations import Conversations
from perdure.pages._costs import CostsPage
from perdure.pages._files import FilePages
from perdure.pages._inbox import Inbox
from perdure.pages._oidc import oidc_routes
from perdure.pages._runs import RunPages
from perdure.pages._schedules import SchedulesPage
from perdure.pages._site import STATIC, Site
from perdure.pages._standing import StandingPage


def pages(gateway: Gateway) -> Adapter:
    """Serve conversations, runs, schedules, the inbox, standing approvals and costs, for the signed-in person."""
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
        *RunPages(gateway, site, find).routes(),
        *Inbox(gateway.perdure, site, find, streamed=streamed).routes("/inbox"),
        *StandingPage(gateway, site).routes(),
        *SchedulesPage(gateway, site).routes(),
        *CostsPage(gateway, site).routes(),
        *FilePages(gateway, site).routes(),
        Route("/tenant", site.choose_tenant, methods=["POST"]),
    ]
    return Adapter("pages", routes, access="page", problem=site.problem)


def sign_in(gateway: Gateway) -> Adapter:
    """Return the adapter for browsers before sign-in: the sign-in form, the sign-in by a provider, and the pages' styles."""
    site, settings = _site(gateway), gateway.settings
    provided = oidc_routes(site, settings.gateway_oidc, settings.pages_url)
    routes = [*site.sign_in_routes(), *provided, Mount("/static", STATIC)]
    return Adapter("sign-in", routes, access="open", problem=site.problem)


def _site(gateway: Gateway) -> Site:
    settings = gateway.settings
    provider = settings.gateway_oidc and settings.gateway_oidc.name
    takes_tokens = settings.gateway_tokens is not None or settings.gateway_token is not None
    return Site(
        gateway.guards,
        gateway.perdure.client.namespace,
        web_ui=settings.web_ui,
        provider=provider or "",
        takes_tokens=takes_tokens or not provider,
        takes_files=gateway.perdure.stores_media,
    )
