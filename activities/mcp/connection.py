"""A connection to one MCP server, through the official client: made, followed, lost and made anew."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final

import anyio
import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT
from mcp.types import (
    CONNECTION_CLOSED,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Tool,
    ToolListChangedNotification,
)
from pydantic import ValidationError

from perdure.activities.mcp.bounds import ENCODING, Allowance, BoundedResult, BoundedTransport, allowance
from perdure.activities.mcp.config import McpServer, expand
from perdure.activities.mcp.stderr import LastWords
from perdure.activities.secrets import keep_secret, looks_secret, masked
from perdure.errors import MAX_TOLD, ToolError, clip
from perdure.values.jsons import JsonObject
from perdure.values.limits import MAX_MCP_TOOLS

CONNECT_TIMEOUT: Final = 10.0
"""Seconds until a server that says nothing is given up."""
_MOST_PAGES: Final = 100
_SETTLE: Final = 0.2
"""Seconds between two readings of a list that keeps changing."""
_LISTEN_AGAIN: Final = 5.0
_LOST: Final = (OSError, httpx2.HTTPError, anyio.ClosedResourceError, anyio.BrokenResourceError)

# What the library wants to tell its developer is no line for whoever runs a worker: they are told in words of ours.
logging.getLogger("mcp").addHandler(logging.NullHandler())


class UnusableServerError(Exception):
    """A server cannot be used; `str()` says why, in one line."""


class Connection:
    """A client of one server. Its context is entered and left by one task, as the library wants it.

    `on_tools` is given the server's tools whenever they were read: at each connection, and when the server says that they changed.
    """

    def __init__(self, name: str, server: McpServer, on_tools: Callable[[list[Tool]], None]) -> None:
        self.name = name
        self.has_tasks = False
        """Whether the server runs calls of tools as tasks."""
        self._server = server
        self._on_tools = on_tools
        self._words = LastWords(name)
        self._task: asyncio.Task[None] | None = None
        self._client: asyncio.Future[Client] | None = None
        self._current: Client | None = None
        self._done = asyncio.Event()
        self._changed = asyncio.Event()
        self._allowed = Allowance(self._done.set)

    async def open(self) -> None:
        """Connect, and read the tools. Raises `UnusableServerError`."""
        try:
            await asyncio.wait_for(self._get(), CONNECT_TIMEOUT)
        except Exception as error:
            reason = self._reason(error)
            await self.close()
            raise UnusableServerError(f"the MCP server {self.name!r} cannot be used: {reason}") from None

    async def call(self, tool: str, params: JsonObject, progress: ProgressFnT) -> CallToolResult:
        """Raises `ToolError`; a lost connection is made anew by the next call. Other calls on it are not disturbed."""
        try:
            client = await asyncio.wait_for(self._get(), CONNECT_TIMEOUT)
        except Exception as error:
            reason = self._reason(error)
            if self._current is None:
                await self.close()
            raise ToolError(
                "not_reachable", f"the MCP server {self.name!r} cannot be reached: {reason}", retry=True
            ) from None
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=params))
        allowed = self._allowed
        allowed.calls += 1
        try:
            # Not `call_tool`, which lists the tools anew and runs patterns of theirs in the middle of a call.
            return await client.session.send_request(request, BoundedResult, progress_callback=progress)
        except MCPError as error:
            if not await self._is_lost(client, error):
                raise ToolError(
                    "mcp_error", f"the MCP server {self.name!r} answered: {clip(str(error), MAX_TOLD)}"
                ) from None
            lost: Exception = error
        except _LOST as error:
            lost = error
        except (ValidationError, RuntimeError, ValueError) as error:
            said = f"the MCP server {self.name!r} ran {tool}, and its answer is none: {_first_line(error)}"
            raise ToolError("invalid_answer", said) from None
        finally:
            allowed.calls -= 1
        if client is self._current:
            await self.close()
        said = f"the connection to the MCP server {self.name!r} was lost while it ran {tool}: {self._reason(lost)}"
        raise ToolError("connection_lost", f"{said}; whether it was done is not known", retry=True)

    async def _is_lost(self, client: Client, error: MCPError) -> bool:
        """Whether an error is the connection's, not the call's: over HTTP a server that forgot us, or is gone, says odd things."""
        if error.error.code == CONNECTION_CLOSED:
            return True
        if self._server.url is None:
            return False
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await client.list_tools()
        except Exception:
            return True
        return False

    async def _get(self) -> Client:
        if self._client is None or (self._task is not None and self._task.done()):
            self._client = asyncio.get_running_loop().create_future()
            self._done = asyncio.Event()
            self._task = asyncio.create_task(self._hold(self._client, self._done))
        return await asyncio.shield(self._client)

    async def _hold(self, ready: asyncio.Future[Client], done: asyncio.Event) -> None:
        self._allowed = Allowance(done.set)
        allowance.set(self._allowed)
        try:
            async with AsyncExitStack() as stack:
                transport = await self._transport(stack)
                client = await stack.enter_async_context(Client(transport, cache=None, message_handler=self._hear))
                self.has_tasks = _has_tasks(client)
                self._on_tools(await _all_tools(client))
                self._current = client
                ready.set_result(client)
                await self._follow(client, done)
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error if isinstance(error, Exception) else ConnectionError("closed"))
                ready.exception()  # whoever waits is told; nobody waiting is no fault
            if not isinstance(error, Exception):
                raise

    async def _hear(self, message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._changed.set()

    async def _follow(self, client: Client, done: asyncio.Event) -> None:
        """Read the tools again whenever the server says that they changed, until the connection is to end."""
        listening = asyncio.create_task(self._listen(client))
        try:
            while not done.is_set():
                waits = [asyncio.create_task(event.wait()) for event in (done, self._changed)]
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for wait in waits:
                        wait.cancel()
                if self._changed.is_set() and not done.is_set():
                    self._changed.clear()
                    # A list that cannot be read now leaves the tools that there were: a call will tell.
                    with contextlib.suppress(Exception):
                        async with asyncio.timeout(CONNECT_TIMEOUT):
                            self._on_tools(await _all_tools(client))
                    await asyncio.sleep(_SETTLE)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, client: Client) -> None:
        """Newer servers say what changed only to those who listen; older ones say it unasked."""
        while True:
            try:
                async with client.listen(tools_list_changed=True) as events:
                    async for _ in events:
                        self._changed.set()
            except SubscriptionLost:
                self._changed.set()
            except (ListenNotSupportedError, MCPError):
                return
            await asyncio.sleep(_LISTEN_AGAIN)

    async def _transport(self, stack: AsyncExitStack) -> Any:
        server = self._server
        if server.command is not None:
            env = {key: expand(value) for key, value in server.env.items()}
            keep_secret(*(value for key, value in env.items() if looks_secret(key)))
            args = [expand(argument) for argument in server.args]
            program = StdioServerParameters(
                command=expand(server.command), args=args, env=env or None, cwd=server.cwd, encoding=ENCODING
            )
            return stdio_client(program, await stack.enter_async_context(self._words.listened()))
        assert server.url is not None
        headers = {key: expand(value) for key, value in server.headers.items()}
        keep_secret(*(value for key, value in headers.items() if looks_secret(key)))
        http = await stack.enter_async_context(
            httpx2.AsyncClient(
                headers=headers, timeout=httpx2.Timeout(30.0, read=300.0), transport=BoundedTransport(self._allowed)
            )
        )
        return streamable_http_client(expand(server.url), http_client=http)

    async def close(self) -> None:
        self._done.set()
        if self._task is not None:
            if self._current is not None:
                with contextlib.suppress(TimeoutError, Exception):
                    await asyncio.wait_for(asyncio.shield(self._task), 5)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._client = self._task = self._current = None

    def _reason(self, error: BaseException) -> str:
        """The innermost words of an error, of a group the first, and what the server itself said last."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        said = f"no answer within {CONNECT_TIMEOUT:g} s" if isinstance(error, TimeoutError) else _first_line(error)
        return masked(f"{said}; its last words: {words}" if (words := self._words.last) else said)


def _has_tasks(client: Client) -> bool:
    tasks = client.server_capabilities.tasks
    requests = tasks.requests if tasks is not None else None
    return requests is not None and requests.tools is not None and requests.tools.call is not None


async def _all_tools(client: Client) -> list[Tool]:
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        if not page.next_cursor or page.next_cursor == cursor or len(tools) > MAX_MCP_TOOLS:
            break
        cursor = page.next_cursor
    return tools[: MAX_MCP_TOOLS + 1]  # one more than are offered: it says that there are more


def _first_line(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
