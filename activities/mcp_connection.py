"""The connection to one MCP server, and the limits of the data that the server may send."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Final, Literal, TextIO, TypeAlias, TypeVar

import anyio
import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.auth.exceptions import OAuthFlowError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.session import ClientRequestContext
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.message import SessionMessage
from mcp.types import (
    CONNECTION_CLOSED,
    URL_ELICITATION_REQUIRED,
    BlobResourceContents,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ClientRequest,
    ContentBlock,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestParams,
    GetPromptResult,
    InputRequest,
    InputRequiredResult,
    InputResponseRequestParams,
    JSONRPCResponse,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    Prompt,
    PromptListChangedNotification,
    PromptMessage,
    ReadResourceResult,
    Resource,
    ResourceListChangedNotification,
    ResourceTemplate,
    TextResourceContents,
    Tool,
    ToolListChangedNotification,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from temporalio import activity

from perdure.activities.active_executions import is_only_attempt
from perdure.activities.mcp_input import REFUSED, ServerRequests, as_requests
from perdure.activities.secrets import keep_secret, mask_text
from perdure.errors import MAX_ERROR_TEXT, ToolError, clip
from perdure.queries import cancel_all
from perdure.runs.caller_context import looks_secret
from perdure.tools.server_input import ServerInput, ServerInputError
from perdure.values.json import JsonObject
from perdure.values.limits import (
    MAX_MCP_BLOCKS,
    MAX_MCP_LIST,
    MAX_MCP_MESSAGE,
    MAX_MCP_TOOLS,
    MAX_SERVER_QUESTIONS,
    MAX_SERVER_ROUNDS,
)
from perdure.values.problems import MOST, none_of

ApprovalRule: TypeAlias = Literal["never", "always"]
_VARIABLE: Final = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


class McpOAuth(BaseModel):
    """The client credentials of a worker at a server's authorization server; `${NAME}` is read from the environment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: str
    """The authorization server: the credentials are sent to no other server, also if the MCP server names one."""
    clientId: str
    clientSecret: str
    scope: str | None = None
    """Scopes, with blanks between them."""


OWN_KEYS: Final = ("trusted", "sampling", "approval")
"""Keys of a server's entry that other programs do not have."""


class McpServer(BaseModel):
    """One entry of `mcpServers`, in the form that other programs read; the keys of `OWN_KEYS` are Perdure's."""

    model_config = ConfigDict(extra="allow", frozen=True)  # keys of other programs mean nothing here

    command: str | None = None
    args: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    oauth: McpOAuth | None = None
    disabled: bool = False
    trusted: bool = False
    """Whether the server's declaration that a tool only reads is trusted: such a tool is `safe` then. What the tools
    of one that is not trusted return counts as written by others (R15.2)."""
    sampling: int = Field(default=0, ge=0, le=MAX_SERVER_QUESTIONS)
    """How often one call of a tool may have the run's model asked for the server; 0: never."""
    approval: ApprovalRule | JsonObject | None = None
    """`never` or `always` for all of its tools, or by tool: `{"delete": "always"}`."""

    def rule(self, tool: str) -> Any:
        return self.approval.get(tool) if isinstance(self.approval, dict) else self.approval

    def misspelt_keys(self) -> list[str]:
        """Return a problem for each unknown key that resembles one of Perdure's."""
        unknown = list(self.model_extra or {})[:MOST]
        return [none_of(key, "key", OWN_KEYS) for key in unknown if get_close_matches(key, OWN_KEYS, cutoff=0.8)]

    def rules_without_tool(self, tools: Collection[str]) -> list[str]:
        """Return a problem for each rule of `approval` that is for none of these tools."""
        names = self.approval if isinstance(self.approval, dict) else ()
        unknown = [name for name in names if name not in tools][:MOST]
        return [f"approval: {none_of(name, 'tool', sorted(tools))}" for name in unknown]


