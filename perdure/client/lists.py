"""What lists of runs, and of what waits in them, are made of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from perdure.run.wire import RunStatus, WaitingEntry, WaitingView
from perdure.values.jsons import JsonObject


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run, as visibility knows it; whole it is `Perdure.get_run(id).view()`. `None`: the namespace does not know, or there is none yet."""

    id: str
    status: RunStatus
    started_at: datetime
    """Or when it last went on as new: a list knows no more."""
    ended_at: datetime | None
    """`None`: it runs."""
    agent: str | None = None
    """Its agent's name."""
    stop_reason: str | None = None
    """Why it ended, or the type of its failure."""
    cost: float | None = None
    """Dollars, once it has ended."""
    sender: str | None = None
    """For whom it runs, as it was said when it started."""
    tenant: str | None = None
    """The same, one level up."""
    waiting: int = 0
    """What waits for a person in it."""

    def as_json(self) -> JsonObject:
        plain: JsonObject = {
            "runId": self.id,
            "status": self.status,
            "startedAt": self.started_at.isoformat(),
            "endedAt": None if self.ended_at is None else self.ended_at.isoformat(),
        }
        more = {
            "agent": self.agent,
            "stopReason": self.stop_reason,
            "cost": self.cost,
            "sender": self.sender,
            "tenant": self.tenant,
            "waiting": self.waiting or None,
        }
        return plain | {name: value for name, value in more.items() if value is not None}


@dataclass(frozen=True)
class RunPage:
    """Runs, the newest started first."""

    rows: list[ListedRun]
    following: str | None
    """Names the page after this one; `None`: this was the last."""


@dataclass(frozen=True)
class Waiting:
    """One thing that waits, as a list shows it."""

    run_id: str
    agent: str
    """The name of the run's agent."""
    entry: WaitingEntry
    """What waits, as far as a list shows it."""

    def as_json(self) -> JsonObject:
        return {"runId": self.run_id, "agent": self.agent, **self.entry.as_json()}


@dataclass(frozen=True)
class WaitingPage:
    """Runs that wait, the newest started first, and what waits in them, the oldest first."""

    waiting: list[Waiting]
    runs: int
    """How many runs of this page wait for somebody."""
    unnamed: dict[str, int]
    """By run, how much more waits than the list names: the run itself tells all of it."""
    following: str | None
    """Names the page after this one; `None`: this was the last."""


@dataclass(frozen=True)
class Offered:
    """One thing that waits, whole, and in which run."""

    run_id: str
    """The run itself, or one of its delegates'."""
    offer: WaitingView

    def as_json(self) -> JsonObject:
        return {"runId": self.run_id, **self.offer.as_json()}


@dataclass(frozen=True, slots=True)
class ListedSession:
    """A session, as visibility knows it."""

    session: str
    """Its key."""
    id: str
    agent: str | None
    since: datetime
    """When it last began to wait for messages, or to answer them."""

    def as_json(self) -> JsonObject:
        return {"session": self.session, "id": self.id, "agent": self.agent, "since": self.since.isoformat()}


@dataclass(frozen=True)
class SessionPage:
    """Sessions, the last that did something first."""

    rows: list[ListedSession]
    following: str | None
    """Names the page after this one; `None`: this was the last."""
