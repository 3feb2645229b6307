"""Tools that a client declares and carries out itself, at any adapter."""

from __future__ import annotations

import re
from typing import Final, TypeGuard

from perdure.tools.tool import CLIENT, parse_tool
from perdure.values.json import JsonObject

MOST_TOOLS: Final = 128
"""Tools that a client carries out itself, in one request."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def is_function_name(name: object) -> TypeGuard[str]:
    """Whether every provider takes this name of a function: 1 to 64 letters, digits, `_` and `-`."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def client_tool(name: str, schema: object, description: object) -> JsonObject:
    """Return a client's tool as an agent file defines it. A call of it ends the answer until the client sends the result.

    `schema`: JSON Schema of its parameters; empty: it takes none. `description`: left out unless it is a text. Raises `ToolDefinitionError`.
    """
    tool: JsonObject = {"name": name, "parameters": schema or {"type": "object", "properties": {}}}
    if isinstance(description, str):
        tool["description"] = description
    tool["_activity"] = CLIENT
    parse_tool(tool)
    return tool