class McpConfig(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    mcpServers: dict[str, McpServer]


def check_servers(config: McpConfig) -> Mapping[str, str]:
    """Return the problem of each invalid entry, by name."""
    one = {
        name: "it needs either a 'command' or a 'url'"
        for name, server in config.mcpServers.items()
        if (server.command is None) == (server.url is None)
    }
    signs = "'oauth' is for a server with a 'url'; give a program's credentials in 'env'"
    return {name: signs for name, server in config.mcpServers.items() if server.oauth and server.url is None} | one


def expand(text: str) -> str:
    """Replace `${NAME}` and `${NAME:-default}` by the environment's values, as other programs do for these files."""

    def value(found: re.Match[str]) -> str:
        return os.environ.get(found[1], found[2] or "")

    return _VARIABLE.sub(value, text)


A_SECOND: Final = 500
"""Messages a second, above `BURST`: a server that reports progress without pause would slow down all calls of the
worker.
"""
BURST: Final = 10_000
"""Messages that may arrive at once."""
ENCODING: Final = "perdure-mcp"
"""The name of UTF-8 with these limits: the output of a server's program is decoded with it."""


def _few(blocks: Any) -> Any:
    if isinstance(blocks, list) and len(blocks) > MAX_MCP_BLOCKS:
        raise ValueError(f"{len(blocks):,} blocks; {MAX_MCP_BLOCKS:,} are accepted")
    return blocks


class BoundedResult(CallToolResult):
    """A result with a bounded number of blocks, counted before they are parsed."""

    content: Annotated[list[ContentBlock], BeforeValidator(_few)]


class BoundedContents(ReadResourceResult):
    """A resource with a bounded number of contents."""

    contents: Annotated[list[TextResourceContents | BlobResourceContents], BeforeValidator(_few)]


class BoundedPrompt(GetPromptResult):
    """A prompt with a bounded number of messages."""

    messages: Annotated[list[PromptMessage], BeforeValidator(_few)]


class BoundedResources(ListResourcesResult):
    """A page with a bounded number of resources."""

    resources: Annotated[list[Resource], BeforeValidator(_few)]


class BoundedTemplates(ListResourceTemplatesResult):
    """A page with a bounded number of resource templates."""

    resource_templates: Annotated[list[ResourceTemplate], BeforeValidator(_few)]


class BoundedPrompts(ListPromptsResult):
    """A page with a bounded number of prompts."""

    prompts: Annotated[list[Prompt], BeforeValidator(_few)]


class BoundedQuestions(InputRequiredResult):
    """A result that asks for input first, with a bounded number of requests."""

    @model_validator(mode="before")
    @classmethod
    def _bound(cls, data: Any) -> Any:
        requests = data.get("inputRequests") if isinstance(data, dict) else None
        if isinstance(requests, dict) and len(requests) > MAX_SERVER_QUESTIONS:
            raise ValueError(f"{len(requests):,} questions at once; {MAX_SERVER_QUESTIONS} are accepted")
        return data


_ResultT = TypeVar("_ResultT", bound=BaseModel)


def _kind_of_result(data: Any) -> str:
    return "asks" if isinstance(data, dict) and data.get("resultType") == "input_required" else "result"


@cache
def _or_questions(result: type[BaseModel]) -> TypeAdapter[Any]:
    """Return the parser of a result, or of a request for input in its place."""
    either: Any = Annotated[result, Tag("result")] | Annotated[BoundedQuestions, Tag("asks")]
    return TypeAdapter(Annotated[either, Discriminator(_kind_of_result)])


@dataclass(eq=False)
class _Flight:
    """A request under way."""

    requests: ServerRequests
    asked: asyncio.Future[ServerInput | ToolError | None]
    """The server's requests for input, or the reason why they are refused; `None` if it is unknown which request asks.
    """
    may_repeat: bool = field(default_factory=lambda: not activity.in_activity() or not is_only_attempt())
    """Whether it may be sent again although it is unknown which request asks."""
    is_lost: bool = False
    """Whether it has ended before the server's answer, such as by a timeout or a run's cancellation."""


@dataclass
class ServerAllowance:
    """The limits of the data that one server may send now."""

    end: Callable[[], None]
    """Function that ends a program that prints more: the client would read and drop its output forever."""
    calls: int = 0
    """Calls under way: each may return a large result."""

    @property
    def message(self) -> int:
        """Return the maximum of bytes in one message."""
        return MAX_MCP_MESSAGE if self.calls else MAX_MCP_LIST


allowance: ContextVar[ServerAllowance] = ContextVar("allowance")
"""Allowance of the server whose client is being created: the client decodes a program's output, and has no other
access.
"""


class Messages:
    """A counter of the messages of one connection."""

    def __init__(self, allowed: ServerAllowance, clock: Callable[[], float] = time.monotonic) -> None:
        self._allowed, self._clock = allowed, clock
        self._left, self._since = float(BURST), clock()
        self._bytes = 0
        """Bytes of the unfinished message."""

    def take(self, size: int, ended: int = 0) -> None:
        """Count `size` bytes of a message, after `ended` others. Raise `BrokenResourceError` above the server's bounds."""
        self._bytes = size + (0 if ended else self._bytes)
        if ended:
            now = self._clock()
            self._left = min(float(BURST), self._left + (now - self._since) * A_SECOND) - ended
            self._since = now
        if self._bytes > self._allowed.message or self._left < 0:
            raise anyio.BrokenResourceError("the server sent too many messages, or too large ones")


class _LineDecoder(codecs.BufferedIncrementalDecoder):
    """A decoder of UTF-8 by whole lines: the client joins a partial line anew with each piece."""

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
    return codecs.CodecInfo(utf8.encode, utf8.decode, incrementaldecoder=_LineDecoder, name=ENCODING)


codecs.register(_find)


_SESSION_ENDED: Final = -404_404
"""Code of the error for a request that was refused because its session has ended. No server uses it."""


class BoundedTransport(httpx2.AsyncHTTPTransport):
    """A transport over HTTP that keeps the bounds.

    A body, or an event of a stream, has a bounded number of bytes. Compression is refused: a few bytes could become any
    number. The refusal of a session that has ended (404) becomes an error with the code `_SESSION_ENDED`.
    """

    def __init__(self, allowed: ServerAllowance) -> None:
        super().__init__()
        self._allowed = allowed

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["Accept-Encoding"] = "identity"
        response = await super().handle_async_request(request)
        if response.status_code == 404 and "mcp-session-id" in request.headers:
            await response.aclose()
            error = {"code": _SESSION_ENDED, "message": "the session has ended"}
            return httpx2.Response(404, json={"jsonrpc": "2.0", "id": None, "error": error})
        if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
            await response.aclose()
            raise httpx2.RemoteProtocolError("the server compressed its response, which the request does not accept")
        streams = response.headers.get("content-type", "").startswith("text/event-stream")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Bounded(response.stream, self._allowed, streams=streams)
        return response


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, allowed: ServerAllowance, *, streams: bool) -> None:
        self._stream, self._streams = stream, streams
        self._messages = Messages(allowed)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        before = b""
        async for part in self._stream:
            # An event ends with an empty line; a body without events is one message.
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


