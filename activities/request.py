"""One model invocation, streamed (section 9, R9.1)."""

from __future__ import annotations

from typing import Any, cast

import openai
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.failures import model_failure
from activities.heartbeats import supervised_heartbeat
from perdure.runs import CONTEXT_QUERY, REQUEST_ACTIVITY, RequestContext, RequestInput, RequestResult, Usage
from perdure.solutions import parse_solution

IDLE_TIMEOUT = 120.0
"""Seconds without a byte from the model before the attempt counts as lost; reasoning models think for that long."""


class RequestActivity:
    """Asks an OpenAI-compatible endpoint: `OPENAI_BASE_URL` and `OPENAI_API_KEY`, unless a client is given."""

    def __init__(self, client: AsyncOpenAI | None = None) -> None:
        self._client = client

    @activity.defn(name=REQUEST_ACTIVITY)
    async def request(self, request: RequestInput) -> RequestResult:
        """The model's Solution. Fails with what `model_failure` makes of the provider's error; a retry asks again."""
        async with supervised_heartbeat():
            context = await self._ask_context(request.number)
            try:
                client = self._client or _default_client()
                return await self._invoke(client, request, context)
            except ApplicationError:
                raise
            except Exception as error:
                raise model_failure(error) from None

    async def _ask_context(self, number: int) -> RequestContext:
        """The context is asked of the run itself: a query is not history, so history does not grow with every context."""
        info = activity.info()
        assert info.workflow_id is not None
        run = activity.client().get_workflow_handle(info.workflow_id, run_id=info.workflow_run_id)
        context: RequestContext = await run.query(CONTEXT_QUERY, number, result_type=RequestContext)
        return context

    async def _invoke(self, client: AsyncOpenAI, request: RequestInput, context: RequestContext) -> RequestResult:
        answer = _Answer()
        stream = await client.chat.completions.create(
            model=request.model,
            messages=cast(list[ChatCompletionMessageParam], context.messages),
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "solution", "schema": context.solution_schema},
            },
            stream=True,
            stream_options={"include_usage": True},
        )
        async with stream:
            async for chunk in stream:
                answer.add(chunk)
        if answer.finish_reason is None:
            raise ApplicationError("the model's answer broke off", type="Connection")
        return answer.result(request.model)


class _Answer:
    """The pieces of a streamed answer."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.finish_reason: str | None = None
        self.usage = Usage()
        self.model = ""

    def add(self, chunk: ChatCompletionChunk) -> None:
        self.model = chunk.model or self.model
        if chunk.usage is not None:
            self.usage = Usage(prompt_tokens=chunk.usage.prompt_tokens, completion_tokens=chunk.usage.completion_tokens)
        for choice in chunk.choices:
            self.parts.append(choice.delta.content or "")
            self.finish_reason = choice.finish_reason or self.finish_reason

    def result(self, model: str) -> RequestResult:
        solution = parse_solution("".join(self.parts), self.finish_reason)
        problem: dict[str, Any] | None = None if solution.problem is None else solution.problem.as_json()
        return RequestResult(
            calls=solution.calls, output=solution.output, problem=problem, model=self.model or model, usage=self.usage
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
