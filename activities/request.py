"""One model invocation, streamed (section 9, R9.1)."""

from __future__ import annotations

from typing import Any

import openai
from openai import AsyncOpenAI, AsyncStream
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.failures import model_failure
from activities.heartbeats import supervised_heartbeat
from activities.streaming import CallReader, Deliverer
from perdure.intake import interruption
from perdure.jsons import Json
from perdure.requests import Delivery, RequestContext, RequestInput, RequestResult
from perdure.runs import CALLS_SIGNAL, CONTEXT_QUERY, REQUEST_ACTIVITY
from perdure.solutions import parse_solution
from perdure.usage import Usage

IDLE_TIMEOUT = 120.0
"""Seconds without a byte from the model before the attempt counts as lost; reasoning models think for that long."""


class RequestActivity:
    """Asks an OpenAI-compatible endpoint: `OPENAI_BASE_URL` and `OPENAI_API_KEY`, unless a client is given."""

    def __init__(self, client: AsyncOpenAI | None = None) -> None:
        self._client = client

    @activity.defn(name=REQUEST_ACTIVITY)
    async def request(self, request: RequestInput) -> RequestResult:
        """The model's Solution; its calls are delivered to the run as they close (R6.3).

        A failure before any call was released is raised as `model_failure` says, and a retry asks again. After that nothing
        is asked again: the Request ends as interrupted with what was released (R6.7).
        """
        info = activity.info()
        assert info.workflow_id is not None
        run = activity.client().get_workflow_handle(info.workflow_id, run_id=info.workflow_run_id)

        async def send(first: int, calls: list[Json]) -> None:
            delivery = Delivery(number=request.number, attempt=info.attempt, first=first, calls=calls)
            await run.signal(CALLS_SIGNAL, delivery)

        async with supervised_heartbeat():
            # Asked of the run itself: a query is not history, so history does not grow with every context (R6.8).
            context = await run.query(CONTEXT_QUERY, request.number, result_type=RequestContext)
            if context.released:
                return RequestResult(
                    problem=interruption(context.released, "the worker was lost"), attempt=info.attempt
                )
            answer = _Answer(request.model, info.attempt)
            try:
                client = self._client or _default_client()
                async with Deliverer(send) as deliverer:
                    if request.stream:
                        await _stream(client, request, context, answer, deliverer)
                    else:
                        await _ask(client, request, context, answer)
            except ApplicationError:
                raise
            except Exception as error:
                failure = model_failure(error)
                if deliverer.attempted:
                    return answer.interrupted(deliverer.calls, failure.message)
                raise failure from None
            return answer.result()


def _parameters(request: RequestInput, context: RequestContext) -> dict[str, Any]:
    schema = {"name": "solution", "schema": context.solution_schema}
    return {
        "model": request.model,
        "messages": context.messages,
        "response_format": {"type": "json_schema", "json_schema": schema},
    }


async def _stream(
    client: AsyncOpenAI, request: RequestInput, context: RequestContext, answer: _Answer, deliverer: Deliverer
) -> None:
    reader = CallReader()
    parameters = _parameters(request, context)
    stream: AsyncStream[ChatCompletionChunk] = await client.chat.completions.create(
        **parameters, stream=True, stream_options={"include_usage": True}
    )
    async with stream:
        async for chunk in stream:
            text = answer.add(chunk)
            deliverer.add(reader.push(text))
    if answer.finish_reason is None:
        raise openai.APIConnectionError(message="the model's answer broke off", request=stream.response.request)


async def _ask(client: AsyncOpenAI, request: RequestInput, context: RequestContext, answer: _Answer) -> None:
    completion: ChatCompletion = await client.chat.completions.create(**_parameters(request, context), stream=False)
    answer.whole(completion)


class _Answer:
    """The pieces of an answer."""

    def __init__(self, model: str, attempt: int) -> None:
        self.model = model
        self.attempt = attempt
        self.parts: list[str] = []
        self.finish_reason: str | None = None
        self.usage = Usage()

    def add(self, chunk: ChatCompletionChunk) -> str:
        """Take in a chunk; the text that it adds."""
        self.model = chunk.model or self.model
        if chunk.usage is not None:
            self.usage = Usage(prompt_tokens=chunk.usage.prompt_tokens, completion_tokens=chunk.usage.completion_tokens)
        text = ""
        for choice in chunk.choices:
            text += choice.delta.content or ""
            self.finish_reason = choice.finish_reason or self.finish_reason
        self.parts.append(text)
        return text

    def whole(self, completion: ChatCompletion) -> None:
        """Take in an answer that was not streamed."""
        self.model = completion.model or self.model
        if completion.usage is not None:
            usage = completion.usage
            self.usage = Usage(prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens)
        for choice in completion.choices[:1]:
            self.parts.append(choice.message.content or "")
            self.finish_reason = choice.finish_reason

    def result(self) -> RequestResult:
        solution = parse_solution("".join(self.parts), self.finish_reason)
        problem = None if solution.problem is None else solution.problem.as_json()
        return self._result(solution.calls, solution.output, problem)

    def interrupted(self, released: list[Json], reason: str) -> RequestResult:
        return self._result(released, None, interruption(len(released), reason))

    def _result(self, calls: list[Json], output: Json, problem: dict[str, Any] | None) -> RequestResult:
        return RequestResult(
            calls=calls, output=output, problem=problem, model=self.model, usage=self.usage, attempt=self.attempt
        )


def _default_client() -> AsyncOpenAI:
    # Retrying is Temporal's: an attempt that waits inside the client would be invisible and unbounded.
    try:
        return AsyncOpenAI(max_retries=0, timeout=openai.Timeout(IDLE_TIMEOUT, connect=10.0))
    except openai.OpenAIError:
        raise ApplicationError(
            "no key for the model: set OPENAI_API_KEY (and OPENAI_BASE_URL for a server of your own) where the worker runs",
            type="NoKey",
            non_retryable=True,
        ) from None