_KEPT: Final = 4096
"""Bytes kept of the end."""
_SHOWN: Final = 300


class StderrTail:
    """A reader of a program's stderr. Each line goes to the log as `perdure.mcp.NAME`, at debug level; the last is
    kept.
    """

    def __init__(self, name: str) -> None:
        self._log = logging.getLogger(f"perdure.mcp.{name}")
        self._tail = b""

    @property
    def last(self) -> str:
        """Return the last line with any content, in printable characters."""
        lines = [line.strip() for line in self._tail.decode(errors="replace").splitlines() if line.strip()]
        return "".join(c if c.isprintable() else " " for c in lines[-1])[:_SHOWN] if lines else ""

    @asynccontextmanager
    async def listened(self) -> AsyncIterator[TextIO]:
        """Yield a file for a program's stderr, read for as long as the context lasts."""
        self._tail = b""
        reading, writing = os.pipe()
        reader = asyncio.StreamReader()
        with os.fdopen(reading, "rb", 0) as source, os.fdopen(writing, "w") as file:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), source
            )
            listener = asyncio.create_task(self._listen(reader))
            try:
                yield file
            finally:
                file.close()
                # Its last output has arrived by now, or does not matter.
                await asyncio.wait([listener], timeout=0.1)
                await cancel_all(listener)
                transport.close()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(_KEPT):
            self._tail = (self._tail + data)[-_KEPT:]
            for line in data.decode(errors="replace").splitlines():
                self._log.debug("%s", mask_text(line))


