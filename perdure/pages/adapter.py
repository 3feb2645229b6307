"""The pages as adapters of the gateway; and the servers of `perdure inbox` and `perdure codec-server`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route

from perdure.client.perdure import Perdure
from perdure.client.run import Run
from perdure.errors import SettingsError
from perdure.gateway.adapter import Adapter, Gateway
from perdure.gateway.callers import Caller, check_token
from perdure.gateway.guards import Guards, is_loopback
from perdure.gateway.http_server import serve_app
from perdure.hosting.codec import CODEC
from perdure.hosting.connection import data_converter
from perdure.hosting.process import until_interrupted
from perdure.pages._codec import CodecServer
from perdure.pages._conversations import Conversations
from perdure.pages._inbox import Inbox, inbox_app
from perdure.pages._oidc import oidc_routes
from perdure.pages._runs import RunPages
from perdure.pages._site import STATIC, Site
from perdure.pages._tenant_pages import CostsPage, FilePages, SchedulesPage, StandingPage


def pages(gateway: Gateway) -> Adapter:
    """Serve conversations, runs, schedules, the inbox, standing approvals and costs, for the signed-in person."""
    site = _site(gateway)

    async def find(caller: Caller, run_id: str) -> Run:
        return await gateway.own_run(caller, run_id)

    async def home(_: Request) -> Response:
        return RedirectResponse("/conversations", 303)

    routes = [
        Route("/", home),
        Route("/inbox", lambda _: RedirectResponse("/inbox/", 308)),
        *Conversations(gateway, site, find).routes(),
        *RunPages(gateway, site, find).routes(),
        *Inbox(gateway.perdure, site, find, gateway).routes("/inbox"),
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


async def serve_inbox(*, host: str, port: int, token: str | None) -> None:
    """Serve until interrupted. Raises `SettingsError` for an empty token, a taken port, or an address that others reach without a token."""
    if token is None and not is_loopback(host):
        raise SettingsError(
            f"other machines can reach {host}: require a token, with --token TEXT or PERDURE_INBOX_TOKEN"
        )
    check_token(token)  # before a server is needed
    async with serve_app(inbox_app(await Perdure.connect(), Guards(token)), "inbox", host, port):
        await until_interrupted()


async def serve_codec(*, host: str, port: int, token: str, origin: str) -> None:
    """Serve until interrupted. Raises `SettingsError` without a codec, a token or an origin, or when the port is taken."""
    converter = data_converter()
    if converter.payload_codec is None and converter.external_storage is None:
        raise SettingsError(f"no codec is set: set {CODEC}, as for the workers")
    async with serve_app(CodecServer(converter, token, origin).app, "codec server", host, port):
        await until_interrupted()
