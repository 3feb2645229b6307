"""Tools that come with Perdure: the worker's settings select them and limit their access."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from perdure.activities.prompt_files import skill_tools
from perdure.activities.tools.basic import now, task_complete
from perdure.activities.tools.commands import command_tools
from perdure.activities.tools.files import file_tools
from perdure.activities.tools.http import http_tools
from perdure.activities.transcripts import recall
from perdure.tools.decorator import ToolFunction, tool_function


class ToolSettings(BaseModel):
    """The access of the built-in tools. A tool without access is not offered."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: Path | None = None
    """The only folder that `read_file`, `write_file` and `list_files` can reach."""
    http_hosts: list[str] = Field(default_factory=list)
    """Hosts that `http_request` may call: `api.example.com`, `*.example.com`, or `*` for all."""
    http_private: bool = False
    """Whether `http_request` may call addresses of private networks and of this machine."""
    commands: list[str] = Field(default_factory=list)
    """Programs that `run_command` may run, by name."""
    skills: Path | None = None
    """The folder with the skills of `read_skill`, for agents that use skills (R10.19)."""


def built_in(settings: ToolSettings) -> list[ToolFunction]:
    """Return the built-in tools that these settings allow. Raises `ToolDefinitionError`."""
    functions: list[Callable[..., Any]] = [now, task_complete, recall]
    if settings.files is not None:
        functions += file_tools(settings.files)
    if settings.http_hosts:
        functions += http_tools(settings.http_hosts, private=settings.http_private)
    if settings.commands:
        functions += command_tools(settings.commands, settings.files)
    if settings.skills is not None:
        functions += skill_tools(settings.skills)
    found = [tool_function(function) for function in functions]
    return [function for function in found if function is not None]
