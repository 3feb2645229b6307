"""Executions of calls: a tool's activity, a user's own activity, workflow or Nexus operation, a sleep, and their failures."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    NexusOperationError,
    TerminatedError,
    TimeoutError,
    TimeoutType,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

from perdure.workflows.dispatch import Dispatcher
from perdure.workflows.failures import message_of
from perdure.workflows.internal_activities import CONVERSION_ERRORS, read_raw
from perdure.workflows.resets import end_former
from perdure.workflows.timers import Alarm

with workflow.unsafe.imports_passed_through():
    from perdure.errors import CallError, JsonError
    from perdure.hooks.events import NO_SUCH_HOOK, NOBODY, REFUSED_BY_HOOK, HookProblem, RunOwner
    from perdure.plan import (
        BEGUN,
        CARRIED_OUT,
        ID_TAKEN,
        INTERRUPTED,
        LOST,
        NO_SUCH_TOOL,
        NOT_BEGUN,
        Call,
        Failed,
        Outcome,
        RetryState,
        Returned,
    )
    from perdure.runs.delegates import scoped_data
    from perdure.runs.prompts import call_line
    from perdure.runs.views import summary as line
    from perdure.tools.engine import sleep_seconds
    from perdure.tools.invocation import CallHookRefs, ReportedUsage, ToolInput, ToolReads, ToolResult
    from perdure.tools.server_input import ServerAnswers, ServerInput
    from perdure.tools.tool import Existing, Tool
    from perdure.values.json import Json, JsonObject, check, dumps
    from perdure.values.limits import MAX_ID, MAX_MESSAGE, bytes_text
    from perdure.values.provenance import NOWHERE, tool_source


async def run_tool(
    call: Call,
    base: Mapping[str, Json],
    sender: Dispatcher,
    begin: Callable[[Call], Awaitable[bool]],
    hooks: CallHookRefs | None,
    owner: RunOwner,
    unheard: Callable[[Call, Sequence[HookProblem]], None],
    used: Callable[[Sequence[ReportedUsage]], None],
    answers: ServerAnswers | None = None,
) -> Outcome | ServerInput:
    """Run one tool call as a Temporal activity under the tool's own name, with its own timeouts and retries
    (R12.1).

    Return the outcome, or the input that the tool's server asks for: then the call runs again, with the `answers`.
    `begin` is awaited just before the activity is scheduled for the first time. `owner`: the run's. `unheard` gets the
    problems of the result's `hooks` that failed and were ignored, `used` the usage of the models that the tool's code
    itself has called.
    """
    tool = call.spec.known_tool
    assert tool.activity is not None
    reads = tool_reads(call, base, owner)
    size = sender.size_of(reads)
    if size > sender.max_payload:
        what = "with their references resolved" + (" and what its scopes give it" if reads.messages else "")
        message = f"the parameters of {tool.name} have {bytes_text(size)} {what}; the limit is {sender.max_payload:,}"
        return Failed(CallError("params_too_large", message))
    patience = RetryState(tool.retries, tool.queue_timeout)
    more = 0 if answers is None else sender.sizes.of(answers.as_json())
    while True:
        inline = await sender.take_call(size + more, more)
        if call.hold.queued and not await begin(call):
            continue
        argument = ToolInput(
            tool=tool.name,
            activity=tool.activity,
            call_id=call.id,
            earlier=patience.started,
            elsewhere=patience.missing,
            reads=reads if inline else None,
            approved=call.inputs.approved,
            clean=call.inputs.origins.read and not call.inputs.origins.tainted,
            free=sender.free(call.id),
            hooks=hooks,
            answers=answers,
        )
        try:
            queue = None if sender.routing is None else sender.routing.tool(tool)
            result = await _execute_tool(call, argument, patience.attempts_left, queue)
            call.state.kept = result.kept
            if result.unheard:
                unheard(call, result.unheard)
            used(result.usage)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            if queue is not None and sender.routing is not None and await sender.routing.lifted(error, tool):
                continue
            attempts, outcome = parse_failure(call, error, patience.attempts_left)
            call.state.attempts = patience.started + attempts
            pause = patience.pause(outcome.error.code, attempts, workflow.time())
            if pause is None:
                gone = outcome.error.code == NO_SUCH_HOOK  # then the event does not exist: its result is withheld
                return Failed(replace(outcome.error, code=REFUSED_BY_HOOK)) if gone else outcome
            why = f"{message_of(error)}; the call waits for a worker that has it" if pause else outcome.error.message
            call.state.retried = why
            sender.on_retry(call, why)
            if pause:
                await workflow.sleep(pause, summary=line(f"{call.id} {tool.name}: {why}"))
        except JsonError as error:
            return Failed(CallError("not_json", str(error)), carried_out=True)
        else:
            call.state.attempts = patience.started + result.attempt
            if result.asks is not None:
                return result.asks
            sender.sizes.note(result.value, result.size)
            sources = tool_source(tool.name, True) if result.untrusted else NOWHERE
            return Returned(result.value, result.branch, sources=sources)
        finally:
            sender.settle(call.id)


def tool_reads(call: Call, base: Mapping[str, Json], owner: RunOwner) -> ToolReads:
    """Return the input of the call's tool; `base` is the context's data by kind, `owner` the run's."""
    # The input is not validated: it is the run's own data, however large.
    return ToolReads.model_construct(
        call=call.spec.raw,
        params=call.inputs.params,
        definition=None if call.spec.known_tool.registered else call.spec.known_tool.definition(),
        messages=scoped_data(call.spec.known_tool.scopes or (), base),
        owner=owner if owner != NOBODY else None,
        undoes=call.inputs.undoes,
    )


