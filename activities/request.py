"""One model invocation, streamed (section 9, R9.1)."""

from __future__ import annotations

from typing import Any

import openai
from openai import AsyncStream
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.completion_usage import CompletionUsage
from temporalio import activity
from temporalio.client import WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from perdure.activities.asking import ask_run, own_run
from perdure.activities.endpoints import Endpoints
from perdure.activities.failures import context_failure, model_failure, refusal_in
from perdure.activities.heartbeats import supervised_heartbeat
from perdure.activities.streaming import Deliverer
from perdure.model.dialects import DIALECTS
from perdure.model.dialects.answers import Reader, ToolDelta
from perdure.model.intake import interruption
from perdure.model.refusals import Refusal, RefusalError, refusal_of
from perdure.model.usage import Usage
from perdure.model.wire import KEPT_TEXT, Delivery, RequestContext, RequestInput, RequestResult
from perdure.run.wire import CALLS_SIGNAL, CONTEXT_QUERY, REQUEST_ACTIVITY
from perdure.values.jsons import Json, JsonObject


class RequestActivity:
    """Asks an OpenAI-compatible endpoint: `OPENAI_BASE_URL` and `OPENAI_API_KEY`, or those that `endpoints` knows."""

    def __init__(self, endpoints: Endpoints | None = None) -> None:
        self._endpoints = endpoints or Endpoints()

    @activity.defn(name=REQUEST_ACTIVITY)
    async def request(self, request: RequestInput) -> RequestResult:
        """The model's Solution; its calls are delivered to the run as they close (R6.3).

        A failure before any call was released is raised as `model_failure` says, and a retry asks again. After that nothing
        is asked again: the Request ends as interrupted with what was released (R6.7).
        """
        run = own_run()
        attempt = request.earlier_attempts + activity.info().attempt

        async def send(first: int, calls: list[Json]) -> None:
            delivery = Delivery(number=request.number, attempt=attempt, first=first, calls=calls)
            await run.signal(CALLS_SIGNAL, delivery)

        async with supervised_heartbeat():
            # Asked of the run itself: a query is not history, so history does not grow with every context (R6.8).
            try:
                context: RequestContext = await ask_run(CONTEXT_QUERY, request.number, RequestContext)
            except (RPCError, WorkflowQueryFailedError) as error:
                raise context_failure(error) from None
            if context.released:
                return RequestResult(problem=interruption(context.released, "the worker was lost"), attempt=attempt)
            while True:
                body = _body(context, request)
                sent = self._endpoints.fitted(request.model, body)
                answer = _Answer(request.model, attempt, DIALECTS[context.dialect].reader(context.vocabulary))
                try:
                    async with Deliverer(send) as deliverer:
                        if request.stream:
                            await self._stream(request.model, body, answer, deliverer)
                        else:
                            answer.whole(await self._endpoints.create(request.model, body))
                except ApplicationError:
                    raise
                except Exception as error:
                    refusal = refusal_in(error)
                    failure = model_failure(error, setting=self._endpoints.setting(request.model))
                    if deliverer.attempted:
                        return answer.interrupted(deliverer.calls, failure.message)
                    if refusal is not None and self._endpoints.learn(request.model, body, sent, refusal):
                        continue
                    raise failure from None
                return answer.result()

    async def _stream(self, model: str, body: JsonObject, answer: _Answer, deliverer: Deliverer) -> None:
        stream: AsyncStream[ChatCompletionChunk] = await self._endpoints.create(model, body)
        async with stream:
            kind = stream.response.headers.get("content-type", "")
            if "json" in kind or "html" in kind:  # a document, or somebody's page, where a stream was asked for
                text = (await stream.response.aread()).decode(errors="replace")
                if (refusal := refusal_of(None, text, event="error" if "html" in kind else "")) is not None:
                    raise RefusalError(refusal)
            async for chunk in stream:
                deliverer.add(answer.add(chunk))
        if answer.finish_reason is None:
            raise openai.APIConnectionError(message="the model's answer broke off", request=stream.response.request)


