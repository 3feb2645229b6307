"""`/livez` and `/readyz`: whether the gateway runs, and whether it is ready."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from perdure.errors import PerdureError
from perdure.gateway.adapter import Adapter, Gateway


def health(gateway: Gateway) -> Adapter:
    """Return the adapter of the two paths. Everybody may call them; the answer is one word."""

    async def live(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_: Request) -> Response:
        if gateway.stopping.is_set():
            return PlainTextResponse("draining\n", 503)
        try:
            await gateway.perdure.has_worker()
        except PerdureError:
            return PlainTextResponse("the server is lost\n", 503)
        return PlainTextResponse("ready\n")

    return Adapter("health", [Route("/livez", live), Route("/readyz", ready)], access="open")
