"""Requests: what crosses between a run and the activity that calls a model."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perdure.models.provider_extras import ProviderExtras, words
from perdure.models.usage import Usage
from perdure.values.json import Json, JsonObject, WireModel

PATIENCE: Final = 3600.0
"""Seconds that a Request waits for a provider that is away: longer than most outages and every rate limit of a minute."""
ATTEMPTS: Final = 4
"""Attempts before the run says that it waits: after 7 seconds."""
FIRST_PAUSE: Final = 1.0
"""Seconds between the first two attempts; each further pause is twice as long."""
WAITING_PAUSE: Final = 15.0
"""The same once the run says that it waits."""
LONGEST_PAUSE: Final = 30.0
"""Seconds between two attempts, where the server asks for nothing else."""
SHORTEST_PAUSE: Final = 0.5
"""Seconds of patience that are worth no further attempt."""
LONGEST_QUIET: Final = 5.0
"""Seconds of a pause that a server asks for, during which the run need not say that it waits."""


class ProviderAway(WireModel):
    """The details of a failure that means that a provider is away, which waiting may mend."""

    reason: str
    """The status, or what came in its place: `503`, `no connection`."""
    pause: float | None = None
    """Seconds after which the server asks to be asked again."""


class ModelWait(WireModel):
    """What a run says while it waits for its model."""

    model: str
    reason: str
    """As that of `Away`."""
    since: str
    """ISO 8601, UTC."""

    def text(self, since: str = "") -> str:
        """`waiting for gpt-4o: 503 since 14:02`; `since`: the time of day for a reader in another zone."""
        return f"waiting for {self.model}: {self.reason} since {since or self.since[11:16]}"


def read_away(details: Any) -> ProviderAway | None:
    """The first of a failure's details, if it is an `Away`."""
    try:
        return ProviderAway.model_validate(details[0]) if details and isinstance(details[0], dict) else None
    except ValidationError:
        return None


def pause_after(attempt: int, asked: float | None, first: float = FIRST_PAUSE) -> float:
    """Seconds until the next attempt: as the server asks, else twice as long each time, beginning with `first`."""
    return asked if asked is not None else min(LONGEST_PAUSE, first * 2.0 ** min(attempt - 1, 10))


KEPT_TEXT: Final = 100_000


class RequestInput(WireModel):
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


class CallDelivery(WireModel):
    """Calls of a Request that have closed in the model's stream, signalled to the run by the attempt that reads it."""

    number: int
    attempt: int
    first: int
    """Index of the first of them in the Solution's list."""
    calls: list[Any]


class OutputForm(WireModel):
    """What is known of an output before it is written: how its text is told meanwhile."""

    member: str | None = None
    """The only member of the object that it is, a text."""
    several: bool = False
    """Whether it is an object of more than one member."""


class ReaderVocabulary(WireModel):
    """What the reader of an answer has to know to read it."""

    names: dict[str, str] = Field(default_factory=dict)
    """As written → the tool's name, where they differ."""
    parameters: dict[str, list[str]] = Field(default_factory=dict)
    """Tool → its parameters in their order."""
    kinds: list[str] = Field(default_factory=list)
    """The kinds of data that references can name."""
    said: OutputForm = Field(default_factory=OutputForm)


class PartView(WireModel):
    """A part of a prompt, and what it has (R10.19)."""

    part: str
    characters: int


class RequestContext(WireModel):
    """What the activity is told when it asks: the chat messages, and how the answer is written and read (R9.2, R9.3)."""

    messages: list[JsonObject]
    parameters: JsonObject = Field(default_factory=dict)
    """What is sent beside them: `response_format`, `tools`."""
    parts: list[PartView] = Field(default_factory=list)
    """What all of it is made of, for whoever looks; the activity needs it not."""
    left_out: list[str] = Field(default_factory=list)
    """What there is of skills and files, and is not told, a line each."""
    dialect: str = "solution"
    vocabulary: ReaderVocabulary = Field(default_factory=ReaderVocabulary)
    released: int = 0
    """Calls of this very Request that have arrived from an earlier attempt: then the model is not asked again (R6.7)."""
    watched_until: float = 0.0
    """Seconds since 1970 until which somebody watches the run: what is written is told more often (R10.14)."""


class RequestResult(WireModel):
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
    beside: ProviderExtras | None = None
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


class RequestView(WireModel):
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


class Endpoint(BaseModel):
    """An OpenAI-compatible server beside the default one. Its key is named, not written down."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_url: str
    api_key_env: str | None = None
    """Environment variable with the key; `None`: the server wants none."""
