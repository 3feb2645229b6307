"""A response as the events of a stream: pure. Its numbers say where each event stands, so that any gateway goes on behind any of them.

`response.created` is 0 and `response.in_progress` is 1. Each time that a model is asked there are `SPAN` numbers for what it writes: those of
its item's beginning, then one for each character, so that a piece of text has the number of its last one. Whoever comes back with
`starting_after` is given what follows that very character, however it is cut into pieces now. What was written and did not count, because
a model was asked anew, is an item of its own that ends `incomplete`; the response itself is without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from perdure.gateway.openai.answers import message_item
from perdure.gateway.openai.ids import ResponseId
from perdure.values.jsons import JsonObject

SPAN: Final = 1 << 21
"""More than an answer has characters; a thousand of them fit into 31 bits."""
_FIRST: Final = 2
_AS: Final = {"cancelled": "failed"}
"""Of a stream's last event, where a status has none of its own."""


class Telling:
    """The events of one response, each once; those up to number `after` are left out."""

    def __init__(self, id: ResponseId, after: int = -1) -> None:
        self._id = id
        self._after = after
        self._spans = 0
        self._index = 0
        """Items that were told and ended."""
        self._text = ""
        """What was told of the text that is being written."""
        self._open = False
        """Whether its item was begun."""
        self._missed = False
        """Whether a piece of it was: then the rest waits for the end."""
        self.ended = False

    def begin(self, response: JsonObject) -> Iterator[JsonObject]:
        """The first two events; `response` as it was when nothing of it was known."""
        for number, phase in enumerate(("created", "in_progress")):
            yield from self._event(number, f"response.{phase}", response={**response, "status": "in_progress"})

    def ask(self) -> Iterator[JsonObject]:
        """A model is asked, or asked again: what was written before does not count."""
        yield from self._drop()
        self._spans += 1

    def write(self, start: int, text: str) -> Iterator[JsonObject]:
        """A piece of the answer that is being written, behind so many characters."""
        if start > len(self._text):
            self._missed = True
        new = "" if self._missed else text[len(self._text) - start :]
        if new:
            yield from self._begin_text()
            self._text += new
            yield from self._delta(len(new))

    def end(self, response: JsonObject) -> Iterator[JsonObject]:
        """All that is left to tell of a response that has ended."""
        items = list(response["output"])
        number = self._base
        if items and items[0]["type"] == "message":
            answer = items.pop(0)
            text = answer["content"][0]["text"]
            if not text.startswith(self._text):
                yield from self.ask()
            self._missed = False
            yield from self._begin_text()
            yield from self.write(len(self._text), text[len(self._text) :])
            answer["id"] = self._item_id
            response = {**response, "output": [answer, *items]}
            yield from self._end_text("completed")
            number = self._base + len(text) + 5
        else:
            yield from self._drop()
        for item in items:
            yield from self._item(number, item)
            number += 4
        status = str(response["status"])
        yield from self._event(number, f"response.{_AS.get(status, status)}", response=response)
        self.ended = True

    @property
    def _base(self) -> int:
        return _FIRST + max(0, self._spans - 1) * SPAN

    @property
    def _item_id(self) -> str:
        return self._id.item("msg", str(self._index + 1) if self._index else "")

    @property
    def _place(self) -> JsonObject:
        return {"item_id": self._item_id, "output_index": self._index, "content_index": 0}

    def _event(self, number: int, kind: str, **data: Any) -> Iterator[JsonObject]:
        if number > self._after:
            yield {"type": kind, "sequence_number": number, **data}

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

    def _drop(self) -> Iterator[JsonObject]:
        if self._open:
            yield from self._end_text("incomplete")
            self._index += 1
        self._text, self._open, self._missed = "", False, False

    def _end_text(self, status: str) -> Iterator[JsonObject]:
        number, item = self._base + 1 + len(self._text), self._message(status)
        said: JsonObject = {"text": self._text, "logprobs": []}
        yield from self._event(number + 1, "response.output_text.done", **self._place, **said)
        part = item["content"][0]
        yield from self._event(number + 2, "response.content_part.done", **self._place, part=part)
        yield from self._event(number + 3, "response.output_item.done", output_index=self._index, item=item)
        if status == "completed":
            self._open, self._index = False, self._index + 1

    def _item(self, number: int, item: JsonObject) -> Iterator[JsonObject]:
        place = {"output_index": self._index}
        call = item["type"] == "function_call"
        begun = {**item, "status": "in_progress", "arguments": ""} if call else item
        yield from self._event(number, "response.output_item.added", **place, item=begun)
        if call:
            about, written = {"item_id": item["id"], **place}, item["arguments"]
            yield from self._event(number + 1, "response.function_call_arguments.delta", **about, delta=written)
            said = {"arguments": written, "name": item["name"]}
            yield from self._event(number + 2, "response.function_call_arguments.done", **about, **said)
        yield from self._event(number + 3, "response.output_item.done", **place, item=item)
        self._index += 1
