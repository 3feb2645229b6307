"""Perdure's client of MCP servers under MCP's own conformance suite: `python -m tests.clients.mcp_client URL`.

It connects as a worker does, calls each tool that it is offered, and answers what the server asks, as a person of a run would.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from typing import Any

import httpx2

from perdure.activities.mcp import mcp_tools
from perdure.activities.mcp_connection import McpConfig
from perdure.activities.registry import Registry
from perdure.errors import ToolError
from perdure.tools.decorator import ToolContext
from perdure.tools.server_input import ANSWERS, ServerAnswers, ServerInputError, ServerQuestion

VALUES: dict[str, Any] = {"string": "text", "integer": 5, "number": 3, "boolean": True, "object": {}, "array": []}
SCHEMA = "json_schema_2020_12_tool"
"""The tool whose schema the suite wants back, as the client has it."""


def values_of(schema: Any) -> dict[str, Any]:
    """Values for the required properties without a default, or for all of them where none is required."""
    properties = schema.get("properties", {})
    wanted = schema.get("required", [*properties])
    return {
        name: about.get("enum", [VALUES.get(about.get("type"))])[0]
        for name, about in properties.items()
        if name in wanted and "default" not in about
    }


def accepted(question: ServerQuestion) -> dict[str, Any]:
    content = {} if question.form is None else {"content": question.content(values_of(question.form))}
    return {"action": "accept", **content}


async def call(registry: Registry, name: str, params: dict[str, Any]) -> Any:
    function = registry.get(name)
    assert function is not None
    answers = ServerAnswers()
    while True:
        ANSWERS.set(answers)
        context = ToolContext(name, function.definition, {}, "1.0", "run/1.0")
        try:
            return await function.function(**function.bind(params, context))
        except ServerInputError as error:
            answers = answers.after(error.asked, {each.key: accepted(each) for each in error.asked.questions})


async def issuer_of(url: str) -> str:
    """The authorization server, which the entry of an operator names."""
    at = httpx2.URL(url)
    async with httpx2.AsyncClient() as http:
        about = await http.get(at.copy_with(path=f"/.well-known/oauth-protected-resource{at.path}"))
    return str(about.json()["authorization_servers"][0])


async def main(url: str) -> None:
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    entry: dict[str, Any] = {"url": url}
    if "client_secret" in context:
        os.environ["CONFORMANCE_SECRET"] = context["client_secret"]
        entry["oauth"] = {
            "issuer": await issuer_of(url),
            "clientId": context["client_id"],
            "clientSecret": "${CONFORMANCE_SECRET}",
        }
    registry = Registry()
    config = McpConfig.model_validate({"mcpServers": {"x": entry}})
    async with mcp_tools(config, registry, lambda line: print(line, file=sys.stderr)) as missing:
        offered = {each.name: each for each in registry if each.name.startswith("x.")}
        print(f"offered: {', '.join(offered)}; missing: {missing}", file=sys.stderr)
        wanted = [(f"x.{each['name']}", each["arguments"]) for each in context.get("toolCalls", [])]
        if not wanted:
            wanted = [(name, values_of(each.definition.get("inputSchema", {}))) for name, each in offered.items()]
        if f"x.{SCHEMA}" in offered:
            schema = offered[f"x.{SCHEMA}"].definition["inputSchema"]
            wanted = [(name, {"schema": schema} if name != f"x.{SCHEMA}" else params) for name, params in wanted]

        async def attempt(name: str, params: dict[str, Any]) -> None:
            with suppress(ToolError):
                print(name, await call(registry, name, params), file=sys.stderr)

        await asyncio.gather(*(attempt(name, params) for name, params in wanted if name in offered))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
