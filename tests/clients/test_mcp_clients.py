"""MCP's own client for JavaScript, and the suite that its project tests servers with, against the gateway (R17.4): `make test-clients`."""

from __future__ import annotations

import asyncio
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure.client.selection import Selection
from perdure.gateway.mcp.adapter import mcp_adapter
from perdure.testing.scripted_model import ChatRequest
from tests.clients.test_clients import HERE, installed
from tests.gateway.support import gateway, write_agents
from tests.gateway.test_mcp import add, serving
from tests.support import harness

SUITE: Final = "node_modules/@modelcontextprotocol/conformance/dist/index.js"
NO_INPUT: Final[dict[str, Any]] = {"type": "object", "properties": {}}
ADDRESS: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}},
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
    "additionalProperties": False,
}
AGENTS: Final[dict[str, dict[str, Any]]] = {
    "test_simple_text": NO_INPUT,
    "test_error_handling": NO_INPUT,
    "test_tool_with_progress": NO_INPUT,
    "test_reconnection": NO_INPUT,
    "json_schema_2020_12_tool": ADDRESS,
}
"""The tools that the suite calls, with their schemas."""

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.clients]


async def node(*words: str) -> tuple[int | None, str, str]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec("node", *words, cwd=HERE, stdout=pipe, stderr=pipe)
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_the_client_for_javascript(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    installed("node")
    async with serving(dev_server, tmp_path) as (at, tokens):
        code, out, err = await node("mcp.mjs", f"{at.address}/mcp", tokens[0])
        assert code == 0, err
        found = json.loads(out)
        assert "enough" in found.pop("aborted")
        assert found == {
            "version": version("perdure"),
            "called": {"sum": 5},
            "unknown": -32602,
            "ttl": None,
            "task": {"sum": 9},
            "listed": True,
            "cancelled": "cancelled",
        }
        perdure = at.gateway.perdure
        async with asyncio.timeout(60):
            while await perdure.count_runs(Selection(tenant="shop", status="running")):
                pass
        ended = [run.status async for run in perdure.list_runs(Selection(tenant="shop", agent="payer"))]
    assert ended == ["cancelled", "cancelled"]


def suite_agent(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    context = [
        {"type": "system", "text": f"TOOL {name}."},
        {"type": "input", "schema": schema},
        {"type": "tool", "tool": "add"},
    ]
    made: dict[str, Any] = {"name": name, "description": f"The suite's {name}.", "context": context}
    if name == "test_error_handling":
        made |= {"config": {"max_requests": 1}, "schema": {"type": "object", "required": ["impossible"]}}
    return made


def suite_answer(request: ChatRequest) -> dict[str, Any]:
    if "TOOL test_tool_with_progress." in request.text and '"sum"' not in request.text:
        return {"calls": [{"_tool": "add", "a": 1, "b": 2, "_outputPath": "†state.sum"}]}
    return {"calls": [], "output": "This is a simple text response for testing."}


async def test_mcps_own_conformance_suite(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    installed("node")
    agents = write_agents(tmp_path / "agents", *(suite_agent(*each) for each in AGENTS.items()))
    async with (
        harness(dev_server.client, [add], suite_answer) as it,
        # The suite has no option for a token: it is for servers of one machine, as a gateway without tokens is.
        gateway(dev_server.client, [mcp_adapter], task_queue=it.task_queue, agents=agents) as at,
    ):
        suite = ["--import", "./conformance.mjs", SUITE, "server", "--suite", "all", "--url", f"{at.address}/mcp"]
        expected = ["--expected-failures", "mcp_not_offered.yml", "--output-dir", str(tmp_path / "results")]
        code, out, err = await node(*suite, *expected)
    assert code == 0, f"{out[-6000:]}\n{err[-2000:]}"
