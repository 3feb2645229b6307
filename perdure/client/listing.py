"""Finding runs by visibility, page by page, and acting on many; no run is asked, and a list costs no Action."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionAsyncIterator, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode

from perdure.errors import RunError
from perdure.run.wire import (
    AGENT_ATTRIBUTE,
    AGENT_WORKFLOW,
    ATTRIBUTES,
    COST_ATTRIBUTE,
    LONGEST_KEYWORD,
    POLICY,
    SENDER_ATTRIBUTE,
    STOP_ATTRIBUTE,
    TENANT_ATTRIBUTE,
    WAITING_ATTRIBUTE,
    RunStatus,
)
from perdure.values.jsons import Json, JsonObject, shorten

STATUS: Final[dict[WorkflowExecutionStatus, RunStatus]] = {
    WorkflowExecutionStatus.RUNNING: "running",
    WorkflowExecutionStatus.COMPLETED: "completed",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.TERMINATED: "terminated",
    WorkflowExecutionStatus.TIMED_OUT: "timed_out",
    WorkflowExecutionStatus.CONTINUED_AS_NEW: "running",
}
STATUSES: Final = {
    "running": "Running",
    "completed": "Completed",
    "failed": "Failed",
    "cancelled": "Canceled",
    "terminated": "Terminated",
    "timed_out": "TimedOut",
}
"""What `--status` takes, and what Temporal calls it."""
AT_ONCE: Final = 16
"""Runs that are told something at a time."""
_UNITS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_KEYWORDS: Final = {
    name: SearchAttributeKey.for_keyword(name) for name, kind in ATTRIBUTES.items() if kind == "Keyword"
}
_WAITING: Final = SearchAttributeKey.for_int(WAITING_ATTRIBUTE)
_COST: Final = SearchAttributeKey.for_float(COST_ATTRIBUTE)


@dataclass(frozen=True)
class Selection:
    """Which runs are meant: those to which all of it applies; nothing said means all."""

    agent: str | None = None
    status: str | None = None
    """One of `STATUSES`."""
    since: str | None = None
    """Started after: how long ago (`90min`, `2h`, `3d`), or an ISO 8601 date or time, UTC unless it says otherwise."""
    sender: str | None = None
    tenant: str | None = None
    reason: str | None = None
    """Its stop reason, or the type of its failure."""
    waiting: bool = False
    """Something in it waits for a person."""
    query: str | None = None
    """More, in the language of Temporal's lists."""
    outermost: bool = False
    """No run of a delegate."""

    @property
    def empty(self) -> bool:
        """Whether it says nothing."""
        return self == Selection(outermost=self.outermost)

    def text(self, now: datetime | None = None) -> str:
        """The query for visibility. Raises `RunError` for a status or a time that is none."""
        parts = [f"WorkflowType = '{AGENT_WORKFLOW}'", "ExecutionStatus != 'ContinuedAsNew'"]
        said = (
            (AGENT_ATTRIBUTE, self.agent),
            (SENDER_ATTRIBUTE, self.sender),
            (TENANT_ATTRIBUTE, self.tenant),
            (STOP_ATTRIBUTE, self.reason),
        )
        parts += [f"{name} = {_quoted(value[:LONGEST_KEYWORD])}" for name, value in said if value is not None]
        if self.status is not None:
            if self.status not in STATUSES:
                raise RunError(f"a status is one of {', '.join(STATUSES)}, not {shorten(self.status, 40)}")
            parts.append(f"ExecutionStatus = '{STATUSES[self.status]}'")
        if self.since is not None:
            parts.append(f"StartTime >= '{read_since(self.since, now or datetime.now(UTC)).isoformat()}'")
        if self.waiting:
            parts.append(f"{WAITING_ATTRIBUTE} > 0")
        if self.outermost:
            parts.append("ParentWorkflowId IS NULL")
        if self.query is not None:
            parts.append(f"({self.query})")
        return " AND ".join(parts)


def read_since(text: str, now: datetime) -> datetime:
    """Raises `RunError` for what is no time."""
    try:
        if found := re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h|d|w)", text.strip()):
            return now - timedelta(seconds=float(found[1]) * _UNITS[found[2]])
        time = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        raise RunError(f"{shorten(text, 40)} is no time: say 90min, 2h, 3d, or 2026-01-31T08:00") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)


def start_attributes(agent: str, sender: str | None, tenant: str | None) -> TypedSearchAttributes:
    """What a run is found by from its start on."""
    said = ((AGENT_ATTRIBUTE, agent), (SENDER_ATTRIBUTE, sender), (TENANT_ATTRIBUTE, tenant))
    return TypedSearchAttributes(
        [SearchAttributePair(_KEYWORDS[name], value[:LONGEST_KEYWORD]) for name, value in said if value]
    )


