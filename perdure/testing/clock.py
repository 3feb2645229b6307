"""A test's clock: what a run waits for, and time that passes only where nothing but time is waited for (R14.3)."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.common.v1 import RetryPolicy
from temporalio.api.enums.v1 import EventType, PendingActivityState
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

_LOOK: Final = 0.01
"""Seconds between looks while something runs; longer where a look itself takes longer."""
_AT_ONCE: Final = 20
"""Executions that are looked at at once."""
_CLOSED: Final = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
    }
)


@dataclass
class Look:
    """What some runs, and those below them, wait for at one moment."""

    open: dict[str, int] = field(default_factory=dict)
    """Workflow ids of those that have not ended, and how many events each has: another look with the same has seen the same."""
    busy: bool = False
    """Whether anything happens without time passing."""
    wakes: list[datetime] = field(default_factory=list)
    """When something happens by itself."""


class Clock:
    """The time of one server."""

    def __init__(self, server: WorkflowEnvironment, client: Client) -> None:
        self._server, self._client = server, client
        self._ended: set[str] = set()
        """Workflow ids of those that have ended, of which nobody takes another look."""
        self._took = 0.0
        """Seconds that the last look took."""

    async def now(self) -> datetime:
        return await self._server.get_current_time()

    async def pass_time(self, until: datetime) -> None:
        """Let time pass: at once where the server skips, else as much of it as is worth a look."""
        left = (until - await self.now()).total_seconds()
        if self._server.supports_time_skipping:
            await self._server.sleep(max(left, 0.001))
        else:
            await asyncio.sleep(min(max(left, 0.0), 0.05))

    async def tick(self) -> None:
        """A moment of real time, in which what runs goes on."""
        await asyncio.sleep(max(_LOOK, self._took))

    def expect(self, workflow_id: str) -> None:
        """Look at this one, also where one of this id has ended before."""
        self._ended.discard(workflow_id)

    async def look(self, workflow_ids: Iterable[str]) -> Look:
        """Look at these and at those below them, as far as they have not ended: a look costs what is open."""
        found, began = Look(), time.monotonic()
        slots = asyncio.Semaphore(_AT_ONCE)
        known: set[str] = set()

        async def take(workflow_id: str) -> None:
            known.add(workflow_id)
            async with slots:
                below = await self._look_at(workflow_id, found)
            await asyncio.gather(*(take(each) for each in below if each not in known))

        await asyncio.gather(*(take(each) for each in dict.fromkeys(workflow_ids) if each not in self._ended))
        self._took = time.monotonic() - began
        return found

    async def _look_at(self, workflow_id: str, found: Look) -> list[str]:
        """Take in what one execution waits for. Return its children."""
        handle = self._client.get_workflow_handle(workflow_id)
        try:
            events = (await handle.fetch_history()).events
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            found.busy = True  # a child of which the server has not heard yet
            return []
        pending = _Pending()
        for event in events:
            pending.take(event)
        if pending.closed:
            self._ended.add(workflow_id)
            return []
        found.open[workflow_id] = len(events)
        found.wakes += pending.timers.values()
        found.busy = found.busy or pending.deciding
        if pending.activities:
            await self._look_at_activities(workflow_id, pending, found)
        return list(pending.children.values())

    async def _look_at_activities(self, workflow_id: str, pending: _Pending, found: Look) -> None:
        description = (await self._client.get_workflow_handle(workflow_id).describe()).raw_description
        now = await self.now()
        found.busy = found.busy or not description.pending_activities
        for activity in description.pending_activities:
            due = _next_attempt(activity, pending.retries.get(activity.activity_id))
            if due is not None and due > now:
                found.wakes.append(due)
            else:
                found.busy = True


def _next_attempt(activity: PendingActivityInfo, policy: RetryPolicy | None) -> datetime | None:
    """When an activity that failed is tried again; `None` where it runs, or could."""
    if activity.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED:
        return _time(activity.scheduled_time)
    # The skipping server calls started what waits for its next attempt.
    failed = activity.last_attempt_complete_time
    if activity.attempt <= 1 or not failed.seconds or _time(failed) < _time(activity.last_started_time):
        return None
    delay = activity.last_failure.application_failure_info.next_retry_delay.ToTimedelta().total_seconds()
    if not delay and policy is not None:
        longest = policy.maximum_interval.ToTimedelta().total_seconds() or math.inf
        first = policy.initial_interval.ToTimedelta().total_seconds()
        delay = min(first * (policy.backoff_coefficient or 2.0) ** (activity.attempt - 2), longest)
    return _time(failed) + timedelta(seconds=delay)


@dataclass
class _Pending:
    """What one execution's history has begun and not ended."""

    timers: dict[int, datetime] = field(default_factory=dict)
    activities: set[int] = field(default_factory=set)
    retries: dict[str, RetryPolicy] = field(default_factory=dict)
    """By activity id."""
    children: dict[int, str] = field(default_factory=dict)
    deciding: bool = False
    """Whether a workflow task is under way, or is to come."""
    closed: bool = False

    def take(self, event: HistoryEvent) -> None:
        kind: Any = event.event_type
        if kind in _CLOSED:
            self.closed = True
        elif (
            kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW
            or kind == EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED
        ):
            self.deciding = True
        elif kind == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            self.deciding = False
        elif kind == EventType.EVENT_TYPE_TIMER_STARTED:
            length = event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta()
            self.timers[event.event_id] = _time(event.event_time) + length
        elif kind == EventType.EVENT_TYPE_TIMER_FIRED:
            self.timers.pop(event.timer_fired_event_attributes.started_event_id, None)
        elif kind == EventType.EVENT_TYPE_TIMER_CANCELED:
            self.timers.pop(event.timer_canceled_event_attributes.started_event_id, None)
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            self.activities.add(event.event_id)
            scheduled = event.activity_task_scheduled_event_attributes
            self.retries[scheduled.activity_id] = scheduled.retry_policy
        elif kind == EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
            started = event.start_child_workflow_execution_initiated_event_attributes
            self.children[event.event_id] = started.workflow_id
        else:
            self._end(event)

    def _end(self, event: HistoryEvent) -> None:
        """Activities and children name the event with which they began."""
        which = event.WhichOneof("attributes")
        attributes: Any = getattr(event, which) if which else None
        if which and which.startswith("activity_task_") and not which.startswith("activity_task_cancel_"):
            if which != "activity_task_started_event_attributes":
                self.activities.discard(attributes.scheduled_event_id)
        elif which and "child_workflow_execution" in which and "started" not in which:
            self.children.pop(getattr(attributes, "initiated_event_id", 0), None)


def _time(stamp: Timestamp) -> datetime:
    return stamp.ToDatetime(UTC)