async def _execute_tool(call: Call, argument: ToolInput, attempts: int, limited: str | None) -> ToolResult:
    tool = call.spec.known_tool
    target = f" → {call.spec.target}" if call.spec.paths else ""
    # The time of its hooks is not the tool's time.
    looking = 0.0 if argument.hooks is None else sum(hook.timeout for hook in argument.hooks.hooks)
    raw = await workflow.execute_activity(
        tool.name,
        argument,
        result_type=RawValue,
        activity_id=call.id,
        task_queue=limited or tool.task_queue,
        start_to_close_timeout=timedelta(seconds=tool.attempt_timeout + looking),
        schedule_to_start_timeout=timedelta(seconds=tool.queue_timeout) if limited or tool.task_queue else None,
        heartbeat_timeout=timedelta(seconds=tool.heartbeat_timeout),
        # A lost worker uses up no retry: `RetryState` decides on the call.
        retry_policy=RetryPolicy(maximum_attempts=attempts, non_retryable_error_types=["TemporalTimeout:Heartbeat"]),
        summary=line(f"{call_line(call.inputs.params)}{target}"),
    )
    return _read_result(raw)


def _read_result(raw: RawValue | None) -> ToolResult:
    """Return the result of a tool's activity. Someone may have completed it by hand, as `temporal activity complete`
    does: then the value that they wrote is the tool's result.
    """
    with contextlib.suppress(*CONVERSION_ERRORS):
        result: ToolResult | None = read_raw(raw, ToolResult)
        if result is not None and "attempt" in result.model_fields_set:
            return result
    try:
        value: Json = read_raw(raw, object)
    except CONVERSION_ERRORS as error:
        raise JsonError(f"the result that was written by hand is not JSON: {error}") from None
    check(value, source="the result that was written by hand")
    return ToolResult(value=value, size=len(dumps(value).encode()))


_TIMEOUTS = {
    TimeoutType.START_TO_CLOSE: "an attempt took longer than its timeout",
    TimeoutType.SCHEDULE_TO_START: "no worker started it",
    TimeoutType.SCHEDULE_TO_CLOSE: "it did not end in time",
}


