"""Adapters: one for each protocol of the gateway."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from perdure.agents.agent import Agent
from perdure.agents.rollouts import ROLLOUTS, Rollout, read_rollouts
from perdure.client.perdure import Perdure
from perdure.client.run import Run
from perdure.client.session import Session
from perdure.errors import PerdureError, RunNotFoundError, SettingsError
from perdure.gateway.bounds import OpenWork, Rates, ServerWatch, open_streams
from perdure.gateway.callers import Caller
from perdure.gateway.errors import HttpError, as_problem_json
from perdure.gateway.guards import Guards
from perdure.hosting.settings import Settings
from perdure.runs.caller_context import same_context
from perdure.runs.delegates import wanted_delegates
from perdure.tools.tool import CLIENT as CLIENT_ACTIVITY
from perdure.values.messages import ToolMessage
from perdure.values.problems import none_of
from perdure.values.provenance import CLIENT, OTHERS

_log: Final = logging.getLogger("perdure.gateway")


class Agents:
    """The agents of a folder. A changed file is read again; an invalid file is logged once for each change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, tuple[_AgentStamp, Agent[Any] | None]] = {}
        self._rollouts: tuple[_Stamp, dict[str, Rollout]] = (None, {})

    def names(self) -> list[str]:
        """Return the names of all agents with valid files."""
        return [name for name in self._files() if self._find(name) is not None]

    def by_name(self) -> dict[str, Agent[Any]]:
        """Return all agents with valid files, by name."""
        return {name: agent for name in self._files() if (agent := self._find(name)) is not None}

    def get(self, name: str) -> Agent[Any]:
        """Return the agent of this name, its file's without `.json`. Raises `HttpError` (404, or 503 for an invalid file)."""
        files = self._files()
        if name not in files:
            raise HttpError(404, none_of(name, "agent of this gateway", files), kind="agent-not-found")
        if (agent := self._find(name)) is None:
            raise HttpError(503, f"the file of the agent {name!r} cannot be used; the gateway's log has the error")
        return agent

    def has_client_tool(self, agent: Agent[Any]) -> bool:
        """Whether the agent's file, or the file of a delegate at any depth, has a tool that the client executes."""
        files, left = set(self._files()), [agent]
        while left:
            tools = [message.tool for message in left.pop().parsed.messages() if isinstance(message, ToolMessage)]
            if any(isinstance(tool, dict) and tool.get("_activity") == CLIENT_ACTIVITY for tool in tools):
                return True
            wanted = files.intersection(wanted_delegates(tools))
            files -= wanted
            left += [found for name in wanted if (found := self._find(name)) is not None]
        return False

    def _files(self) -> list[str]:
        return sorted(path.stem for path in self._folder.glob("*.json")) if self._folder.is_dir() else []

    def _find(self, name: str) -> Agent[Any] | None:
        """Find the agent. `name` must come from the folder, never from a request."""
        path, rollout = self._folder / f"{name}.json", self._rollout(name)
        candidate = None if rollout is None else self._folder / f"{rollout.candidate}.json"
        stamp: _AgentStamp = (_stamp(path), rollout, None if candidate is None else _stamp(candidate))
        if name in self._read and self._read[name][0] == stamp:
            return self._read[name][1]
        agent = None
        try:
            agent = Agent.read_to_run(path, rollouts=False)
            if rollout is not None:
                agent = Agent.read_to_run(path)
        except (PerdureError, OSError) as error:
            what = f"the agent {name!r}" if agent is None else f"the rollout of the agent {name!r}"
            _log.error("%s cannot be used: %s", what, error)
        self._read[name] = (stamp, agent)
        return agent

    def _rollout(self, name: str) -> Rollout | None:
        """Return the rollout of an agent. While `rollouts.toml` is invalid, log the error and return `None`."""
        stamp = _stamp(self._folder / ROLLOUTS)
        if stamp != self._rollouts[0]:
            self._rollouts = (stamp, {})
            try:
                self._rollouts = (stamp, read_rollouts(self._folder))
            except SettingsError as error:
                _log.error("no rollout is in force: %s", error)
        return self._rollouts[1].get(name)


_Stamp: TypeAlias = "tuple[int, int] | None"
_AgentStamp: TypeAlias = "tuple[_Stamp, Rollout | None, _Stamp]"


