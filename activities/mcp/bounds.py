"""How much an MCP server may send: bytes of a message, messages a second, tools, blocks of a result. More ends the connection, or is not offered."""

from __future__ import annotations

import codecs
import time
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, Final

import anyio
import httpx2
from mcp.types import CallToolResult, ContentBlock
from pydantic import BeforeValidator

from perdure.values.limits import MAX_MCP_BLOCKS, MAX_MCP_LIST, MAX_MCP_MESSAGE

A_SECOND: Final = 500
"""Messages a second, over `BURST`: a server that reports progress without pause would take the worker's time from all calls."""
BURST: Final = 10_000
"""Messages that may come at once."""
ENCODING: Final = "perdure-mcp"
"""The name of UTF-8, read within these bounds: what a server's program prints is decoded by it."""


def _few(blocks: Any) -> Any:
    if isinstance(blocks, list) and len(blocks) > MAX_MCP_BLOCKS:
        raise ValueError(f"{len(blocks):,} blocks; {MAX_MCP_BLOCKS:,} are accepted")
    return blocks


class BoundedResult(CallToolResult):
    """A result of so many blocks at most, counted before they are looked at."""

    content: Annotated[list[ContentBlock], BeforeValidator(_few)]


@dataclass
class Allowance:
    """What one server may send now."""

    end: Callable[[], None]
    """Called where a program prints more: the client reads and drops what comes after it, and would do so for ever."""
    calls: int = 0
    """Calls under way: each may give a large result."""

    @property
    def message(self) -> int:
        """Bytes of one message."""
        return MAX_MCP_MESSAGE if self.calls else MAX_MCP_LIST


allowance: ContextVar[Allowance] = ContextVar("allowance")
"""That of the server whose client is being made: the client decodes what a program prints, and knows nothing else of us."""


class Messages:
    """Counts what comes on one connection."""

    def __init__(self, allowed: Allowance, clock: Callable[[], float] = time.monotonic) -> None:
        self._allowed, self._clock = allowed, clock
        self._left, self._since = float(BURST), clock()
        self._bytes = 0
        """Of the message that is still coming."""

    def take(self, size: int, ended: int = 0) -> None:
        """`size` bytes of a message, after `ended` others. Raises `BrokenResourceError` for more than a server may send."""
        self._bytes = size + (0 if ended else self._bytes)
        if ended:
            now = self._clock()
            self._left = min(float(BURST), self._left + (now - self._since) * A_SECOND) - ended
            self._since = now
        if self._bytes > self._allowed.message or self._left < 0:
            raise anyio.BrokenResourceError("the server sends more than a server may")


class _Lines(codecs.BufferedIncrementalDecoder):
    """UTF-8 by whole lines: the client joins what it is given of a line anew with each piece."""

    def __init__(self, errors: str = "strict") -> None:
        super().__init__(errors)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)
        self._allowed = allowance.get()
        self._messages = Messages(self._allowed)
        self._parts: list[str] = []

    def decode(self, input: Any, final: bool = False) -> str:
        lines, newline, rest = self._decoder.decode(input, final).rpartition("\n")
        try:
            self._messages.take(len(rest), lines.count("\n") + 1 if newline else 0)
        except anyio.BrokenResourceError:
            self._allowed.end()
            raise
        if not newline:
            self._parts.append(rest)
            return ""
        whole = "".join([*self._parts, lines, newline])
        self._parts = [rest]
        return whole


def _find(name: str) -> codecs.CodecInfo | None:
    if name.replace("_", "-") != ENCODING:
        return None
    utf8 = codecs.lookup("utf-8")
    return codecs.CodecInfo(utf8.encode, utf8.decode, incrementaldecoder=_Lines, name=ENCODING)


codecs.register(_find)


class BoundedTransport(httpx2.AsyncHTTPTransport):
    """A transport over HTTP that keeps the bounds: a body, or an event of a stream, has so many bytes at most; none is compressed, for a few bytes may hold any number."""

    def __init__(self, allowed: Allowance) -> None:
        super().__init__()
        self._allowed = allowed

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["Accept-Encoding"] = "identity"
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
            await response.aclose()
            raise httpx2.RemoteProtocolError("the server compresses what it was asked to send as it is")
        streams = response.headers.get("content-type", "").startswith("text/event-stream")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Bounded(response.stream, self._allowed, streams=streams)
        return response


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, allowed: Allowance, *, streams: bool) -> None:
        self._stream, self._streams = stream, streams
        self._messages = Messages(allowed)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        before = b""
        async for part in self._stream:
            # An event ends with an empty line; a body that is none is one message.
            seen = (before + part).replace(b"\r", b"") if self._streams else part
            ended = seen.count(b"\n\n") if self._streams else 0
            try:
                self._messages.take(len(seen) - seen.rfind(b"\n\n") if ended else len(part), ended)
            except anyio.BrokenResourceError as error:
                raise httpx2.RemoteProtocolError(str(error)) from None
            before = part[-1:]
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
