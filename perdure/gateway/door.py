"""A door is one protocol that the gateway speaks; the gateway is what all of them have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from perdure.authoring.agent import Agent
from perdure.client.perdure import Perdure
from perdure.client.run import Run
from perdure.client.session import Session
from perdure.errors import RunNotFoundError
from perdure.gateway.agents import Agents
from perdure.gateway.bounds import Held, Rates, Streams
from perdure.gateway.callers import Caller
from perdure.gateway.guards import Guards
from perdure.gateway.problems import HttpError, as_problem_json
from perdure.hosting.settings import Settings
from perdure.values.sources import CLIENT, OTHERS

ALIKE: Final = 0.05
"""Seconds until it is said that there is no such run: ten times as long as it takes to find that out."""
Access: TypeAlias = Literal["bearer", "page", "open"]
"""Who gets to a door's routes: who shows a token; who does, or has signed in with a browser; everybody."""


@dataclass(frozen=True)
class Door:
    """One protocol: see `perdure.gateway`."""

    name: str
    """In one word, as the log has it."""
    routes: Sequence[BaseRoute]
    """With whole paths. Of two doors that have the same, the first in the list answers."""
    access: Access = "bearer"
    problem: Callable[[Request, HttpError], Response] = field(default=lambda _, problem: as_problem_json(problem))
    """How it says that something was refused, also by the frame: its protocol's own form, or a page that asks to sign in (401)."""
    below: str | None = None
    """The beginning of addresses of which it also answers those where nothing is, in its own form. The first such door in the list does."""
    lifespan: Callable[[], AbstractAsyncContextManager[Any]] = nullcontext
    """What lasts as long as the gateway does."""
    paths: Mapping[str, Any] = field(default_factory=dict)
    """Its part of the OpenAPI document."""
    schemas: Mapping[str, Any] = field(default_factory=dict)
    """What those paths name, by name."""


class Gateway:
    """What doors are given: the Python API, the agents, who asks, and what bounds them."""

    def __init__(self, perdure: Perdure, settings: Settings, guards: Guards) -> None:
        self.perdure = perdure
        self.settings = settings
        self.guards = guards
        self.agents = Agents(settings.agents_folder)
        self.rates = Rates(settings.gateway_rate)
        self.streams = Streams(settings.gateway_streams)
        self.held = Held(settings.gateway_streams + settings.gateway_connections // 4)
        self.under_way = 0
        """Requests that are being answered."""
        self.stopping = asyncio.Event()
        """Set when the gateway is about to end: whoever waits or streams comes to an end of it, and is found again elsewhere."""

    def client_source(self, caller: Caller, agent: Agent[Any]) -> str:
        """The source of what a client sends that its user did not write (R15.2); empty where the operator or the agent file trusts the client."""
        trusted = {*self.settings.gateway_trusted_clients, *agent.parsed.config.trusted_clients}
        return "" if trusted & {"*", caller.name} else f"{OTHERS}{CLIENT}{caller.sender}"

    async def own_run(self, caller: Caller, id: str) -> Run[Any]:
        """A run by what somebody says is its id. Raises `RunNotFoundError` for another tenant's as for none, and after as long."""
        async with _alike():
            return await self.perdure.find_run(id, tenant=caller.tenant)

    async def own_session_of(self, caller: Caller, id: str) -> Session:
        """The session of a run by what somebody says is its id, also where that run has not begun. Raises as `own_run`."""
        async with _alike():
            return await self.perdure.find_session_of(id, tenant=caller.tenant)

    def session(self, caller: Caller, key: str, agent: str | None = None) -> Session:
        """The caller's session of this key: nobody who is of another tenant can name it. Raises as `Agents.get`."""
        found = None if agent is None else self.agents.get(agent)
        return self.perdure.session(key, tenant=caller.tenant, agent=found)


@asynccontextmanager
async def _alike() -> AsyncIterator[None]:
    """What is not found takes as long as what is somebody else's: the one is looked for once, the other twice."""
    clock = asyncio.get_running_loop().time
    until = clock() + ALIKE
    try:
        yield
    except RunNotFoundError:
        await asyncio.sleep(until - clock())
        raise


DoorMaker: TypeAlias = Callable[[Gateway], Door]
