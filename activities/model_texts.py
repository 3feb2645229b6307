"""Texts of a model outside a run's Requests: for summaries, and for the servers of tools."""

from __future__ import annotations

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.active_executions import ActiveExecutions
from perdure.activities.endpoints import Endpoints
from perdure.activities.failures import model_failure, with_spent
from perdure.activities.heartbeats import supervised_heartbeat
from perdure.activities.requests import read_answer
from perdure.activities.secrets import mask_value
from perdure.models.dialects.registry import DIALECTS
from perdure.models.provider_errors import refuses_parameter
from perdure.models.requests import (
    SAMPLE_ACTIVITY,
    ReaderVocabulary,
    RequestResult,
    SampleInput,
    SampleResult,
    read_spent,
    spent_details,
)
from perdure.models.response_stream import ResponseStream
from perdure.values.json import Json, JsonObject


async def ask_for_text(endpoints: Endpoints, model: str, messages: list[JsonObject], **options: Json) -> RequestResult:
    """Return a model's answer to these messages, with secrets masked. `options`: of Chat Completions, such as `max_tokens`.

    Raise an `ApplicationError` as `model_failure` returns it.
    """
    body = {"messages": messages, "stream": True, "stream_options": {"include_usage": True}, **options}
    answer = ResponseStream(model, activity.info().attempt, DIALECTS["tools"].reader(ReaderVocabulary()))
    try:
        async with endpoints.ask(model, body) as response:
            await read_answer(response, answer)
    except ApplicationError:
        raise
    except Exception as error:
        raise with_spent(model_failure(error, setting=endpoints.setting(model)), answer.usage) from None
    result = answer.result()
    return result.model_copy(update={"text": mask_value(result.text)})


class SampleActivity:
    """The activity that passes a request of a tool's server to a model (R21.3)."""

    def __init__(self, endpoints: Endpoints, underway: ActiveExecutions) -> None:
        self._endpoints = endpoints
        self._underway = underway

    @activity.defn(name=SAMPLE_ACTIVITY)
    async def sample(self, wanted: SampleInput) -> SampleResult:
        """Return the model's answer. A server's failure is raised as `model_failure` returns it."""
        request = wanted.request
        options: JsonObject = {"max_tokens": request.max_tokens}
        if request.temperature is not None:
            options["temperature"] = request.temperature
        spent = read_spent(activity.info().heartbeat_details)
        async with (
            self._underway.working(f"sampling of {activity.info().workflow_id}"),
            supervised_heartbeat() as heart,
        ):
            while True:
                try:
                    answer = await ask_for_text(self._endpoints, wanted.model, request.messages, **options)
                    break
                except ApplicationError as error:
                    is_refused = error.non_retryable and refuses_parameter(error.message, "temperature")
                    if not is_refused or "temperature" not in options:
                        spent = spent.plus(read_spent(error.details))
                        await heart.send(spent_details(spent))
                        raise with_spent(error, spent) from None
                    # MCP lets a client change the temperature that a server requests, and reasoning models accept none.
                    del options["temperature"]
        spent = spent.plus(answer.usage)
        if answer.problem is not None and not answer.text:
            words = str(answer.problem.get("message"))
            raise with_spent(ApplicationError(words, type="ModelRefused", non_retryable=True), spent)
        result = SampleResult(model=wanted.model, text=answer.text, usage=spent)
        ends = [end for stop in request.stop if stop and (end := answer.text.find(stop)) >= 0]
        if ends:
            result.text, result.stop_reason = answer.text[: min(ends)], "stopSequence"
        elif answer.usage.completion_tokens >= request.max_tokens:
            result.stop_reason = "maxTokens"
        return result
