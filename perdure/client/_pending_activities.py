"""Pending activities of a run: their workers, attempts and failures."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import PendingActivityState, WorkflowTaskFailedCause
from temporalio.api.failure.v1 import Failure
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.service import RPCError

from perdure.errors import NoWorkerError, RunError, ServerError
from perdure.models.requests import ModelWait, ProviderAway, read_away
from perdure.queries import cannot_replay, find_missing_worker, name_missing_worker
from perdure.runs.wire import PREPARE_ACTIVITY, REQUEST_ACTIVITY, WAITING_ATTRIBUTE, RunView

_WHY: Final = 500
"""Characters of a failure that are shown."""
SILENT_PART: Final = 0.85
"""Share of the heartbeat timeout after which a worker counts as silent; heartbeats come at three quarters of it."""
ANSWERS: Final = timedelta(seconds=5)
"""The timeout of requests to the server that add details to an error."""
END_TAKEN_WITHIN: Final = 3.0
"""Seconds to wait until a run's worker has processed its cancellation."""
_LOOKS: Final = 0.1
"""Seconds between two descriptions of the run during that wait."""
LOOKED_BACK: Final = 20
"""Events at a history's end that are searched for a failed task: the server records the first failure only."""
_WAITING: Final = SearchAttributeKey.for_int(WAITING_ATTRIBUTE)
UNSERVED_AFTER: Final = 1.0
"""Seconds after which a call that no worker has taken up is shown as waiting for one."""


def note_unserved(view: RunView, description: WorkflowExecutionDescription) -> None:
    """Add the task queue to the reason of a call that no worker has started (R12.5)."""
    _note(view, {each.activity_id: unserved(each) for each in description.raw_description.pending_activities})


def note_paused_and_silent(view: RunView, description: WorkflowExecutionDescription) -> None:
    """Add to a running call that an operator has paused it, or that its worker sends no heartbeat, with what continues it."""
    _note(
        view,
        {each.activity_id: paused(each) or silent(each) for each in description.raw_description.pending_activities},
    )


def _note(view: RunView, words: dict[str, str]) -> None:
    for call in view.calls:
        if call.status == "running" and words.get(call.id):
            call.reason = words[call.id]


def unserved(pending: PendingActivityInfo) -> str:
    """Return the sentence that no worker has started the activity; empty if one has, or if it was just scheduled."""
    waits = (datetime.now(UTC) - pending.scheduled_time.ToDatetime(UTC)).total_seconds()
    scheduled = pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
    if not scheduled or pending.attempt > 1 or waits <= UNSERVED_AFTER:
        return ""
    return f"no worker has started it yet on task queue {pending.activity_options.task_queue.name!r}"


def paused(pending: PendingActivityInfo) -> str:
    """Return the sentence that an operator has paused the activity; empty if it is not paused."""
    if not pending.paused:
        return ""
    by = pending.pause_info.manual if pending.pause_info.HasField("manual") else pending.pause_info.rule
    reason = ": ".join(filter(None, (by.identity, by.reason)))
    return f"an operator has paused it ({reason or 'no reason'}); temporal activity unpause continues it"


def silent(pending: PendingActivityInfo) -> str:
    """Return the sentence that the activity's worker sends no heartbeat; empty if it does."""
    given_up = pending.activity_options.heartbeat_timeout.ToTimedelta().total_seconds()
    heard = max(pending.last_started_time.ToDatetime(UTC), pending.last_heartbeat_time.ToDatetime(UTC))
    seconds = (datetime.now(UTC) - heard).total_seconds()
    started = pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    if not started or not seconds > SILENT_PART * given_up > 0:
        return ""
    return f"its worker sent no heartbeat for {seconds:.0f} s; after {given_up:g} s another worker gets the call"


async def note_trouble(client: Client, view: RunView, description: WorkflowExecutionDescription) -> None:
    """Add the reason of the present retry to each Request and call that is retried."""
    calls = {call.id: call for call in view.calls if call.status == "running"}
    for pending in description.raw_description.pending_activities:
        if pending.attempt > 1 and pending.activity_id in calls and pending.HasField("last_failure"):
            words = await failure_words(client, pending.last_failure)
            calls[pending.activity_id].reason = f"attempt {pending.attempt} after: {words[:200]}"
        if pending.activity_type.name == PREPARE_ACTIVITY and pending.HasField("last_failure") and not view.trouble:
            words = await failure_words(client, pending.last_failure)
            view.trouble = f"it waits for a worker that can prepare it; attempt {pending.attempt} after: {words}"
        if pending.activity_type.name == REQUEST_ACTIVITY and pending.paused and view.log:
            view.log[-1].trouble = paused(pending)
        elif pending.activity_type.name == REQUEST_ACTIVITY and pending.attempt > 1 and view.log:
            words = await failure_words(client, pending.last_failure)
            view.log[-1].trouble = f"attempt {pending.attempt} after: {words}"
            waits = pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
            if view.wait is None and waits and (away := await _away(client, pending.last_failure)) is not None:
                model, since = view.log[-1].model, pending.scheduled_time.ToDatetime(UTC)
                view.wait = ModelWait(model=model, reason=away.reason, since=since.isoformat(timespec="seconds"))


