"""A scripted model: real HTTP, real SSE, and responses from a script, in the form of every provider.

A Request beyond the script is rejected and recorded, and a wrong key returns 401. At its end a `strict` model raises an
error for such Requests, and for unused turns.

    async with ScriptedModel([{"calls": [], "output": {"ok": True}}]) as model:
        client = AsyncOpenAI(base_url=model.base_url, api_key="any", max_retries=0)
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import httpx2
import uvicorn
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from temporalio import activity

from perdure.activities.model_servers import TIMEOUT, ModelServer, connect
from perdure.agents.agent import Agent
from perdure.models.dialects.common import written_names
from perdure.models.dialects.script import script_names
from perdure.models.dialects.script_writer import write_calls, write_output
from perdure.models.dialects.tools import function_names
from perdure.models.model_names import Provider
from perdure.testing._provider_forms import FORMS, AnswerWriter, ProviderForm
from perdure.values.arguments import check_arguments, check_arguments_of
from perdure.values.json import JsonObject
from perdure.values.messages import merge_data

TOKEN = 4
"""Characters that count as one token, in pacing and in `usage`."""
_CHUNK: Final = 12
_PIECES: Final = 400
"""The most pieces of an answer's stream: each costs a millisecond of CPU time, in the model, the worker and the tests'
watchers.
"""
_NO_AUTHORITIES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""The model has no certificate: a client would use 0.03 s of CPU time to read the machine's certificates."""

RUN_HEADER = "x-perdure-run"
"""The header that names the run of a request: see `ScriptedModel.client`."""


@dataclass(frozen=True)
class ChatRequest:
    """One request to a scripted model; `number` counts from 1.

    ```python
    print(model.requests[0].model, model.requests[0].text)
    ```
    """

    number: int
    body: JsonObject
    headers: Mapping[str, str]
    provider: Provider = "openai"
    """The provider whose form the request has."""
    path: Mapping[str, str] = field(default_factory=dict)
    """Parts of the request's address."""

    @property
    def form(self) -> ProviderForm:
        return FORMS[self.provider]

    @property
    def model(self) -> str:
        return self.form.model(self.body, self.path)

    @property
    def run_id(self) -> str:
        """The run that sent the request, also a delegate's; empty if the client does not name it."""
        return self.headers.get(RUN_HEADER, "")

    @property
    def messages(self) -> list[JsonObject]:
        """The messages in the form of Chat Completions."""
        return self.form.messages(self.body)

    @property
    def shown(self) -> str:
        """Texts that the model received, also native calls and their results, as JSON if they are not text."""
        calls = [
            f"{call['function']['name']} {call['function']['arguments']}"
            for message in self.messages
            for call in message.get("tool_calls", ())
        ]
        return "\n".join([self.text, *calls, json.dumps(self.body.get("tools", []), ensure_ascii=False)])

    @property
    def text(self) -> str:
        """The texts that the model received, as one text."""
        return "\n".join(str(message.get("content") or "") for message in self.messages)


@check_arguments
@dataclass(frozen=True)
class Pace:
    """Seconds before the first token, and for each token after it. Zero is as fast as possible.

    ```python
    model = ScriptedModel(["Hello"], pace=Pace(first_token=0.5, per_token=0.02))
    ```
    """

    first_token: float = 0.0
    """Seconds before the first token."""
    per_token: float = 0.0
    """Seconds for each token after it."""


@check_arguments
@dataclass(frozen=True)
class Fault:
    """A fault that happens once `after` characters of the answer were sent.

    `kind`: `cut` drops the connection, `hang` sends nothing more until the client goes away, `silent` sends nothing at
    all.

    ```python
    turn = Turn("Hello", fault=Fault("hang", after=2))
    ```
    """

    kind: Literal["cut", "hang", "silent"]
    after: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("cut", "hang", "silent"):
            raise ValueError(f"kind must be cut, hang or silent, not {self.kind!r}")


Content: TypeAlias = "str | JsonObject | Callable[[ChatRequest], str | JsonObject]"
"""The model's answer: a text, a Solution, or the result of a function of the request."""


