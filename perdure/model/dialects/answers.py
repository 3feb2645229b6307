"""Reading what the model wrote: what every dialect's reader is given, and what it makes of it (R9.2)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Protocol

from perdure.errors import CallError
from perdure.values.jsons import Json


@dataclass(frozen=True, slots=True)
class Solution:
    """`calls` as written, unchecked; `problem` is set when the answer was no Solution, and is told to the model."""

    calls: list[Json] = field(default_factory=list)
    output: Json = None
    problem: CallError | None = None


@dataclass(frozen=True, slots=True)
class ToolDelta:
    """A piece of a native tool call as a server streams it; what it left out is `None`."""

    index: int | None = None
    id: str | None = None
    name: str | None = None
    arguments: str | None = None


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

    def close(self, finish_reason: str | None = None) -> Solution:
        """What the whole answer was."""
        ...


def syntax_error(message: str, **more: Json) -> Json:
    """A call in the place of one that could not be read: a structural error that says what is wrong with it (R6.6)."""
    return {"_syntax": message, **more}


_THOUGHT = re.compile(r"\s*<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL)


class Unwrapper:
    """Takes from around a streamed JSON document what models and servers put there: a byte order mark, a code fence, a
    sentence before it, thoughts in `<think>`. Gives the text from the first `{` on."""

    def __init__(self) -> None:
        self._before = ""
        self._open = False

    def push(self, text: str) -> str:
        if self._open:
            return text
        self._before += text
        start = json_start(self._before)
        if start is None:
            return ""
        self._open = True
        return self._before[start:]


def json_start(text: str) -> int | None:
    """Where the JSON document begins, or `None` where there is none yet."""
    stripped = text.lstrip("\ufeff \t\r\n")
    if "<thinking>".startswith(stripped[:10]) or stripped.startswith(("<think>", "<thinking>")):
        thought = _THOUGHT.match(text.lstrip("\ufeff"))
        end = len(text) if thought is None else thought.end() + len(text) - len(text.lstrip("\ufeff"))
    else:
        end = 0
    found = text.find("{", end)
    return None if found < 0 else found


def whole_document(text: str) -> str:
    """The JSON document in a finished answer, without what stands around it; the text itself where there is none."""
    start = json_start(text)
    if start is None:
        return text.strip("\ufeff \t\r\n")
    rest = text[start:]
    try:
        _, end = json.JSONDecoder().raw_decode(rest)
    except (ValueError, RecursionError):
        return rest.rstrip().removesuffix("```").rstrip()
    return rest[:end]
