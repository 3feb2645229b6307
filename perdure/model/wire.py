"""The wire of a Request: what its activity is given, what it asks for, what it delivers and returns."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from perdure.model.availability import FIRST_PAUSE
from perdure.model.beside import Beside
from perdure.model.reasoning import words
from perdure.model.usage import Usage
from perdure.values.jsons import Json, JsonObject
from perdure.values.wire import Wire

KEPT_TEXT: Final = 100_000


class RequestInput(Wire):
    """One model invocation. The context is not in it: the activity asks its workflow, so that history stays small."""

    number: int
    model: str
    reason: str
    earlier_attempts: int = 0
    """Of activities before this one that were asked for the same Request, so that an attempt's number says whose it is."""
    stream: bool = True
    """Whether calls are delivered while the model is still writing (R6.3)."""
    patience: float | None = None
    """Seconds from its scheduling on that a provider that is away is asked again; `None`: as its attempts allow (R20.5)."""
    first_pause: float = FIRST_PAUSE
    """Seconds between its first two attempts."""
    hands_back: bool = False
    """Whether a long pause that the server asks for is left to the run, which says that it waits."""


class Delivery(Wire):
    """Calls of a Request that have closed in the model's stream, signalled to the run by the attempt that reads it."""

    number: int
    attempt: int
    first: int
    """Index of the first of them in the Solution's list."""
    calls: list[Any]


class Said(Wire):
    """What is known of an output before it is written: how its text is told meanwhile."""

    member: str | None = None
    """The only member of the object that it is, a text."""
    several: bool = False
    """Whether it is an object of more than one member."""


class Vocabulary(Wire):
    """What the reader of an answer has to know to read it."""

    names: dict[str, str] = Field(default_factory=dict)
    """As written → the tool's name, where they differ."""
    parameters: dict[str, list[str]] = Field(default_factory=dict)
    """Tool → its parameters in their order."""
    kinds: list[str] = Field(default_factory=list)
    """The kinds of data that references can name."""
    said: Said = Field(default_factory=Said)


class PartView(Wire):
    """A part of a prompt, and what it has (R10.19)."""

    part: str
    characters: int


class RequestContext(Wire):
    """What the activity is told when it asks: the chat messages, and how the answer is written and read (R9.2, R9.3)."""

    messages: list[JsonObject]
    parameters: JsonObject = Field(default_factory=dict)
    """What is sent beside them: `response_format`, `tools`."""
    parts: list[PartView] = Field(default_factory=list)
    """What all of it is made of, for whoever looks; the activity needs it not."""
    left_out: list[str] = Field(default_factory=list)
    """What there is of skills and files, and is not told, a line each."""
    dialect: str = "solution"
    vocabulary: Vocabulary = Field(default_factory=Vocabulary)
    released: int = 0
    """Calls of this very Request that have arrived from an earlier attempt: then the model is not asked again (R6.7)."""
    watched_until: float = 0.0
    """Seconds since 1970 until which somebody watches the run: what is written is told more often (R10.14)."""


class RequestResult(Wire):
    """The Solution, or why the answer was none: a `problem` is told to the model and the loop goes on."""

    calls: list[Any] = Field(default_factory=list)
    output: Json = None
    text: str = ""
    """The answer as it was written, for audit; its first `KEPT_TEXT` characters."""
    reasoning: str = ""
    """What the model thought before, its first 16,000 characters, where `beside` has it not: see `thought`."""
    reasoned: int = 0
    """How many there were."""
    anew: bool = False
    """What was told of the text while it was written was a thought: the text is another (R10.14)."""
    beside: Beside | None = None
    """What the server put beside native calls; it goes back with them."""
    problem: JsonObject | None = None
    """`{"code", "message"}`."""
    refusal: str | None = None
    """The model's words where it refused, or where a content filter ended its answer (R20.2)."""
    model: str = ""
    usage: Usage = Field(default_factory=Usage)
    attempt: int = 1
    """Which attempt of the activity it is the answer to."""

    @property
    def thought(self) -> str:
        """What the model thought before it answered, for who wants to see it."""
        return self.reasoning or ("" if self.beside is None else words(self.beside.message))


class RequestView(Wire):
    """A Request as `watch` shows it."""

    number: int
    """1 for a run's first; 0 is a plan that was given (R5.9)."""
    model: str
    reason: str
    """Why this model was chosen (R9.4)."""
    status: Literal["running", "done"] = "running"
    usage: Usage = Field(default_factory=Usage)
    """What its server counted."""
    cost: float | None = None
    """Dollars; `None` where no price is known."""
    messages: int = 0
    """Chat messages sent."""
    text: str = ""
    """The beginning of what the model said beside calls, or in their place."""
    because: list[str] = Field(default_factory=list)
    """What the engine or a person had to say of the answer before, beside what is told at its calls: why it is asked once more."""
    told: int = 0
    """Messages of that kind that there were when it began: those after are the next one's."""
    trouble: str = ""
    """Why it is being asked again, while it is; noted by whoever looks."""
