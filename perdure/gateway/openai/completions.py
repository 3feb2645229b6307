"""What a run is at, as a chat completion, and a response's events as its chunks: pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from perdure.gateway.openai.answers import Ask, Found, answer_of, function_of, refusal_of, usage_of, why_ended
from perdure.gateway.openai.errors import ended_badly
from perdure.gateway.openai.ids import ResponseId
from perdure.gateway.problems import HttpError
from perdure.values.jsons import JsonObject

SUPERSEDED: Final = (
    "what was written does not count any more, for the model was asked anew, and a completion cannot take it back: "
    "the run goes on, ask again with the same Idempotency-Key, or use responses"
)


def completion_object(id: ResponseId, found: Found) -> JsonObject:
    """The completion of a run that has ended, or waits for its client. Raises `HttpError` (422) for one without an answer."""
    status = found.status(id.leg)
    if status in ("failed", "cancelled"):
        raise no_answer(found)
    asks = found.asks(id.leg)
    text = answer_of(found) if id.leg == found.leg and found.view.status == "completed" else None
    message: JsonObject = {"role": "assistant", "content": text, "refusal": refusal_of(found)}
    if asks:
        message["tool_calls"] = [_call(id, ask) for ask in asks]
    reason = "tool_calls" if asks else "length" if status == "incomplete" else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
    about = _about(id, found.record.created, found.record.agent, "chat.completion")
    more: JsonObject = {"run_id": found.view.run_id, "stop_reason": found.view.stop_reason}
    said = {"metadata": metadata} if (metadata := found.record.echo.get("metadata")) else {}
    return about | {"choices": [choice], "usage": chat_usage(found, id.leg), "perdure": more} | said


def no_answer(found: Found) -> HttpError:
    """Return why there is none."""
    return ended_badly(why_ended(found), f"run_{found.view.status}")


def chat_usage(found: Found, leg: int) -> JsonObject:
    """The tokens, in the names of this API."""
    usage = usage_of(found, leg)
    return {
        "prompt_tokens": usage["input_tokens"],
        "completion_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
        "prompt_tokens_details": {"cached_tokens": usage["input_tokens_details"]["cached_tokens"]},
        "completion_tokens_details": usage["output_tokens_details"],
    }


def _call(id: ResponseId, ask: Ask) -> JsonObject:
    name, arguments = function_of(ask)
    return {"id": id.call(ask.offer), "type": "function", "function": {"name": name, "arguments": arguments}}


def _about(id: ResponseId, created: int, model: str, kind: str) -> JsonObject:
    about = {"id": id.completion, "object": kind, "created": created, "model": model}
    return about | {"service_tier": "default", "system_fingerprint": None}


class Chunks:
    """A stream of chunks, from the events of the response that it is."""

    def __init__(self, id: ResponseId, created: int, model: str, *, with_usage: bool) -> None:
        self._about = _about(id, created, model, "chat.completion.chunk")
        self._with_usage = with_usage

    def begin(self) -> JsonObject:
        """The first."""
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def take(self, event: JsonObject) -> Iterator[JsonObject]:
        """Those of an event. Raises `HttpError` where something was written that does not count."""
        if event["type"] == "response.output_text.delta":
            yield self._chunk({"content": event["delta"]})
        elif event["type"] == "response.output_item.done" and event["item"].get("status") == "incomplete":
            raise ended_badly(SUPERSEDED, "superseded")

    def end(self, completion: JsonObject) -> Iterator[JsonObject]:
        """Those behind the text, of the whole completion."""
        choice = completion["choices"][0]
        if refusal := choice["message"]["refusal"]:
            yield self._chunk({"refusal": refusal})
        for index, call in enumerate(choice["message"].get("tool_calls", ())):
            yield self._chunk({"tool_calls": [{"index": index, **call}]})
        yield self._chunk({}, choice["finish_reason"])
        if self._with_usage:
            yield self._about | {"choices": [], "usage": completion["usage"]}

    def _chunk(self, delta: JsonObject, reason: str | None = None) -> JsonObject:
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        return self._about | {"choices": [choice]} | ({"usage": None} if self._with_usage else {})
