"""A response as the events of a stream, with the same numbers at every gateway.

`response.created` is 0 and `response.in_progress` is 1. Each attempt of a model has `SPAN` numbers: first for the
events that begin its item, then one for each character. A delta has the number of its last character. So a client that
continues with `starting_after` gets the text after exactly that character, even if the deltas are different now. A
superseded text, after which the model was called again, is its own item that ends `incomplete`; the response itself
does not contain it. The same holds for a text beside calls.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, Final

from perdure.gateway.openai._agent_file import Record
from perdure.gateway.openai._objects import (
    FoundRun,
    ResponseId,
    about_completion,
    completion_object,
    empty_response,
    message_item,
    response_object,
)
from perdure.gateway.openai._requests import after_start, ended_badly, error_body
from perdure.gateway.openai._runs import RunFinder
from perdure.gateway.streams import encode_event
from perdure.runs.event_stream import EventAdapter
from perdure.runs.events import Event
from perdure.values.json import JsonObject, dumps

SPAN: Final = 1 << 21
"""More than the characters of an answer; a thousand spans fit into 31 bits."""
_FIRST: Final = 2
_AS: Final = {"cancelled": "failed"}
"""The last event of a stream, for statuses without their own event."""


SUPERSEDED: Final = "the model's text so far no longer counts, because the Request was retried, and a completion cannot withdraw text: the run continues; send the request again with the same Idempotency-Key, or use responses"


class ResponseEvents(EventAdapter[JsonObject, FoundRun]):
    """The events of one response, each once, from number `after` + 1 on."""

    def __init__(self, id: ResponseId, record: Record, run_id: str, after: int = -1) -> None:
        self._id = id
        self._record = record
        self._run_id = run_id
        self._after = after
        self._last = after
        """The number of the last event."""
        self._answered: dict[int, int] = {}
        """By Request number, the number of its last attempt."""
        self._span = 0
        """The number of attempts before the one that writes."""
        self._index = 0
        """The number of items that have ended."""
        self._text = ""
        """The sent part of the text being written."""
        self._open = False
        """Whether its item has begun."""
        self._missed = False
        """Whether a piece of it was missed: then the end has the rest."""
        self._aside = -1
        """The span of the last text beside calls."""

    def begin(self) -> Iterator[JsonObject]:
        """Yield the first two events, with an empty response."""
        response = empty_response(self._id, self._record, self._run_id, "in_progress")
        for number, phase in enumerate(("created", "in_progress")):
            yield from self._event(number, f"response.{phase}", response=response)

    def on_request(self, event: Event) -> Iterator[JsonObject]:
        if event.phase == "end":
            self._answered[int(event.data["number"])] = int(event.data.get("attempt") or 1)
        yield from ()

    def on_assistant(self, event: Event) -> Iterator[JsonObject]:
        data = event.data
        if event.phase == "delta":
            span = sum(last for number, last in self._answered.items() if number < data["request"])
            span += int(data["attempt"]) - 1
            if span != self._span:
                yield from self._drop()
                self._span = span
            yield from self._write(int(data["start"]), str(data["text"]))
        elif event.phase == "superseded" or not data.get("accepted"):
            yield from self._drop()
        elif not data.get("output"):
            yield from self._set_aside()

    def _set_aside(self) -> Iterator[JsonObject]:
        """End a text that the model has written beside its calls."""
        if self._open:
            self._aside = self._span
        yield from self._drop()

    def _drop(self) -> Iterator[JsonObject]:
        """End the written text as superseded."""
        if self._open:
            yield from self._end_text("incomplete")
            self._index += 1
        self._text, self._open, self._missed = "", False, False

    def _write(self, start: int, text: str) -> Iterator[JsonObject]:
        if start > len(self._text):
            self._missed = True
        new = "" if self._missed else text[len(self._text) - start :]
        if new:
            yield from self._begin_text()
            self._text += new
            yield from self._delta(len(new))

    def end(self, ended: FoundRun) -> Iterator[JsonObject]:
        """Yield the remaining events of a response that has ended."""
        yield from self.finish(response_object(self._id, ended))

    def finish(self, response: JsonObject) -> Iterator[JsonObject]:
        """Yield the remaining events for the whole response."""
        items = list(response["output"])
        answer = items.pop(0) if items and items[0]["type"] == "message" and not _refuses(items[0]) else None
        text = "" if answer is None else answer["content"][0]["text"]
        span = max(0, sum(self._answered.values()) - 1)
        # The written text differs from the answer: references were resolved, or the text came with calls. It becomes an
        # earlier item.
        differs = self._open and (answer is None or not text.startswith(self._text))
        another = self._span >= span and (differs or self._aside == self._span)
        if another and answer is None and items and not _refuses(items[0]):
            yield from self._set_aside()  # the run waits for these calls, and the text's own end comes after theirs
        elif another or self._span != span:
            yield from self._drop()
        self._span = max(span, self._span) + another
        number = self._base
        if answer is not None:
            self._missed = False
            yield from self._begin_text()
            yield from self._write(len(self._text), text[len(self._text) :])
            response = {**response, "output": [{**answer, "id": self._item_id}, *items]}
            yield from self._end_text("completed")
            number = self._base + len(text) + 5
        for item in items:
            yield from self._item(number, item)
            number += 6 if _refuses(item) else 4
        status = str(response["status"])
        # A reader that goes on behind a superseded text still gets the end.
        yield from self._event(max(number, self._after + 1), f"response.{_AS.get(status, status)}", response=response)

    @property
    def _base(self) -> int:
        return _FIRST + self._span * SPAN

    @property
    def _item_id(self) -> str:
        return self._id.item("msg", str(self._index + 1) if self._index else "")

    @property
    def _place(self) -> JsonObject:
        return {"item_id": self._item_id, "output_index": self._index, "content_index": 0}

    def _event(self, number: int, kind: str, **data: Any) -> Iterator[JsonObject]:
        if number > self._after:
            # A text that was superseded within its attempt has the numbers of the text after it.
            self._last = max(number, self._last + 1)
            yield {"type": kind, "sequence_number": self._last, **data}

    def _message(self, status: str) -> JsonObject:
        return message_item(self._id, self._text, status) | {"id": self._item_id}

    def _begin_text(self) -> Iterator[JsonObject]:
        if self._open:
            return
        self._open = True
        item = self._message("in_progress")
        yield from self._event(self._base, "response.output_item.added", output_index=self._index, item=item)
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield from self._event(self._base + 1, "response.content_part.added", **self._place, part=part)

    def _delta(self, new: int) -> Iterator[JsonObject]:
        number = self._base + 1 + len(self._text)
        piece = self._text[-min(new, max(1, number - self._after)) :]
        yield from self._event(number, "response.output_text.delta", **self._place, delta=piece, logprobs=[])

    def _end_text(self, status: str) -> Iterator[JsonObject]:
        number, item = self._base + 1 + len(self._text), self._message(status)
        written: JsonObject = {"text": self._text, "logprobs": []}
        yield from self._event(number + 1, "response.output_text.done", **self._place, **written)
        part = item["content"][0]
        yield from self._event(number + 2, "response.content_part.done", **self._place, part=part)
        yield from self._event(number + 3, "response.output_item.done", output_index=self._index, item=item)
        if status == "completed":
            self._open, self._index = False, self._index + 1

    def _item(self, number: int, item: JsonObject) -> Iterator[JsonObject]:
        place = {"output_index": self._index}
        call = item["type"] == "function_call"
        begun = {**item, "status": "in_progress", "arguments": ""} if call else item
        if _refuses(item):
            yield from self._refusal(number, item)
            return
        yield from self._event(number, "response.output_item.added", **place, item=begun)
        if call:
            about, written = {"item_id": item["id"], **place}, item["arguments"]
            yield from self._event(number + 1, "response.function_call_arguments.delta", **about, delta=written)
            arguments = {"arguments": written, "name": item["name"]}
            yield from self._event(number + 2, "response.function_call_arguments.done", **about, **arguments)
        yield from self._event(number + 3, "response.output_item.done", **place, item=item)
        self._index += 1

    def _refusal(self, number: int, item: JsonObject) -> Iterator[JsonObject]:
        place, part = {"output_index": self._index}, item["content"][0]
        about, words = {"item_id": item["id"], **place, "content_index": 0}, part["refusal"]
        begun = {**item, "status": "in_progress", "content": []}
        yield from self._event(number, "response.output_item.added", **place, item=begun)
        yield from self._event(number + 1, "response.content_part.added", **about, part={**part, "refusal": ""})
        yield from self._event(number + 2, "response.refusal.delta", **about, delta=words)
        yield from self._event(number + 3, "response.refusal.done", **about, refusal=words)
        yield from self._event(number + 4, "response.content_part.done", **about, part=part)
        yield from self._event(number + 5, "response.output_item.done", **place, item=item)
        self._index += 1


def _refuses(item: JsonObject) -> bool:
    return item["type"] == "message" and any(part["type"] == "refusal" for part in item["content"])


class CompletionEvents(ResponseEvents):
    """The chunks of a chat completion: the text of a response, which cannot be withdrawn, and all else at its end."""

    def __init__(self, id: ResponseId, record: Record, run_id: str, *, with_usage: bool) -> None:
        super().__init__(id, record, run_id)
        self._about = about_completion(id, record.created, record.agent, "chat.completion.chunk")
        self._with_usage = with_usage
        self._gap = ""
        """Text to send before the next delta: a blank line after a text beside calls, otherwise empty."""

    def begin(self) -> Iterator[JsonObject]:
        """Yield the first chunk."""
        yield self._chunk({"role": "assistant", "content": "", "refusal": None})

    def end(self, ended: FoundRun) -> Iterator[JsonObject]:
        """Yield the rest of the text, then the other chunks. Raise `HttpError` for a run without an answer."""
        yield from super().end(ended)
        completion = completion_object(self._id, ended)
        choice = completion["choices"][0]
        if refusal := choice["message"]["refusal"]:
            yield self._chunk({"refusal": refusal})
        for index, call in enumerate(choice["message"].get("tool_calls", ())):
            yield self._chunk({"tool_calls": [{"index": index, **call}]})
        yield self._chunk({}, choice["finish_reason"])
        if self._with_usage:
            yield self._about | {"choices": [], "usage": completion["usage"]}

    def _set_aside(self) -> Iterator[JsonObject]:
        """Keep a text beside calls: it counts, and the answer follows it."""
        self._gap = "\n\n" if self._open else self._gap
        self._text, self._open, self._missed = "", False, False
        yield from ()

    def _event(self, number: int, kind: str, **data: Any) -> Iterator[JsonObject]:
        """Yield the chunk of a response's event, if it has one. Raise `HttpError` if sent text was superseded."""
        del number
        if kind == "response.output_text.delta":
            yield self._chunk({"content": self._gap + data["delta"]})
            self._gap = ""
        elif kind == "response.output_item.done" and data["item"].get("status") == "incomplete":
            raise ended_badly(SUPERSEDED, "superseded")

    def _chunk(self, delta: JsonObject, reason: str | None = None) -> JsonObject:
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        return self._about | {"choices": [choice]} | ({"usage": None} if self._with_usage else {})


