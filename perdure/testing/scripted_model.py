"""A scripted OpenAI-compatible model: real HTTP, real SSE, and answers from a script (R14.2).

It is as strict as the real thing: a Request beyond the script is refused and noted, a wrong key is a 401. At its end a `strict` one
complains of that, and of turns that nobody asked for.

    async with ScriptedModel([{"calls": [], "output": {"ok": True}}]) as model:
        client = AsyncOpenAI(base_url=model.base_url, api_key="any", max_retries=0)
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import uvicorn
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from temporalio import activity

from perdure.authoring.agent import Agent
from perdure.testing.completions import completion, error, event, frame, segments, usage_of
from perdure.testing.dialects import Answer, write_answer
from perdure.testing.turns import RUN_HEADER, TOKEN, ChatRequest, Fault, Pace, Script, Turn
from perdure.values.jsons import JsonObject
from perdure.values.messages import merge_data


class ScriptedModel:
    """Serves a script on a loopback port for as long as the context lasts.

    A sequence answers the n-th request with its n-th turn; a callable answers any number of them. A dict is a Solution, written
    in the `dialect`; `kinds` are the kinds of data that references can name, which `script` has to know. Under `run_locally` both are the
    agent's own unless they are given. `pace`: how fast it writes; at once by default. `api_key`: the key to insist on; any will do by default.
    `chunk`: characters of a piece of the stream. `port`: 0 takes a free one. `strict`: complain at the end, as `check` does.
    """

    def __init__(
        self,
        script: Script,
        *,
        pace: Pace | None = None,
        api_key: str | None = None,
        chunk: int = 12,
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
        return f"http://127.0.0.1:{self._port}/v1"

    async def __aenter__(self) -> ScriptedModel:
        routes = [Route("/v1/chat/completions", self._answer, methods=["POST"]), Route("/v1/models", self._models)]
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
        # Without `serve`, which would take over the process's signals.
        await self._server.startup()
        self._port = self._server.servers[0].sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, error: type[BaseException] | None, *_: object) -> None:
        await self._close()
        if self.strict and error is None:
            self.check()

    async def _close(self) -> None:
        self._closing.set()
        self._server.force_exit = True
        self._server.should_exit = True
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        await self._server.shutdown()

    def check(self) -> None:
        """Raises `AssertionError` for requests beyond the script, and for turns that were never asked for."""
        if problems := [*self.complaints, *self.left_over()]:
            raise AssertionError("; ".join(problems))

    def left_over(self) -> list[str]:
        """What of the script was not asked for."""
        if callable(self.script) or len(self.requests) >= len(self.script):
            return []
        return [f"{len(self.script) - len(self.requests)} of {len(self.script)} turns were not asked for"]

    def bind(self, agent: Agent[Any] | None, tools: Mapping[str, JsonObject]) -> None:
        """Take the dialect and the kinds from the agent that is going to ask; `tools` are the definitions that its worker has."""
        del tools
        if agent is not None:
            self.dialect = self.dialect or agent.parsed.config.dialect
            if self.kinds is None:
                data = merge_data(agent.parsed.messages())
                self.kinds = [merged.kind for merged in data if merged.kind != "state"]

    def client(self, **options: Any) -> AsyncOpenAI:
        """A client that asks this model and nothing else; it says in a header which run asks. Closed by nobody: it holds nothing."""
        http = DefaultAsyncHttpxClient(event_hooks={"request": [_say_run]})
        key = self._api_key or "scripted"
        return AsyncOpenAI(base_url=self.base_url, api_key=key, max_retries=0, http_client=http, **options)

    async def wait_for_request(self, number: int) -> ChatRequest:
        """The `number`-th request, once it has arrived."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.requests) >= number)
        return self.requests[number - 1]

    async def wait_for_characters(self, number: int, characters: int) -> None:
        """Returns once so many characters of the `number`-th answer were sent."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._sent(number) >= characters)

    async def wait_for_disconnect(self, number: int) -> None:
        """Returns once the client of the `number`-th request has gone before the answer's end."""
        async with self._changed:
            await self._changed.wait_for(lambda: number in self.disconnected)

    def _sent(self, number: int) -> int:
        return self.arrivals[number - 1][-1][1] if len(self.arrivals) >= number and self.arrivals[number - 1] else 0

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    async def _answer(self, request: Request) -> Response:
        if self._api_key is not None and request.headers.get("authorization") != f"Bearer {self._api_key}":
            return error(401, "Incorrect API key provided", "invalid_api_key")
        asked = ChatRequest(len(self.requests) + 1, await request.json(), dict(request.headers))
        if not callable(self.script) and len(self.requests) >= len(self.script):
            complaint = f"the script has {len(self.script)} turns, this is request {asked.number}"
            self.complaints.append(complaint)
            return error(400, complaint, "script_exhausted")
        self.requests.append(asked)
        self.arrivals.append([])
        await self._notify()
        turn = self.script(asked) if callable(self.script) else self.script[asked.number - 1]
        turn = turn if isinstance(turn, Turn) else Turn(turn)
        if turn.fault is not None and turn.fault.kind == "silent":
            await self._closing.wait()
        if turn.raw:
            return StreamingResponse(
                _pieces(turn.raw), status_code=turn.status, headers=dict(turn.headers), media_type=turn.media_type
            )
        content = turn.content(asked) if callable(turn.content) else turn.content
        answer = write_answer(content, turn.dialect or self.dialect or "solution", self.kinds or ())
        answer = Answer(answer.text, (*answer.tool_calls, *turn.tool_calls), turn.refusal, turn.reasoning)
        if turn.status != 200:
            return error(turn.status, answer.text, "scripted", turn.headers)
        usage = usage_of(asked, answer, turn)
        self.prompt_tokens += usage["prompt_tokens"]
        self.completion_tokens += usage["completion_tokens"]
        if not asked.body.get("stream"):
            body = json.dumps(completion(asked, answer, turn, usage))
            if turn.fault is not None:
                return StreamingResponse(self._broken(body, turn.fault), media_type="application/json")
            return Response(body, media_type="application/json")
        return StreamingResponse(self._watched(asked, answer, turn, usage), media_type="text/event-stream")

    async def _watched(
        self, asked: ChatRequest, answer: Answer, turn: Turn, usage: dict[str, Any]
    ) -> AsyncIterator[str]:
        try:
            async for event in self._stream(asked, answer, turn, usage):
                yield event
        except (asyncio.CancelledError, GeneratorExit):
            self.disconnected.add(asked.number)
            asyncio.get_running_loop().create_task(self._notify())
            raise

    async def _stream(
        self, asked: ChatRequest, answer: Answer, turn: Turn, usage: dict[str, Any]
    ) -> AsyncIterator[str]:
        start, sent = time.monotonic(), 0
        yield event(asked, {"role": "assistant", "content": ""})
        stops = {turn.fault.after if turn.fault else -1, turn.gate_after if turn.gate else -1}
        for text, delta in segments(asked, answer):
            end = sent + len(text)
            at = 0
            while True:
                if turn.fault is not None and sent >= turn.fault.after:
                    if turn.fault.kind == "hang":
                        await self._closing.wait()
                    # Anything raised here ends the response without its last chunk, as a lost connection does.
                    raise ConnectionAbortedError("cut, as the script says")
                if turn.gate is not None and sent >= turn.gate_after:
                    await turn.gate.wait()
                if sent >= end:
                    break
                size = TOKEN if self.pace.per_token else self._chunk
                upto = min([sent + size, end, *(stop for stop in stops if stop > sent)])
                await self._due(start, upto)
                yield event(asked, delta(text[at : at + upto - sent]))
                at, sent = at + upto - sent, upto
                self.arrivals[asked.number - 1].append((time.monotonic(), sent))
                await self._notify()
        yield event(
            asked, {}, "tool_calls" if answer.tool_calls and turn.finish_reason == "stop" else turn.finish_reason
        )
        if turn.usage and (asked.body.get("stream_options") or {}).get("include_usage"):
            yield f"data: {json.dumps(frame(asked) | {'choices': [], 'usage': usage})}\n\n"
        yield "data: [DONE]\n\n"

    async def _broken(self, body: str, fault: Fault) -> AsyncIterator[str]:
        """The beginning of a reply that is not streamed, and its fault."""
        yield body[: fault.after]
        if fault.kind == "hang":
            await self._closing.wait()
        raise ConnectionAbortedError("cut, as the script says")

    async def _due(self, start: float, characters: int) -> None:
        """Wait until so many characters may be out: against the start, so that delays do not add up."""
        due = start + self.pace.first_token + self.pace.per_token * (characters / TOKEN)
        await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


async def _say_run(request: Any) -> None:
    if activity.in_activity():
        request.headers[RUN_HEADER] = activity.info().workflow_id or ""


async def _pieces(raw: Sequence[str | bytes]) -> AsyncIterator[str | bytes]:
    for piece in raw:
        yield piece
        await asyncio.sleep(0)  # so that each goes out by itself
