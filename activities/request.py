"""One model invocation, streamed (section 9, R9.1)."""

from __future__ import annotations

import asyncio
import json

import httpx2
import openai
from pydantic_core import from_json
from temporalio import activity
from temporalio.client import WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from perdure.activities.arriving.sse import Event, Events, EventTooLongError
from perdure.activities.arriving.streaming import Deliverer
from perdure.activities.arriving.telling import Telling
from perdure.activities.asking import ask_run, look, own_run
from perdure.activities.endpoints import Endpoints
from perdure.activities.failures import context_failure, model_failure, refusal_in, within_patience
from perdure.activities.heartbeats import supervised_heartbeat
from perdure.activities.secrets import MASK, known_secrets, masked_value
from perdure.activities.tracing import TOLD
from perdure.activities.underway.ending import Underway
from perdure.model.answer import Answer
from perdure.model.beside import Beside
from perdure.model.dialects import DIALECTS
from perdure.model.intake import interruption
from perdure.model.refusals import Refusal, RefusalError, refusal_of
from perdure.model.wire import Delivery, RequestContext, RequestInput, RequestResult
from perdure.run.events.writing import Writing
from perdure.run.wire import CALLS_SIGNAL, CONTEXT_QUERY, REQUEST_ACTIVITY
from perdure.values.jsons import Json, JsonObject


class RequestActivity:
    """Asks an OpenAI-compatible endpoint: `OPENAI_BASE_URL` and `OPENAI_API_KEY`, or those that `endpoints` knows."""

    def __init__(self, endpoints: Endpoints | None = None, underway: Underway | None = None) -> None:
        self._endpoints = endpoints or Endpoints()
        self._underway = underway or Underway()

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

        title = f"Request {request.number} of {activity.info().workflow_id}"
        async with self._underway.working(title), supervised_heartbeat() as heart:
            looking = asyncio.create_task(look())
            # Asked of the run itself: a query is not history, so history does not grow with every context (R6.8).
            try:
                context: RequestContext = await ask_run(CONTEXT_QUERY, request.number, RequestContext)
            except (RPCError, WorkflowQueryFailedError) as error:
                raise context_failure(error) from None
            if context.released:
                return RequestResult(problem=interruption(context.released, "the worker was lost"), attempt=attempt)
            body = _body(context, request)
            told = TOLD.get()
            if told is not None and told.content:
                told.given = context.messages
            telling = Telling(
                heart, Writing(request.number, attempt, known_secrets(), MASK), looking, context.watched_until
            )
            if activity.info().heartbeat_details:
                await telling.supersede()
            while True:
                sent = self._endpoints.fitted(request.model, body)
                answer = Answer(request.model, attempt, DIALECTS[context.dialect].reader(context.vocabulary))
                try:
                    async with Deliverer(send) as deliverer, self._endpoints.ask(request.model, body) as response:
                        if request.stream:
                            async with telling.of(answer):
                                await read_answer(response, answer, deliverer, telling)
                        else:
                            await read_answer(response, answer)
                    if told is not None:
                        told.finish_reason = answer.finish_reason
                    return _masked(answer.result())
                except ApplicationError:
                    raise
                except Exception as error:
                    if deliverer.attempted:  # whatever it was, a fault of ours too: the calls stand
                        return _masked(answer.interrupted(deliverer.calls, _words(error)))
                    refusal = refusal_in(error)
                    if refusal is not None and refusal.kind == "filtered":
                        return _masked(answer.refused(refusal.words))
                    failure = model_failure(error, setting=self._endpoints.setting(request.model))
                    learnt = refusal is not None and self._endpoints.learn(request.model, body, sent, refusal)
                    if learnt and not telling.told:  # else another attempt says that its text is another
                        continue
                    raise within_patience(failure, request) from None


def _masked(result: RequestResult) -> RequestResult:
    """A server may say a key back in an answer too; each call as it was delivered."""
    names = ("calls", "output", "text", "reasoning", "problem", "refusal")
    said = {name: getattr(result, name) for name in names} | {"beside": result.beside and result.beside.as_json()}
    clean = masked_value(said)
    if clean is said:
        return result
    return result.model_copy(update={**clean, "beside": clean["beside"] and Beside.model_validate(clean["beside"])})


def _words(error: Exception) -> str:
    try:
        return model_failure(error).message
    except Exception:
        activity.logger.exception("an answer could not be read to its end")
        return f"it could not be read: {type(error).__name__}"


def _body(context: RequestContext, request: RequestInput) -> JsonObject:
    streaming = {"stream": True, "stream_options": {"include_usage": True}} if request.stream else {}
    return {"messages": context.messages, **context.parameters, **streaming}


async def read_answer(
    response: httpx2.Response, answer: Answer, deliverer: Deliverer | None = None, telling: Telling | None = None
) -> None:
    """Take the answer in as it comes. Raises what `model_failure` knows where there is none, or where it breaks off."""
    events = Events(document="json" in response.headers.get("content-type", ""))
    try:
        async for piece in response.aiter_bytes():
            ended = _take(events.push(piece), answer, deliverer)
            if telling is not None:
                telling.note()
            if ended:
                return
    except EventTooLongError as error:
        raise RefusalError(Refusal(str(error))) from None
    except httpx2.HTTPError:
        if not answer.whole:  # else only the end of the stream is missing
            raise
    _take(events.end(), answer, deliverer)
    if answer.whole:
        return
    if (refusal := refusal_of(None, events.strange.decode(errors="replace"), event="error")) and events.strange:
        raise RefusalError(refusal)
    raise openai.APIConnectionError(message="the model's answer broke off", request=response.request)


def _take(events: list[Event], answer: Answer, deliverer: Deliverer | None) -> bool:
    """Take in what has come; whether it was the last. Raises `RefusalError` for an error in an answer's place."""
    for event in events:
        if event.data.strip() == b"[DONE]":
            answer.whole = True
            return True
        for document in _documents(event):
            if (refusal := refusal_of(None, document, event=event.name)) is not None:
                raise RefusalError(refusal)
            closed = answer.take(document)
            if deliverer is not None:
                deliverer.add(masked_value(closed) if closed else closed)
        if answer.too_long:
            return True
    return False


def _documents(event: Event) -> list[Json]:
    """What an event says: a JSON document, or one a line; text where that means an error. Anything else is nothing."""
    try:
        return [from_json(event.data)]
    except ValueError:
        text = event.data.decode(errors="replace")
    documents: list[Json] = []
    for each in dict.fromkeys([text, *text.split("\n")]):  # half a character is JSON to this parser alone
        try:
            documents.append(json.loads(each))
        except (ValueError, RecursionError):
            continue
        if each == text:
            break
    return documents or ([text] if event.name == "error" else [])