DONE = encode_event("[DONE]")


class ResponseStream:
    """The events of a response after number `after`, as frames."""

    def __init__(self, finder: RunFinder, tenant: str, id: ResponseId, record: Record | None, after: int = -1) -> None:
        self._finder, self._tenant, self._id, self._record = finder, tenant, id, record
        self._after = self._number = after

    async def frames(self) -> AsyncGenerator[str, None]:
        """Yield the frames, until the response has ended."""
        finder, tenant, id = self._finder, self._tenant, self._id
        try:
            record = self._record or (await finder.begun(tenant, id)).record
            adapter = ResponseEvents(id, record, id.run_id(tenant), self._after)
            async with aclosing(_adapted(finder, tenant, id, adapter)) as events:
                async for event in events:
                    self._number = event["sequence_number"]
                    yield encode_event(dumps(event), event=event["type"])
        except Exception as error:
            yield self.failed(error)
        yield DONE

    def failed(self, error: Exception) -> str:
        """Return the event of an error that ends the stream."""
        body = error_body(after_start(error, self._id))
        fields = {key: body[key] for key in ("message", "param", "code")}
        about = {"type": "error", "sequence_number": self._number + 1, **fields, "error": body}
        return encode_event(dumps(about), event="error")


def failed_chunk(error: Exception, id: ResponseId) -> str:
    """Return the event of an error that ends the stream of a chat completion."""
    return encode_event(dumps({"error": error_body(after_start(error, id.completion))}))


async def chunk_frames(
    finder: RunFinder, tenant: str, id: ResponseId, record: Record, *, with_usage: bool
) -> AsyncGenerator[str, None]:
    """Yield the chunks of a chat completion, until it has ended."""
    adapter = CompletionEvents(id, record, id.run_id(tenant), with_usage=with_usage)
    try:
        async with aclosing(_adapted(finder, tenant, id, adapter)) as chunks:
            async for chunk in chunks:
                yield encode_event(dumps(chunk))
    except Exception as error:
        yield failed_chunk(error, id)
    yield DONE


async def _adapted(
    finder: RunFinder, tenant: str, id: ResponseId, adapter: ResponseEvents
) -> AsyncGenerator[JsonObject, None]:
    """Yield the adapter's events of a response, from its beginning to its end."""
    for each in adapter.begin():
        yield each
    found = await finder.begun(tenant, id)
    async with aclosing(finder.watch(tenant, id, found, adapter.topics)) as events:
        async for event in events:
            for each in adapter.fold(event):
                yield each
    for each in adapter.end(await finder.ended(tenant, id)):
        yield each
