"""Which runs are meant, in the words of the search attributes that they are found by."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from perdure.errors import RunError
from perdure.run.wire import (
    AGENT_ATTRIBUTE,
    AGENT_WORKFLOW,
    LONGEST_KEYWORD,
    MODEL_REFUSED,
    SENDER_ATTRIBUTE,
    STOP_ATTRIBUTE,
    TENANT_ATTRIBUTE,
    WAITING_ATTRIBUTE,
)
from perdure.values.jsons import shorten

STATUSES: Final = {
    "running": "Running",
    "completed": "Completed",
    "refused": "Failed",
    "failed": "Failed",
    "cancelled": "Canceled",
    "terminated": "Terminated",
    "timed_out": "TimedOut",
}
"""What `--status` takes, and what Temporal calls it; `failed` finds the refused ones too, which only their stop reason tells apart."""
_UNITS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


@dataclass(frozen=True)
class Selection:
    """Which runs are meant: those to which all of it applies; nothing said means all."""

    agent: str | None = None
    """The agent's name."""
    status: str | None = None
    """One of `STATUSES`."""
    since: str | None = None
    """Started, or gone on as new, after: how long ago (`90min`, `2h`, `3d`), or an ISO 8601 date or time, UTC unless it says otherwise."""
    sender: str | None = None
    """As it was said when the run started."""
    tenant: str | None = None
    """As it was said when the run started; `""`: runs of no tenant."""
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
            (STOP_ATTRIBUTE, self.reason),
        )
        parts += [f"{name} = {quoted(value[:LONGEST_KEYWORD])}" for name, value in said if value is not None]
        if self.tenant is not None:
            parts.append(of_tenant(self.tenant))
        if self.status is not None:
            if self.status not in STATUSES:
                raise RunError(f"a status is one of {', '.join(STATUSES)}, not {shorten(self.status, 40)}")
            parts.append(f"ExecutionStatus = '{STATUSES[self.status]}'")
            if self.status == "refused":
                parts.append(f"{STOP_ATTRIBUTE} = '{MODEL_REFUSED}'")
        if self.since is not None:
            parts.append(f"StartTime >= '{read_since(self.since, now or datetime.now(UTC)).isoformat()}'")
        if self.waiting:
            parts.append(f"{WAITING_ATTRIBUTE} > 0")
        if self.outermost:
            parts.append("ParentWorkflowId IS NULL")
        if self.query is not None:
            parts.append(f"({self.query})")
        return " AND ".join(parts)


def of_tenant(tenant: str) -> str:
    """That a run, or a session, is of this tenant, or of none (`""`)."""
    if not tenant:
        return f"{TENANT_ATTRIBUTE} IS NULL"
    return f"{TENANT_ATTRIBUTE} = {quoted(tenant[:LONGEST_KEYWORD])}"


def read_since(text: str, now: datetime) -> datetime:
    """Raises `RunError` for what is no time."""
    try:
        if found := re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h|d|w)", text.strip()):
            return now - timedelta(seconds=float(found[1]) * _UNITS[found[2]])
        time = datetime.fromisoformat(text.strip())
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise RunError(f"{shorten(text, 40)} is no time: say 90min, 2h, 3d, or 2026-01-31T08:00") from None


def quoted(text: str) -> str:
    """Raises `RunError` for what no server can read in a query."""
    if "\0" in text:
        raise RunError(f"{shorten(text, 40)} has a character that cannot be printed")
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