@check_arguments
@dataclass(frozen=True)
class Turn:
    """One answer of a scripted model.

    `content`: a text, a Solution as a dict, which is written as compact JSON, or a function of the request. `status`
    other than 200 is an error with `content` as its message. `gate` holds the stream back after `gate_after` characters
    until the event is set.

    ```python
    model = ScriptedModel([Turn({"output": "ordered"}, usage=(120, 8)), Turn("No.", status=400)])
    ```
    """

    content: Content = ""
    tool_calls: Sequence[tuple[str, str]] = ()
    """Native tool calls in place of content: name and arguments as JSON text."""
    dialect: str | None = None
    """The dialect of a Solution; `None`: the model's."""
    refusal: str = ""
    """The reason of a refusal, in place of content."""
    reasoning: str = ""
    """The reasoning before the answer, as servers send it (`reasoning_content`)."""
    hosted: Sequence[tuple[str, str, str]] = ()
    """Uses of hosted tools before the answer, in the provider's form: tool, query or code, and result."""
    finish_reason: str = "stop"
    status: int = 200
    """HTTP status; from 400 on the content is the error's message."""
    headers: Mapping[str, str] = field(default_factory=dict)
    fault: Fault | None = None
    usage: bool | tuple[int, int] | Mapping[str, Any] = True
    """Whether usage is reported; or the prompt and completion tokens to report; or further counts, such as cached tokens."""
    raw: Sequence[str | bytes] = ()
    """The raw body, piece by piece, in place of a generated one; with `status` and `headers`."""
    media_type: str = "text/event-stream"
    """The media type of `raw`."""
    gate: asyncio.Event | None = None
    gate_after: int = 0


Script: TypeAlias = "Sequence[Any] | Callable[[ChatRequest], Turn | JsonObject]"
"""Turns in the order of the requests (a `Turn`, a Solution or text each), or a function that answers every request."""


@check_arguments_of
def cut(content: Content, after: int) -> Turn:
    """Return an answer whose connection breaks after `after` tokens (of `TOKEN` characters each).

    ```python
    model = ScriptedModel([cut({"output": "ordered"}, 2), {"output": "ordered"}])
    ```
    """
    return Turn(content, fault=Fault("cut", after * TOKEN))


@check_arguments_of
def rate_limited(retry_after: float = 1.0) -> Turn:
    """Return the answer 429, too many requests: the client may retry after `retry_after` seconds (1).

    ```python
    model = ScriptedModel([rate_limited(retry_after=5), {"output": "ordered"}])
    ```
    """
    return Turn("rate limit reached", status=429, headers={"retry-after": f"{retry_after:g}"})


@check_arguments_of
def server_error(status: int = 500) -> Turn:
    """Return an error of the server, by default with status 500. Raises `ValueError` for a status below 400.

    ```python
    model = ScriptedModel([server_error(503), {"output": "ordered"}])
    ```
    """
    if status < 400:
        raise ValueError(f"status {status} is not an error: give 400 or more")
    return Turn("the server had an error", status=status)


@check_arguments_of
def refusal(reason: str) -> Turn:
    """Return an answer in which the model refuses, with its reason.

    ```python
    model = ScriptedModel([refusal("I cannot help with that.")] * 2)
    ```
    """
    return Turn(refusal=reason)


@dataclass(frozen=True)
class ModelAnswer:
    """An answer of the model: text, native calls as name and arguments in JSON, a refusal, and the reasoning before them."""

    text: str = ""
    tool_calls: tuple[tuple[str, str], ...] = ()
    refusal: str = ""
    reasoning: str = ""
    hosted: tuple[tuple[str, str, str], ...] = ()


def write_answer(content: str | JsonObject, dialect: str, kinds: Sequence[str] = ()) -> ModelAnswer:
    """Write a text unchanged, and a Solution in the dialect."""
    if isinstance(content, str):
        return ModelAnswer(content)
    if dialect == "script" and content.keys() <= {"calls", "output"}:
        return ModelAnswer(write_script(content, kinds))
    if dialect == "tools" and content.keys() <= {"calls", "output"}:
        return write_native(content)
    return ModelAnswer(_json(content))


def write_script(solution: JsonObject, kinds: Sequence[str] = ()) -> str:
    calls, output = solution.get("calls") or [], solution.get("output")
    names = written_names(script_names(dict.fromkeys(str(call.get("_tool")) for call in calls)))
    lines = write_calls(calls, names=names, kinds=kinds)
    return "\n".join([*lines, *([write_output(output, kinds=kinds)] if output is not None else [])]) + "\n"


