"""The time of a test's server: it passes when nothing else happens."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.enums.v1 import EventType, PendingActivityState
from temporalio.api.history.v1 import ActivityTaskScheduledEventAttributes as Scheduled
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.testservice.v1 import UnlockTimeSkippingRequest
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import ListOpenWorkflowExecutionsRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

LOOK: Final = 0.01
"""The least seconds between looks while anything runs: a pause is as long as the last look."""
_AT_ONCE: Final = 20
"""The number of executions that a look reads at once."""
_CLOSED: Final = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
    }
)
_TASK_ENDED: Final = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
        EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
        EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
    }
)
_JUMP: Final = 0.5
"""Real seconds that a jump of the server's time may take before the clock looks for a lock that nobody releases."""
_MARGIN: Final = 0.1
"""Seconds before the timeout of a dead worker's task that are not skipped, so that the time is locked again before."""


@dataclass
class WaitingState:
    """The waits of some executions, and of those below them, at one moment."""

    open: dict[str, int] = field(default_factory=dict)
    """Workflow ids of open executions, with their numbers of events: equal numbers mean an equal state."""
    busy: bool = False
    """Whether anything happens before time passes."""
    wakes: list[datetime] = field(default_factory=list)
    """The times of timers and retries."""
    deciding: set[str] = field(default_factory=set)
    """Workflow ids of executions in a workflow task, which answer no query before its end."""
    unreported: list[str] = field(default_factory=list)
    """Workflow ids of ended executions whose parent has no event of their end."""
    lost: list[datetime] = field(default_factory=list)
    """The times at which the server gives up dead workers' workflow tasks and activity attempts."""


