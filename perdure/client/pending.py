"""What is only known of a run's activities while they run: who takes them up, what they say, why they are tried again."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Final

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.failure.v1 import Failure
from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.exceptions import FailureError

from perdure.run.wire import REQUEST_ACTIVITY, RunView

UNSERVED_AFTER: Final = 1.0
"""Seconds after which a call that no worker has taken up is said to wait for one."""


def note_unserved(view: RunView, description: WorkflowExecutionDescription) -> None:
    """Say of a call that no worker has taken up which task queue it waits on (R12.5)."""
    now = datetime.now(UTC)
    waits = {
        pending.activity_id: pending.activity_options.task_queue.name
        for pending in description.raw_description.pending_activities
        if pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
        and pending.attempt <= 1
        and (now - pending.scheduled_time.ToDatetime(UTC)).total_seconds() > UNSERVED_AFTER
    }
    for call in view.calls:
        if call.status == "running" and call.id in waits:
            call.reason = f"no worker has taken it up yet from task queue {waits[call.id]!r}"


async def note_trouble(client: Client, view: RunView, description: WorkflowExecutionDescription) -> None:
    """Say of a Request that is asked again why that is: a server that is down is told while it is, not at the end."""
    for pending in description.raw_description.pending_activities:
        if pending.activity_type.name == REQUEST_ACTIVITY and pending.attempt > 1 and view.log:
            words = await failure_words(client, pending.last_failure)
            view.log[-1].trouble = f"attempt {pending.attempt} after: {words}"


async def failure_words(client: Client, failure: Failure) -> str:
    """The message of a failure as the server has it, which a codec may have made unreadable."""
    with contextlib.suppress(Exception):
        error = await client.data_converter.decode_failure(failure)
        return error.message if isinstance(error, FailureError) else str(error)
    return failure.message


async def note_progress(client: Client, view: RunView, description: WorkflowExecutionDescription) -> None:
    """Say of a running call what its tool said last of how far it is (R12.2)."""
    said: dict[str, str] = {}
    for pending in description.raw_description.pending_activities:
        # Whatever stands there is the tool's: what cannot be read says nothing.
        with contextlib.suppress(Exception):
            (detail,) = await client.data_converter.decode(pending.heartbeat_details.payloads)
            said[pending.activity_id] = str(detail["progress"])[:200]
    for call in view.calls:
        if call.status == "running" and call.id in said:
            call.reason = said[call.id]
