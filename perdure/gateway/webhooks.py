"""`POST /v1/triggers/NAME`: signed webhooks of other systems start runs and send messages (R19.7)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure.agents.agent import Agent
from perdure.client.tenancy import IdempotentStart
from perdure.errors import RunError, SettingsError
from perdure.gateway.adapter import Adapter, AdapterMaker, Agents, Gateway
from perdure.gateway.bounds import LARGE, read_json
from perdure.gateway.callers import Caller
from perdure.gateway.errors import HttpError
from perdure.gateway.triggers import (
    Mapped,
    MappingError,
    Trigger,
    agent_place,
    delivery_id,
    event_of,
    is_wanted,
    map_delivery,
    parse_triggers,
    place_faults,
    read_triggers,
    verify,
)
from perdure.sessions.wire import digest
from perdure.values.json import JsonObject, dumps

Declared: TypeAlias = Mapping[str, Trigger | Mapping[str, Any]] | Path | str
"""Triggers by name, or their file."""
_REFUSED: Final = (
    "the delivery is rejected: the trigger's name is unknown, or its signature is wrong or older than five minutes"
)
_NOBODY: Final = Trigger(scheme="github", secret="env:-", agent="-")  # noqa: S106  # the place of a secret, not a secret
"""Replaces an unknown trigger: a delivery is verified without a valid secret, and so takes the same time."""
_PING: Final = "ping"
"""GitHub's first delivery to a new webhook. It is no event of the repository."""


def triggers_adapter(gateway: Gateway) -> Adapter:
    """Serve the triggers of the file that the settings name."""
    path = gateway.settings.gateway_triggers
    return Adapter("triggers", []) if path is None else trigger_adapter(path)(gateway)


def trigger_adapter(declared: Declared) -> AdapterMaker:
    """Return the adapter of these triggers, for `create_app`. It raises `SettingsError` for an invalid trigger.

    create_app(perdure, settings, [api, trigger_adapter({"issues": Trigger(scheme="github", …)})])
    """

    def make(gateway: Gateway) -> Adapter:
        found = read_triggers(Path(declared)) if isinstance(declared, Path | str) else parse_triggers(declared)
        deliveries = {name: _Deliveries(gateway, name, each) for name, each in found.items()}
        nobody = _Deliveries(gateway, "", _NOBODY)

        async def receive(request: Request) -> Response:
            return await deliveries.get(request.path_params["trigger"], nobody).receive(request)

        route = Route("/v1/triggers/{trigger}", receive, methods=["POST"])
        return Adapter("triggers", [route], access="signed", paths=_PATHS)

    return make


