"""Agents as prompts: their instructions and an input, for a client's own model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

from mcp import types
from mcp.shared.exceptions import MCPError

from perdure.agents.agent import Agent
from perdure.errors import JsonError
from perdure.gateway.adapter import Gateway
from perdure.gateway.mcp._context import McpContext, as_mcp, caller_in
from perdure.values.json import Json, JsonObject, dumps, loads
from perdure.values.messages import ChatMessage, DataMessage, InputMessage, SystemMessage, TextMessage
from perdure.values.problems import none_of

JSON: Final = "application/json"
MOST: Final = 100
"""The protocol's limit of completions in an answer."""


class Prompts:
    """The methods `prompts/*`, and the completion of their arguments."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def list_prompts(self, context: McpContext, _: Any) -> types.ListPromptsResult:
        with as_mcp():
            caller_in(context).check("read", "list agents")
        return types.ListPromptsResult(
            prompts=[_prompt(name, agent) for name, agent in self._gateway.agents.by_name().items()]
        )

    async def prompt(self, context: McpContext, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        """Return an agent's instructions, its data and the input. The input is validated like a run's."""
        with as_mcp():
            caller_in(context).check("read", "list agents")
            agent = self._agent(params.name)
            value = {name: _value(agent, name, text) for name, text in (params.arguments or {}).items()}
            agent.check_input(value)
        return types.GetPromptResult(
            description=agent.description or None, messages=[*_messages(params.name, agent, value)]
        )

    def complete(self, name: str, argument: types.CompletionArgument) -> list[str]:
        """Return the values of a prompt's argument with this prefix, from the input's schema. Raises `MCPError`."""
        schema = _properties(self._agent(name)).get(argument.name, {})
        options = ["true", "false"] if schema.get("type") == "boolean" else schema.get("enum", [])
        return [text for each in options if (text := _text(each)).startswith(argument.value)]

    def _agent(self, name: str) -> Agent[Any]:
        agents = self._gateway.agents.by_name()
        if name not in agents:
            raise MCPError(types.INVALID_PARAMS, none_of(name, "prompt", sorted(agents)))
        return agents[name]


def _prompt(name: str, agent: Agent[Any]) -> types.Prompt:
    required = agent.input_schema.get("required", [])
    arguments = [
        types.PromptArgument(name=each, description=about.get("description"), required=each in required)
        for each, about in _properties(agent).items()
    ]
    description = agent.description or f"The instructions of the agent {agent.name}."
    return types.Prompt(name=name, description=description, arguments=arguments)


def _properties(agent: Agent[Any]) -> dict[str, JsonObject]:
    found = agent.input_schema.get("properties")
    return {name: each if isinstance(each, dict) else {} for name, each in (found or {}).items()}


def _value(agent: Agent[Any], name: str, text: str) -> Json:
    """Return an argument converted to the input schema's type: a prompt's arguments are texts."""
    kind = _properties(agent).get(name, {}).get("type", "string")
    if kind == "string" or (isinstance(kind, list) and "string" in kind):
        return text
    try:
        return loads(text)
    except JsonError:
        raise MCPError(types.INVALID_PARAMS, f"arguments.{name}: expected JSON of the type {_text(kind)}") from None


def _text(value: Json) -> str:
    return value if isinstance(value, str) else dumps(value)


def _messages(name: str, agent: Agent[Any], value: JsonObject) -> Iterator[types.PromptMessage]:
    for number, each in enumerate(agent.parsed.messages()):
        if isinstance(each, SystemMessage):
            yield _prompt_message(each.text)
        elif isinstance(each, TextMessage):
            yield _prompt_message(each.text, each.role)
        elif isinstance(each, ChatMessage) and each.role in ("system", "user", "assistant") and each.text:
            yield _prompt_message(each.text, "assistant" if each.role == "assistant" else "user")
        elif isinstance(each, DataMessage) and each.given:
            uri = f"perdure:///agents/{quote(name)}/{number}/{quote(each.kind)}"
            resource = types.TextResourceContents(uri=uri, mime_type=JSON, text=dumps(each.data))
            yield types.PromptMessage(role="user", content=types.EmbeddedResource(resource=resource))
    if value:
        whole = [*value] == ["request"] and not any(isinstance(each, InputMessage) for each in agent.parsed.messages())
        yield _prompt_message(_text(value["request"]) if whole else dumps(value))


def _prompt_message(text: str, role: types.Role = "user") -> types.PromptMessage:
    return types.PromptMessage(role=role, content=types.TextContent(text=text))
