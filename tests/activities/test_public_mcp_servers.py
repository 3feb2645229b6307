"""MCP servers that others wrote, as they come from their registries: over stdio and over HTTP. They need the network: `make soak`."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure.activities.mcp import mcp_tools
from perdure.activities.mcp_connection import McpConfig
from perdure.activities.registry import Registry
from perdure.errors import ToolError
from perdure.hosting.server import free_port
from perdure.tools.decorator import ToolContext
from tests.timeouts import HANG

pytestmark = [pytest.mark.soak, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

PYPI = ("mcp-server-time==2026.10.19", "mcp-server-git==2026.10.19")
PATIENCE = 90
"""Seconds for a registry: one that takes longer says nothing of Perdure."""
NPM = tuple(f"@modelcontextprotocol/server-{name}@2026.8.31" for name in ("everything", "filesystem", "memory"))


def installed(*command: str) -> None:
    """Skips, with the reason, where a package cannot be had, or not in time."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed here")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{' '.join(command[:2])} took more than {PATIENCE} s")
    if done.returncode:
        pytest.skip(f"{' '.join(command[:2])} failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")


@pytest.fixture(scope="module")
def python_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("python")
    installed(sys.executable, "-m", "venv", str(folder))
    installed(str(folder / "bin/pip"), "install", "-q", "--disable-pip-version-check", *PYPI)
    return folder / "bin"


@pytest.fixture(scope="module")
def node_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("node")
    installed(
        "npm", "install", "--silent", "--no-audit", "--no-fund", "--prefer-offline", "--prefix", str(folder), *NPM
    )
    return folder / "node_modules/.bin"


@asynccontextmanager
async def offered_by(*reported: str, **servers: dict[str, Any]) -> AsyncIterator[Registry]:
    """The tools of these servers. `reported`: the lines that the connections report, and no others."""
    registry, reports = Registry(), list[str]()
    config = McpConfig.model_validate({"mcpServers": servers})
    async with mcp_tools(config, registry, reports.append) as missing:
        assert missing == []
        yield registry
    assert set(reports) == set(reported)


async def call(registry: Registry, tool: str, said: list[Any] | None = None, **params: Any) -> Any:
    function = registry.get(tool)
    assert function is not None, tool
    heard: Any = [] if said is None else said
    context = ToolContext(tool, function.definition, {}, "1.0", "run/1.0", on_heartbeat=heard.append)
    return await function.function(**function.bind(params, context))


async def test_servers_from_pypi(python_programs: Path, tmp_path: Path) -> None:
    installed("git", "init", "-q", str(tmp_path))
    clock = {"command": str(python_programs / "mcp-server-time")}
    git = {"command": str(python_programs / "mcp-server-git")}
    async with offered_by(time=clock, git=git) as registry:
        assert (await call(registry, "time.get_current_time", timezone="Europe/Berlin"))["timezone"] == "Europe/Berlin"
        with pytest.raises(ToolError, match="Invalid timezone"):
            await call(registry, "time.get_current_time", timezone="Mars")
        assert "No commits yet" in await call(registry, "git.git_status", repo_path=str(tmp_path))


@asynccontextmanager
async def everything(kind: str, programs: Path) -> AsyncIterator[dict[str, Any]]:
    program = str(programs / "mcp-server-everything")
    if kind == "stdio":
        yield {"command": program, "args": ["stdio"]}
        return
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        program, "streamableHttp", env={**os.environ, "PORT": str(port)}, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(HANG):
            while b"listening" not in await process.stderr.readline():
                assert process.returncode is None
        yield {"url": f"http://127.0.0.1:{port}/mcp"}
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_everything_from_npm(kind: str, node_programs: Path) -> None:
    task_only = (
        "the MCP server 'all': the tool 'simulate-research-query' runs as a task only (taskSupport); it is not offered"
    )
    async with everything(kind, node_programs) as entry, offered_by(task_only, all=entry) as registry:
        assert await call(registry, "all.echo", message="hi") == "Echo: hi"
        image = await call(registry, "all.get-tiny-image")
        assert image["_content"][0]["data"].startswith("[image/png, ")
        assert set(await call(registry, "all.get-structured-content", location="New York")) == {
            *("temperature", "conditions", "humidity")
        }
        links = await call(registry, "all.get-resource-links", count=2)
        assert [one["uri"].split(":")[0] for one in links["_content"]] == ["demo", "demo"]
        assert "plaintext" in (await call(registry, "all.get-resource-reference"))["_content"][0]["text"]
        said: list[Any] = []
        await call(registry, "all.trigger-long-running-operation", said, duration=1, steps=2)
        assert said == [{"progress": "1 of 2"}, {"progress": "2 of 2"}]


async def test_files_and_memory_from_npm(node_programs: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    files = {"command": str(node_programs / "mcp-server-filesystem"), "args": [str(tmp_path)]}
    memory = {
        "command": str(node_programs / "mcp-server-memory"),
        "env": {"MEMORY_FILE_PATH": str(tmp_path / "memory.json")},
    }
    async with offered_by(files=files, memory=memory) as registry:
        assert await call(registry, "files.read_text_file", path=str(tmp_path / "a.txt")) == {"content": "hello"}
        with pytest.raises(ToolError, match="Access denied"):
            await call(registry, "files.read_text_file", path="/etc/passwd")
        entity = {"name": "a", "entityType": "b", "observations": ["c"]}
        await call(registry, "memory.create_entities", entities=[entity])
        assert await call(registry, "memory.read_graph") == {"entities": [entity], "relations": []}
        dangerous = {name for name, tool in registry.definitions().items() if tool.get("_dangerous")}
        assert "files.read_text_file" not in dangerous
        assert {"files.write_file", "memory.delete_entities"} <= dangerous
