"""Selections of runs, and the rows of a list."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from perdure.approvals.requests import WaitingEntry, WaitingView
from perdure.errors import RunError, ScheduleError
from perdure.models.requests import ModelWait
from perdure.runs.wire import (
    AGENT_ATTRIBUTE,
    AGENT_WORKFLOW,
    LONGEST_KEYWORD,
    MODEL_REFUSED,
    SCHEDULE_ATTRIBUTE,
    SENDER_ATTRIBUTE,
    STOP_ATTRIBUTE,
    TENANT_ATTRIBUTE,
    VERSION_ATTRIBUTE,
    WAITING_ATTRIBUTE,
    RunStatus,
)
from perdure.sessions.wire import SESSION_PREFIX, digest
from perdure.values.json import Json, JsonObject, shorten
from perdure.values.limits import read_duration

STATUSES: Final = {
    "running": "Running",
    "completed": "Completed",
    "refused": "Failed",
    "failed": "Failed",
    "cancelled": "Canceled",
    "terminated": "Terminated",
    "timed_out": "TimedOut",
}
"""What `--status` takes, and what Temporal calls it; `failed` finds the refused ones too, which differ only in their stop reason."""


@dataclass(frozen=True)
class Selection:
    """A selection of runs: those to which all of its fields apply. Without fields it selects all runs.

    ```python
    failed = Selection(agent="shopper", status="failed", since="2h")
    async for listed in perdure.list_runs(failed):
        print(listed.id, listed.stop_reason)
    ```
    """

    agent: str | None = None
    """The agent's name."""
    status: str | None = None
    """One of `STATUSES`."""
    since: str | None = None
    """Started, or gone on as new, after: how long ago (`90min`, `2h`, `3d`), or an ISO 8601 date or time, UTC without an offset."""
    sender: str | None = None
    """The sender that the start named."""
    tenant: str | None = None
    """The tenant that the start named; `""`: runs of no tenant."""
    reason: str | None = None
    """Its stop reason, or the type of its failure."""
    waiting: bool = False
    """Something in it waits for a person."""
    query: str | None = None
    """More, in the language of Temporal's lists."""
    outermost: bool = False
    """No run of a delegate, nor of an evaluation."""
    schedule: str | None = None
    """The name of the schedule that started them; of the `tenant`'s, if one is named."""
    version: str | None = None
    """The version of the agent."""

    @property
    def empty(self) -> bool:
        """Whether it selects all runs."""
        return self == Selection(outermost=self.outermost)

    def takes(self, parent_id: str | None) -> bool:
        """Whether a run that the query finds is selected. `parent_id`: the id of the workflow that started it.

        A query cannot tell a session from a run of that session, which starts delegates.
        """
        return not (self.outermost and "/" in (parent_id or ""))

    def text(self, now: datetime | None = None, *, workflow_type: str = AGENT_WORKFLOW) -> str:
        """Return the query for Temporal's visibility. Raises `RunError` for an invalid status or time.

        `now`: the time from which `since` counts. `workflow_type`: the type of the workflows (default: runs).

        ```python
        print(Selection(status="running").text())
        ```
        """
        parts = [f"WorkflowType = '{workflow_type}'", "ExecutionStatus != 'ContinuedAsNew'"]
        conditions = (
            (AGENT_ATTRIBUTE, self.agent),
            (SENDER_ATTRIBUTE, self.sender),
            (VERSION_ATTRIBUTE, self.version),
            (STOP_ATTRIBUTE, self.reason),
        )
        parts += [f"{name} = {quoted(value[:LONGEST_KEYWORD])}" for name, value in conditions if value is not None]
        if self.tenant is not None:
            parts.append(of_tenant(self.tenant))
        if self.status is not None:
            if self.status not in STATUSES:
                raise RunError(f"the status {shorten(self.status, 40)} is not one of {', '.join(STATUSES)}")
            parts.append(f"ExecutionStatus = '{STATUSES[self.status]}'")
            if self.status == "refused":
                parts.append(f"{STOP_ATTRIBUTE} = '{MODEL_REFUSED}'")
        if self.since is not None:
            parts.append(f"StartTime >= '{read_since(self.since, now or datetime.now(UTC)).isoformat()}'")
        if self.waiting:
            parts.append(f"{WAITING_ATTRIBUTE} > 0")
        if self.outermost:
            parts.append(f"(ParentWorkflowId IS NULL OR ParentWorkflowId STARTS_WITH '{SESSION_PREFIX}')")
        if self.schedule is not None:
            parts.append(f"{SCHEDULE_ATTRIBUTE} = {quoted(schedule_id(self.schedule, self.tenant or ''))}")
        if self.query is not None:
            parts.append(f"({self.query})")
        return " AND ".join(parts)


def of_tenant(tenant: str) -> str:
    """Return the query for runs and sessions of this tenant, or without a tenant (`""`)."""
    if not tenant:
        return f"{TENANT_ATTRIBUTE} IS NULL"
    return f"{TENANT_ATTRIBUTE} = {quoted(tenant[:LONGEST_KEYWORD])}"


_SCHEDULE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_OF_TENANT: Final = "@"
"""Between a schedule's name and the digest of its tenant: no name has it."""


def schedule_id(name: str, tenant: str = "") -> str:
    """Return Temporal's id of a tenant's schedule: nobody of another tenant can name it. Raise `ScheduleError` for an invalid name."""
    if not _SCHEDULE_NAME.fullmatch(name):
        raise ScheduleError(
            f"{shorten(name, 60)} is not a valid name of a schedule: use up to 100 letters, digits, '.', '_' and '-'"
        )
    return f"{name}{_OF_TENANT}{digest([tenant, name], 16)}" if tenant else name