def _body(context: RequestContext, request: RequestInput) -> JsonObject:
    streaming = {"stream": True, "stream_options": {"include_usage": True}} if request.stream else {}
    return {"messages": context.messages, **context.parameters, **streaming}


def _check(said: ChatCompletion | ChatCompletionChunk | str) -> None:
    """Raises `RefusalError` where the server put an error in an answer's place."""
    if isinstance(said, str):  # somebody's page, which the client hands on as it is
        raise RefusalError(refusal_of(None, said, event="error") or Refusal("no answer"))
    choices = said.choices or ()
    odd = not choices or any(str(choice.finish_reason) == "error" or choice.model_extra for choice in choices)
    if odd and (refusal := refusal_of(None, said.to_dict())) is not None:
        raise RefusalError(refusal)


class _Answer:
    """The pieces of an answer. Servers leave out what the client's types promise, so nothing is relied on but what is used."""

    def __init__(self, model: str, attempt: int, reader: Reader) -> None:
        self.model = model
        self.attempt = attempt
        self.finish_reason: str | None = None
        self._reader = reader
        self._usage = Usage()
        self._text: list[str] = []
        self._refusal: list[str] = []

    def add(self, chunk: ChatCompletionChunk) -> list[Json]:
        """Take in a chunk; the calls that it closes."""
        self.model = chunk.model or self.model
        self._count(chunk.usage)
        _check(chunk)
        closed: list[Json] = []
        for choice in chunk.choices or ():
            self.finish_reason = choice.finish_reason or self.finish_reason
            if choice.delta is not None:
                closed += self._take(choice.delta)
        return closed

    def whole(self, completion: ChatCompletion) -> None:
        """Take in an answer that was not streamed."""
        _check(completion)
        self.model = completion.model or self.model
        self._count(completion.usage)
        for choice in (completion.choices or ())[:1]:
            self.finish_reason = choice.finish_reason
            self._take(choice.message)

    def _take(self, piece: Any) -> list[Json]:
        """Text, native calls and refusal of a delta or a message; reasoning, under whatever name, is not part of the answer."""
        text = piece.content or ""
        self._text.append(text)
        self._refusal.append(getattr(piece, "refusal", None) or "")
        closed = self._reader.push(text) if text else []
        for call in getattr(piece, "tool_calls", None) or ():
            function = getattr(call, "function", None)
            delta = ToolDelta(
                index=getattr(call, "index", None),
                id=getattr(call, "id", None),
                name=getattr(function, "name", None),
                arguments=getattr(function, "arguments", None),
            )
            closed += self._reader.push_tool(delta)
        return closed

    def _count(self, usage: CompletionUsage | None) -> None:
        if usage is not None:
            self._usage = Usage(prompt_tokens=usage.prompt_tokens or 0, completion_tokens=usage.completion_tokens or 0)

    def result(self) -> RequestResult:
        solution = self._reader.close(self.finish_reason)
        problem = None if solution.problem is None else solution.problem.as_json()
        if refusal := "".join(self._refusal).strip():
            problem = {"code": "refusal", "message": f"you refused: {refusal[:500]}"}
        elif problem is not None and self.finish_reason == "content_filter":
            problem = {"code": "content_filter", "message": "the server's content filter cut the answer off"}
        return self._result(solution.calls, solution.output, problem, solution.text)

    def interrupted(self, released: list[Json], reason: str) -> RequestResult:
        return self._result(released, None, interruption(len(released), reason))

    def _result(
        self, calls: list[Json], output: Json, problem: JsonObject | None, text: str | None = None
    ) -> RequestResult:
        return RequestResult(
            calls=calls,
            output=output,
            text=("".join(self._text) if text is None else text)[:KEPT_TEXT].encode(errors="replace").decode(),
            problem=problem,
            model=self.model,
            usage=self._usage,
            attempt=self.attempt,
        )