def names_attribute(error: RPCError) -> bool:
    """Whether the server refuses because it does not know one of ours."""
    return error.status == RPCStatusCode.INVALID_ARGUMENT and "Perdure" in error.message


@dataclass(frozen=True)
class RunPage:
    """Runs, the newest started first."""

    rows: list[JsonObject]
    """`{"runId", "status", "startedAt", "endedAt"}`, and where they are known `agent`, `stopReason`, `cost`, `sender`, `tenant`, `waiting`."""
    following: str | None
    """Names the page after this one; `None`: this was the last."""


async def list_runs(client: Client, selection: Selection, *, size: int, page: str | None = None) -> RunPage:
    """A page of runs; `page`: `following` of the page before. Raises `RunError` for what cannot be listed."""
    found = client.list_workflows(selection.text(), page_size=size, next_page_token=read_page(page))
    try:
        await found.fetch_next_page()
    except RPCError as error:
        raise _refusal(client, error) from None
    return RunPage([_row(run) for run in found.current_page or ()], following_page(found))


async def count_runs(client: Client, selection: Selection) -> int:
    """How many. Raises `RunError`."""
    try:
        return (await client.count_workflows(selection.text())).count
    except RPCError as error:
        raise _refusal(client, error) from None


async def cancel_runs(client: Client, selection: Selection) -> int:
    """Ask for the cancellation of all of them that run; how many took it. What has ended meanwhile is passed over."""

    async def cancel(run_id: str) -> None:
        await client.get_workflow_handle(run_id).cancel()

    return await _each(client, selection, cancel)


async def change_policies(client: Client, selection: Selection, change: JsonObject) -> int:
    """Change the policy of all of them that run, by signal: also of those for which no worker answers now; how many were told."""

    async def tell(run_id: str) -> None:
        await client.get_workflow_handle(run_id).signal(POLICY, change)

    return await _each(client, selection, tell)


async def _each(client: Client, selection: Selection, act: Callable[[str], Awaitable[None]]) -> int:
    limit, done = asyncio.Semaphore(AT_ONCE), 0

    async def one(run_id: str) -> None:
        nonlocal done
        async with limit:
            try:
                await act(run_id)
                done += 1
            except RPCError as error:
                if error.status != RPCStatusCode.NOT_FOUND:
                    raise

    try:
        # All are found first: what is done to them would move them from page to page.
        ids = [run.id async for run in _running(client, selection)]
    except RPCError as error:
        raise _refusal(client, error) from None
    await asyncio.gather(*map(one, ids))
    return done


async def _running(client: Client, selection: Selection) -> AsyncIterator[WorkflowExecution]:
    async for run in client.list_workflows(selection.text()):
        # A query of the user's own may reach beyond what it is joined with.
        if run.status == WorkflowExecutionStatus.RUNNING and run.workflow_type == AGENT_WORKFLOW:
            yield run


def _row(run: WorkflowExecution) -> JsonObject:
    known = run.typed_search_attributes
    row: dict[str, Json] = {
        "runId": run.id,
        "status": STATUS[run.status] if run.status is not None else "running",
        "startedAt": run.start_time.isoformat(),
        "endedAt": None if run.close_time is None else run.close_time.isoformat(),
    }
    more: dict[str, Json] = {
        "agent": known.get(_KEYWORDS[AGENT_ATTRIBUTE]),
        "stopReason": known.get(_KEYWORDS[STOP_ATTRIBUTE]),
        "cost": known.get(_COST),
        "sender": known.get(_KEYWORDS[SENDER_ATTRIBUTE]),
        "tenant": known.get(_KEYWORDS[TENANT_ATTRIBUTE]),
        "waiting": (known.get(_WAITING) or None) if row["status"] == "running" else None,
    }
    return row | {name: value for name, value in more.items() if value is not None}


def _refusal(client: Client, error: RPCError) -> Exception:
    if names_attribute(error):
        return RunError(
            f"namespace {client.namespace!r} does not know all search attributes that this goes by ({error.message}): a worker "
            "registers them at its start; where it may not, have them added"
        )
    if error.status == RPCStatusCode.INVALID_ARGUMENT:
        return RunError(f"this cannot be listed: {error.message}")
    return error


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def read_page(page: str | None) -> bytes | None:
    """What names a page, as the server has it. Raises `RunError`."""
    try:
        return None if page is None else base64.b64decode(page, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise RunError(f"{shorten(page, 40)} names no page: give what the page before said") from None


def following_page(found: WorkflowExecutionAsyncIterator) -> str | None:
    """The name of the page after the one that was fetched last."""
    return base64.urlsafe_b64encode(found.next_page_token).decode() if found.next_page_token else None
