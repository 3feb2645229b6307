"""A standard `mcpServers` file, as other programs read it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Rule: TypeAlias = Literal["never", "always"]
_VARIABLE: Final = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


class McpServer(BaseModel):
    """One entry of `mcpServers`, in the form that other programs read; `trusted` and `approval` are Perdure's."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    command: str | None = None
    args: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    disabled: bool = False
    trusted: bool = False
    """Whether the server is believed when it says that a tool only reads: such a tool is `safe` then. What the tools
    of one that is not trusted return counts as written by others (R15.2)."""
    approval: Rule | dict[str, Any] | None = None
    """`never` or `always` for all of its tools, or by tool: `{"delete": "always"}`."""

    def rule(self, tool: str) -> Any:
        return self.approval.get(tool) if isinstance(self.approval, dict) else self.approval


class McpConfig(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    mcpServers: dict[str, McpServer]


def check_servers(config: McpConfig) -> Mapping[str, str]:
    """What is wrong with which entry."""
    return {
        name: "it needs a 'command' or a 'url', one of them"
        for name, server in config.mcpServers.items()
        if (server.command is None) == (server.url is None)
    }


def expand(text: str) -> str:
    """`${NAME}` and `${NAME:-default}` from the environment, as other programs read these files."""

    def value(found: re.Match[str]) -> str:
        return os.environ.get(found[1], found[2] or "")

    return _VARIABLE.sub(value, text)