def write_native(solution: JsonObject) -> ModelAnswer:
    """Write native calls, and the output as text beside them; an output that is not a text is written as JSON."""
    calls, output = solution.get("calls") or [], solution.get("output")
    names = written_names(function_names(dict.fromkeys(str(call.get("_tool")) for call in calls)))
    native = [
        (names[str(call.get("_tool"))], _json({key: value for key, value in call.items() if key != "_tool"}))
        for call in calls
    ]
    text = "" if output is None else output if isinstance(output, str) else _json(output)
    return ModelAnswer(text, tuple(native))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def segments(chat_request: ChatRequest, answer: ModelAnswer) -> list[tuple[str, Callable[[str], JsonObject]]]:
    """Return the parts of the answer that are streamed in pieces, each with the form of its pieces. A call's name is a
    part, too.
    """
    segments: list[tuple[str, Callable[[str], JsonObject]]] = []
    if answer.reasoning:
        segments.append((answer.reasoning, lambda text: {"reasoning_content": text}))
    segments += [(_ONE_PIECE, _hosted_delta(use)) for use in answer.hosted]
    if answer.refusal:
        segments.append((answer.refusal, lambda text: {"refusal": text}))
    elif answer.text or not answer.tool_calls:
        segments.append((answer.text, lambda text: {"content": text}))
    for index, (name, arguments) in enumerate(answer.tool_calls):
        segments.append((name, _opening(chat_request, index, name)))
        segments.append((arguments, _going_on(index)))
    return segments


_ONE_PIECE: Final = " "


def _hosted_delta(use: tuple[str, str, str]) -> Callable[[str], JsonObject]:
    tool, given, result = use
    return lambda _: {"hosted_calls": [{"tool": tool, "input": given, "result": result}]}


def _opening(chat_request: ChatRequest, index: int, name: str) -> Callable[[str], JsonObject]:
    """Return the form of a call's name: its first piece has the id and the whole name, the other pieces are empty."""
    told = False

    def say(_: str) -> JsonObject:
        nonlocal told
        call = {"index": index, "function": {"arguments": ""}}
        if not told:
            told = True
            call |= {
                "id": _call_id(chat_request, index),
                "type": "function",
                "function": {"name": name, "arguments": ""},
            }
        return {"tool_calls": [call]}

    return say


def _call_id(chat_request: ChatRequest, index: int) -> str:
    return f"call_{chat_request.number}_{index}"