async def task_failure(client: Client, description: WorkflowExecutionDescription) -> str:
    """Return the reason why the tasks of a run or session keep failing, and the remedy; empty if none fails (R18.10)."""
    attempt = description.raw_description.pending_workflow_task.attempt
    if description.status != WorkflowExecutionStatus.RUNNING or attempt < 2:
        return ""
    found = await client.workflow_service.get_workflow_execution_history_reverse(
        GetWorkflowExecutionHistoryReverseRequest(
            namespace=client.namespace,
            execution=WorkflowExecution(workflow_id=description.id, run_id=description.run_id),
            maximum_page_size=LOOKED_BACK,
        )
    )
    end = f"end it at once: perdure terminate {description.id}"
    for event in found.history.events:
        if event.HasField("workflow_task_failed_event_attributes"):
            failed = event.workflow_task_failed_event_attributes
            why = " ".join((await failure_words(client, failed.failure)).split())[:_WHY].rstrip(".")
            if failed.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR:
                return cannot_replay(description.id, why)
            if failed.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_BAD_SEARCH_ATTRIBUTES:
                return (
                    f"the namespace has no search attribute that {description.id!r} sets ({why}). "
                    f"Register it again (a worker does at its start), and the run continues. Or {end}"
                )
        elif event.HasField("workflow_task_timed_out_event_attributes") and attempt > 2:
            why = "its worker did not answer in time"
        elif event.HasField("workflow_task_completed_event_attributes"):
            break
        else:
            continue
        return (
            f"it is running, but its workflow tasks fail (attempt {attempt}): {why}. "
            f"Deploy a worker that can execute them, or {end}"
        )
    return ""


async def explain_stall(client: Client, description: WorkflowExecutionDescription) -> str:
    """Return why a run or session does not continue, with the remedy: its tasks fail, or no worker takes them.

    Empty if it continues.
    """
    if description.status != WorkflowExecutionStatus.RUNNING:
        return ""
    if failing := await task_failure(client, description):
        return failing
    missing = await find_missing_worker(client, description.task_queue, description)
    return f"no worker takes its tasks; it continues when one does. {missing}" if missing else ""


async def explain_wait(client: Client, description: WorkflowExecutionDescription) -> str:
    """Return the text of `explain_stall`, or that the run waits for people; empty if it works, or has ended."""
    if description.status != WorkflowExecutionStatus.RUNNING:
        return ""
    if stalled := await explain_stall(client, description):
        return stalled
    waiting = description.typed_search_attributes.get(_WAITING) or 0
    decisions = "a decision" if waiting == 1 else f"{waiting:,} decisions"
    return f"it waits for {decisions}: perdure approvals {description.id}" if waiting else ""


async def find_wait_reason(client: Client, workflow_id: str) -> str | None:
    """Return the text of `explain_wait`; `None` if there is none, or the server does not know the workflow or does not
    answer.
    """
    with contextlib.suppress(RPCError):
        description = await client.get_workflow_handle(workflow_id).describe(rpc_timeout=ANSWERS)
        return await explain_wait(client, description) or None
    return None


async def check_ends(client: Client, run_id: str, within: float = 0.0) -> None:
    """Raise `RunError` if a run cannot end after a request to end, because its workflow tasks fail (R18.10).

    The cancellation's own task may be the first that fails: `within` is the longest wait for its end, in seconds.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + within
    while True:
        description = await client.get_workflow_handle(run_id).describe()
        if words := await task_failure(client, description):
            raise RunError(f"the end of {run_id!r} is requested but not executed: {words}")
        raw = description.raw_description
        taken = raw.workflow_extended_info.cancel_requested and not raw.HasField("pending_workflow_task")
        if taken or description.status != WorkflowExecutionStatus.RUNNING or loop.time() >= until:
            return
        await asyncio.sleep(_LOOKS)


async def unanswered(
    client: Client, workflow_id: str, otherwise: RunError | ServerError, name: str = ""
) -> RunError | ServerError:
    """Return the error of a run or session that did not answer: its tasks' failure, or else `otherwise` (R18.8).

    A `NoWorkerError` gets the remedy as its last sentence. `name`: the caller's name for it (default: its workflow id).
    """
    with contextlib.suppress(RPCError):
        description = await client.get_workflow_handle(workflow_id).describe(rpc_timeout=ANSWERS)
        if failing := await task_failure(client, description):
            return NoWorkerError(f"{name or repr(workflow_id)} does not answer: {failing}")
        if isinstance(otherwise, NoWorkerError):
            remedy = name_missing_worker(description)
            with contextlib.suppress(RPCError):  # the test server has no such call
                remedy = await find_missing_worker(client, description.task_queue, description) or remedy
            return NoWorkerError(f"{otherwise}. {remedy}")
    return otherwise


async def failure_words(client: Client, failure: Failure) -> str:
    """Return the message of a failure as the server stores it, after decoding."""
    with contextlib.suppress(Exception):
        error = await client.data_converter.decode_failure(failure)
        return error.message if isinstance(error, FailureError) else str(error)
    return failure.message


async def _away(client: Client, failure: Failure) -> ProviderAway | None:
    """Return the wait for an unavailable provider from a failure, as the server stores it; `None` if it has none."""
    with contextlib.suppress(Exception):
        error = await client.data_converter.decode_failure(failure)
        return read_away(error.details) if isinstance(error, ApplicationError) else None
    return None


async def note_progress(client: Client, view: RunView, description: WorkflowExecutionDescription) -> None:
    """Add to a running call the last progress that its tool reported (R12.2)."""
    texts: dict[str, str] = {}
    for pending in description.raw_description.pending_activities:
        # The details are the tool's own: skip those that cannot be read.
        with contextlib.suppress(Exception):
            (detail,) = await client.data_converter.decode(pending.heartbeat_details.payloads)
            texts[pending.activity_id] = str(detail["progress"])[:200]
    for call in view.calls:
        if call.status == "running" and call.id in texts:
            call.reason = texts[call.id]
