"""Requests: the messages between a run and the activity that calls a model."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perdure.models.provider_extras import ProviderExtras, reasoning_text
from perdure.models.usage import Usage
from perdure.tools.server_input import SampleRequest
from perdure.values.json import Json, JsonObject, Timestamp, WireModel

INTERRUPTED: Final = "interrupted"
"""Code of the problem of an answer that broke off after calls were released."""
PATIENCE: Final = 3600.0
"""Seconds that a Request waits for an unavailable provider: longer than most outages and every rate limit of a
minute."""
ATTEMPTS: Final = 4
"""Attempts before the run reports that it waits: after 7 seconds."""
FIRST_PAUSE: Final = 1.0
"""Seconds between the first two attempts; each further pause is twice as long."""
WAITING_PAUSE: Final = 15.0
"""Seconds between two attempts once the run reports that it waits."""
LONGEST_PAUSE: Final = 30.0
"""The longest time in seconds between two attempts, unless the server asks for more."""
SHORTEST_PAUSE: Final = 0.5
"""The remaining seconds of patience below which no further attempt is made."""
LONGEST_QUIET: Final = 5.0
"""The longest pause, in seconds, that a server may ask for without a report that the run waits."""


AwayReason = Literal["no connection", "no answer", "connection lost", "an error"]
"""A failure of a provider that has no status."""


class ProviderAway(WireModel):
    """The details of a failure by an unavailable provider, which waiting may mend."""

    reason: str
    """The status, as `503`, or an `AwayReason`."""
    pause: float | None = None
    """Seconds after which the server asks for a retry."""


class ModelWait(WireModel):
    """The report of a run that waits for its model."""

    model: str
    reason: str
    """The reason, as in `ProviderAway`."""
    since: Timestamp
    """ISO 8601, UTC."""

    def text(self, since: str = "") -> str:
        """Return the report as text: `waiting for gpt-4o: 503 since 14:02`; `since`: the time of day for a reader in
        another zone."""
        return f"waiting for {self.model}: {self.reason} since {since or self.since[11:16]}"


def read_away(details: Sequence[object]) -> ProviderAway | None:
    """Return the first of a failure's details, if it is a `ProviderAway`."""
    try:
        return ProviderAway.model_validate(details[0]) if details and isinstance(details[0], dict) else None
    except ValidationError:
        return None


def spent_details(spent: Usage) -> JsonObject:
    """Return the detail of a failure with the usage of attempts that gave no answer."""
    return {"spent": spent.as_json()}


def read_spent(details: Sequence[object]) -> Usage:
    """Return the usage of attempts that gave no answer, from the details of a failure or a heartbeat."""
    spent = next((detail["spent"] for detail in details if isinstance(detail, dict) and "spent" in detail), None)
    try:
        return Usage.model_validate(spent or {})
    except ValidationError:
        return Usage()


def pause_after(attempt: int, requested: float | None, first: float = FIRST_PAUSE) -> float:
    """Return the seconds until the next attempt: as the server asks, else `first`, doubled with each attempt."""
    return requested if requested is not None else min(LONGEST_PAUSE, first * 2.0 ** min(attempt - 1, 10))


KEPT_TEXT: Final = 100_000


SAMPLE_ACTIVITY: Final = "perdure.sample"


class SampleInput(WireModel):
    """A request of a tool's server to a model of the run (R21.3)."""

    model: str
    request: SampleRequest


class SampleResult(WireModel):
    """The model's answer to the server of a tool."""

    model: str
    text: str
    stop_reason: Literal["endTurn", "maxTokens", "stopSequence"] = "endTurn"
    usage: Usage = Field(default_factory=Usage)


class RequestInput(WireModel):
    """The input of one model invocation. The context is not in it: the activity queries its workflow for it, so that
    history stays small."""

    number: int
    model: str
    reason: str
    earlier_attempts: int = 0
    """Attempts of earlier activities for the same Request, so that an attempt's number is unique."""
    stream: bool = True
    """Whether calls are delivered while the model is still writing (R6.3)."""
    patience: float | None = None
    """Seconds from its scheduling in which an unavailable provider is retried; `None`: its attempts are the limit
    (R20.5)."""
    first_pause: float = FIRST_PAUSE
    """Seconds between its first two attempts."""
    hands_back: bool = False
    """Whether a long pause that the server asks for is left to the run, which reports that it waits."""


class CallDelivery(WireModel):
    """Calls of a Request that have closed in the model's stream, signalled to the run by the attempt that reads it."""

    number: int
    attempt: int
    first: int
    """Index of the first of them in the Solution's list."""
    calls: list[Json]


class OutputForm(WireModel):
    """The form of an output, known before it is written: it decides how its text is shown meanwhile."""

    member: str | None = None
    """The name of its only member, a text, if the output is an object with one."""
    several: bool = False
    """Whether it is an object of more than one member."""
    wraps: bool = Field(default=False, exclude_if=operator.not_)
    """Whether a document `{"output": …}` is a wrapper of the output, not the output."""


