"""Selections of runs, and the rows of a list."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from perdure.approvals.requests import WaitingEntry, WaitingView
from perdure.errors import ProtocolError, RunError, ScheduleError
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
from perdure.values.arguments import check_arguments
from perdure.values.json import Json, JsonObject, fields_as_json, shorten
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
"""Values of `--status`, and Temporal's names. `failed` also finds refused runs, which differ only in their stop reason.
"""


@check_arguments
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
    since: str | datetime | None = None
    """Runs that started, or continued as new, after this time: an age (`90min`, `2h`, `3d`), an ISO 8601 date or time, UTC without an
    offset, or a `datetime` with a time zone.
    """
    sender: str | None = None
    """The sender of the start."""
    tenant: str | None = None
    """The tenant of the start; `""`: runs of no tenant."""
    reason: str | None = None
    """The run's stop reason, or the type of its failure."""
    waiting: bool = False
    """Whether the run has an approval request."""
    query: str | None = None
    """A further condition, as a Temporal list filter."""
    outermost: bool = False
    """Whether to leave out runs of delegates and evaluations."""
    schedule: str | None = None
    """The name of the runs' schedule; with `tenant`, of that tenant's schedule."""
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
        parts += [f"{name} = {quote_text(value[:LONGEST_KEYWORD])}" for name, value in conditions if value is not None]
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
            parts.append(f"{SCHEDULE_ATTRIBUTE} = {quote_text(schedule_id(self.schedule, self.tenant or ''))}")
        if self.query is not None:
            parts.append(f"({self.query})")
        return " AND ".join(parts)


def of_tenant(tenant: str) -> str:
    """Return the query for runs and sessions of this tenant, or without a tenant (`""`)."""
    if not tenant:
        return f"{TENANT_ATTRIBUTE} IS NULL"
    return f"{TENANT_ATTRIBUTE} = {quote_text(tenant[:LONGEST_KEYWORD])}"


_SCHEDULE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_OF_TENANT: Final = "@"
"""The text between a schedule's name and the digest of its tenant: no name contains it."""


def schedule_id(name: str, tenant: str = "") -> str:
    """Return the Temporal id of a tenant's schedule: other tenants cannot use it. Raise `ScheduleError` for an invalid
    name.
    """
    if not _SCHEDULE_NAME.fullmatch(name):
        raise ScheduleError(
            f"{shorten(name, 60)} is not a valid name of a schedule: use up to 100 letters, digits, '.', '_' and '-'"
        )
    return f"{name}{_OF_TENANT}{digest([tenant, name], 16)}" if tenant else name


def schedule_name(id: str) -> str:
    """Return the name of the schedule with this Temporal id."""
    return id.partition(_OF_TENANT)[0]


def read_since(text: str | datetime, now: datetime) -> datetime:
    """Return the time of an age or a date. Raise `RunError` for any other text, and `ProtocolError` for a time without a
    time zone.
    """
    if isinstance(text, datetime):
        return check_time_zone(text, "since")
    try:
        if (age := read_duration(text)) is not None:
            return now - timedelta(seconds=age)
        time = datetime.fromisoformat(text.strip())
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise RunError(f"{shorten(text, 40)} is not a time: use 90min, 2h, 3d, or 2026-01-31T08:00") from None


def check_time_zone(time: datetime, name: str) -> datetime:
    """Return the time in UTC. Raise `ProtocolError` for one without a time zone."""
    if time.tzinfo is None:
        raise ProtocolError(f"{name} has no time zone: use datetime.now(UTC), or datetime(2026, 12, 31, tzinfo=UTC)")
    return time.astimezone(UTC)


def quote_text(text: str) -> str:
    """Quote a text for a query. Raise `RunError` for a text that no server accepts there."""
    if "\0" in text:
        raise RunError(f"{shorten(text, 40)} has a character that cannot be printed")
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run, as visibility has it; `Perdure.get_run(id).view()` returns the whole view. A field is `None` if the
    namespace lacks it, or the run has no value yet.

    ```python
    async for listed in perdure.list_runs(limit=10):
        print(listed.id, listed.status, listed.cost)
    ```
    """

    id: str
    status: RunStatus
    started_at: datetime
    """The run's start, or its last continue-as-new: a list has only that."""
    ended_at: datetime | None
    """`None`: the run has not ended."""
    agent: str | None = None
    """Its agent's name."""
    stop_reason: str | None = None
    """The reason of its end, or the type of its failure."""
    cost: float | None = None
    """Dollars, once it has ended; `None` also if one of its models has no price."""
    tokens: int | None = None
    """Tokens of all its Requests and of its delegates', in and out, once it has ended."""
    sender: str | None = None
    """The sender on whose behalf it runs, as its start named it."""
    tenant: str | None = None
    """The tenant of its start."""
    waiting: int = 0
    """The number of its approval requests."""
    wait: ModelWait | None = None
    """The model for which it waits, while the provider is unavailable."""
    trouble: str | None = None
    """Why its workflow tasks fail. A server marks a run after five failures in a row; an old server marks none."""
    schedule: str | None = None
    """The schedule that started it."""
    scheduled_at: datetime | None = None
    """The time for which the schedule started it."""
    version: str | None = None
    """The version of its agent, if it has one."""

    def as_json(self) -> JsonObject:
        shown = fields_as_json(self, id="runId") | {"waiting": self.waiting or None}
        return {name: value for name, value in shown.items() if value is not None or name == "endedAt"}


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
    """Whether it has an input; a run of a session has messages instead."""
    sender: str
    """The sender on whose behalf it runs; empty: the start named none."""
    tenant: str
    session: str
    """The key of its session; empty: it has none."""
    context: JsonObject  # R19.1
    """More data about the sender, from its start or its first message."""
    above: str
    """The workflow that started it: its delegator's run, or a session; empty: a client started it."""
    reset: bool
    """Whether Temporal has reset it to an earlier point of its history."""
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
    """The request, as a list shows it."""
    sender: str | None = None
    """The sender of the run, or of the run that started it; `None`: the start named none."""
    tenant: str | None = None
    """The tenant of the run, or of the run that started it."""

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
    """The number of runs on this page that wait for a person."""
    unnamed: dict[str, int]
    """By run id, the number of further requests, which the list does not name; a query to the run returns all."""
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
    """A session, as visibility has it.

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
    """The time at which it last began to wait for messages, or to answer them."""
    title: str = ""
    """The first line of its first message; empty: its Perdure version kept no titles."""

    def as_json(self) -> JsonObject:
        return {name: value for name, value in fields_as_json(self).items() if name != "title" or value}


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


def format_age(since: str) -> str:
    """Return the age of a time in ISO 8601, in the largest unit that is at least one."""
    seconds = int((datetime.now(UTC) - datetime.fromisoformat(since)).total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{max(seconds, 0)} s"
