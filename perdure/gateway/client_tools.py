"""Tools that a client declares and executes itself, at any adapter."""

from __future__ import annotations

import re
from typing import Any, Final, TypeGuard

from perdure.errors import JsonError, ToolDefinitionError
from perdure.gateway.errors import HttpError
from perdure.tools.tool import CLIENT, parse_tool
from perdure.values.json import Json, JsonObject, loads

MOST_TOOLS: Final = 128
"""The most tools of a client in one request."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def is_function_name(name: object) -> TypeGuard[str]:
    """Whether every provider accepts the function name: 1 to 64 letters, digits, `_` and `-`."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def client_tool(name: str, schema: object, description: object) -> JsonObject:
    """Return a client's tool as an agent file defines it. A call of it ends the answer until the client sends the result.

    `schema`: JSON Schema of its parameters; empty without parameters. `description`: ignored unless it is a text.
    Raises `ToolDefinitionError`.
    """
    tool: JsonObject = {"name": name, "parameters": schema or {"type": "object", "properties": {}}}
    if isinstance(description, str):
        tool["description"] = description
    tool["_activity"] = CLIENT
    parse_tool(tool)
    return tool


def read_page_tools(listed: Any, schema: str) -> list[JsonObject]:
    """Return the tools that a page lists as `{name, description?, SCHEMA?}`, as an agent file defines them.

    `schema`: the key of the parameters' JSON Schema in the page's protocol. Raises `HttpError` (422).
    """
    if listed is None:
        return []
    if not isinstance(listed, list) or len(listed) > MOST_TOOLS:
        raise HttpError(422, f"tools must be a list of at most {MOST_TOOLS} tools")
    found: dict[str, JsonObject] = {}
    for at, tool in enumerate(listed):
        name = tool.get("name") if isinstance(tool, dict) else None
        if not is_function_name(name) or name in found:
            words = "must have 1 to 64 letters, digits, '_' and '-', and be the only one"
            raise HttpError(422, f"tools[{at}].name {words}")
        try:
            found[name] = client_tool(name, tool.get(schema), tool.get("description"))
        except ToolDefinitionError as error:
            words = f"must be {{name, description?, {schema}?}}: {error}"
            raise HttpError(422, f"tools[{at}] {words}") from None
    return list(found.values())


def context_with_tools(document: JsonObject, tools: list[JsonObject], source: str) -> list[Json]:
    """Return the context of an agent file with the page's tools after it.

    `source`: the label of their results (R15.2); empty: trusted. Raises `HttpError` (422) for a tool with the name of
    an agent's tool.
    """
    own = document.get("context")
    context: list[Json] = own if isinstance(own, list) else []
    names = {str(tool["name"]) for tool in tools}
    if taken := sorted(names & {_tool_name(message) for message in context}):
        raise HttpError(422, f"tools has {taken[0]!r}, which is a tool of the agent: use another name")
    untrusted: JsonObject = {"_untrusted": bool(source)}
    added: list[JsonObject] = [{"type": "tool", "tool": tool | untrusted} for tool in tools]
    return [*context, *added]


def parse_result(text: Json) -> Json:
    """Return a call's result, parsed if it is a JSON object or list, so that a plan can read its members; else the text."""
    if isinstance(text, str) and text.lstrip()[:1] in ("{", "["):
        try:
            return loads(text, source="a result")
        except JsonError:
            return text
    return text


def _tool_name(message: Json) -> str:
    tool = message.get("tool") if isinstance(message, dict) and message.get("type") == "tool" else None
    name = tool.get("name") if isinstance(tool, dict) else tool
    return name if isinstance(name, str) else ""
