"""What a lane is made of, as plain data: what was accepted, what runs, and what is to be done next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pydantic import Field

from perdure.sessions.wire import Done, Receipt, message_key
from perdure.values.jsons import JsonObject
from perdure.values.rules import Mode
from perdure.values.wire import Wire


class Queued(Wire):
    """A message that was accepted, until a run has taken it."""

    message_id: str
    sender: str
    rights: list[str]
    text: str
    mode: Mode
    route: str = ""
    seq: int
    """Its number in the order of acceptance."""
    number: int | None = None
    """Of the run that is to take it, with all that stand beside it under the same number; `None`: a command."""
    at: float
    """Seconds since 1970, of its acceptance."""
    settings: JsonObject = Field(default_factory=dict)
    """As the message has them."""

    @property
    def key(self) -> str:
        """Its name in the session."""
        return message_key(self.sender, self.message_id)

    def joins(self, other: Queued) -> bool:
        """Whether both may be one run's: what it may do, and where it answers, is the same (R10.4)."""
        own = bool(self.settings or other.settings)
        return set(self.rights) == set(other.rights) and self.route == other.route and not own


class Running(Wire):
    """The run that is under way, or begins when a worker has room."""

    number: int
    rights: list[str]
    """Its starter's (R10.9)."""
    messages: list[Queued]
    """What it begins with."""
    steered: list[Queued] = Field(default_factory=list)
    """What it was given since."""
    begun: bool = False
    ending: str | None = None
    """Why it was told to end."""
    waits: bool = False
    """Whether it waits for a person, as it has told last."""
    told: int = 0
    """The count of that."""


class Known(Wire):
    """What is kept of every message: enough to answer when it is sent again, or taken back."""

    body: str
    at: str
    """As its receipt says it."""
    done: Done
    why: str | None = None
    position: int = 0
    promised: int | None = None
    """The number of the run that its receipt names."""
    number: int | None = None
    """Of the run that has taken it, or is to."""
    request: int | None = None
    """Of the Request that held it first, once that is known."""
    withdrawn: bool = False


class LaneState(Wire):
    """All that a lane carries on."""

    born: str = ""
    """What tells this session's runs from those of one that had the same key before it."""
    seq: int = 0
    number: int = 0
    """Of the last run that was promised."""
    queue: list[Queued] = Field(default_factory=list)
    running: Running | None = None
    known: dict[str, Known] = Field(default_factory=dict)
    """By `message_key`; Perdure 0.1.0 wrote them by the message's id."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What acceptance has done beside its receipt."""

    receipt: Receipt
    queued: Queued | None = None
    """The message as it was taken in; `None`: it had been before."""
    steer: bool = False
    """It is to be given to the run."""
    cancel: bool = False
    """What runs is to be told to end."""


@dataclass(frozen=True, slots=True)
class Begin:
    """This run is to be started."""

    run: Running


@dataclass(frozen=True, slots=True)
class Carry:
    """This command's turn has come: it is carried out now."""

    command: Queued


@dataclass(frozen=True, slots=True)
class Until:
    """Nothing is to be done before this time (seconds since 1970), but for what comes in."""

    at: float


@dataclass(frozen=True, slots=True)
class Busy:
    """A run is under way."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing waits and nothing runs."""


Step: TypeAlias = Begin | Carry | Until | Busy | Idle
