"""What waits for a person, as whoever decides is shown it (R7.1, R7.8)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import Field

from perdure.people.questions import ask_words, plan_words
from perdure.values.jsons import JsonObject
from perdure.values.wire import Wire


class WaitingView(Wire):
    """What waits for a person: a call, or a whole plan (`calls` and `simulation` are set then)."""

    call: str
    """What a decision names: the call's id, or the Request's number for its plan."""
    agent: str
    """The name of the run's agent."""
    tool: str
    description: str = ""
    """The tool's."""
    params: JsonObject = Field(default_factory=dict)
    """Resolved."""
    parameters: JsonObject = Field(default_factory=dict)
    """JSON Schema of the parameters."""
    items: list[Any] | None = None
    """What `_each` resolved to: the call runs once for each. The digest is of the parameters with these as `_each`."""
    runs: dict[str, str] = Field(default_factory=dict)
    """Tool → the activity, or the agent, that runs, where that is not called like the tool."""
    ways: list[str] = Field(default_factory=list)
    """Where its parameters come from, a line each: `send_money.iban ← †state.mail.iban ← read_mail (written by others)` (R15.6)."""
    reason: str
    """Why it is asked about, or the question."""
    requested_at: str
    """ISO 8601, UTC."""
    digest: str
    """Of exactly what is shown: a decision that carries it counts for nothing else (R7.2)."""
    question: bool = False
    """It is a question (`reason`): an answer is wanted, not a decision."""
    client: bool = False
    """Whether the program that started the run carries the call out: no person is asked (R17.2)."""
    calls: list[Any] | None = None
    """The whole plan, where that is what waits."""
    more: int = 0
    """How many wait behind it that the answer had no room for: they are asked for next."""
    cut: bool = False
    """Whether something of it was too large to be shown whole; the digest is of the whole (R18.3)."""
    simulation: JsonObject | None = None
    """`{"makespan", "levels": [[call ids]], "asks": [call ids]}`."""

    @property
    def sentence(self) -> str:
        """The question as a sentence: `refund 120 EUR to ann@example.com: euros is above 100`."""
        if self.calls is not None:
            return plan_words(len(self.calls), self.reason)
        return ask_words(self.tool, self.params, self.reason, question=self.question)


def asked_of_people(waiting: Iterable[WaitingView]) -> list[WaitingView]:
    """Return what people decide or answer, without the calls that the run's client carries out."""
    return [offer for offer in waiting if not offer.client]


class WaitingEntry(Wire):
    """One thing that waits, as far as a list shows it: whole it is the run's to tell."""

    call: str
    """What a decision names."""
    tool: str
    params: JsonObject | None = None
    """`None`: a plan, or too long for a list."""
    reason: str
    """Why it is asked about, or the question."""
    requested_at: str
    """ISO 8601, UTC."""
    digest: str
    """As that of a `WaitingView`."""
    question: bool = False
    """An answer is wanted, not a decision."""

    @property
    def sentence(self) -> str:
        """The question as a sentence, as that of a `WaitingView`; without the parameters where they are too long for a list."""
        if "." not in self.call:  # a Request's number is its plan
            return plan_words(None, self.reason)
        return ask_words(self.tool, self.params, self.reason, question=self.question)


class WaitingMemo(Wire):
    """What visibility tells of a run that waits for a person, so that lists ask no run (R7.8)."""

    agent: str
    calls: list[WaitingEntry]
    """The oldest `WAITING_NAMED`."""
