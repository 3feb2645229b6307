"""The wire of a Request: what its activity is given, what it asks for, what it delivers and returns."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from perdure.jsons import Json, JsonObject
from perdure.usage import Usage
from perdure.wire import Wire


class RequestInput(Wire):
    """One model invocation. The context is not in it: the activity asks its workflow, so that history stays small."""

    number: int
    model: str
    reason: str
    stream: bool = True
    """Whether calls are delivered while the model is still writing (R6.3)."""


class Delivery(Wire):
    """Calls of a Request that have closed in the model's stream, signalled to the run by the attempt that reads it."""

    number: int
    attempt: int
    first: int
    """Index of the first of them in the Solution's list."""
    calls: list[Any]


class RequestContext(Wire):
    """What the activity is told when it asks: chat messages, and the composed schema of the answer (R9.3)."""

    messages: list[dict[str, str]]
    solution_schema: JsonObject
    released: int = 0
    """Calls of this very Request that have arrived from an earlier attempt: then the model is not asked again (R6.7)."""


class RequestResult(Wire):
    """The Solution, or why the answer was none: a `problem` is told to the model and the loop goes on."""

    calls: list[Any] = Field(default_factory=list)
    output: Json = None
    problem: JsonObject | None = None
    """`{"code", "message"}`."""
    model: str = ""
    usage: Usage = Field(default_factory=Usage)
    attempt: int = 1
    """Which attempt of the activity it is the answer to."""


class RequestView(Wire):
    """A Request as `watch` shows it."""

    number: int
    model: str
    reason: str
    status: Literal["running", "done"] = "running"
    usage: Usage = Field(default_factory=Usage)
