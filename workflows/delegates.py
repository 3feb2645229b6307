"""Running a delegate: a child workflow with its own history, limits and approvals (R8.3), or a loop of them (R8.5, R8.6)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    TerminatedError,
    TimeoutError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)
from temporalio.workflow import ChildWorkflowCancellationType, ChildWorkflowHandle, ParentClosePolicy

from perdure.workflows.dispatch import Dispatcher
from perdure.workflows.internal_activities import execute_internal
from perdure.workflows.observability import owner_attributes
from perdure.workflows.resets import end_former

with workflow.unsafe.imports_passed_through():
    from perdure.errors import CallError
    from perdure.plan import ID_TAKEN, Call, Failed, Outcome, Plan, Returned
    from perdure.runs.delegates import (
        LATE,
        SPENT_ACTIVITY,
        ChildUsage,
        SpentBudget,
        child_input,
        deadline_of,
        input_size,
        refer_large_values,
        too_deep,
    )
    from perdure.runs.limits import Budget
    from perdure.runs.loops import LOOP_WORKFLOW, LoopInput, LoopState
    from perdure.runs.prompts import call_line
    from perdure.runs.run import RunState
    from perdure.runs.views import summary as line
    from perdure.runs.wire import AGENT_WORKFLOW, RunInput, RunResult
    from perdure.values.limits import HISTORY_FULL, INLINE_INPUT, MAX_ID, MAX_PAYLOAD

ENDS_WITHIN: Final = timedelta(seconds=10)
"""Time for a cancelled child run to report its usage."""
_USAGE_ATTEMPT: Final = timedelta(seconds=30)


class NotStartedError(Exception):
    """The failure of a child that cannot be started: the code and the words of its call's error."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


@dataclass(frozen=True, slots=True)
class ChildHandle:
    """A child run, `<this run>/<name>`."""

    name: str
    who: str
    """The delegate's name, for messages."""
    title: str
    task_queue: str | None = None
    timeout: float | None = None
    begin: Callable[[], Awaitable[bool]] | None = None
    """Function that begins the call just before the child starts. It returns whether the child's input is up to date."""

    @property
    def id(self) -> str:
        return f"{workflow.info().workflow_id}/{self.name}"


async def run_delegate(
    call: Call,
    plan: Plan,
    run: RunState,
    budget: Budget,
    sender: Dispatcher,
    usage: ChildUsage,
    begin: Callable[[Call], Awaitable[bool]],
) -> Outcome:
    """Run a delegate within its share of the budget; return its output, or its failure as the call's.

    `begin` begins the call just before the child starts, and returns whether the child's input is up to date. Set
    in `usage` whether the child has started, and its usage, also after a failure or a cancellation (R9.6).
    """
    tool = call.spec.known_tool
    if (error := too_deep(run.lineage, tool.name)) is not None:
        return Failed(error)
    # A plain tool's loop is the engine's own: only its calls belong to the tool.
    queue, timeout = (None, None) if call.spec.loop is not None else (tool.task_queue, tool.timeout)
    title = f"{tool.name}: {call_line(call.inputs.params)}"
    child = ChildHandle(call.id, tool.name, title, queue, timeout, lambda: begin(call))
    argument: RunInput | LoopInput | None = None

    def make_input() -> RunInput | LoopInput:
        nonlocal argument
        made = child_input(call, plan.values(call), run, budget)
        if isinstance(made, CallError):
            raise NotStartedError(made.code, made.message)
        argument, call.state.attempts = made, 1
        return made

    try:
        ended = await _run(child, make_input, sender, usage)
    finally:
        call.state.attempts = int(usage.started)  # a child that cannot be started has no effects to undo
        call.state.some_done = isinstance(argument, LoopInput) and usage.some_done
    if isinstance(argument, LoopInput) and isinstance(ended, LoopState):
        outcome, call.state.notes = argument.outcome(ended)
        return outcome
    assert not isinstance(ended, LoopState)
    return ended