def parse_failure(call: Call, error: ActivityError, attempts: int) -> tuple[int, Failed]:
    """Return the number of begun `attempts`, as far as the failure tells, and the failure of a call's activity (R6.6)."""
    tool, cause = call.spec.known_tool, error.cause
    if isinstance(cause, ApplicationError):
        began = next((detail for detail in cause.details if isinstance(detail, int)), 1)
        # Workers of 0.2.0 send no such detail. Only a hook that withholds a result fails an activity with this type.
        is_certain = {CARRIED_OUT: True} in cause.details or cause.type == REFUSED_BY_HOOK
        carried_out = None if {CARRIED_OUT: None} in cause.details else is_certain
        return began, Failed(_own(call, cause), carried_out=carried_out)
    if isinstance(cause, TimeoutError):
        if cause.type is TimeoutType.SCHEDULE_TO_START and tool.task_queue is not None:
            message = f"no worker of task queue {tool.task_queue!r} started {call.spec.tool_name} within {tool.queue_timeout:g} s"
            return 0, Failed(CallError("no_worker", message))
        if (lost := _lost(call, cause)) is not None:
            return lost
        what = _TIMEOUTS.get(cause.type or TimeoutType.SCHEDULE_TO_CLOSE, "it timed out")
        words = f"{call.spec.tool_name} timed out: {what} ({tool.attempt_timeout:g} s per attempt)"
        return attempts, Failed(CallError("timeout", words))
    return attempts, Failed(CallError(type(cause).__name__, str(cause)))


def _lost(call: Call, cause: TimeoutError) -> tuple[int, Failed] | None:
    """Return the failure of a call whose worker sent no heartbeat (`perdure.plan._retry`)."""
    tool = call.spec.known_tool
    if cause.type is not TimeoutType.HEARTBEAT:
        return None
    begun = _begun(cause.last_heartbeat_details)
    if tool.retries == 0 and begun is None:
        words = f"{call.spec.tool_name} was not started: a worker accepted it and sent no heartbeat"
        return 1, Failed(CallError(NOT_BEGUN, words))
    words = f"{call.spec.tool_name} sent no heartbeat for {tool.heartbeat_timeout:g} s, so its worker counts as lost"
    again = "it may not be retried (retries: 0)" if tool.retries == 0 else "it is not retried"
    return begun or 1, Failed(CallError(LOST, f"{words}; whether it took effect is not known, and {again}"))


def _begun(details: Sequence[Any]) -> int | None:
    """Return the attempt that the last heartbeat named; 1 where the heartbeat holds something else, `None` without one."""
    attempts = [each.get(BEGUN) for each in details if isinstance(each, dict)]
    return next((each for each in attempts if isinstance(each, int)), 1) if details else None


def _own(call: Call, cause: ApplicationError) -> CallError:
    """Return the activity's own error, with its meaning where the engine does not retry."""
    if cause.type in (NO_SUCH_TOOL, NO_SUCH_HOOK):
        return CallError(
            cause.type, f"{cause.message}, and no other worker had it within {call.spec.known_tool.queue_timeout:g} s"
        )
    if cause.type == INTERRUPTED:
        words = f"{cause.message}; whether it took effect is not known, and it may not be retried (retries: 0)"
        return CallError(INTERRUPTED, words)
    return CallError((cause.type or "error")[:MAX_MESSAGE], cause.message[:MAX_MESSAGE])  # of any worker's attempt


async def run_existing(
    call: Call, existing: Existing, sender: Dispatcher, begin: Callable[[Call], Awaitable[bool]]
) -> Outcome:
    """Run a user's activity, workflow or Nexus operation; return its result, or its failure as the call's.

    Its result needs no reserved room: the server accepts none above 2 MB. `begin` is awaited just before it is
    scheduled.
    """
    tool = call.spec.known_tool
    if not 0 < (length := len(_child(call, existing).encode())) <= MAX_ID:
        message = f"{tool.name} cannot be run: its id would have {length:,} bytes, and 1 to {MAX_ID:,} are possible"
        return Failed(CallError("id_too_long", message))
    arguments = existing.argument_list(call.inputs.params)
    size = sum(map(sender.sizes.of, arguments))
    if size > sender.max_payload:
        message = f"the parameters of {tool.name} have {bytes_text(size)} with their references resolved; the limit is {sender.max_payload:,}"
        return Failed(CallError("params_too_large", message))
    await sender.room(size)
    while not await begin(call):
        await sender.room(size)
    sender.free(call.id)
    call.state.attempts = 1
    try:
        value = await _execute_existing(call, tool, existing, arguments, sender)
        check(value, source=f"the result of {tool.name}")
    except JsonError as error:
        return Failed(CallError("not_json", str(error)), carried_out=True)
    except WorkflowAlreadyStartedError as error:
        message = f"{tool.name} cannot be run: there is already a workflow {error.workflow_id!r} that is running; 'temporal workflow cancel --workflow-id {error.workflow_id}' ends it"
        return Failed(CallError(ID_TAKEN, message))
    except (ActivityError, ChildWorkflowError, NexusOperationError) as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError from error
        return Failed(_failure(tool, existing, error.cause or error))
    else:
        return Returned(value)
    finally:
        sender.settle(call.id)


