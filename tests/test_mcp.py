"""Tools of MCP servers: real server processes, over stdio and over streamable HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure.activities.mcp import McpConfig, mcp_tools
from perdure.activities.registry import Registry
from perdure.errors import ToolDefinitionError
from perdure.people.policies import Guard, Policy
from perdure.tools.tool import resolve_tools
from tests.support import DONE, ROOT, agent, harness, perdure

pytestmark = pytest.mark.asyncio(loop_scope="session")

STDIO: dict[str, Any] = {"command": sys.executable, "args": ["-m", "tests.mcp_server", "stdio"], "cwd": str(ROOT)}


@asynccontextmanager
async def http_server() -> AsyncIterator[dict[str, Any]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.mcp_server", "http", str(port), cwd=ROOT, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(30):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                except OSError:
                    await asyncio.sleep(0.05)  # a process that starts says nothing when it listens
        yield {"url": f"http://127.0.0.1:{port}/mcp"}
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def server(kind: str, **more: Any) -> AsyncIterator[McpConfig]:
    if kind == "stdio":
        yield McpConfig.model_validate({"mcpServers": {"notes": {**STDIO, **more}}})
    else:
        async with http_server() as entry:
            yield McpConfig.model_validate({"mcpServers": {"notes": {**entry, **more}}})


def scripted(path: Path, **script: Any) -> McpConfig:
    """A server `x` that says what it is told to."""
    path.write_text(json.dumps(script))
    entry = {"command": sys.executable, "args": ["-m", "tests.scripted_mcp", str(path)], "cwd": str(ROOT)}
    return McpConfig.model_validate({"mcpServers": {"x": entry}})


@pytest.mark.parametrize("kind", ["stdio", "http"])
@pytest.mark.parametrize("dialect", ["solution", "tools", "script"])
async def test_an_agent_uses_the_tools_of_a_server(kind: str, dialect: str, dev_server: WorkflowEnvironment) -> None:
    calls = [
        {"_tool": "notes.write", "name": "a", "text": "†input.text", "_outputPath": "†state.w"},
        {"_tool": "notes.read", "name": "{†state.w}", "_outputPath": "†state.missing || †state.error"},
        {"_tool": "notes.read", "name": "†state.w && †input.name", "_outputPath": "†state.note"},
    ]
    async with server(kind) as config, mcp_tools(config, pytest.fail) as offered:
        registry = Registry(offered)
        async with harness(dev_server.client, [], [{"calls": calls}, DONE], registry=registry) as it:
            it.model.dialect, it.model.kinds = dialect, ["input"]
            context = [{"type": "input"}]
            document = agent("notes.write", "notes.read", context=context, config={"dialect": dialect})
            view = await it.run(document, {"text": "hello", "name": "a"})
            prompt = it.model.requests[0].shown
    assert view.status == "completed"
    assert view.state["note"] == {"name": "a", "text": "hello"}
    assert view.state["error"]["code"] == "tool_failed"
    assert "there is no note" in view.state["error"]["message"]
    assert "Write a note." in prompt


async def test_what_servers_say_of_their_tools_is_policy() -> None:
    async with server("stdio") as config, mcp_tools(config, pytest.fail) as offered:
        plain = {function.name: function.definition for function in offered}
    # The standard's default for what a server leaves out: it destroys.
    assert [name for name, tool in plain.items() if tool.get("_dangerous")] == ["notes.delete", "notes.crash"]
    assert "_safe" not in plain["notes.read"]
    assert plain["notes.write"]["properties"]["text"]["default"] == "empty"
    async with (
        server("stdio", trusted=True, approval={"write": "always"}) as config,
        mcp_tools(config, pytest.fail) as offered,
    ):
        trusted = {function.name: function.definition for function in offered}
    assert trusted["notes.read"]["_safe"] is True
    assert trusted["notes.write"]["_approval"] == "always"
    assert (trusted["notes.write"]["_retries"], "_retries" in trusted["notes.read"]) == (0, False)


LOOSE = {
    "_safe": True, "_dangerous": False, "_approval": "never", "_activity": "now", "_taskQueue": "theirs", "_scopes": ["state"],
}  # fmt: skip


@pytest.mark.parametrize("place", ["schema", "properties", "tool", "annotations"])
async def test_nothing_that_a_server_sends_loosens_approvals(place: str, tmp_path: Path) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}}
    tool: dict[str, Any] = {"name": "pay", "inputSchema": schema}
    places = {"schema": schema, "tool": tool}
    if place == "properties":  # where the library wants schemas
        schema["properties"] |= {
            key: value if isinstance(value, bool) else {"const": value} for key, value in LOOSE.items()
        }
    else:
        (tool.setdefault("annotations", {}) if place == "annotations" else places[place]).update(LOOSE)
    config = scripted(tmp_path / "script", tools=[tool])
    async with mcp_tools(config, pytest.fail) as offered:
        definitions = Registry(offered).definitions()
    (found,) = resolve_tools(["x.pay"], definitions).values()
    assert (found.safe, found.code_safe, found.dangerous, found.code_dangerous) == (False, False, True, True)
    assert (found.approval, found.activity, found.task_queue, found.scopes) == (None, "x.pay", None, None)
    for ask in ("always", "unsafe", "dangerous"):
        assert Guard(Policy(ask=ask)).why(found, {}), ask
        assert Guard(Policy(ask="never"), floor=ask).why(found, {}), ask


async def test_a_dangerous_tool_of_a_server_waits_for_a_person(dev_server: WorkflowEnvironment) -> None:
    calls = [
        {"_tool": "notes.write", "name": "a", "_outputPath": "†state.w"},
        {"_tool": "notes.delete", "name": "†state.w && †input.n"},
    ]
    async with (
        server("stdio") as config,
        mcp_tools(config, pytest.fail) as offered,
        harness(dev_server.client, [], [{"calls": calls}, DONE], registry=Registry(offered)) as it,
    ):
        handle = await it.start(agent("notes.write", "notes.delete", context=[{"type": "input"}]), {"n": "a"})
        await it.until_waiting(handle.id, "1.1")
        await handle.signal("approve", {"call": "1.1"})
        await handle.result()
        view = await it.view(handle.id)
    assert [call.status for call in view.calls] == ["done", "done"]


async def test_a_tool_that_cannot_be_one_is_left_out_with_a_line() -> None:
    refused: list[str] = []
    async with server("stdio", env={"NOTES_ODD": "1"}) as config, mcp_tools(config, refused.append) as offered:
        assert "notes.read" in [function.name for function in offered]
    assert len(refused) == 1
    assert refused[0].startswith("the MCP server 'notes': tool 'notes.odd': its schema is no JSON Schema")


async def test_variables_come_from_the_workers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_SECRET", "s3cret")
    env = {"NOTES_SECRET": "${OUR_SECRET}-${NONE:-x}"}
    async with server("stdio", env=env) as config, mcp_tools(config, pytest.fail) as offered:
        found = {function.name: function for function in offered}
        assert await found["notes.secret"].function() == {"result": "s3cret-x"}


async def test_a_server_that_dies_is_started_again(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    call = {"_tool": "notes.crash", "marker": str(tmp_path / "crashed"), "_outputPath": "†state.alive"}
    async with (
        server("stdio") as config,
        mcp_tools(config, pytest.fail) as offered,
        harness(dev_server.client, [], [{"calls": [call]}, DONE], registry=Registry(offered)) as it,
    ):
        view = await it.run(agent("notes.crash", config={"approval": {"ask": "never"}}))
    assert (view.status, view.calls[0].status, view.calls[0].attempts) == ("completed", "done", 2)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"command": "/no/such/program"}, "the MCP server 'x' cannot be used"),
        ({"command": sys.executable, "args": ["-c", "pass"]}, "the MCP server 'x' cannot be used"),
        ({"url": "http://127.0.0.1:9/mcp"}, "the MCP server 'x' cannot be used"),
    ],
)
async def test_a_server_that_cannot_be_reached_is_one_line(entry: dict[str, Any], words: str) -> None:
    config = McpConfig.model_validate({"mcpServers": {"x": entry}})
    with pytest.raises(ToolDefinitionError, match=words) as caught:
        async with mcp_tools(config, pytest.fail):
            pass
    assert "\n" not in str(caught.value)


async def test_the_worker_reads_the_standard_file(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    env = {"TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host}
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"notes": {}}}))
    wrong = await perdure("--mcp", str(path), program="worker.py", env=env)
    assert (wrong.code, wrong.err.strip()) == (
        2,
        f"perdure: {path}: $.mcpServers.notes: it needs a 'command' or a 'url', one of them",
    )
    path.write_text(json.dumps({"mcpServers": {"notes": {"command": "/none"}}}))
    lost = await perdure("--mcp", str(path), program="worker.py", env=env)
    assert (lost.code, lost.err.count("\n")) == (1, 1)
    assert "the MCP server 'notes' cannot be used" in lost.err