def _stamp(path: Path) -> _Stamp:
    """Return a file's change time and size; `None` if it cannot be read now."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size)


NOT_FOUND_AFTER: Final = 0.05
"""The least seconds before `RunNotFoundError`: the time must not reveal whether another tenant has the run."""
Access: TypeAlias = Literal["bearer", "page", "signed", "open"]
"""Access to an adapter's routes. `bearer`: callers with a token. `page`: also browsers that have signed in. `signed`: senders of signed
requests, which the route verifies; the limits of a token apply to the sender's address. `open`: everybody."""


@dataclass(frozen=True)
class Adapter:
    """One protocol: see `perdure.gateway`."""

    name: str
    """The name in the log, in one word."""
    routes: Sequence[BaseRoute]
    """The routes, with whole paths. Of two adapters with the same path, the first in the list answers."""
    access: Access = "bearer"
    problem: Callable[[Request, HttpError], Response] = field(default=lambda _, problem: as_problem_json(problem))
    """Returns an error in the protocol's form, or a sign-in page (401), also for errors of the frame."""
    below: str | None = None
    """The prefix of addresses whose 404 this adapter answers in its own form. The first such adapter in the list does."""
    lifespan: Callable[[], AbstractAsyncContextManager[Any]] = nullcontext
    """A context that lasts as long as the gateway."""
    paths: Mapping[str, Any] = field(default_factory=dict)
    """Its part of the OpenAPI document."""
    schemas: Mapping[str, Any] = field(default_factory=dict)
    """The schemas of these paths, by name."""


class Gateway:
    """The gateway as its adapters see it: the Python API, the agents, the tokens, and the bounds."""

    def __init__(self, perdure: Perdure, settings: Settings, guards: Guards) -> None:
        self.perdure = perdure
        self.server = ServerWatch(perdure)
        self.settings = settings
        self.guards = guards
        self.agents = Agents(settings.agents_folder)
        self.rates = Rates(settings.gateway_rate)
        self.streams = open_streams(settings.gateway_streams)
        self.held = OpenWork(
            settings.gateway_streams + settings.gateway_connections // 4,
            "requests of this caller are active: wait until one ends",
        )
        self.under_way = 0
        """Requests that are being answered."""
        self.stopping = asyncio.Event()
        """Set when the gateway is about to end. Waits and streams then end; clients continue at another gateway."""

    def client_source(self, caller: Caller, agent: Agent[Any]) -> str:
        """Return the source label of client data that its user did not write (R15.2); empty for a trusted client."""
        trusted = {*self.settings.gateway_trusted_clients, *agent.parsed.config.trusted_clients}
        return "" if trusted & {"*", caller.name} else f"{OTHERS}{CLIENT}{caller.sender}"

    async def own_run(self, caller: Caller, id: str) -> Run[Any]:
        """Return a run by a client's id. Raises `RunNotFoundError` for an unknown run and another tenant's, after the same time."""
        async with _alike():
            return await self.perdure.find_run(id, tenant=caller.tenant)

    async def own_session_of(self, caller: Caller, id: str) -> Session:
        """Return the session of a run by a client's id, also before that run begins. Raises as `own_run`."""
        async with _alike():
            return await self.perdure.find_session_of(id, tenant=caller.tenant)

    def session(self, caller: Caller, key: str, agent: str | None = None) -> Session:
        """Return the caller's session of this key. Other tenants cannot name it. Raises as `Agents.get`."""
        found = None if agent is None else self.agents.get(agent)
        return self.perdure.session(key, tenant=caller.tenant, agent=found)


@asynccontextmanager
async def _alike() -> AsyncIterator[None]:
    """Delay `RunNotFoundError`: an unknown id must take as long as another tenant's, which needs a second lookup."""
    clock = asyncio.get_running_loop().time
    until = clock() + NOT_FOUND_AFTER
    try:
        yield
    except RunNotFoundError:
        await asyncio.sleep(until - clock())
        raise


AdapterMaker: TypeAlias = Callable[[Gateway], Adapter]


async def check_same_context(caller: Caller, run: Run[Any]) -> None:
    """Raise `HttpError` (409) if the run's context differs from the caller's: the run would act on the message with its own
    context (R19.1)."""
    if not same_context((await run.origin()).context, caller.context):
        raise HttpError(409, "this run has another context: start another run", kind="another-context")