def _child(call: Call, existing: Existing) -> str:
    own = f"{call.inputs.undoes}.undo" if call.inputs.undoes else f"{workflow.info().workflow_id}/{call.id}"
    return existing.workflow_id(call.inputs.params, own)


async def _execute_existing(
    call: Call, tool: Tool, existing: Existing, arguments: list[Json], sender: Dispatcher
) -> Any:
    summary = line(call_line(call.inputs.params))
    limit = timedelta(seconds=tool.timeout) if tool.timeout else None
    if existing.kind == "activity":
        return await workflow.execute_activity(
            existing.name,
            args=arguments,
            activity_id=call.id,
            task_queue=tool.task_queue,
            start_to_close_timeout=timedelta(seconds=tool.attempt_timeout),
            schedule_to_start_timeout=timedelta(seconds=tool.queue_timeout) if tool.task_queue else None,
            heartbeat_timeout=timedelta(seconds=tool.heartbeat) if tool.heartbeat else None,
            retry_policy=RetryPolicy(maximum_attempts=tool.retries + 1),
            cancellation_type=workflow.ActivityCancellationType.TRY_CANCEL,
            summary=summary,
        )
    if existing.kind == "workflow":
        child_id = _child(call, existing)

        async def run_child() -> Any:
            return await workflow.execute_child_workflow(
                existing.name,
                args=arguments,
                id=child_id,
                task_queue=tool.task_queue,
                execution_timeout=limit,
                retry_policy=RetryPolicy(maximum_attempts=tool.retries + 1) if tool.retries else None,
                parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
                cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
                static_summary=line(f"{tool.name}: {call_line(call.inputs.params)}"),
            )

        try:
            return await run_child()
        except WorkflowAlreadyStartedError:
            if not (sender.ends_former() and await end_former(child_id, forces=False)):
                raise
            return await run_child()
    client = workflow.create_nexus_client(service=existing.service, endpoint=existing.endpoint)
    argument = arguments[0] if arguments else None
    return await client.execute_operation(existing.name, argument, schedule_to_close_timeout=limit, summary=summary)


def _failure(tool: Tool, existing: Existing, cause: BaseException) -> CallError:
    if isinstance(cause, ApplicationError):
        return CallError((cause.type or "error")[:MAX_MESSAGE], cause.message[:MAX_MESSAGE])
    if isinstance(cause, TimeoutError):
        seconds = tool.attempt_timeout if existing.kind == "activity" else tool.timeout
        took = (
            f"{existing.title} took longer than {seconds:g} s" if seconds else f"{existing.title} did not end in time"
        )
        return CallError("timeout", f"{tool.name} timed out: {took}, or no worker started it")
    if isinstance(cause, CancelledError):
        return CallError("cancelled", f"{existing.title} was cancelled")
    if isinstance(cause, TerminatedError):
        return CallError("terminated", f"{existing.title} was terminated")
    return CallError(type(cause).__name__, f"{existing.title} failed: {str(cause)[:MAX_MESSAGE]}")


async def sleep_until(params: JsonObject, alarm: Alarm) -> Outcome:
    """Sleep on a durable timer that all sleeping calls share. It occupies no worker."""
    now = workflow.now()
    slept = sleep_seconds(params, now.timestamp(), _read_time)
    if isinstance(slept, CallError):
        return Failed(slept)
    until = (now + timedelta(seconds=slept)).isoformat(timespec="seconds")
    ring = alarm.at(workflow.time() + slept, f"sleep until {until}")
    try:
        await ring
    finally:
        ring.cancel()
    return Returned({"until": until, "slept": round(slept, 3)})


def _read_time(text: str) -> float:
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