CONNECT_TIMEOUT: Final = 10.0
"""Seconds until a silent server is given up."""
_MOST_PAGES: Final = 100
_SETTLE: Final = 0.2
"""Seconds between two readings of a list that keeps changing."""
_LISTEN_AGAIN: Final = 5.0
_LOST: Final = (OSError, OAuthFlowError, httpx2.HTTPError, anyio.ClosedResourceError, anyio.BrokenResourceError)

# The library's warnings are for its developers: operators of a worker get our own messages.
logging.getLogger("mcp").addHandler(logging.NullHandler())


class _Tokens:
    """The tokens of one connection; a new connection asks for new ones."""

    def __init__(self) -> None:
        self._tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        keep_secret(tokens.access_token)
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        del client_info  # the credentials come from the file: no client is registered


def _credentials(url: str, oauth: McpOAuth) -> ClientCredentialsOAuthProvider:
    secret = expand(oauth.clientSecret)
    keep_secret(secret)
    return ClientCredentialsOAuthProvider(
        url,
        _Tokens(),
        client_id=expand(oauth.clientId),
        client_secret=secret,
        scope=oauth.scope,
        issuer=expand(oauth.issuer),
    )


class _ValidTools:
    """The messages of a server, without the tools that MCP's types refuse: the library would refuse the whole list."""

    def __init__(self, stream: Any, problems: list[str]) -> None:
        self._stream = stream  # a `ReadStream`, which the library does not export
        self._problems = problems

    @property
    def last_context(self) -> Context | None:
        found: Context | None = getattr(self._stream, "last_context", None)
        return found

    async def receive(self) -> SessionMessage | Exception:
        return self._checked(await self._stream.receive())

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> _ValidTools:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return self._checked(await self._stream.__anext__())

    async def __aenter__(self) -> _ValidTools:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        ended: bool | None = await self._stream.__aexit__(*error)
        return ended

    def _checked(self, received: SessionMessage | Exception) -> SessionMessage | Exception:
        response = received.message if isinstance(received, SessionMessage) else None
        if isinstance(response, JSONRPCResponse) and isinstance(tools := response.result.get("tools"), list):
            response.result["tools"] = [tool for tool in tools if self._is_valid(tool)]
        return received

    def _is_valid(self, tool: Any) -> bool:
        try:
            Tool.model_validate(tool, by_name=False)
        except ValidationError as error:
            name = tool.get("name") if isinstance(tool, dict) else tool
            self._problems.append(f"tool {clip(repr(name), 60)}: {_first_line(error)}")
            return False
        return True


@asynccontextmanager
async def _with_valid_tools(transport: Any, problems: list[str]) -> AsyncIterator[Any]:
    async with transport as (reading, writing):
        yield _ValidTools(reading, problems), writing


class UnusableServerError(Exception):
    """The failure of a server that cannot be used; `str()` is the reason, in one line."""


class _SessionEndedError(Exception):
    """The refusal of a request in a session that had ended: the server did not run it."""


