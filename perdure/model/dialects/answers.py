"""Reading what the model wrote: what every dialect's reader is given, and what it makes of it (R9.2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from perdure.errors import CallError
from perdure.values.jsons import Json, JsonObject


@dataclass(frozen=True, slots=True)
class Solution:
    """`calls` as written, unchecked; `problem` is set when the answer was no Solution, and is told to the model."""

    calls: list[Json] = field(default_factory=list)
    output: Json = None
    problem: CallError | None = None
    text: str | None = None
    """What was said in text, in a dialect in which text is an answer: without thoughts. `None`: the answer as it came."""
    beside: list[JsonObject] = field(default_factory=list)
    """What the server put beside each native call; `{}` for nothing."""
    anew: bool = False
    """What was known of its text while it was written was a thought: the text is another."""


@dataclass(frozen=True, slots=True)
class ToolDelta:
    """A piece of a native tool call as a server streams it; what it left out is `None`."""

    index: int | None = None
    id: str | None = None
    name: str | None = None
    arguments: str | None = None
    beside: JsonObject | None = None
    """What stands in it that the protocol does not know."""


class Reader(Protocol):
    """Pushed an answer in pieces, gives each call the moment it closes; never raises (R6.3).

    What `push` and `push_tool` gave is the beginning of the closed Solution's `calls`, in the same order.
    """

    def push(self, text: str) -> list[Json]:
        """The calls that closed with this piece of text."""
        ...

    def push_tool(self, delta: ToolDelta) -> list[Json]:
        """The calls that closed with this piece of a native tool call."""
        ...

    def said(self) -> str:
        """What is known of the output's text beyond what this gave before, for whoever watches: see `perdure.model.dialects.saying`."""
        ...

    def thought(self) -> str:
        """What has come of thoughts that stand in the text, beyond what this gave before."""
        ...

    def close(self, finish_reason: str | None = None) -> Solution:
        """What the whole answer was."""
        ...


def syntax_error(message: str, **more: Json) -> Json:
    """A call in the place of one that could not be read: a structural error that says what is wrong with it (R6.6)."""
    return {"_syntax": message, **more}
