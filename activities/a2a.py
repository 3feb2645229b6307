"""Agents of others as tools, by the A2A protocol (R21.4)."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypedDict
from urllib.parse import urlsplit

from temporalio import activity
from typing_extensions import Unpack

from perdure.activities.queries import is_dropped, stores_files
from perdure.agents.media import Media
from perdure.errors import ToolDefinitionError, ToolError, clip
from perdure.tools.decorator import ToolContext, ToolFunction, describe
from perdure.values.json import JsonObject, whole_numbers
from perdure.values.limits import MAX_PROGRESS

if TYPE_CHECKING:
    from a2a.client import Client
    from a2a.types import Message, Part, StreamResponse, Task

TIMEOUT: Final = 600.0
"""Seconds for an attempt: another agent may call tools of its own."""
_ANSWERS_WITHIN: Final = 60.0
"""Seconds of silence after which a connection counts as broken: the next attempt continues with the task."""
_CANCELLED_WITHIN: Final = 5.0
"""Seconds for the cancellation of the other agent's task."""
_PAUSES: Final = (1.0, 10.0)
"""Seconds between two looks at a task of an agent that does not stream: the first, and the longest."""
_WORDS: Final = 4_000
"""Characters of the other agent's message in an error."""


class A2aOptions(TypedDict, total=False):
    """The options of `@tool` for other agents. `safe`: never harmful; `dangerous`: needs approval."""

    output_path: str
    approval: Any
    ask: str
    safe: bool
    dangerous: bool
    timeout: float
    heartbeat: float
    retries: int
    task_queue: str
    queue_timeout: float
    duration: float
    exclusive: bool | str


def a2a_tool(
    name: str,
    url: str,
    *,
    description: str,
    headers: Mapping[str, str] | None = None,
    **options: Unpack[A2aOptions],
) -> ToolFunction:
    """Return a tool that sends a message to another agent, by the A2A protocol, and returns its answer as the result.

    `name`: the tool's name. `url`: the agent's address, below which its card is. `description`: what a model reads of
    the agent. `headers`: headers of each request, such as `Authorization`; sent to this address only. `options`: as
    `@tool` has them; `timeout` is 600 seconds by default. The results count as written by others. Raises
    `ToolDefinitionError` without the library (`pip install perdure[a2a]`), or for an address that is not one.

    ```python
    clerk = a2a_tool("clerk", "https://shop.example/a2a/clerk", description="Knows what is in stock.")
    ```
    """
    if importlib.util.find_spec("a2a") is None:
        raise ToolDefinitionError(f"tool {name!r}: other agents need a package: pip install 'perdure[a2a]'")
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise ToolDefinitionError(f"tool {name!r}: {url!r} is not the address of an agent: write https://HOST/PATH")

    async def ask(message: str, context: ToolContext, task: str = "", files: list[Media] | None = None) -> Any:
        return await _RemoteCall(name, url, dict(headers or {}), context).answer(message, task, files or [])

    ask.__doc__ = f"""{description}

    Args:
        message: what the agent is to do, in whole sentences: it knows nothing of this conversation.
        task: the task that has asked something; the message is then the answer.
        files: files that the agent is to read.
    """
    return describe(ask, name=name, untrusted=True, **{"timeout": TIMEOUT, **options})