def completion(chat_request: ChatRequest, answer: ModelAnswer, finish: str) -> JsonObject:
    message: JsonObject = {"role": "assistant", "content": answer.text or None}
    if answer.refusal:
        message["refusal"] = answer.refusal
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.hosted:
        message["hosted_calls"] = [_hosted_delta(use)("")["hosted_calls"][0] for use in answer.hosted]
    if answer.tool_calls:
        message["tool_calls"] = [
            {
                "id": _call_id(chat_request, index),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for index, (name, arguments) in enumerate(answer.tool_calls)
        ]
    choice = {"index": 0, "message": message, "finish_reason": finish}
    frame = {
        "id": f"chatcmpl-{chat_request.number}",
        "object": "chat.completion",
        "created": 0,
        "model": chat_request.model,
    }
    return frame | {"choices": [choice]}


def usage_of(chat_request: ChatRequest, answer: ModelAnswer, turn: Turn) -> JsonObject:
    shown = len(json.dumps(chat_request.messages, ensure_ascii=False)) + sum(
        len(json.dumps(chat_request.body[key])) for key in ("response_format", "tools") if key in chat_request.body
    )
    written = len(answer.text) + sum(len(name) + len(arguments) for name, arguments in answer.tool_calls)
    prompt, completion = math.ceil(shown / TOKEN), math.ceil(written / TOKEN)
    if isinstance(turn.usage, tuple):
        prompt, completion = turn.usage
    told: JsonObject = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return told | dict(turn.usage if isinstance(turn.usage, Mapping) else {})


def _going_on(index: int) -> Callable[[str], JsonObject]:
    return lambda text: {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def error(
    form: ProviderForm, status: int, message: str, code: str, headers: Mapping[str, str] | None = None
) -> Response:
    return JSONResponse(form.error(status, message, code), status_code=status, headers=dict(headers or {}))


def finish_of(answer: ModelAnswer, turn: Turn, provider: Provider) -> str:
    """Return the finish reason of the answer. Only OpenAI's servers have a separate one for a refusal."""
    if answer.refusal and turn.finish_reason == "stop" and not provider.startswith("openai"):
        return "content_filter"
    return "tool_calls" if answer.tool_calls and turn.finish_reason == "stop" else turn.finish_reason


_ROUTES: Mapping[str, Provider] = {
    "/v1/chat/completions": "openai",
    "/v1/responses": "openai-responses",
    "/v1/messages": "anthropic",
    "/v1beta/models/{model}": "google",
    "/model/{model}/{how}": "bedrock",
}
_KEYS = ("authorization", "x-api-key", "x-goog-api-key")
"""Headers in which providers receive the key."""


async def close_at_once(server: uvicorn.Server) -> None:
    """Close the server with its connections. Uvicorn's own `shutdown` would add a tenth of a second to every test."""
    for listener in server.servers:
        listener.close()
    for connection in list(server.server_state.connections):
        connection.transport.abort()
    if tasks := list(server.server_state.tasks):
        await asyncio.wait(tasks, timeout=0.1)  # they have lost their clients, so most end at once


class ScriptedModel:
    """A model server that answers from a script, on a loopback port, as long as the context lasts.

    `script`: a sequence answers the n-th request with its n-th turn; a function answers any number of requests. A dict
    is a Solution, written in the `dialect`; `kinds` are the kinds of data that references can name; the dialect
    `script` needs them. Under `run_locally` both are by default the agent's own. `pace`: the speed of its answers
    (default: no delay). `api_key`: the only accepted key (default: any). `chunk`: characters of a piece of the stream
    (default: 12, and more for an answer of more than 400 such pieces). `port`: 0 selects a free one. `strict`: check at
    the end, as `check` does.

    ```python
    async with ScriptedModel([{"output": "ordered"}]) as model:
        print(model.base_url)
    ```
    """

    @check_arguments_of
    def __init__(
        self,
        script: Script,
        *,
        pace: Pace | None = None,
        api_key: str | None = None,
        chunk: int | None = None,
        port: int = 0,
        dialect: str | None = None,
        kinds: Sequence[str] | None = None,
        strict: bool = True,
    ) -> None:
        self.script = script
        self.dialect = dialect
        self.kinds = kinds
        self.strict = strict
        self.pace = pace or Pace()
        self.requests: list[ChatRequest] = []
        self.arrivals: list[list[tuple[float, int]]] = []
        """For each request the monotonic time at which each piece was sent, and the characters sent by then."""
        self.complaints: list[str] = []
        self.disconnected: set[int] = set()
        """Numbers of the requests whose client went away before the answer's end."""
        self.completion_tokens = 0
        self.prompt_tokens = 0
        self._api_key = api_key
        self._chunk = chunk
        self._port = port
        self._changed = asyncio.Condition()
        self._closing = asyncio.Event()

    @property
    def base_url(self) -> str:
        """The address for `OPENAI_BASE_URL`: `http://127.0.0.1:PORT/v1`."""
        return f"http://127.0.0.1:{self._port}/v1"

    async def __aenter__(self) -> ScriptedModel:
        routes = [
            Route(path, functools.partial(self._answer, provider), methods=["POST"])
            for path, provider in _ROUTES.items()
        ]
        routes.append(Route("/v1/models", self._models))
        config = uvicorn.Config(
            Starlette(routes=routes),
            host="127.0.0.1",
            port=self._port,
            log_level="critical",
            access_log=False,
            lifespan="off",
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        # Do not call `serve`, which would replace the process's signal handlers.
        await self._server.startup()
        self._port = self._server.servers[0].sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, error: type[BaseException] | None, *_: object) -> None:
        await self._close()
        if self.strict and error is None:
            self.check()

    async def _close(self) -> None:
        self._closing.set()
        await close_at_once(self._server)

    def check(self) -> None:
        """Raise `AssertionError` for requests beyond the script, and for turns that no request has used.

        ```python
        model.check()
        ```
        """
        if problems := [*self.complaints, *self.left_over()]:
            raise AssertionError("; ".join(problems))

    def left_over(self) -> list[str]:
        """Return one line about the turns of the script that no request has used; empty if there are none.

        ```python
        assert model.left_over() == []
        ```
        """
        if callable(self.script) or len(self.requests) >= len(self.script):
            return []
        return [f"{len(self.script) - len(self.requests)} of {len(self.script)} turns were not used"]

    def bind(self, agent: Agent[Any] | None, tools: Mapping[str, JsonObject]) -> None:
        """Set the dialect and the kinds of the agent; `run_locally` calls this. `tools`: the definitions of its
        worker.

        ```python
        model.bind(shopper, {})
        ```
        """
        del tools
        if agent is not None:
            self.dialect = self.dialect or agent.parsed.config.dialect
            if self.kinds is None:
                data = merge_data(agent.parsed.messages())
                self.kinds = [merged.kind for merged in data if merged.kind != "state"]

    def client(self, **options: Any) -> AsyncOpenAI:
        """Return a client of this model, which names the run in a header of each request. It need not be closed.
        `options`: as `AsyncOpenAI` takes them.

        ```python
        client = model.client(timeout=5)
        ```
        """
        http = DefaultAsyncHttpxClient(event_hooks={"request": [_name_run]}, verify=_NO_AUTHORITIES)
        key = self._api_key or "scripted"
        return AsyncOpenAI(base_url=self.base_url, api_key=key, max_retries=0, http_client=http, **options)

    def servers(self) -> dict[Provider, ModelServer]:
        """Return this model as the server of each provider beside OpenAI, for models such as `anthropic:claude-…`.

        ```python
        servers = model.servers()
        ```
        """
        address, key = self.base_url.removesuffix("/v1"), self._api_key or "scripted"
        http = httpx2.AsyncClient(event_hooks={"request": [_name_run]}, timeout=TIMEOUT, verify=_NO_AUTHORITIES)
        others = [provider for provider in FORMS if not provider.startswith("openai")]
        return {provider: connect(provider, address, key, http) for provider in others}

    async def wait_for_request(self, number: int) -> ChatRequest:
        """Return the `number`-th request, once it has arrived.

        ```python
        request = await model.wait_for_request(1)
        ```
        """
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.requests) >= number)
        return self.requests[number - 1]

    async def wait_for_characters(self, number: int, characters: int) -> None:
        """Wait until this many characters of the `number`-th answer were sent.

        ```python
        await model.wait_for_characters(1, 200)
        ```
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self._sent(number) >= characters)

    async def wait_for_disconnect(self, number: int) -> None:
        """Wait until the client of the `number`-th request has disconnected before the answer's end.

        ```python
        await model.wait_for_disconnect(1)
        ```
        """
        async with self._changed:
            await self._changed.wait_for(lambda: number in self.disconnected)

    def _sent(self, number: int) -> int:
        return self.arrivals[number - 1][-1][1] if len(self.arrivals) >= number and self.arrivals[number - 1] else 0

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    async def _answer(self, provider: Provider, request: Request) -> Response:
        form = FORMS[provider]
        given = {str(request.headers.get(name)).removeprefix("Bearer ") for name in _KEYS}
        if self._api_key is not None and self._api_key not in given:
            return error(form, 401, "Incorrect API key provided", "invalid_api_key")
        body, path = await request.json(), dict(request.path_params)
        chat_request = ChatRequest(len(self.requests) + 1, body, dict(request.headers), provider, path)
        if not callable(self.script) and len(self.requests) >= len(self.script):
            complaint = f"the script has {len(self.script)} turns, this is request {chat_request.number}"
            self.complaints.append(complaint)
            return error(form, 400, complaint, "script_exhausted")
        self.requests.append(chat_request)
        self.arrivals.append([])
        await self._notify()
        turn = self.script(chat_request) if callable(self.script) else self.script[chat_request.number - 1]
        turn = turn if isinstance(turn, Turn) else Turn(turn)
        if turn.fault is not None and turn.fault.kind == "silent":
            await self._closing.wait()
        if turn.raw:
            return StreamingResponse(
                _pieces(turn.raw), status_code=turn.status, headers=dict(turn.headers), media_type=turn.media_type
            )
        content = turn.content(chat_request) if callable(turn.content) else turn.content
        answer = write_answer(content, turn.dialect or self.dialect or "solution", self.kinds or ())
        native = (*answer.tool_calls, *turn.tool_calls)
        answer = ModelAnswer(answer.text, native, turn.refusal, turn.reasoning, tuple(turn.hosted))
        if turn.status != 200:
            return error(form, turn.status, answer.text, "scripted", turn.headers)
        usage = usage_of(chat_request, answer, turn)
        self.prompt_tokens += usage["prompt_tokens"]
        self.completion_tokens += usage["completion_tokens"]
        if not form.streamed(body, path):
            made = completion(chat_request, answer, finish_of(answer, turn, provider))
            text = json.dumps(form.whole(chat_request.number, chat_request.model, made, usage if turn.usage else None))
            if turn.fault is not None:
                return StreamingResponse(self._broken(text, turn.fault), media_type="application/json")
            return Response(text, media_type="application/json")
        return StreamingResponse(self._watched(chat_request, answer, turn, usage), media_type=form.media_type)

    async def _watched(
        self, chat_request: ChatRequest, answer: ModelAnswer, turn: Turn, usage: JsonObject
    ) -> AsyncIterator[bytes]:
        try:
            async for event in self._stream(chat_request, answer, turn, usage):
                yield event
        except (asyncio.CancelledError, GeneratorExit):
            self.disconnected.add(chat_request.number)
            asyncio.get_running_loop().create_task(self._notify())
            raise

    async def _stream(
        self, chat_request: ChatRequest, answer: ModelAnswer, turn: Turn, usage: JsonObject
    ) -> AsyncIterator[bytes]:
        start, sent = time.monotonic(), 0
        writer: AnswerWriter = chat_request.form.writer(chat_request.number, chat_request.model, usage)
        yield writer.begin()
        stops = {turn.fault.after if turn.fault else -1, turn.gate_after if turn.gate else -1}
        parts = segments(chat_request, answer)
        size = self._chunk or max(_CHUNK, sum(len(text) for text, _ in parts) // _PIECES)
        size = TOKEN if self.pace.per_token else size
        for text, delta in parts:
            end = sent + len(text)
            at = 0
            while True:
                if turn.fault is not None and sent >= turn.fault.after:
                    if turn.fault.kind == "hang":
                        await self._closing.wait()
                    # An exception here ends the response without its last chunk, as a lost connection does.
                    raise ConnectionAbortedError("cut by the script")
                if turn.gate is not None and sent >= turn.gate_after:
                    await turn.gate.wait()
                if sent >= end:
                    break
                upto = min([sent + size, end, *(stop for stop in stops if stop > sent)])
                await self._due(start, upto)
                yield writer.delta(delta(text[at : at + upto - sent]))
                at, sent = at + upto - sent, upto
                self.arrivals[chat_request.number - 1].append((time.monotonic(), sent))
                await self._notify()
        options = (
            {"include_usage": True}
            if chat_request.provider != "openai"
            else chat_request.body.get("stream_options") or {}
        )
        counted = usage if turn.usage and options.get("include_usage") else None
        yield writer.end(finish_of(answer, turn, chat_request.provider), counted)

    async def _broken(self, body: str, fault: Fault) -> AsyncIterator[str]:
        """Yield the beginning of an answer that is not streamed, and then the fault."""
        yield body[: fault.after]
        if fault.kind == "hang":
            await self._closing.wait()
        raise ConnectionAbortedError("cut by the script")

    async def _due(self, start: float, characters: int) -> None:
        """Wait until the pace allows this many characters, counted from the start, so that delays do not add up."""
        due = start + self.pace.first_token + self.pace.per_token * (characters / TOKEN)
        await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


async def _name_run(request: Any) -> None:
    if activity.in_activity():
        request.headers[RUN_HEADER] = activity.info().workflow_id or ""


async def _pieces(raw: Sequence[str | bytes]) -> AsyncIterator[str | bytes]:
    for piece in raw:
        yield piece
        await asyncio.sleep(0)  # send each piece by itself
