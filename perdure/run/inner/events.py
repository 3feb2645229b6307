"""What can happen to a Request while its calls run, and what is to be carried out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from perdure.model.wire import RequestResult
from perdure.people.offers import Offer, Verdict
from perdure.plan.calls import Call
from perdure.plan.outcomes import Outcome
from perdure.run.stopping import Limit
from perdure.values.jsons import Json


class Stage(Enum):
    """How far a Request has come."""

    STREAMING = "streaming"
    """The model is writing: calls arrive, and start as they become ready, unless their plan is to be shown as a whole."""
    ANSWERED = "answered"
    """The answer is whole, and its plan waits for a person: nothing starts (R7.6)."""
    DRAINING = "draining"
    """Nothing arrives any more, and all that there is runs to its end."""
    SETTLED = "settled"
    """Every call has ended."""
    REVISED = "revised"
    """The Request is over before its calls are: the plan goes on under the next one (R10.5)."""


@dataclass(frozen=True)
class Arrived:
    """The next calls of the model's list."""

    calls: list[Json]


@dataclass(frozen=True)
class Answered:
    """The answer is whole, or broke off."""

    result: RequestResult


@dataclass(frozen=True)
class Decided:
    """A person has decided on the whole plan."""

    verdict: Verdict


@dataclass(frozen=True)
class Ended:
    """A call that was started has ended."""

    call: Call
    outcome: Outcome


@dataclass(frozen=True)
class Steered:
    """A new message has come: what was not begun is held (R10.5)."""


@dataclass(frozen=True)
class Stopped:
    """A limit was met: nothing more is to run (R9.5)."""

    limit: Limit


Event: TypeAlias = Arrived | Answered | Decided | Ended | Steered | Stopped


@dataclass(frozen=True)
class Start:
    """A call to carry out, once its offer was decided if there is one; with no call the plan's offer alone."""

    call: Call | None
    offer: Offer | None