class _RemoteCall:
    """One call. It continues the task that the previous attempt began: the task's id is in the heartbeat's details."""

    def __init__(self, name: str, url: str, headers: dict[str, str], context: ToolContext) -> None:
        self._name, self._url, self._headers, self._context = name, url, headers, context
        self._task = ""

    async def answer(self, message: str, task: str, files: Sequence[Media]) -> Any:
        import httpx
        from a2a.client.errors import A2AClientError
        from a2a.types import Message, Part, Role, SendMessageRequest
        from a2a.utils.errors import A2AError

        parts = [Part(text=message)]
        parts += [Part(raw=file.read(), media_type=file.type, filename=file.name) for file in files]
        sent = Message(message_id=self._context.idempotency_key, role=Role.ROLE_USER, parts=parts, task_id=task)
        try:
            async with self._client() as client:
                try:
                    if begun := _begun():
                        found = await self._follow(client, begun)
                    else:
                        updates = client.send_message(SendMessageRequest(message=sent))
                        found = await self._fold(updates)
                        if isinstance(found, Message):
                            return _value(found.parts)
                    return self._result(await self._ended(client, found))
                except asyncio.CancelledError:
                    await self._cancel(client)
                    raise
        except (httpx.HTTPError, A2AClientError) as error:
            carried_out = False if isinstance(error, httpx.ConnectError) else None
            words = f"{self._name}: {error or type(error).__name__}"
            raise ToolError("not_reachable", words, retry=True, carried_out=carried_out) from None
        except A2AError as error:
            raise ToolError("tool_failed", f"{self._name}: {clip(error.message, _WORDS)}") from None

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        """Yield a client of the agent. Raises `ToolError` if the card leads to another host, which must not receive the
        headers.
        """
        import httpx
        from a2a.client import A2ACardResolver, ClientConfig, ClientFactory

        async with httpx.AsyncClient(headers=self._headers, timeout=_ANSWERS_WITHIN) as http:
            card = await A2ACardResolver(http, self._url).get_agent_card()
            if elsewhere := {each.url for each in card.supported_interfaces if _origin(each.url) != _origin(self._url)}:
                raise ToolError(
                    "not_allowed", f"the card of {self._name} has the URL of another host: {sorted(elsewhere)[0]}"
                )
            streams = bool(card.capabilities.streaming)
            config = ClientConfig(streaming=streams, polling=not streams, httpx_client=http)
            yield ClientFactory(config).create(card)

    async def _follow(self, client: Client, id: str) -> Task:
        """Return a task of an earlier attempt, once its agent has finished it."""
        from a2a.types import GetTaskRequest, SubscribeToTaskRequest, Task
        from a2a.utils.errors import A2AError

        self._begins(id)
        task: Task = await client.get_task(GetTaskRequest(id=id))
        if not _rests(task):
            with suppress(A2AError, NotImplementedError):  # the task has ended meanwhile, or the agent does not stream
                found = await self._fold(client.subscribe(SubscribeToTaskRequest(id=id)))
                task = found if isinstance(found, Task) else task
        return task

    async def _fold(self, updates: AsyncIterator[StreamResponse]) -> Task | Message:
        """Return the last task or message of the updates."""
        from a2a.types import Task

        task = Task()
        async with aclosing(updates) as each_update:  # type: ignore[type-var]  # a generator, behind a plain annotation
            async for update in each_update:
                if update.HasField("message"):
                    return update.message
                if update.HasField("task"):
                    task.CopyFrom(update.task)
                    self._begins(task.id)
                elif update.HasField("status_update"):
                    task.status.CopyFrom(update.status_update.status)
                    if words := _text(task.status.message.parts):
                        self._report(words)
        return task

    async def _ended(self, client: Client, task: Task) -> Task:
        """Return the task at its end, with its artifacts: some agents end the stream earlier."""
        from a2a.types import GetTaskRequest

        if not task.id:
            raise ToolError("tool_failed", f"{self._name} answered without a task or a message", carried_out=None)
        pause, longest = _PAUSES
        while not _rests(task := await client.get_task(GetTaskRequest(id=task.id))):
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)
        return task

    def _result(self, task: Task) -> Any:
        from a2a.types import TaskState

        words = clip(_text(task.status.message.parts), _WORDS)
        state = task.status.state
        if state == TaskState.TASK_STATE_COMPLETED:
            parts = [part for artifact in task.artifacts for part in artifact.parts]
            return _value(parts or task.status.message.parts)
        if state == TaskState.TASK_STATE_INPUT_REQUIRED:
            how = f"ask a person, and call {self._name} again with the answer as message and task {task.id!r}"
            raise ToolError("input_required", f"{self._name} asks: {words or 'for more'}; {how}")
        if state == TaskState.TASK_STATE_AUTH_REQUIRED:
            raise ToolError("auth_required", f"{self._name} needs credentials that this tool does not have: {words}")
        if state == TaskState.TASK_STATE_REJECTED:
            raise ToolError("refused", f"{self._name} refused: {words or 'no reason given'}")
        ended = "was cancelled" if state == TaskState.TASK_STATE_CANCELED else "failed"
        raise ToolError("tool_failed", f"{self._name} {ended}: {words or 'no reason given'}")

    def _begins(self, task: str) -> None:
        if task != self._task:
            self._task = task
            self._report(f"its task is {task}")

    def _report(self, words: str) -> None:
        """Report progress. The next attempt finds the task in it."""
        self._context.heartbeat({"progress": clip(words, MAX_PROGRESS), "task": self._task})

    async def _cancel(self, client: Client) -> None:
        """Cancel the task, unless only this attempt has ended: then the next attempt continues it."""
        from a2a.types import CancelTaskRequest

        if self._task and await is_dropped():
            with suppress(Exception):  # the call has ended: the other agent's answer does not matter
                async with asyncio.timeout(_CANCELLED_WITHIN):
                    await client.cancel_task(CancelTaskRequest(id=self._task))


def _begun() -> str:
    """Return the id of the task that the previous attempt began; empty if it began none."""
    details: Any = next(iter(activity.info().heartbeat_details), None)
    task = details.get("task") if isinstance(details, dict) else None
    return task if isinstance(task, str) else ""


def _rests(task: Task) -> bool:
    from a2a.types import TaskState

    works = (
        TaskState.TASK_STATE_UNSPECIFIED,
        TaskState.TASK_STATE_SUBMITTED,
        TaskState.TASK_STATE_WORKING,
    )
    return task.status.state not in works


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()


def _text(parts: Any) -> str:
    return "\n".join(part.text for part in parts if part.WhichOneof("content") == "text")


def _value(parts: Any) -> Any:
    """Return the value of parts: a text, data or a file; a list of these if there are several kinds.

    A file is a `Media` where files are stored, else the number of its bytes. An address of a file stays one.
    """
    from google.protobuf.json_format import MessageToDict

    read: list[Any] = [_part(part, MessageToDict) for part in parts]
    if all(isinstance(each, str) for each in read):
        return "".join(map(str, read))
    return read[0] if len(read) == 1 else read


def _part(part: Part, plain: Callable[[Any], Any]) -> Any:
    kind = part.WhichOneof("content")
    if kind == "text":
        return str(part.text)
    if kind == "data":
        return whole_numbers(plain(part.data))
    if kind == "raw" and stores_files():
        return Media(data=part.raw, name=part.filename)
    file: JsonObject = {"file": part.filename, "mediaType": part.media_type}
    file |= {"url": part.url} if kind == "url" else {"bytes": len(part.raw)}
    return file
