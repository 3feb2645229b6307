"""What a test may give as an agent, and the tools that it needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from perdure.activities.registry import Registry, load_tools
from perdure.authoring.agent import Agent
from perdure.errors import ToolDefinitionError
from perdure.tools.functions import ToolFunction, open_tool, tool_function
from perdure.values.jsons import JsonObject
from perdure.values.messages import ToolMessage

AgentLike: TypeAlias = "Agent[Any] | Mapping[str, Any] | Sequence[Any] | str | os.PathLike[str]"
"""An agent in Python, an agent file's JSON, a list of messages, or an agent file by path or by name."""
ToolLike: TypeAlias = "Callable[..., Any] | Mapping[str, Any] | str"
"""A function decorated with `@tool`, a module of such functions by name, or a definition of a tool that is going to be faked."""


def as_agent(agent: AgentLike) -> Agent[Any]:
    """The agent, whatever it was given as. Raises `AgentError`, or `SettingsError` for a file that is not there."""
    if isinstance(agent, Agent):
        return agent
    if isinstance(agent, str | os.PathLike):
        return Agent.read(Path(agent))
    return Agent.of(dict(agent) if isinstance(agent, Mapping) else list(agent), name="test")


def functions_of(agent: Agent[Any] | None, tools: Iterable[ToolLike]) -> Registry:
    """The agent's own functions, and these. Raises `ToolDefinitionError`."""
    given = list(tools)
    registry = load_tools(each for each in given if isinstance(each, str))
    found: list[ToolFunction] = [] if agent is None else agent.functions
    for each in given:
        if isinstance(each, str):
            continue
        function = _without_code(dict(each)) if isinstance(each, Mapping) else tool_function(each)
        if function is None:
            raise ToolDefinitionError(f"{each!r} is no tool: decorate the function with @tool, or fake it by name")
        found.append(function)
    for function in found:
        registry.add(function)
    return registry


def _without_code(definition: JsonObject) -> ToolFunction:
    async def missing(**params: Any) -> None:
        del params
        raise AssertionError(f"there is no code for {definition.get('name')!r} here: fake it")

    return open_tool(definition, missing)


def inline_tools(agent: Agent[Any]) -> dict[str, JsonObject]:
    """The definitions that stand in the agent itself, by name."""
    messages = (message for message in agent.parsed.messages() if isinstance(message, ToolMessage))
    found = (message.tool for message in messages if isinstance(message.tool, dict))
    return {str(item.get("name")): item for item in found}
