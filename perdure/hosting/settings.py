"""What a worker is told beside its tools: prices, further endpoints, what built-in tools may reach, MCP servers."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from perdure.activities.endpoints import Endpoint
from perdure.activities.registry import module_names
from perdure.activities.tools import ToolSettings
from perdure.errors import SettingsError
from perdure.hosting.files import json_option, read_json
from perdure.model.usage import Price
from perdure.tools.functions import ToolFunction
from perdure.values.jsons import Json
from perdure.values.messages import first_problem

T = TypeVar("T")


def prices() -> Mapping[str, Price]:
    """`PERDURE_PRICES`: JSON or `@file`, `{"model": {"prompt": 2.5, "completion": 10}}` in dollars per million tokens."""
    return _setting("PERDURE_PRICES", TypeAdapter(dict[str, Price]))


def endpoints() -> Mapping[str, Endpoint]:
    """`PERDURE_ENDPOINTS`: JSON or `@file`, `{"backup": {"base_url": "…", "api_key_env": "BACKUP_KEY"}}`."""
    return _setting("PERDURE_ENDPOINTS", TypeAdapter(dict[str, Endpoint]))


@asynccontextmanager
async def mcp_tools(path: Path | None) -> AsyncIterator[list[ToolFunction]]:
    """The tools of the servers of a standard `mcpServers` file, for as long as the context lasts.

    Raises `SettingsError` for what is wrong with the file, `ToolDefinitionError` where a server cannot be used.
    """
    if path is None:
        yield []
        return
    try:
        from perdure.activities import mcp  # half a second that a worker without MCP servers need not wait
    except ImportError:
        raise SettingsError("--mcp needs the package mcp: pip install 'perdure[mcp]'") from None
    config = _read(read_json(path), TypeAdapter(mcp.McpConfig), str(path))
    for name, problem in mcp.check_servers(config).items():
        raise SettingsError(f"{path}: $.mcpServers.{name}: {problem}")
    async with mcp.mcp_tools(config, lambda line: print(f"worker: {line}", file=sys.stderr)) as offered:
        yield offered


def tool_settings() -> ToolSettings:
    """What the built-in tools may reach, by the worker's own settings in the environment."""
    files = os.environ.get("PERDURE_FILES")
    return ToolSettings(
        files=Path(files) if files else None,
        http_hosts=module_names(os.environ.get("PERDURE_HTTP_HOSTS", "")),
        http_private=os.environ.get("PERDURE_HTTP_PRIVATE", "").lower() in ("1", "true", "yes"),
        commands=module_names(os.environ.get("PERDURE_COMMANDS", "")),
    )


def _setting(name: str, kind: TypeAdapter[dict[str, T]]) -> dict[str, T]:
    text = os.environ.get(name)
    return {} if not text else _read(json_option(text, name), kind, name)


def _read(value: Json, kind: TypeAdapter[T], where: str) -> T:
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        raise SettingsError(f"{where}: {first_problem(error)}") from None
