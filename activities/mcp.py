"""Tools of MCP servers, from a standard `mcpServers` file, through the official client.

Each server has one connection, held by a task of its own for as long as the worker runs, and made anew when it is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, Literal, TypeAlias

import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CONNECTION_CLOSED, CallToolResult, TextContent, Tool
from pydantic import BaseModel, ConfigDict, Field

from perdure.errors import ToolDefinitionError, ToolError
from perdure.tools.definitions import plain_definition
from perdure.tools.functions import ToolFunction, open_tool
from perdure.values.jsons import Json, JsonObject

CONNECT_TIMEOUT: Final = 30.0
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
    """Whether the server is believed when it says that a tool only reads: such a tool is `safe` then."""
    approval: Rule | dict[str, Any] | None = None
    """`never` or `always` for all of its tools, or by tool: `{"delete": "always"}`."""


class McpConfig(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    mcpServers: dict[str, McpServer]


@asynccontextmanager
async def mcp_tools(config: McpConfig, on_refused: Callable[[str], None]) -> AsyncIterator[list[ToolFunction]]:
    """The tools of all servers, `<server>.<tool>`, usable while the context lasts.

    `on_refused` is told in one line of each that cannot be a tool, e.g. because its schema is none; the others are offered.
    Raises `ToolDefinitionError` when a server cannot be reached.
    """
    async with AsyncExitStack() as stack:
        found: list[ToolFunction] = []
        for name, server in config.mcpServers.items():
            if server.disabled:
                continue
            connection = await stack.enter_async_context(_connected(name, server))
            for offered in await connection.list_tools():
                try:
                    found.append(_tool(name, server, connection, offered))
                except ToolDefinitionError as error:
                    on_refused(f"{error}; it is not offered")
        yield found


@asynccontextmanager
async def _connected(name: str, server: McpServer) -> AsyncIterator[_Connection]:
    connection = _Connection(name, server)
    try:
        yield connection
    finally:
        await connection.close()


class _Connection:
    """A client of one server. Its context is entered and left by one task, as the library wants it."""

    def __init__(self, name: str, server: McpServer) -> None:
        self._name = name
        self._server = server
        self._task: asyncio.Task[None] | None = None
        self._client: asyncio.Future[Client] | None = None
        self._current: Client | None = None
        self._done = asyncio.Event()

    async def list_tools(self) -> list[Tool]:
        tools: list[Tool] = []
        cursor: str | None = None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                client = await self._get()
                while True:
                    page = await client.list_tools(cursor=cursor)
                    tools += page.tools
                    cursor = page.next_cursor
                    if not cursor:
                        return tools
        except Exception as error:
            raise ToolDefinitionError(f"the MCP server {self._name!r} cannot be used: {_reason(error)}") from None

    async def call(self, tool: str, params: JsonObject) -> CallToolResult:
        """Raises `ToolError`; a lost connection is made anew by the next attempt. Other calls on it are not disturbed."""
        client: Client | None = None
        try:
            client = await asyncio.wait_for(self._get(), CONNECT_TIMEOUT)
            return await client.call_tool(tool, params)
        except Exception as error:
            if isinstance(error, MCPError) and error.error.code != CONNECTION_CLOSED:
                raise ToolError("mcp_error", f"the MCP server {self._name!r} answered: {error}") from None
            if client is self._current:
                await self.close()
            reason = f"the MCP server {self._name!r} cannot be reached: {_reason(error)}"
            raise ToolError("not_reachable", reason, retry=True) from None

    async def _get(self) -> Client:
        if self._client is None or (self._task is not None and self._task.done()):
            self._client = asyncio.get_running_loop().create_future()
            self._done = asyncio.Event()
            self._task = asyncio.create_task(self._hold(self._client, self._done))
        return await asyncio.shield(self._client)

    async def _hold(self, ready: asyncio.Future[Client], done: asyncio.Event) -> None:
        try:
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(Client(await self._transport(stack)))
                self._current = client
                ready.set_result(client)
                await done.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error if isinstance(error, Exception) else ConnectionError("closed"))
                ready.exception()  # whoever waits is told; nobody waiting is no fault
            if not isinstance(error, Exception):
                raise

    async def _transport(self, stack: AsyncExitStack) -> Any:
        server = self._server
        if server.command is not None:
            env = {key: _expand(value) for key, value in server.env.items()}
            args = [_expand(argument) for argument in server.args]
            return StdioServerParameters(command=_expand(server.command), args=args, env=env or None, cwd=server.cwd)
        assert server.url is not None
        headers = {key: _expand(value) for key, value in server.headers.items()}
        http = await stack.enter_async_context(
            httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(30.0, read=300.0))
        )
        return streamable_http_client(_expand(server.url), http_client=http)

    async def close(self) -> None:
        self._done.set()
        if self._task is not None:
            with contextlib.suppress(TimeoutError, Exception):
                await asyncio.wait_for(asyncio.shield(self._task), 5)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._client = self._task = self._current = None


def _tool(name: str, server: McpServer, connection: _Connection, offered: Tool) -> ToolFunction:
    async def call(**params: Json) -> Json:
        return _value(offered.name, await connection.call(offered.name, params))

    hints = offered.annotations
    approval = server.approval.get(offered.name) if isinstance(server.approval, dict) else server.approval
    definition = plain_definition(
        {
            "name": f"{name}.{offered.name}",
            "description": offered.description or offered.title or "",
            "inputSchema": offered.input_schema,
        }
    )
    if offered.output_schema is not None:
        definition["_output"] = offered.output_schema
    if approval is not None:
        definition["_approval"] = approval
    # The standard's defaults: what says nothing destroys, and may not be done twice.
    if hints is None or not (hints.read_only_hint or hints.destructive_hint is False):
        definition["_dangerous"] = True
    elif server.trusted and hints.read_only_hint:
        definition["_safe"] = True
    if hints is None or not (hints.idempotent_hint or hints.read_only_hint):
        definition["_retries"] = 0  # it may have happened: only the model can tell whether to do it again
    try:
        return open_tool(definition, call)
    except ToolDefinitionError as error:
        raise ToolDefinitionError(f"the MCP server {name!r}: {error}") from None


def _value(name: str, result: CallToolResult) -> Json:
    """Structured content, or the text; of anything else its kind and size. Raises `ToolError` for the tool's own failure."""
    texts = [block.text for block in result.content if isinstance(block, TextContent)]
    if result.is_error:
        raise ToolError("tool_failed", "\n".join(texts) or f"{name} failed and says nothing")
    if result.structured_content is not None:
        return result.structured_content
    others = [
        {"type": block.type, "bytes": len(block.model_dump_json())}
        for block in result.content
        if not isinstance(block, TextContent)
    ]
    text = "\n".join(texts)
    return {"text": text, "omitted": others} if others else text


def _expand(text: str) -> str:
    """`${NAME}` and `${NAME:-default}` from the environment, as other programs read these files."""

    def value(found: re.Match[str]) -> str:
        return os.environ.get(found[1], found[2] or "")

    return _VARIABLE.sub(value, text)


def _reason(error: BaseException) -> str:
    """The innermost words of an error, of a group the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__


def check_servers(config: McpConfig) -> Mapping[str, str]:
    """What is wrong with which entry."""
    return {
        name: "it needs a 'command' or a 'url', one of them"
        for name, server in config.mcpServers.items()
        if (server.command is None) == (server.url is None)
    }
