"""A door is one protocol that the gateway speaks; the gateway is what all of them have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from perdure.client.perdure import Perdure
from perdure.gateway.agents import Agents
from perdure.gateway.bounds import Rates, Streams
from perdure.gateway.guards import Guards
from perdure.gateway.problems import HttpError, as_problem_json
from perdure.hosting.settings import Settings

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
        self.stopping = asyncio.Event()
        """Set when the gateway is about to end: whoever waits or streams comes to an end of it, and is found again elsewhere."""


DoorMaker: TypeAlias = Callable[[Gateway], Door]