async def run_iteration(
    child: ChildHandle, make_input: Callable[[], RunInput], sender: Dispatcher, usage: ChildUsage
) -> Returned | Failed:
    """Run one iteration of a loop; return its output, or its failure. `make_input` is called when it starts: the policy
    may have changed by then. `usage` is set as by `run_delegate`.
    """
    ended = await _run(child, make_input, sender, usage)
    assert not isinstance(ended, LoopState)
    return ended


async def _run(
    child: ChildHandle, make_input: Callable[[], RunInput | LoopInput], sender: Dispatcher, usage: ChildUsage
) -> Returned | Failed | LoopState:
    try:
        result: RunResult | LoopState = await _result(child, make_input, sender, usage)
    except NotStartedError as error:
        return Failed(CallError(error.code, str(error)))
    except ChildWorkflowError as failure:
        if isinstance(failure.cause, TerminatedError | TimeoutError):
            sender.report_closed(child.id)
        return Failed(_error(child, failure), _sources_of(failure))
    if isinstance(result, LoopState):
        return result
    return Returned(result.output, sources=frozenset(result.sources))


async def _result(
    child: ChildHandle, make_input: Callable[[], RunInput | LoopInput], sender: Dispatcher, usage: ChildUsage
) -> Any:
    """Return the child's result.

    Raise `ChildWorkflowError` for its failure, `NotStartedError` when it cannot be started, and a cancellation of this
    run.
    """
    if (length := len(child.id.encode())) > MAX_ID:
        why = f"{child.who} cannot run: its id would have {length:,} bytes; the limit is {MAX_ID:,}"
        raise NotStartedError("id_too_long", why)
    while True:
        async with (
            sender.turn
        ):  # make the input only when it can be sent: the inputs of 500 children take too long for one task (R18.5)
            argument = make_input()
            if (size := input_size(argument, sender.sizes)) > sender.max_payload:
                why = f"{child.who} cannot be run: its context and parameters have {size:,} bytes; the limit is {sender.max_payload:,}"
                raise NotStartedError("params_too_large", why)
            asks = size > INLINE_INPUT and sender.max_payload <= MAX_PAYLOAD  # else the value is in external storage
            changes = sender.children.changes
            await sender.take(0 if asks else size)
        if child.begin is None or await child.begin():
            break
    if not sender.holds_child():
        why = f"{child.who} cannot run: the run's history has no room for it; run fewer in parallel"
        raise NotStartedError(HISTORY_FULL, why)
    free = sender.free(child.name)
    deadline = deadline_of(argument) if isinstance(argument, RunInput) else None
    sent = argument.model_copy(update={"free": free} | ({"clocked": True} if deadline is not None else {}))
    if asks:
        sender.keep_input(child.name, argument, size)

    async def start() -> ChildWorkflowHandle[Any, Any]:
        return await workflow.start_child_workflow(
            AGENT_WORKFLOW if isinstance(argument, RunInput) else LOOP_WORKFLOW,
            refer_large_values(sent) if asks else sent,
            id=child.id,
            result_type=RunResult if isinstance(argument, RunInput) else LoopState,
            task_queue=child.task_queue,
            execution_timeout=timedelta(seconds=child.timeout) if child.timeout else None,
            parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
            cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
            static_summary=line(child.title),
            search_attributes=owner_attributes(),
        )

    sender.children.names.add(child.name)
    usage.started = True
    try:
        try:
            handle = await start()
        except WorkflowAlreadyStartedError:
            if not (sender.ends_former() and await end_former(child.id)):
                raise
            sender.report_closed(child.id)
            handle = await start()
        with sender.children.running(handle, changes):
            sender.answer_claim(child.name)
            keeping = asyncio.create_task(_keep_time(child, deadline, sender)) if deadline is not None else None
            try:
                return await _end_of(child, handle, sender, usage)
            finally:
                if keeping is not None:
                    keeping.cancel()
    except WorkflowAlreadyStartedError:
        usage.started = False
        why = f"{child.who} cannot run: there is already a workflow {child.id!r}; 'perdure cancel {child.id}' ends it"
        raise NotStartedError(ID_TAKEN, why) from None
    finally:
        sender.children.names.discard(child.name)
        sender.settle(child.name)