class Clock:
    """The time of one server. `dead`: the identities of workers that were killed."""

    def __init__(self, server: WorkflowEnvironment, client: Client, dead: Collection[str] = ()) -> None:
        self._server, self._client, self._dead = server, client, dead
        self._ended: set[str] = set()
        """Workflow ids of ended executions, which no further look reads."""
        self._unlocked: set[str] = set()
        """Run ids of ended executions whose locks on the server's time are released."""
        self._unlocking: set[asyncio.Task[None]] = set()
        self._orphans: set[str] = set()
        """Workflow ids of executions whose parent ends before them."""
        self._reported: set[str] = set()
        """Workflow ids of executions that have reported their end to their parent."""
        self._took = 0.0
        """Seconds that the last look took."""

    @property
    def skips(self) -> bool:
        """Whether the server skips time. Such a server lists and forgets no executions."""
        return self._server.supports_time_skipping

    async def now(self) -> datetime:
        return await self._server.get_current_time()

    async def pass_time(self, until: datetime) -> None:
        """Let time pass: at once if the server skips time, else for at most 0.05 s."""
        left = (until - await self.now()).total_seconds()
        if not self.skips:
            await asyncio.sleep(min(max(left, 0.0), 0.05))
            return
        jump = asyncio.create_task(self._jump(max(left, 0.001), until))
        try:
            await asyncio.shield(jump)
        finally:
            # The server locks its time again only at the jump's end, and the next wait needs it locked.
            await asyncio.wait({jump}, timeout=_JUMP)
            jump.cancel()

    async def _jump(self, seconds: float, until: datetime) -> None:
        sleeping = asyncio.create_task(self._server.sleep(seconds))
        try:
            while not (await asyncio.wait({sleeping}, timeout=max(_JUMP, self._took)))[0]:
                await self._release_left_lock(until)
            await sleeping
        finally:
            sleeping.cancel()

    async def _release_left_lock(self, until: datetime) -> None:
        """Release one lock on the server's time if nothing on the server can still release it.

        The time does not jump. So work of an execution holds a lock, or the server has lost a lock. It loses the lock of a workflow
        task whose completion fails in the server after the next run of a continue-as-new has started.
        """
        first = await self._look_at_all()
        await self.tick()
        second = await self._look_at_all()
        if not (first.busy or second.busy or second.lost) and first.open == second.open and await self.now() < until:
            await self._client.service_client.test_service.unlock_time_skipping(UnlockTimeSkippingRequest())

    async def _look_at_all(self) -> WaitingState:
        """Look at each open execution of the server."""
        request = ListOpenWorkflowExecutionsRequest(namespace=self._client.namespace)
        listed = (await self._client.workflow_service.list_open_workflow_executions(request)).executions
        return await self.look(each.execution.workflow_id for each in listed)

    async def pass_lost(self, look: WaitingState) -> None:
        """Skip the server's wait for dead workers, if nothing else happens."""
        left = (min(look.lost) - await self.now()).total_seconds() - _MARGIN
        if look.busy or left <= 0 or not self.skips:
            await self.tick()
        else:  # each task locks the server's time once; each sleep unlocks it once, and locks it again
            await asyncio.gather(*(self._server.sleep(left) for _ in range(len(look.lost) + 1)))

    @property
    def deaths(self) -> int:
        """The number of workers that were killed so far."""
        return len(self._dead)

    async def tick(self) -> None:
        """Let a moment of real time pass, in which runs continue."""
        await asyncio.sleep(max(LOOK, self._took))

    def expect(self, workflow_id: str) -> None:
        """Include this id in looks again, also if an execution of it has ended."""
        self._ended.discard(workflow_id)

    async def look(self, workflow_ids: Iterable[str]) -> WaitingState:
        """Look at these executions and at those below them that have not ended."""
        found, began = WaitingState(), time.monotonic()
        slots = asyncio.Semaphore(_AT_ONCE)
        known: set[str] = set()

        async def take(workflow_id: str) -> None:
            known.add(workflow_id)
            async with slots:
                below = await self._look_at(workflow_id, found)
            await asyncio.gather(*(take(each) for each in below if each not in known and each not in self._ended))

        await asyncio.gather(*(take(each) for each in dict.fromkeys(workflow_ids) if each not in self._ended))
        self._took = time.monotonic() - began
        return found

    async def _look_at(self, workflow_id: str, found: WaitingState) -> list[str]:
        """Add the waits of one execution to `found`. Return its children."""
        handle = self._client.get_workflow_handle(workflow_id)
        try:
            events = (await handle.fetch_history()).events
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            found.busy = True  # a child that the server has not started yet
            return []
        pending = _Pending.of(events)
        if self.skips:
            unlocking = asyncio.create_task(self._unlock_ended(workflow_id, events, pending))
            self._unlocking.add(unlocking)
            unlocking.add_done_callback(self._unlocking.discard)
            await asyncio.shield(unlocking)  # a cancelled wait must not interrupt it: each lock is released once
        if pending.closed:
            self._ended.add(workflow_id)
            return pending.begun if self.skips else []
        found.open[workflow_id] = len(events)
        found.wakes += pending.timers.values()
        unreported = [child for child in pending.children.values() if child in self._ended]
        found.unreported += unreported
        # The skipping server never reports a termination.
        if pending.signals or pending.starting or any(not self.skips or each in self._reported for each in unreported):
            found.busy = True
        if pending.taken_by in self._dead:
            found.lost.append(pending.taken_until)
        elif pending.deciding:
            found.busy = True
            found.deciding.add(workflow_id)
        if pending.activities:
            await self._look_at_activities(workflow_id, pending, found)
        # An execution that ended between two looks has left its locks.
        return pending.begun if self.skips else list(pending.children.values())

    async def _unlock_ended(self, workflow_id: str, events: Sequence[HistoryEvent], pending: _Pending) -> None:
        """Release the locks of an execution that has ended, and of its executions before continue-as-new."""
        before = events[0].workflow_execution_started_event_attributes.continued_execution_run_id
        if before and before not in self._unlocked:
            history = (await self._client.get_workflow_handle(workflow_id, run_id=before).fetch_history()).events
            await self._unlock_ended(workflow_id, history, _Pending.of(history))
        if pending.closed or pending.continued:
            await self._unlock(workflow_id, events[0], pending)

    async def _unlock(self, workflow_id: str, started: HistoryEvent, pending: _Pending) -> None:
        """Release the locks on the server's time that an execution leaves behind when it ends.

        The skipping server locks its time for each activity and each signal, and unlocks it at their end. It does not
        if the execution has ended before. Nor does it if an execution reports its end to a parent that has ended.
        """
        run_id = started.workflow_execution_started_event_attributes.original_execution_run_id
        if run_id in self._unlocked:
            return
        self._unlocked.add(run_id)
        left = len(pending.signals) + len(pending.starting)
        if pending.activities:
            description = await self._client.get_workflow_handle(workflow_id, run_id=run_id).describe()
            for activity in description.raw_description.pending_activities:
                left += activity.attempt <= 1 or _next_attempt(activity, None) is None
        if pending.reports:
            self._reported.add(workflow_id)
            left += workflow_id in self._orphans
        for child in pending.children.values():
            left += child in self._reported
            self._orphans.add(child)
        for _ in range(left):
            await self._client.service_client.test_service.unlock_time_skipping(UnlockTimeSkippingRequest())

    async def _look_at_activities(self, workflow_id: str, pending: _Pending, found: WaitingState) -> None:
        description = (await self._client.get_workflow_handle(workflow_id).describe()).raw_description
        now = await self.now()
        if not description.pending_activities and pending.taken_by not in self._dead:
            found.busy = True  # the next workflow task learns of their ends
        for activity in description.pending_activities:
            scheduled = pending.scheduled.get(activity.activity_id)
            due = _next_attempt(activity, scheduled)
            if due is not None and due > now:
                found.wakes.append(due)
            elif due is None and scheduled is not None and activity.last_worker_identity in self._dead:
                found.lost.append(_time_out(activity, scheduled))
            else:
                found.busy = True


