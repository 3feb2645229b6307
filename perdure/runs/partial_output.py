"""The output of a run while a model writes it (R20.7): its text so far, parsed as far as it goes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pydantic_core import from_json

from perdure.runs.event_stream import EventAdapter
from perdure.runs.events import Event
from perdure.values.json import Json, JsonObject
from perdure.values.references import MISSING, Missing
from perdure.values.templates import PLAIN, TextForm

_UNCLOSED: Final = re.compile(r"(?<=[\[,:])[-+.\w]+$")
"""A number or a name at the end of a text: it may be incomplete."""
_MORE: Final = "\ue000"
"""A character that no enumeration, date or pattern has."""


@dataclass(frozen=True, slots=True)
class PartialText:
    """The beginning of the text of an output."""

    text: str
    form: TextForm = PLAIN

    @property
    def value(self) -> Json | Missing:
        """The value so far; its last text may be incomplete."""
        return self._parse(self.text)

    @property
    def longer(self) -> Json | Missing:
        """A copy of the value, with a longer last text if that text is incomplete."""
        return self._parse(self.text + _MORE)

    @property
    def closed(self) -> Json | Missing:
        """The value so far, without an incomplete text."""
        if self.form.kind == "json":
            return self._parse(self.text, texts=False)
        return {} if self.form.kind == "member" else MISSING

    def _parse(self, text: str, *, texts: bool = True) -> Json | Missing:
        if self.form.kind == "remark" or not self.text:
            return MISSING
        if self.form.kind == "member":
            return {self.form.member or "": text}
        if self.form.kind == "text":
            return text
        try:
            if (end := _UNCLOSED.search(text)) is not None and not _ends_in_text(text):
                text = text[: end.start()]
            value: Json = from_json(text, allow_partial="trailing-strings" if texts else True)
        except ValueError:
            return MISSING
        return value


def _ends_in_text(json: str) -> bool:
    """Return whether a text of the JSON is open at its end: only then do the two modes differ."""
    try:
        return bool(from_json(json, allow_partial="trailing-strings") != from_json(json, allow_partial=True))
    except ValueError:  # half a number
        return False


class PartialOutputEvents(EventAdapter[PartialText, None]):
    """A fold of the events of runs that yields the text of the output each time it grows.

    A text that does not continue the previous one belongs to another attempt or Request. The text of an answer that
    does not count is left out from then on.
    """

    def __init__(self) -> None:
        self._source: tuple[str, object, object] | None = None
        """The run, Request and attempt of the text."""
        self._text = ""

    def on_lifecycle(self, event: Event) -> Iterator[PartialText]:
        if event.phase in ("start", "reset"):
            self._source, self._text = None, ""
        yield from ()

    def on_assistant(self, event: Event) -> Iterator[PartialText]:
        data = event.data
        if event.phase == "delta":
            yield from self._more(event)
        elif event.phase == "superseded":
            self._text = ""
        elif data.get("output") and "text" not in data.get("cut", ()):
            self._text = ""
            yield PartialText(str(data["text"]), TextForm.of_event(data))
        else:
            self._text = ""

    def _more(self, event: Event) -> Iterator[PartialText]:
        data: JsonObject = event.data
        source = (event.run_id, data["request"], data["attempt"])
        if source != self._source:
            self._source, self._text = source, ""
        if data["start"] != len(self._text):
            return  # its beginning was missed: the end event has the whole text
        self._text += str(data["text"])
        yield PartialText(self._text, TextForm.of_event(data))