class ReaderVocabulary(WireModel):
    """The vocabulary that the reader of an answer needs."""

    names: dict[str, str] = Field(default_factory=dict)
    """Written name → the tool's name, if they differ."""
    parameters: dict[str, list[str]] = Field(default_factory=dict)
    """Tool → its parameters in their order."""
    kinds: list[str] = Field(default_factory=list)
    """The kinds of data that references can name."""
    said: OutputForm = Field(default_factory=OutputForm)


class PartView(WireModel):
    """One part of a prompt, with its content (R10.19)."""

    part: str
    characters: int


class RequestContext(WireModel):
    """The activity's context of a Request: the chat messages, and how the answer is written and read (R9.2, R9.3)."""

    messages: list[JsonObject]
    stable: int = 0
    """The number of messages, from the first on, that the next Request repeats: a server's cache may keep them."""
    parameters: JsonObject = Field(default_factory=dict)
    """The parameters beside the messages: `response_format`, `tools`."""
    parts: list[PartView] = Field(default_factory=list)
    """The parts of the prompt, for display; the activity does not need them."""
    left_out: list[str] = Field(default_factory=list)
    """The skills and files that the prompt leaves out, a line each."""
    dialect: str = "solution"
    vocabulary: ReaderVocabulary = Field(default_factory=ReaderVocabulary)
    released: int = 0
    """The number of calls of this Request from an earlier attempt: with any, the model is not called again (R6.7)."""
    watched_until: float = 0.0
    """The time, in seconds since 1970, until which a watcher follows the run: until then text is sent more often
    (R10.14).
    """
    tenant: str = Field(default="", exclude_if=operator.not_)
    """The owner of the files that the messages name; empty: none, or there are no files."""


class HostedCall(WireModel):
    """A use of a hosted tool within an answer. Others wrote its result."""

    tool: str
    input: str = ""
    """The query or the code; of a longer one the beginning."""
    result: str = ""
    """What the provider shows of the result; of a longer one the beginning."""
    failed: bool = False


class RequestResult(WireModel):
    """The Solution, or a `problem`, which is reported to the model before the next Request."""

    calls: list[Json] = Field(default_factory=list)
    output: Json = None
    text: str = ""
    """The answer as written, for audit; its first `KEPT_TEXT` characters."""
    reasoning: str = ""
    """The model's reasoning, its first 16,000 characters, unless `beside` holds it: see `thought`."""
    reasoned: int = 0
    """The total characters of the reasoning."""
    anew: bool = False
    """Whether the text during the stream was a thought, so that the answer's text differs (R10.14)."""
    beside: ProviderExtras | None = None
    """The server's extras of native calls; they go back with the calls."""
    problem: JsonObject | None = None
    """`{"code", "message"}`."""
    refusal: str | None = None
    """The model's message if it refused, or if a content filter ended its answer (R20.2)."""
    hosted: list[HostedCall] = Field(default_factory=list, exclude_if=operator.not_)
    """Uses of hosted tools within the answer (R20.6)."""
    model: str = ""
    usage: Usage = Field(default_factory=Usage)
    spent: Usage | None = Field(default=None, exclude_if=operator.not_)
    """The usage of earlier attempts, whose answers do not count. The run pays for them (R9.6)."""
    attempt: int = 1
    """The activity's attempt that returned it."""

    @property
    def thought(self) -> str:
        """The model's reasoning before its answer, for display."""
        return self.reasoning or ("" if self.beside is None else reasoning_text(self.beside.message))


class RequestView(WireModel):
    """A Request as `watch` shows it.

    ```python
    for request in (await run.view()).log:
        print(request.number, request.model, request.reason, request.cost)
    ```
    """

    number: int  # R5.9
    """1 for a run's first; 0 is a plan given by the run's input."""
    model: str
    reason: str  # R9.4
    """The reason for the choice of this model."""
    status: Literal["running", "done"] = "running"
    usage: Usage = Field(default_factory=Usage)
    """The usage that its server counted."""
    cost: float | None = None
    """Dollars; `None` if a price is unknown."""
    messages: int = 0
    """Chat messages sent."""
    text: str = ""
    """The beginning of the model's text beside calls, or in their place."""
    because: list[str] = Field(default_factory=list)
    """Feedback of the engine or a person on the previous answer, beside the feedback on its calls: the reason of this
    Request."""
    told: int = 0
    """The number of feedback messages at its beginning: later ones belong to the next Request."""
    trouble: str = ""
    """The reason of the present retry; set by the viewer."""


class Endpoint(BaseModel):
    """A server beside the default one, of the provider that the model's name has. The setting names its key's variable,
    never the key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_url: str
    api_key_env: str | None = None
    """Environment variable with the key; `None`: the server needs none."""