class _Deliveries:
    """The deliveries of one trigger. Raises `SettingsError` if its agent or one of its secrets is missing."""

    def __init__(self, gateway: Gateway, name: str, trigger: Trigger) -> None:
        self._gateway, self._name, self._trigger = gateway, name, trigger
        self._agents, self._agent = Agents(Path()), ""
        self._secrets: list[str] = []
        if not name:
            return
        agents = gateway.settings.agents_folder
        if fault := next(iter(place_faults(name, trigger, agents)), None):
            raise SettingsError(f"triggers: {fault}")
        folder, self._agent = agent_place(trigger, agents)
        self._agents = gateway.agents if folder == agents else Agents(folder)
        self._secrets = trigger.secrets()

    @property
    def _sender(self) -> str:
        return self._trigger.sender or self._name

    async def receive(self, request: Request) -> Response:
        """Verify a delivery, and start its run or send its message. Raises `HttpError` for its sender."""
        trigger = self._trigger
        headers = {name.lower(): value for name, value in request.headers.items()}
        raw = await request.body()
        given = (trigger.scheme, self._secrets, headers, raw, time.time())
        # A large body is hashed in a thread, so that the event loop is not blocked.
        known = await asyncio.to_thread(verify, *given) if len(raw) > LARGE else verify(*given)
        if not known:
            raise HttpError(403, _REFUSED, kind="delivery-refused")
        self._gateway.rates.take(f"trigger {self._name}", "by this trigger")
        body = await read_json(request)
        event = event_of(trigger.scheme, headers, body)
        if not is_wanted(event, trigger.on) or (event == _PING and trigger.scheme == "github" and not trigger.on):
            return Response(status_code=204)
        delivery = delivery_id(trigger.scheme, headers, body)
        try:
            start = IdempotentStart.of_delivery(trigger.tenant, self._name, delivery)
        except RunError:
            raise HttpError(422, "the delivery has no id, which is needed to find duplicates") from None
        try:
            mapped = map_delivery(trigger, body, event, delivery)
        except MappingError as error:
            raise HttpError(422, f"trigger {self._name}: {error}", kind="mapping") from None
        agent = self._found_agent()
        context = agent.check_context(mapped.context)
        if trigger.session is not None:
            return await self._send(agent, mapped, context, start)
        run = await self._gateway.perdure.start(
            agent,
            mapped.input,
            key=start,
            sender=self._sender,
            tenant=trigger.tenant or None,
            context=context,
            source=self._source(agent),
        )
        return _accepted({"runId": run.id}, {"Location": f"/v1/runs/{quote(run.id)}"})

    async def _send(self, agent: Agent[Any], mapped: Mapped, context: JsonObject, start: IdempotentStart) -> Response:
        trigger = self._trigger
        assert trigger.session is not None
        session = self._gateway.perdure.session(mapped.key, tenant=trigger.tenant, agent=agent)
        source, settings = self._source(agent), {}
        if source:  # the run reads untrusted data
            note = {"role": "user", "content": f"The trigger {self._name!r} sends what follows.", "_sources": [source]}
            settings = {"context": [*((session.agent or agent).document().get("context") or []), note]}
        receipt = await session.send(
            mapped.text,
            sender=self._sender,
            id=f"trigger-{digest(start.run_id)}",
            mode=trigger.session.mode,
            route=mapped.route,
            settings=settings,
            context=context,
        )
        return _accepted({"messageId": receipt.message_id, "runId": receipt.run_id})

    def _found_agent(self) -> Agent[Any]:
        """Return the trigger's agent. Raise `HttpError` (503) while its file is invalid, e.g. during a change."""
        try:
            return self._agents.get(self._agent)
        except HttpError:
            words = f"the agent of the trigger {self._name} cannot be used; the gateway's log has the error"
            raise HttpError(503, words) from None

    def _source(self, agent: Agent[Any]) -> str:
        caller = Caller(self._trigger.tenant, self._sender, frozenset(), "")
        return self._gateway.client_source(caller, agent)


def _accepted(value: JsonObject, headers: Mapping[str, str] | None = None) -> Response:
    return Response(dumps(value), 202, headers, "application/json")


_PATHS: Final[JsonObject] = {
    "/v1/triggers/{trigger}": {
        "post": {
            "operationId": "deliver",
            "summary": "Deliver a signed webhook.",
            "description": "The signature replaces a token.",
            "security": [],
            "parameters": [
                {
                    "name": "trigger",
                    "in": "path",
                    "required": True,
                    "description": "The trigger's name.",
                    "schema": {"type": "string"},
                }
            ],
            "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}},
            "responses": {
                "202": {
                    "description": "The delivery started a run or sent a message. A duplicate returns the first one's.",
                    "content": {
                        "application/json": {
                            "schema": {
                                "type": "object",
                                "properties": {"runId": {"type": ["string", "null"]}, "messageId": {"type": "string"}},
                            }
                        }
                    },
                },
                "204": {"description": "The trigger does not accept this event."},
                "403": {"description": "The name is unknown, or the signature or its time is wrong."},
                "422": {"description": "The trigger's mapping is not valid for this body."},
            },
        }
    }
}
