"""What a worker is equipped with: its tools, the agents it knows, and who is asked before it acts."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from perdure.authoring.files import read_agent
from perdure.errors import AgentError, PerdureError, ProtocolError, SettingsError
from perdure.people.policies import Ask
from perdure.tools.tool import resolve_tools
from perdure.values.messages import ToolMessage

if TYPE_CHECKING:
    from perdure.activities.registry import Registry


GRACE: Final = 75.0
"""Seconds that what runs has to end once a worker is told to. Above the minute that a tool's attempt may take unless it says
otherwise, so that no such call is cut off by a deploy."""


@dataclass(frozen=True)
class Equipment:
    """The settings that `perdure worker` and `perdure dev` share. What is not given is not offered."""

    tools: tuple[str, ...] = ()
    """Modules with tools."""
    agents: Path | None = None
    """The folder of agent files, where delegates are found by name (R8.1)."""
    files: Path | None = None
    """The folder that `read_file`, `write_file` and `list_files` see."""
    http_hosts: tuple[str, ...] = ()
    """Hosts that `http_request` may ask; `http_private`: also where their addresses are private."""
    http_private: bool = False
    commands: tuple[str, ...] = ()
    """Programs that `run_command` may run."""
    mcp: Path | None = None
    """A standard `mcpServers` file."""
    functions: tuple[str, ...] = ()
    """Modules whose functions agent files may name: `config.models.policy`, `config.approval.approver` (R7.9, R9.4)."""
    approval_floor: Ask = "never"
    """What people are asked about whatever an agent file or a run says (R7.1)."""

    def registry(self) -> Registry:
        """The tools of the modules, and those that come along. Raises `ToolDefinitionError`."""
        # Web clients and file tools: half a second that no command without a worker needs to wait.
        from perdure.activities.registry import load_tools
        from perdure.activities.tools import ToolSettings, built_in

        registry = load_tools(self.tools)
        settings = ToolSettings(
            files=self.files,
            http_hosts=list(self.http_hosts),
            http_private=self.http_private,
            commands=list(self.commands),
        )
        registry.add_missing(built_in(settings))
        return registry

    @asynccontextmanager
    async def opened(self, registry: Registry) -> AsyncIterator[None]:
        """Keep the tools of the MCP servers in the registry while the context lasts; the agent files are checked with them.

        Raises `SettingsError`, `AgentError` or `ToolDefinitionError` for the first file that cannot be used; while a server is
        missing, it is a line on stderr, for the file may be right once the server answers.
        """
        from perdure.hosting.settings import mcp_tools
        from perdure.hosting.telemetry import mask_logs

        mask_logs()
        async with mcp_tools(self.mcp, registry) as missing:
            try:
                self.check_agents(registry)
            except PerdureError as error:
                if not missing:
                    raise
                print(f"worker: {error}", file=sys.stderr)
            yield

    def check_agents(self, registry: Registry) -> None:
        """Read every agent file of the folder, so that one that cannot run is known before anybody starts it.

        Raises `SettingsError`, `AgentError` or `ToolDefinitionError` for the first that cannot.
        """
        if self.agents is None:
            return
        if not self.agents.is_dir():
            raise SettingsError(f"the agents folder {self.agents} does not exist")
        from perdure.activities.folder import AgentFolder

        for path in sorted(self.agents.glob("*.json")):
            agent, _ = read_agent(str(path))
            wanted = [message.tool for message in agent.messages() if isinstance(message, ToolMessage)]
            try:
                resolve_tools(wanted, registry.definitions())
            except ProtocolError as error:
                raise AgentError(f"{path}: {error}") from None
            _, problems = AgentFolder(self.agents).collect(wanted, {})
            for problem in problems.values():
                raise AgentError(f"{path}: {problem}")
