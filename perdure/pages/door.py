"""The pages as a door of the gateway."""

from __future__ import annotations

from starlette.routing import Mount

from perdure.gateway.door import Door, Gateway
from perdure.pages.app import Inbox


def pages(gateway: Gateway) -> Door:
    """The inbox, under `/inbox/`. Its own guards ask who looks: a browser is shown a page to sign in on."""
    if (
        gateway.settings.gateway_tokens is not None
    ):  # it shows the whole namespace, and a token's tenant may not see that
        return Door("pages", [], access="open")
    return Door("pages", [Mount("/inbox", Inbox(gateway.perdure, guards=gateway.guards).app)], access="open")
