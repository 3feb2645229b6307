"""MCP's own client for JavaScript, and the suite that its project tests servers with, against the gateway (R17.4): `make test-clients`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import Image, Media, Perdure
from perdure.client.selection import Selection
from perdure.gateway.mcp.adapter import mcp_adapter
from perdure.testing.scripted_model import ChatRequest
from tests.clients.test_clients import HERE, installed
from tests.gateway.support import gateway, write_agents
from tests.gateway.test_mcp import add, serving
from tests.support import ROOT, harness, storage_fixture
from tests.workflows.test_media import PDF, PNG, connect

SUITE: Final = "node_modules/@modelcontextprotocol/conformance/dist/index.js"
NO_INPUT: Final[dict[str, Any]] = {"type": "object", "properties": {}}
ADDRESS: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def texts(*names: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}}


REGION: Final = texts("region") | {
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
    "required": ["region"],
}
AGENTS: Final[dict[str, dict[str, Any]]] = {
    "test_simple_text": NO_INPUT,
    "test_image_content": NO_INPUT,
    "test_audio_content": NO_INPUT,
    "test_embedded_resource": NO_INPUT,
    "test_multiple_content_types": NO_INPUT,
    "test_error_handling": NO_INPUT,
    "test_tool_with_progress": NO_INPUT,
    "test_reconnection": NO_INPUT,
    "json_schema_2020_12_tool": ADDRESS,
    "test_x_mcp_header": REGION,
    "test_logging_tool": NO_INPUT,
    "test_streaming_elicitation": NO_INPUT,
    "test_simple_prompt": NO_INPUT,
    "test_prompt_with_arguments": texts("arg1", "arg2"),
    "test_prompt_with_embedded_resource": texts("resourceUri"),
    "test_input_required_result_elicitation": NO_INPUT,
    "test_input_required_result_request_state": NO_INPUT,
    "test_input_required_result_multi_round": NO_INPUT,
    "test_input_required_result_tampered_state": NO_INPUT,
    "slow_compute": texts("label") | {"properties": {"seconds": {"type": "number"}, "label": {"type": "string"}}},
    "failing_job": NO_INPUT,
    "confirm_delete": texts("filename"),
    "multi_input": NO_INPUT,
}
"""The tools that the suite calls, and the prompts that it reads, with their schemas."""
ASKING: Final = {
    "test_streaming_elicitation": 1,
    "test_input_required_result_elicitation": 1,
    "test_input_required_result_request_state": 1,
    "test_input_required_result_multi_round": 2,
    "test_input_required_result_tampered_state": 1,
    "confirm_delete": 1,
}
"""Agents that ask their user, and how often, one question after the other."""
QUESTION: Final[dict[str, Any]] = {
    "name": "user_name",
    "description": "Ask for the name.",
    "properties": {"question": {"type": "string"}},
    "required": ["question"],
    "_activity": "perdure.ask_person",
    "_safe": True,
}
WAV: Final = b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(28)
PARTS: Final = {
    "2025-11-25": ("--suite", "all", "--spec-version", "2025-11-25"),
    "2026-07-28": ("--suite", "all", "--spec-version", "2026-07-28"),
    "tasks": ("--suite", "pending"),
}
"""The server's parts of the suite: each version of the protocol, and the extension for tasks."""

CLIENT: Final = (
    "initialize",
    "tools_call",
    "elicitation-sep1034-client-defaults",
    "sse-retry",
    "request-metadata",
    "sep-2322-client-request-state",
    "http-standard-headers",
    "http-custom-headers",
    "http-invalid-tool-headers",
    "json-schema-ref-no-deref",
    "json-schema-2020-12-preservation",
    "auth/client-credentials-basic",
)
"""The scenarios of the suite for clients that Perdure's client of MCP servers passes."""

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.clients]
storage = storage_fixture()


async def node(*words: str, **env: str) -> tuple[int | None, str, str]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "node", *words, cwd=HERE, stdout=pipe, stderr=pipe, env={**os.environ, **env}
    )
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
        {"type": "data", "kind": "manual", "manual": "Embedded resource content for testing."},
        {"type": "input", "schema": schema},
        {"type": "tool", "tool": "add"},
        {"type": "tool", "tool": "sleep_until"},
        {"type": "tool", "tool": QUESTION},
    ]
    made: dict[str, Any] = {"name": name, "description": f"The suite's {name}.", "context": context}
    if name in ("test_error_handling", "failing_job"):
        made |= {"config": {"max_requests": 1}, "schema": {"type": "object", "required": ["impossible"]}}
    return made


