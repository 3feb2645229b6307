"""The HTTP API as a door of the gateway."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure.gateway.api.agents import AGENTS
from perdure.gateway.api.events import EVENTS
from perdure.gateway.api.openapi import document
from perdure.gateway.api.operations import Operation, answered
from perdure.gateway.api.runs import RUNS
from perdure.gateway.api.sessions import SESSIONS
from perdure.gateway.door import Door, Gateway

OPERATIONS: Final[tuple[Operation, ...]] = (*AGENTS, *EVENTS, *RUNS, *SESSIONS)


def api(gateway: Gateway) -> Door:
    """Under `/v1/`, with its document at `/v1/openapi.json`."""

    async def described(request: Request) -> Response:
        others: Iterable[Door] = request.app.state.doors
        return answered(document(OPERATIONS, others))

    routes = [Route("/v1/openapi.json", described), *(each.route(gateway) for each in OPERATIONS)]
    return Door("api", routes)
