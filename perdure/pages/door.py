"""The pages as a door of the gateway."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.responses import Response
from starlette.routing import Mount

from perdure.gateway.callers import Caller
from perdure.gateway.door import Door, Gateway
from perdure.gateway.streams import EventStream
from perdure.pages.app import Inbox


def pages(gateway: Gateway) -> Door:
    """The inbox, under `/inbox/`: where tokens have tenants, of one's own. It asks itself who looks: a browser is shown a page to sign in on."""

    def streamed(caller: Caller, events: AsyncGenerator[str, None]) -> Response:
        return EventStream(gateway, caller, events)

    tenants = gateway.settings.gateway_tokens is not None
    inbox = Inbox(gateway.perdure, guards=gateway.guards, streamed=streamed, tenants=tenants)
    return Door("pages", [Mount("/inbox", inbox.app)], access="open")
