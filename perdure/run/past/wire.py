"""What a run carries from Request to Request, and on into a new execution (R6.8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from pydantic import Field

from perdure.model.usage import RunUsage
from perdure.model.wire import RequestView
from perdure.people.wire import Heard, Said
from perdure.run.choosing import Called
from perdure.run.events.wire import CarriedEvents
from perdure.run.past.sent import added
from perdure.run.shares import Expected
from perdure.run.wire import CallView, Prepared
from perdure.values.jsons import Json, JsonObject
from perdure.values.state import Write
from perdure.values.wire import Wire


class Past(Wire):
    """What the Requests that are over leave for whoever looks at the run."""

    calls: list[CallView] = Field(default_factory=list)
    log: list[RequestView] = Field(default_factory=list)
    sets: list[list[str]] = Field(default_factory=list)
    """Of sources: calls name them by their index."""
    edges: list[tuple[str, str, str]] = Field(default_factory=list)
    reads: dict[str, list[str]] = Field(default_factory=dict)
    writes: dict[str, str] = Field(default_factory=dict)


class Progress(Wire):
    """How far a run has come, beside its state."""

    number: int = 0
    """Of the last Request begun; 0 is a plan that was given (R5.9)."""
    results: JsonObject = Field(default_factory=dict)
    """By call id what went to no path (R4.4)."""
    messages: list[JsonObject] = Field(default_factory=list)
    """Error, feedback and turn messages in their order."""
    plan_message: JsonObject | None = None
    after_error: bool = False
    usage: RunUsage = Field(default_factory=RunUsage)
    called: list[Called] = Field(default_factory=list)
    """What the last answer called."""
    answers: list[str] = Field(default_factory=list)
    """Fingerprints of the last answers."""
    told_to_vary: int = 0
    """Number of the Request that was told last that the answers before it asked for the same (R9.8)."""
    worked: float = 0.0
    expected: Expected = Field(default_factory=Expected)
    """What a delegate is thought to use of the budget (R18.7)."""
    told: list[str] = Field(default_factory=list)
    """Names of what others have written that its messages and results hold (R15.3)."""
    planned: list[str] = Field(default_factory=list)
    """Prints of calls of Requests that had read nothing of others, and that were not made."""
    wants: Literal["plan", "structured", "refined"] = "plan"
    """What the next Request is for; the last two only want an output."""
    must_call: list[str] = Field(default_factory=list)
    """The tools of which one is called before an output counts (R6.5); none once one was."""
    draft: Json = None
    """The output that is to be refined."""
    inbox: list[Said] = Field(default_factory=list)
    """Messages that no Request holds so far."""
    heard: list[Heard] = Field(default_factory=list)
    """Those that one holds."""
    cut: int = 0
    """Requests that a message ended before they had answered: they do not count as asked."""
    sent: list[str] = Field(default_factory=list)
    """Digests of what message tools have sent (R10.16)."""
    refusals: int = 0
    """Requests in a row that the model refused, up to the last one (R20.2)."""
    has_cut: bool = False
    """Whether the model was shown only the beginning of a value, so that `recall` is offered (R10.18)."""
    tight: bool = False
    """Whether the context was too long for the model, and is shown cut since (R9.7)."""

    def include(self, usage: RunUsage, sent: Sequence[str]) -> None:
        """What a run below has used, and what its message tools have sent."""
        self.usage.include(usage)
        self.sent = added(self.sent, sent)


SNAPSHOT_FORM: Final = 3
"""Of a `RunSnapshot`. A worker that does not know a snapshot's form fails the run, and says so."""


class RunSnapshot(Wire):
    """A run between two Requests, as it goes on in a new execution (R6.8)."""

    prepared: Prepared
    progress: Progress
    writes: list[Write]
    sets: list[list[str]] = Field(default_factory=list)
    sources: list[int] = Field(default_factory=list)
    """Where the value of each write comes from: an index into `sets` (R15.1)."""
    policy: JsonObject = Field(default_factory=dict)
    """How the run's own approval policy differs from the agent file's (R7.7)."""
    remembered: dict[str, list[str]] | list[str] = Field(default_factory=dict)
    """By tool what others had written of the calls that a person has seen; a list, as 0.1.0 wrote it, holds for any."""
    vouched: dict[str, str] = Field(default_factory=dict)
    """What people stand for: by reference the digest of its value (R15.6)."""
    refusals: list[JsonObject] = Field(default_factory=list)
    past: Past
    events: CarriedEvents = Field(default_factory=CarriedEvents)
    """What has happened, as far as it goes along (R10.14)."""
