"""What a worker is told beside its tools: prices, further endpoints, MCP servers."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from perdure.activities.endpoints import Endpoint
from perdure.activities.registry import Registry
from perdure.authoring.files import json_option, read_json
from perdure.errors import SettingsError
from perdure.model.usage import Price
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
async def mcp_tools(path: Path | None, registry: Registry) -> AsyncIterator[list[str]]:
    """Keep the tools of a standard `mcpServers` file's servers in the registry while the context lasts; the servers that are missing.

    Raises `SettingsError` for what is wrong with the file. What is wrong with a server is one line on stderr.
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
    async with mcp.mcp_tools(config, registry, lambda line: print(f"worker: {line}", file=sys.stderr)) as missing:
        yield missing


def _setting(name: str, kind: TypeAdapter[dict[str, T]]) -> dict[str, T]:
    text = os.environ.get(name)
    return {} if not text else _read(json_option(text, name), kind, name)


def _read(value: Json, kind: TypeAdapter[T], where: str) -> T:
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        raise SettingsError(f"{where}: {first_problem(error)}") from None