def suite_answer(files: dict[str, Any], request: ChatRequest) -> dict[str, Any]:
    name = request.text.split("TOOL ")[1].split(".")[0]
    answered = [f"†state.n{number}" for number in range(4) if f'"n{number}"' in request.text]
    done = {"calls": [], "output": files.get(name, "This is a simple text response for testing.")}

    def question(number: int) -> dict[str, Any]:
        return {"_tool": "user_name", "question": "What is your name?", "_outputPath": f"†state.n{number}"}

    if len(answered) < ASKING.get(name, 0):
        return {"calls": [question(len(answered))]}
    if name == "multi_input" and not answered:
        return {"calls": [question(0), question(1)]}
    if name == "test_tool_with_progress" and '"sum"' not in request.text:
        return {"calls": [{"_tool": "add", "a": 1, "b": 2, "_outputPath": "†state.sum"}]}
    if name == "slow_compute" and '"slept"' not in request.text:
        return {"calls": [{"_tool": "sleep_until", "seconds": "†input.seconds", "_outputPath": "†state.slept"}]}
    return done


@pytest.mark.usefixtures("storage")
@pytest.mark.parametrize("part", PARTS)
async def test_mcps_own_conformance_suite(dev_server: WorkflowEnvironment, tmp_path: Path, part: str) -> None:
    installed("node")
    temporal = await connect(dev_server)
    media = [Image(data=PNG), Media(data=WAV), Media(data=PDF)]
    image, audio, document = await Perdure(temporal).save_media(*media)
    files = {
        "test_image_content": image,
        "test_audio_content": audio,
        "test_embedded_resource": document,
        "test_multiple_content_types": [image, document],
    }
    agents = write_agents(tmp_path / "agents", *(suite_agent(*each) for each in AGENTS.items()))
    async with (
        harness(temporal, [add], partial(suite_answer, files)) as it,
        # The suite has no option for a token: it is for servers of one machine, as a gateway without tokens is.
        gateway(temporal, [mcp_adapter], task_queue=it.task_queue, agents=agents) as at,
    ):
        suite = ["--import", "./conformance.mjs", SUITE, "server", "--url", f"{at.address}/mcp", *PARTS[part]]
        expected = ["--expected-failures", "mcp_not_offered.yml", "--output-dir", str(tmp_path / "results")]
        code, out, err = await node(*suite, *expected)
    assert code == 0, f"{out[-6000:]}\n{err[-2000:]}"


@pytest.mark.parametrize("scenario", CLIENT)
async def test_mcps_own_conformance_suite_of_clients(tmp_path: Path, scenario: str) -> None:
    """The client that workers use connects to the suite's servers, calls their tools and answers their questions."""
    installed("node")
    suite = ["--import", "./conformance.mjs", SUITE, "client", "--scenario", scenario, "--timeout", "120000"]
    client = ["--command", f"{sys.executable} -m tests.clients.mcp_client"]
    expected = ["--expected-failures", "mcp_not_offered.yml", "--output-dir", str(tmp_path / "results")]
    code, out, err = await node(*suite, *client, *expected, PYTHONPATH=str(ROOT))
    assert code == 0, f"{out[-6000:]}\n{err[-2000:]}"


async def test_each_scenario_of_clients_is_passed_or_left_out_with_a_reason() -> None:
    installed("node")
    code, out, err = await node("--import", "./conformance.mjs", SUITE, "list", "--client")
    assert code == 0, err
    known = {line.split()[1] for line in out.splitlines() if line.startswith("  - ")}
    section = (HERE / "mcp_not_offered.yml").read_text(encoding="utf-8").partition("client:\n")[2]
    left_out = {line.split()[1] for line in section.splitlines() if line.startswith("  - ")}
    assert known == {*CLIENT} | {name for name in left_out if ":" not in name}
    assert left_out.isdisjoint(CLIENT)