class Connection:
    """A client of one server. One task enters and leaves its context, as the library requires.

    `on_tools` receives the server's tools each time they were read, and the problems of those that are invalid: at each
    connection, and after each reported change.
    """

    def __init__(self, name: str, server: McpServer, on_tools: Callable[[list[Tool], list[str]], None]) -> None:
        self.name = name
        self.has_tasks = False
        """Whether the server runs calls of tools as tasks."""
        self.has_resources = False
        """Whether the server lists any resource, or any template of one."""
        self.has_prompts = False
        """Whether the server lists any prompt."""
        self._server = server
        self._on_tools = on_tools
        self._problems: list[str] = []
        self._words = StderrTail(name)
        self._task: asyncio.Task[None] | None = None
        self._client: asyncio.Future[Client] | None = None
        self._current: Client | None = None
        self._done = asyncio.Event()
        self._changed = asyncio.Event()
        self._allowed = ServerAllowance(self._done.set)
        self._flights: set[_Flight] = set()
        """Requests under way at a server that asks while they run."""
        self._ended = asyncio.Event()
        """Set when such a request has ended."""
        self._asks = False
        """Whether such a server has asked for input."""
        self._asking = 0
        self._alone = asyncio.Lock()

    async def open(self) -> None:
        """Connect, and read the tools. Raises `UnusableServerError`."""
        try:
            await asyncio.wait_for(self._get(), CONNECT_TIMEOUT)
        except Exception as error:
            reason = self._reason(error)
            await self.close()
            raise UnusableServerError(f"the MCP server {self.name!r} cannot be used: {reason}") from None

    async def call(self, tool: str, params: JsonObject, progress: ProgressFnT) -> CallToolResult:
        """Call a tool. Raise as `request` does."""
        # Not `call_tool`, which lists the tools again and evaluates their regular expressions during a call.
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=params))
        return await self.request(request, BoundedResult, tool, progress)

    async def request(
        self, request: ClientRequest, result: type[_ResultT], name: str, progress: ProgressFnT | None = None
    ) -> _ResultT:
        """Send a request, called `name` in errors, with the answers so far. Raise `ToolError`; the next one reconnects a
        lost connection. Other requests on it are not disturbed. If its session had ended, it is sent once more in a new
        one.

        Raise `ServerInputError` if the server asks for input first.
        """
        try:
            return await self._request(request, result, name, progress)
        except _SessionEndedError:
            return await self._request(request, result, name, progress, in_new_session=True)

    async def _request(
        self,
        request: ClientRequest,
        result: type[_ResultT],
        name: str,
        progress: ProgressFnT | None,
        *,
        in_new_session: bool = False,
    ) -> _ResultT:
        """Send a request. Raise as `request` does, and `_SessionEndedError` unless it is `in_new_session`."""
        try:
            client = await asyncio.wait_for(self._get(), CONNECT_TIMEOUT)
        except Exception as error:
            reason = self._reason(error)
            if self._current is None:
                await self.close()
            raise ToolError(
                "not_reachable", f"the MCP server {self.name!r} cannot be reached: {reason}", retry=True
            ) from None
        allowed = self._allowed
        allowed.calls += 1
        try:
            return await self._converse(client, request, result, progress)
        except MCPError as error:
            if error.code == _SESSION_ENDED and not in_new_session:
                if client is self._current:
                    await self.close()
                raise _SessionEndedError from None
            if not await self._is_lost(client, error):
                raise ToolError(
                    "mcp_error", f"the MCP server {self.name!r} answered: {clip(str(error), MAX_ERROR_TEXT)}"
                ) from None
            lost: Exception = error
        except _LOST as error:
            lost = error
        except (ValidationError, RuntimeError, ValueError) as error:
            said = f"the MCP server {self.name!r} ran {name}, but its answer is not valid: {_first_line(error)}"
            raise ToolError("invalid_answer", said, carried_out=None) from None
        finally:
            allowed.calls -= 1
        if client is self._current:
            await self.close()
        said = f"the connection to the MCP server {self.name!r} was lost while it ran {name}: {self._reason(lost)}"
        raise ToolError("connection_lost", f"{said}; whether it was done is not known", retry=True, carried_out=None)

    async def _converse(
        self, client: Client, request: ClientRequest, result: type[_ResultT], progress: ProgressFnT | None
    ) -> _ResultT:
        """Send a request until the server returns a result, or asks for input."""
        if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return await self._send_modern(client, request, result, progress)
        while True:
            async with AsyncExitStack() as alone:
                if self._asks:
                    await alone.enter_async_context(self._alone)
                    await self._until(lambda: not self._flights)
                flight = _Flight(self._requests(), asyncio.get_running_loop().create_future())
                found = await self._send(client, request, result, progress, flight)
            if isinstance(found, ServerInput):
                raise ServerInputError(found)
            if found is not None:
                return found

    def _requests(self) -> ServerRequests:
        return ServerRequests(self.name, self._server.sampling)

    async def _send_modern(
        self, client: Client, request: ClientRequest, result: type[_ResultT], progress: ProgressFnT | None
    ) -> _ResultT:
        """Send a request to a server that asks by its result. If it asks for nothing, the request is sent again after a
        pause.
        """
        requests = self._requests()
        state = None if requests.answers is None else requests.answers.state
        responses = requests.responses
        for _ in range(MAX_SERVER_ROUNDS):
            if isinstance(request.params, InputResponseRequestParams):
                params = request.params.model_copy(update={"input_responses": responses, "request_state": state})
                request = request.model_copy(update={"params": params})
            found: Any = await client.session.send_request(request, _or_questions(result), progress_callback=progress)
            if not isinstance(found, InputRequiredResult):
                return found  # type: ignore[no-any-return]
            asked = requests.read(found)
            if asked.questions or asked.samples:
                raise ServerInputError(asked)
            responses, state = None, found.request_state
            await asyncio.sleep(_SETTLE)
        words = f"the MCP server {self.name!r} returned neither a result nor a question"
        raise ToolError("asks_too_often", words, carried_out=None)

    async def _send(
        self,
        client: Client,
        request: ClientRequest,
        result: type[_ResultT],
        progress: ProgressFnT | None,
        flight: _Flight,
    ) -> _ResultT | ServerInput | None:
        """Send a request to a server that asks while the request runs. A request that asks for input is cancelled, and
        sent again with the answers; `None`: it is sent again alone.
        """
        sending = asyncio.ensure_future(client.session.send_request(request, result, progress_callback=progress))
        self._flights.add(flight)
        try:
            either: list[asyncio.Future[Any]] = [sending, flight.asked]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not flight.asked.done():
                return sending.result()
            asked = flight.asked.result()
        except MCPError as error:
            if error.code != URL_ELICITATION_REQUIRED or flight.requests.answers is None:
                raise
            data = error.data if isinstance(error.data, dict) else {}
            asked = flight.requests.ask(*as_requests(data.get("elicitations")))
        finally:
            flight.is_lost = not sending.done()
            await cancel_all(sending)
            self._flights.discard(flight)
            self._ended.set()
        if isinstance(asked, ToolError):
            raise asked
        return asked

    async def _answer(self, request: InputRequest) -> Any:  # the request's result, or `ErrorData`
        """Answer a server's request during our requests: with the run's earlier answer, or with a refusal."""
        self._asks = True  # from now on one request runs at a time: the server does not name the one that asks
        self._asking += 1
        met = [*self._flights]
        try:
            await self._until(lambda: self._has_lost(met) or len(self._flights) <= self._asking)
        finally:
            self._asking -= 1
        flights = [flight for flight in met if flight in self._flights and not flight.asked.done()]
        if self._has_lost(met):  # the question may be that of the lost request, so it is not for another run
            return REFUSED
        if len(flights) != 1:
            if all(flight.may_repeat for flight in flights):
                for flight in flights:
                    flight.asked.set_result(None)
            return REFUSED
        ((requests, asked),) = ((flight.requests, flight.asked) for flight in flights)
        if (known := requests.known(request)) is not None:
            return known
        try:
            asked.set_result(requests.ask(request))
        except ToolError as error:
            asked.set_result(error)
        return REFUSED

    @staticmethod
    def _has_lost(flights: list[_Flight]) -> bool:
        return any(flight.is_lost for flight in flights)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._ended.clear()
            await self._ended.wait()

    async def _elicit(self, context: ClientRequestContext, params: ElicitRequestParams) -> Any:
        del context  # it does not name the request for which the server asks
        return await self._answer(ElicitRequest(params=params))

    async def _sample(self, context: ClientRequestContext, params: CreateMessageRequestParams) -> Any:
        del context
        return await self._answer(CreateMessageRequest(params=params))

    async def _is_lost(self, client: Client, error: MCPError) -> bool:
        """Whether the connection failed, and not the call: over HTTP an unavailable server returns various errors."""
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
        self._allowed = ServerAllowance(done.set)
        allowance.set(self._allowed)
        try:
            async with AsyncExitStack() as stack:
                transport = await self._transport(stack)
                client = await stack.enter_async_context(
                    Client(
                        _with_valid_tools(transport, self._problems),
                        cache=None,
                        message_handler=self._hear,
                        elicitation_callback=self._elicit,
                        sampling_callback=self._sample if self._server.sampling else None,
                    )
                )
                self.has_tasks = _has_tasks(client)
                await self._read(client)
                self._current = client
                ready.set_result(client)
                await self._follow(client, done)
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error if isinstance(error, Exception) else ConnectionError("closed"))
                ready.exception()  # the error is for tasks that wait; without one it is ignored
            if not isinstance(error, Exception):
                raise
        finally:
            if self._client is ready:  # a later connection has another
                self._current = None

    async def _read(self, client: Client) -> None:
        self.has_resources, self.has_prompts = await _lists_resources(client), await _lists_prompts(client)
        self._problems.clear()
        self._on_tools(await _all_tools(client), self._problems)

    async def _hear(self, message: Any) -> None:
        if isinstance(
            message, ToolListChangedNotification | ResourceListChangedNotification | PromptListChangedNotification
        ):
            self._changed.set()

    async def _follow(self, client: Client, done: asyncio.Event) -> None:
        """Read the lists again at each change that the server reports, until the connection ends."""
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
                    # If a list cannot be read now, the earlier tools stay: a call reports the problem.
                    with contextlib.suppress(Exception):
                        async with asyncio.timeout(CONNECT_TIMEOUT):
                            await self._read(client)
                    await asyncio.sleep(_SETTLE)
        finally:
            await cancel_all(listening)

    async def _listen(self, client: Client) -> None:
        """Subscribe to changes: newer servers report them only to subscribers, older ones always."""
        while True:
            try:
                async with client.listen(
                    tools_list_changed=True, resources_list_changed=True, prompts_list_changed=True
                ) as events:
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
        url = expand(server.url)
        http = await stack.enter_async_context(
            httpx2.AsyncClient(
                headers=headers,
                auth=None if server.oauth is None else _credentials(url, server.oauth),
                timeout=httpx2.Timeout(30.0, read=300.0),
                transport=BoundedTransport(self._allowed),
            )
        )
        return streamable_http_client(url, http_client=http)

    async def close(self) -> None:
        self._done.set()
        # A request that fails meanwhile opens another connection, which is not to be closed here.
        task, current = self._task, self._current
        self._client = self._task = self._current = None
        if task is not None:
            if current is not None:
                with contextlib.suppress(TimeoutError, Exception):
                    await asyncio.wait_for(asyncio.shield(task), 5)
            await cancel_all(task)

    def _reason(self, error: BaseException) -> str:
        """Return the innermost message of an error, or of the first error of a group, and the server's last line."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        said = f"no answer within {CONNECT_TIMEOUT:g} s" if isinstance(error, TimeoutError) else _first_line(error)
        return mask_text(f"{said}; its last output: {words}" if (words := self._words.last) else said)


def _has_tasks(client: Client) -> bool:
    tasks = client.server_capabilities.tasks
    requests = tasks.requests if tasks is not None else None
    return requests is not None and requests.tools is not None and requests.tools.call is not None


async def _lists_resources(client: Client) -> bool:
    """Whether the server lists a resource or a template: many libraries declare the capability for every server. An
    invalid list counts as none.
    """
    if client.server_capabilities.resources is None:
        return False
    with contextlib.suppress(MCPError, ValidationError):
        if (await client.list_resources()).resources:
            return True
    with contextlib.suppress(MCPError, ValidationError):
        return bool((await client.list_resource_templates()).resource_templates)
    return False


async def _lists_prompts(client: Client) -> bool:
    if client.server_capabilities.prompts is None:
        return False
    with contextlib.suppress(MCPError, ValidationError):
        return bool((await client.list_prompts()).prompts)
    return False


async def _all_tools(client: Client) -> list[Tool]:
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        if not page.next_cursor or page.next_cursor == cursor or len(tools) > MAX_MCP_TOOLS:
            break
        cursor = page.next_cursor
    return tools[: MAX_MCP_TOOLS + 1]  # one more than the limit shows that there are more


def _first_line(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