async def _keep_time(child: ChildHandle, deadline: float, sender: Dispatcher) -> None:
    """Signal the child when its deadline has come: one timer serves all child runs, in place of one in each (R9.5)."""
    ring = sender.alarm.at(workflow.time() + deadline, "deadlines of what runs below")
    try:
        await ring
    finally:
        ring.cancel()
    sender.children.signal_one(child.id, LATE)


async def _end_of(child: ChildHandle, handle: asyncio.Task[Any], sender: Dispatcher, usage: ChildUsage) -> Any:
    """Return the child's result. A cancellation of this run cancels the child, and waits for its usage (R9.6)."""
    try:
        await workflow.wait([handle])
    except asyncio.CancelledError:
        handle.cancel()
        await workflow.wait([handle], timeout=ENDS_WITHIN.total_seconds())
        await _set_usage(child, handle, sender, usage)
        raise
    await _set_usage(child, handle, sender, usage)
    return handle.result()


async def _set_usage(child: ChildHandle, handle: asyncio.Task[Any], sender: Dispatcher, usage: ChildUsage) -> None:
    """Set the child's usage, from its result or its failure. Otherwise query the child, which answers after its end too.
    It stays `None` if the query fails.
    """
    has_ended = handle.done()
    spent = _usage_of(handle) if has_ended else None
    if spent is None:
        await sender.room(0)
        try:
            spent = await execute_internal(
                SPENT_ACTIVITY,
                [child.id],
                SpentBudget,
                timeout=_USAGE_ATTEMPT,
                retry_policy=RetryPolicy(maximum_attempts=3),
                summary=line(f"what {child.name} has used"),
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            return
    if not has_ended and not spent.some_done:
        spent.some_done = None  # it may still return
    usage.spent = spent


def _usage_of(handle: asyncio.Task[Any]) -> SpentBudget | None:
    """Return the usage that a child's result or failure holds."""
    failure = handle.exception()
    if failure is None:
        result: RunResult | LoopState = handle.result()
        # Each iteration has a deadline; a loop of thousands of iterations has none.
        worked = 0.0 if isinstance(result, LoopState) else result.worked
        return SpentBudget(
            usage=result.usage,
            worked=worked,
            sent=result.sent,
            rule_record=result.rule_record,
            changed=result.changed,
            some_done=result.well > 0 if isinstance(result, LoopState) else True,
        )
    cause = failure.cause if isinstance(failure, ChildWorkflowError) else None
    try:
        return SpentBudget.model_validate(cause.details[0]) if isinstance(cause, ApplicationError) else None
    except (IndexError, ValueError):
        return None  # not a failure of the engine's own


def _sources_of(failure: ChildWorkflowError) -> frozenset[str]:
    """Return the sources of the child's failure message, as the failure names them (R15.1)."""
    details = failure.cause.details if isinstance(failure.cause, ApplicationError) else ()
    sources = details[0].get("sources") if details and isinstance(details[0], dict) else None
    return frozenset(str(each) for each in sources) if isinstance(sources, list) else frozenset()


def _error(child: ChildHandle, failure: ChildWorkflowError) -> CallError:
    cause = failure.cause
    who = f"the delegate of {child.who}"
    if isinstance(cause, ApplicationError):
        return CallError(cause.type or "delegate_failed", f"{who} failed: {cause.message}")
    if isinstance(cause, CancelledError):
        return CallError("cancelled", f"{who} was cancelled")
    if isinstance(cause, TerminatedError):
        return CallError("terminated", f"{who} was terminated")
    if isinstance(cause, TimeoutError):
        return CallError(
            "timeout", f"{who} took longer than {child.timeout:g} s" if child.timeout else f"{who} timed out"
        )
    return CallError(type(cause).__name__, f"{who} failed: {cause or failure}")