def schedule_name(id: str) -> str:
    """Return the name of the schedule with this id of Temporal's."""
    return id.partition(_OF_TENANT)[0]


def read_since(text: str, now: datetime) -> datetime:
    """Read a time. Raise `RunError` for any other text."""
    try:
        if (age := read_duration(text)) is not None:
            return now - timedelta(seconds=age)
        time = datetime.fromisoformat(text.strip())
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise RunError(f"{shorten(text, 40)} is not a time: use 90min, 2h, 3d, or 2026-01-31T08:00") from None


def quoted(text: str) -> str:
    """Quote a text for a query. Raise `RunError` for one that no server can read there."""
    if "\0" in text:
        raise RunError(f"{shorten(text, 40)} has a character that cannot be printed")
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run, as visibility knows it; `Perdure.get_run(id).view()` returns all of it. `None`: the namespace does not
    know, or there is no value yet.

    ```python
    async for listed in perdure.list_runs(limit=10):
        print(listed.id, listed.status, listed.cost)
    ```
    """

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
    """The sender on whose behalf it runs, as its start named it."""
    tenant: str | None = None
    """The same, one level up."""
    waiting: int = 0
    """What waits for a person in it."""
    wait: ModelWait | None = None
    """The model that it waits for, while its provider is away."""
    schedule: str | None = None
    """The schedule that started it."""
    scheduled_at: datetime | None = None
    """The time for which the schedule started it."""
    version: str | None = None
    """The version of its agent, if it has one."""

    def as_json(self) -> JsonObject:
        plain: JsonObject = {
            "runId": self.id,
            "status": self.status,
            "startedAt": self.started_at.isoformat(),
            "endedAt": None if self.ended_at is None else self.ended_at.isoformat(),
        }
        more = {
            "agent": self.agent,
            "version": self.version,
            "stopReason": self.stop_reason,
            "cost": self.cost,
            "tokens": self.tokens,
            "sender": self.sender,
            "tenant": self.tenant,
            "waiting": self.waiting or None,
            "wait": None if self.wait is None else self.wait.as_json(),
            "schedule": self.schedule,
            "scheduledAt": None if self.scheduled_at is None else self.scheduled_at.isoformat(),
        }
        return plain | {name: value for name, value in more.items() if value is not None}


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """The origin of a run: its input, and on whose behalf it runs.

    ```python
    origin = await run.origin()
    print(origin.sender, origin.input)
    ```
    """

    input: Json
    has_input: bool
    """Whether it was given one; a run of a session has messages instead."""
    sender: str
    """For whom it runs; empty: nobody was named."""
    tenant: str
    session: str
    """The key of the session that it belongs to; empty: it is a run by itself."""
    context: JsonObject  # R19.1
    """More data about the sender, from its start or its first message."""
    above: str
    """The workflow that started it: a run whose delegate it is, or a session; empty: it was started from outside."""
    reset: bool
    """Whether Temporal has reset it: it goes on from the middle of its own past."""
    schedule: str = ""
    """The schedule that started it; empty: none did."""
    scheduled_at: datetime | None = None
    """The time for which the schedule started it."""


@dataclass(frozen=True)
class RunPage:
    """One page of runs, the newest first.

    ```python
    page = await perdure.page_of_runs(Selection(), size=20)
    print([listed.id for listed in page.rows], page.following)
    ```
    """

    rows: list[ListedRun]
    following: str | None
    """Names the page after this one; `None`: this was the last."""


@dataclass(frozen=True)
class WaitingRow:
    """One approval request, as a list shows it.

    ```python
    for row in (await perdure.approvals()).waiting:
        print(row.run_id, row.entry.sentence)
    ```
    """

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
    """One page of runs that wait, the newest first, and their approval requests, the oldest first.

    ```python
    page = await perdure.approvals(size=20)
    print(page.runs, len(page.waiting))
    ```
    """

    waiting: list[WaitingRow]
    runs: int
    """How many runs of this page wait for somebody."""
    unnamed: dict[str, int]
    """By run, how much more waits than the list names: the run itself has all of it."""
    following: str | None
    """Names the page after this one; `None`: this was the last."""


@dataclass(frozen=True)
class WaitingRequest:
    """One approval request in full, with the id of its run.

    ```python
    waiting, _ = await run.waiting_below()
    print([(each.run_id, each.request.call) for each in waiting])
    ```
    """

    run_id: str
    """The run itself, or one of its delegates'."""
    request: WaitingView
    """The request as people see it."""

    def as_json(self) -> JsonObject:
        return {"runId": self.run_id, **self.request.as_json()}


@dataclass(frozen=True, slots=True)
class ListedSession:
    """A session, as visibility knows it.

    ```python
    async for listed in perdure.list_sessions():
        print(listed.session, listed.title)
    ```
    """

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
    """One page of sessions, the most recently active first.

    ```python
    page = await perdure.page_of_sessions(size=20)
    print([listed.session for listed in page.rows])
    ```
    """

    rows: list[ListedSession]
    following: str | None
    """Names the page after this one; `None`: this was the last."""


def age(since: str) -> str:
    """Return the age of a time in ISO 8601, in the largest unit that is at least one."""
    seconds = int((datetime.now(UTC) - datetime.fromisoformat(since)).total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{max(seconds, 0)} s"
