"""The agents of a gateway over HTTP."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from perdure.agents.agent import Agent
from perdure.gateway.api._operations import OBJECT, ApiRequest, Operation, answered
from perdure.gateway.callers import READ
from perdure.values.json import JsonObject


def shown(agent: Agent[Any]) -> JsonObject:
    """Return a client's description of the agent."""
    document = agent.document()
    inputs = [each.get("schema", True) for each in document["context"] if each.get("type") == "input"]
    return {
        "name": agent.name,
        "description": agent.description,
        "input": inputs[0] if inputs else None,
        "output": document.get("schema", True),
    }


async def list_agents(request: ApiRequest) -> Response:
    return answered(
        {"agents": [{**shown(agent), "name": name} for name, agent in request.gateway.agents.by_name().items()]}
    )


async def show(request: ApiRequest) -> Response:
    name = request.named("agent")
    return answered({**shown(request.gateway.agents.get(name)), "name": name})


AGENTS: Final = (
    Operation("listAgents", "GET", "/v1/agents", "List the agents.", list_agents, READ, answers={200: OBJECT}),
    Operation(
        "showAgent",
        "GET",
        "/v1/agents/{agent}",
        "Show what an agent takes and gives.",
        show,
        READ,
        answers={200: OBJECT},
    ),
)
