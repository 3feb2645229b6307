"""What lists of runs, and of what waits in them, are made of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from perdure.model.availability import ModelWait
from perdure.run.wire import RunStatus, WaitingEntry, WaitingView
from perdure.values.jsons import Json, JsonObject


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
    """Dollars, once it has ended; `None` also where a model that it has used has no price."""
    tokens: int | None = None
    """Tokens of all its Requests and of its delegates', in and out, once it has ended."""
    sender: str | None = None
    """For whom it runs, as it was said when it started."""
    tenant: str | None = None
    """The same, one level up."""
    waiting: int = 0
    """What waits for a person in it."""
    wait: ModelWait | None = None
    """The model that it waits for, while its provider is away."""

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
            "tokens": self.tokens,
            "sender": self.sender,
            "tenant": self.tenant,
            "waiting": self.waiting or None,
            "wait": None if self.wait is None else self.wait.as_json(),
        }
        return plain | {name: value for name, value in more.items() if value is not None}


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """Where a run comes from."""

    input: Json
    has_input: bool
    """Whether it was given one; a run of a session has messages instead."""
    sender: str
    """For whom it runs; empty: nobody was named."""
    tenant: str
    session: str
    """The key of the session that it belongs to; empty: it is a run by itself."""
    above: str
    """The workflow that started it: a run whose delegate it is, or a session; empty: it was started from outside."""
    reset: bool
    """Whether Temporal has reset it: it goes on from the middle of its own past."""


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
    sender: str | None = None
    """For whom the run, or the run that started it, was started; `None`: nobody was named."""
    tenant: str | None = None
    """The same, one level up."""

    def as_json(self) -> JsonObject:
        plain: JsonObject = {"runId": self.run_id, "agent": self.agent, **self.entry.as_json()}
        more = {"sender": self.sender, "tenant": self.tenant}
        return plain | {name: value for name, value in more.items() if value is not None}


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
    title: str = ""
    """The first line of its first message; empty: it began before titles were kept."""

    def as_json(self) -> JsonObject:
        plain: JsonObject = {
            "session": self.session,
            "id": self.id,
            "agent": self.agent,
            "since": self.since.isoformat(),
        }
        return plain | ({"title": self.title} if self.title else {})


@dataclass(frozen=True)
class SessionPage:
    """Sessions, the last that did something first."""

    rows: list[ListedSession]
    following: str | None
    """Names the page after this one; `None`: this was the last."""