def _next_attempt(activity: PendingActivityInfo, scheduled: Scheduled | None) -> datetime | None:
    """Return the time of a failed activity's next attempt; `None` if it runs, or a worker may start it."""
    if activity.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED:
        return _time(activity.scheduled_time)
    # The skipping server reports an activity that waits for its next attempt as started.
    failed = activity.last_attempt_complete_time
    if activity.attempt <= 1 or not failed.seconds or _time(failed) < _time(activity.last_started_time):
        return None
    delay = activity.last_failure.application_failure_info.next_retry_delay.ToTimedelta().total_seconds()
    if not delay and scheduled is not None:
        policy = scheduled.retry_policy
        longest = policy.maximum_interval.ToTimedelta().total_seconds() or math.inf
        first = policy.initial_interval.ToTimedelta().total_seconds()
        delay = min(first * (policy.backoff_coefficient or 2.0) ** (activity.attempt - 2), longest)
    return _time(failed) + timedelta(seconds=delay)


def _time_out(activity: PendingActivityInfo, scheduled: Scheduled) -> datetime:
    """Return the time at which the server gives up an attempt that sends no heartbeat."""
    started, heard = _time(activity.last_started_time), _time(activity.last_heartbeat_time)
    ends = [started + scheduled.start_to_close_timeout.ToTimedelta()]
    if heartbeat := scheduled.heartbeat_timeout.ToTimedelta():
        ends.append(max(started, heard) + heartbeat)
    return min(ends)


@dataclass
class _Pending:
    """The work in an execution's history that has begun and not ended."""

    timers: dict[int, datetime] = field(default_factory=dict)
    activities: set[int] = field(default_factory=set)
    scheduled: dict[str, Scheduled] = field(default_factory=dict)
    """By activity id."""
    children: dict[int, str] = field(default_factory=dict)
    deciding: bool = False
    """Whether a workflow task runs or is scheduled."""
    taken_by: str = ""
    """The identity of the worker that has the workflow task."""
    taken_until: datetime = field(default_factory=lambda: datetime.now(UTC))
    task_timeout: timedelta = timedelta()
    closed: bool = False
    continued: bool = False
    """Whether the execution has continued as new."""
    reports: bool = False
    """Whether the execution reports its end to its parent."""
    signals: set[int] = field(default_factory=set)
    begun: list[str] = field(default_factory=list)
    """All children, also ended ones."""
    starting: set[int] = field(default_factory=set)
    """Children that the server has not started yet."""

    @classmethod
    def of(cls, events: Iterable[HistoryEvent]) -> _Pending:
        pending = cls()
        for event in events:
            pending.take(event)
        return pending

    def take(self, event: HistoryEvent) -> None:
        kind: Any = event.event_type
        self.continued = kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW
        if kind in _TASK_ENDED:
            self.taken_by = ""
        if kind in _CLOSED:
            self.closed = True
            self.reports = kind != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED
        elif kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            started = event.workflow_execution_started_event_attributes
            self.task_timeout = started.workflow_task_timeout.ToTimedelta()
        elif kind == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
            self.taken_by = event.workflow_task_started_event_attributes.identity
            self.taken_until = _time(event.event_time) + self.task_timeout
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
            self.scheduled[scheduled.activity_id] = scheduled
        elif kind == EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
            child = event.start_child_workflow_execution_initiated_event_attributes
            self.children[event.event_id] = child.workflow_id
            self.starting.add(event.event_id)
            self.begun.append(child.workflow_id)
        elif kind == EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED:
            self.signals.add(event.event_id)
        else:
            self._end(event)

    def _end(self, event: HistoryEvent) -> None:
        """Remove an activity or a child: its last event names the first one."""
        which = event.WhichOneof("attributes")
        attributes: Any = getattr(event, which) if which else None
        if which and which.startswith("activity_task_") and not which.startswith("activity_task_cancel_"):
            if which != "activity_task_started_event_attributes":
                self.activities.discard(attributes.scheduled_event_id)
        elif which and "external_workflow_execution" in which:
            self.signals.discard(getattr(attributes, "initiated_event_id", 0))
        elif which and "child_workflow_execution" in which:
            self.starting.discard(attributes.initiated_event_id)
            if "started" not in which:
                self.children.pop(attributes.initiated_event_id, None)


def _time(stamp: Timestamp) -> datetime:
    return stamp.ToDatetime(UTC)
