"""A worker's tools, and the agents that it knows (R12.5)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter, ValidationError

from perdure.agents.agent import Agent
from perdure.agents.files import read_agent
from perdure.agents.folder import AgentFolder
from perdure.agents.json_files import read_json
from perdure.agents.rollouts import read_rollouts
from perdure.errors import AgentError, PerdureError, ProtocolError, SettingsError
from perdure.hosting.settings import Settings
from perdure.tools.tool import resolve_tools
from perdure.values.json import JsonObject
from perdure.values.messages import ToolMessage
from perdure.values.problems import first_problem

if TYPE_CHECKING:
    from perdure.activities.registry import Registry


_log: Final = logging.getLogger("perdure.worker")


def registry_of(settings: Settings) -> Registry:
    """Return the tools of the modules, and the built-in tools. Raises `ToolDefinitionError`."""
    # Imported here: web clients and file tools take half a second, which only a worker needs.
    from perdure.activities.registry import load_tools
    from perdure.activities.tools import ToolSettings, built_in

    registry = load_tools(settings.tools)
    reach = ToolSettings(
        files=settings.files,
        http_hosts=list(settings.http_hosts),
        http_private=settings.http_private,
        commands=list(settings.commands),
        skills=settings.skills,
    )
    registry.add_missing(built_in(reach))
    return registry


@asynccontextmanager
async def keep_mcp_tools(settings: Settings, registry: Registry) -> AsyncIterator[None]:
    """Keep the tools of the MCP servers in the registry while the context lasts; the agent files are checked with them.

    Raises `SettingsError`, `AgentError` or `ToolDefinitionError` for the first invalid file. While a server is
    missing, print a line on stderr instead: the file may be valid once the server answers. Logs a warning for each hook
    of a tool that is not known.
    """
    check_prompts(settings)
    async with mcp_tools_of(settings.mcp, registry) as missing:
        try:
            named = check_agents(settings.agents, registry)
        except PerdureError as error:
            if not missing:
                raise
            _log.error("%s", error)
        else:
            for line in [] if missing else registry.mistaken_hooks(named):
                _log.warning("%s", line)
        yield


def check_agents(folder: Path | None, registry: Registry) -> list[str | JsonObject]:
    """Validate every agent file of the folder, before anybody starts one of the agents. Return their tools.

    Raises `SettingsError`, `AgentError` or `ToolDefinitionError` for the first invalid file.
    """
    if folder is None:
        return []
    if not folder.is_dir():
        raise SettingsError(f"the agents folder {folder} does not exist")

    for name in read_rollouts(folder):
        Agent.read(folder / f"{name}.json")
    tools: list[str | JsonObject] = []
    for path in sorted(folder.glob("*.json")):
        agent, _ = read_agent(str(path))
        wanted = [message.tool for message in agent.messages() if isinstance(message, ToolMessage)]
        try:
            resolve_tools(wanted, registry.definitions())
        except ProtocolError as error:
            raise AgentError(f"{path}: {error}") from None
        for problem in AgentFolder(folder).delegates_of(agent, {})[1]:
            raise AgentError(f"{path}: {problem}")
        tools += wanted
    return tools


def check_prompts(settings: Settings) -> None:
    """Raise `SettingsError` if the skills or the workspace are not a folder. Log a line for each invalid skill."""
    for name, folder in (("skills folder", settings.skills), ("workspace", settings.workspace)):
        if folder is not None and not folder.is_dir():
            raise SettingsError(f"the {name} {folder} does not exist")
    if settings.skills is not None:
        from perdure.activities.prompt_files import skills_in

        for found in skills_in(settings.skills):
            if isinstance(found, str):
                _log.warning("%s", found)


@asynccontextmanager
async def mcp_tools_of(path: Path | None, registry: Registry) -> AsyncIterator[list[str]]:
    """Keep the tools of a standard `mcpServers` file's servers in the registry while the context lasts. Yield missing
    servers.

    Raises `SettingsError` if the file is invalid. Prints one line on stderr for each server's error.
    """
    if path is None:
        yield []
        return
    written = read_json(path)
    try:
        from perdure.activities import (  # imported here: half a second that a worker without MCP servers saves
            mcp,
            mcp_connection,
        )
    except ImportError:
        raise SettingsError("--mcp needs the package mcp: pip install 'perdure[mcp]'") from None
    try:
        config = TypeAdapter(mcp_connection.McpConfig).validate_python(written)
    except ValidationError as error:
        raise SettingsError(f"{path}: {first_problem(error, written)}") from None
    for name, problem in mcp_connection.check_servers(config).items():
        raise SettingsError(f"{path}: $.mcpServers.{name}: {problem}")
    async with mcp.mcp_tools(config, registry, lambda line: _log.warning("%s", line)) as missing:
        yield missing
