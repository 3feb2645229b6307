"""Running a delegate: a child workflow with its own history, limits and approvals (R8.3), or a loop of them (R8.5, R8.6)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeAlias

from temporalio import workflow
from temporalio.exceptions import (
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    TerminatedError,
    TimeoutError,
    WorkflowAlreadyStartedError,
)
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

from perdure.workflows.sending import Sender

with workflow.unsafe.imports_passed_through():
    from perdure.errors import CallError
    from perdure.model.usage import RunUsage
    from perdure.plan.calls import Call
    from perdure.plan.iteration import DEFAULT_MAX, DEFAULT_PARALLEL
    from perdure.plan.outcomes import Failed, Outcome, Returned
    from perdure.plan.plan import Plan
    from perdure.run.delegates import child_document, given_tools, too_deep
    from perdure.run.loops import LOOP_WORKFLOW, LoopInput, LoopState, most_items
    from perdure.run.prompts import call_line
    from perdure.run.running import Run
    from perdure.run.shares import Expected
    from perdure.run.stopping import Budget
    from perdure.run.wire import AGENT_WORKFLOW, RunInput, RunResult
    from perdure.values.jsons import shorten
    from perdure.values.limits import HISTORY_FULL, said
    from perdure.values.limits.sizes import Sizes

OnSpent: TypeAlias = Callable[[RunUsage, float], None]
"""Told what a delegate has used, and the seconds that it worked."""
_TOLD: Final = 10
"""Failed iterations that the model is told of one by one."""


MAX_ID: Final = 1000
"""Bytes of a workflow's id: the server refuses the whole task beyond that."""


class NotStartedError(Exception):
    """A child that cannot be started: the code and the words of its call's error."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


async def run_delegate(call: Call, plan: Plan, run: Run, budget: Budget, sender: Sender, on_spent: OnSpent) -> Outcome:
    """The delegate's output, or its failure as the call's, within its share of the budget.

    `on_spent` is told what it cost, also when it failed (R9.6); it is not told where nobody can tell.
    """
    tool = call.tool
    assert tool is not None
    if (error := too_deep(run.lineage, tool.name)) is not None:
        return Failed(error)
    prepared = run.prepared
    document = child_document(
        call,
        prepared.delegates,
        prepared.delegate_problems,
        base=plan.values(call),
        tools=run.tools,
        policy=run.desk.guard.base,
    )
    if isinstance(document, CallError):
        return Failed(document)
    guard = run.desk.guard
    approval = guard.change.as_change()
    givers = guard.given(given_tools(call.scopes, run.tools))
    title = f"{tool.name}: {call_line(call.params)}"
    if call.loops:
        if len(call.items or ()) > (most := most_items(prepared.max_payload)):
            many = f"{tool.name} would go through {len(call.items or ()):,} items, and the results of {most:,} at most fit into one"
            return Failed(CallError("too_many_items", many))
        loop = LoopInput.model_construct(  # not validated, nor copied: it is the run's own data, however large
            kind="each" if "_each" in call.raw else "until",
            agent=document,
            params=call.params,
            items=call.items or [],
            parallel=call.raw.get("_parallel", DEFAULT_PARALLEL),
            until=call.raw.get("_until", ""),
            max=call.raw.get("_max", DEFAULT_MAX),
            title=tool.name,
            max_payload=prepared.max_payload,
            approval=approval,
            floor=guard.floor,
            givers=givers,
            lineage=run.lineage,
            delegates=prepared.delegates,
            budget=budget,
            state=LoopState(expected=_of_a_request(run.progress.expected)),
        )
        return await _run_loop(call, loop, sender, title, on_spent)
    child = RunInput.model_construct(
        agent=document,
        input=call.params,
        has_input=True,
        approval=approval,
        floor=guard.floor,
        givers=givers,
        lineage=run.lineage,
        delegates=prepared.delegates,
        budget=budget,
    )
    call.attempts = 1
    return await run_child(child, sender, call.id, title, on_spent, task_queue=tool.task_queue, timeout=tool.timeout)


async def run_child(
    child: RunInput,
    sender: Sender,
    name: str,
    title: str,
    on_spent: OnSpent,
    *,
    task_queue: str | None = None,
    timeout: float | None = None,
) -> Returned | Failed:
    """One run below this one, `<this run>/<name>`: its output, or what became of it."""
    try:
        result: RunResult = await _child(AGENT_WORKFLOW, child, RunResult, sender, name, title, task_queue, timeout)
    except NotStartedError as error:
        return Failed(CallError(error.code, f"{child.agent.get('name')} cannot be run: {error}"))
    except ChildWorkflowError as failure:
        return _failed(str(child.agent.get("name")), failure, on_spent, timeout)
    on_spent(result.usage, result.worked)
    if result.output_size:
        return Failed(_too_large(str(child.agent.get("name")), name, result.output_size, sender))
    return Returned(result.output)


async def _run_loop(call: Call, loop: LoopInput, sender: Sender, title: str, on_spent: OnSpent) -> Outcome:
    assert call.tool is not None
    call.attempts = 1
    tool = call.tool
    try:
        state: LoopState = await _child(
            LOOP_WORKFLOW, loop, LoopState, sender, call.id, title, tool.task_queue, tool.timeout
        )
    except NotStartedError as error:
        return Failed(CallError(error.code, f"{tool.name} cannot be run: {error}"))
    except ChildWorkflowError as failure:
        return _failed(tool.name, failure, on_spent, tool.timeout)
    on_spent(state.usage, 0.0)  # each iteration has a deadline, a loop of thousands has none
    told = [CallError("iteration_failed", f"iteration {e.index} failed: {e.code}: {e.message}") for e in state.failed]
    if loop.kind == "until":
        if told:
            return Failed(told[0])
        if not state.satisfied:
            last = shorten(state.results[-1] if state.results else None, 200)
            message = f"{loop.until} did not come true in {state.next} iterations; the last output was {last}"
            return Failed(CallError("max_iterations", message))
        return Returned(state.results[-1])
    count = state.failures
    if told and count == len(loop.items):
        return Failed(CallError("iterations_failed", f"all {count} iterations failed; the first: {told[0].message}"))
    if count > _TOLD:
        told[_TOLD:] = [CallError("iteration_failed", f"{count - _TOLD} more iterations failed; see the results")]
    call.notes = told
    return Returned(state.results)


async def _child(
    kind: str,
    argument: RunInput | LoopInput,
    result_type: type,
    sender: Sender,
    name: str,
    title: str,
    task_queue: str | None,
    timeout: float | None,
) -> Any:
    """Raises `ChildWorkflowError` for whatever became of the child; if this run itself is cancelled, the cancellation.

    Raises `NotStartedError` when the child cannot even be told what to do.
    """
    id = _id(name)
    if (length := len(id.encode())) > MAX_ID:
        raise NotStartedError("id_too_long", f"its id would have {length:,} bytes, and {MAX_ID:,} is the most")
    if (size := input_size(argument, sender.sizes)) > sender.max_payload:
        raise NotStartedError(
            "params_too_large",
            f"its context and parameters have {size:,} bytes, and {sender.max_payload:,} is the most",
        )
    told = sender.children.told
    await sender.room(size)
    if not sender.holds_input():
        raise NotStartedError(
            HISTORY_FULL,
            f"its context and parameters have {said(size)}, and the run's history has no room for them beside the others; give it "
            "less, run fewer at once, or give the workers external storage (PERDURE_STORAGE)",
        )
    try:
        child = await workflow.start_child_workflow(
            kind,
            argument.model_copy(update={"free": sender.free(name)}),
            id=id,
            result_type=result_type,
            task_queue=task_queue,
            execution_timeout=timedelta(seconds=timeout) if timeout else None,
            parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
            cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_REQUESTED,
            static_summary=title[:200],
        )
        with sender.children.running(child, told):
            sender.tell(name)
            return await child
    except WorkflowAlreadyStartedError:
        raise NotStartedError("id_taken", f"there is already a workflow {id!r}, which is not of this run") from None
    except ChildWorkflowError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError from None
        raise
    finally:
        sender.settle(name)


def _too_large(who: str, name: str, size: int, sender: Sender) -> CallError:
    """What came back is the output's beginning, for people to look at: never the call's value (R6.9)."""
    message = (
        f"the output of {who} has {said(size)}, more than the run below can hand over ({sender.max_payload:,} at most, with what "
        f"else it tells); whole: perdure show {_id(name)} --value output. Have it return less, or give the workers external "
        "storage (PERDURE_STORAGE), which would carry it"
    )
    return CallError("result_too_large", message)


def _id(name: str) -> str:
    return f"{workflow.info().workflow_id}/{name}"


def input_size(argument: RunInput | LoopInput, sizes: Sizes) -> int:
    """Bytes of a child's input: what many of them read is measured once (R18.1)."""
    large = [name for name in ("agent", "input", "params", "items", "delegates") if name in type(argument).model_fields]
    frame = argument.model_copy(update=dict.fromkeys(large))
    own = len(frame.model_dump_json(by_alias=True, warnings=False).encode())
    return own + sum(sizes.of(getattr(argument, name)) for name in large)


def _tell(detail: Any, on_spent: OnSpent) -> None:
    """A child that failed says what it used by then, as far as it can."""
    try:
        usage, worked = RunUsage.model_validate(detail["usage"]), float(detail.get("worked", 0.0))
    except (TypeError, KeyError, AttributeError, ValueError):
        return
    on_spent(usage, worked)


def _of_a_request(expected: Expected) -> Expected:
    """What an iteration is thought to use at first: it may be no delegate of the kind that was measured."""
    return Expected(tokens=expected.tokens, cost=expected.cost)


def _failed(name: str, failure: ChildWorkflowError, on_spent: OnSpent, timeout: float | None) -> Failed:
    cause = failure.cause
    who = f"the delegate of {name}"
    if isinstance(cause, ApplicationError):
        _tell(cause.details[0] if cause.details else None, on_spent)
        return Failed(CallError(cause.type or "delegate_failed", f"{who} failed: {cause.message}"))
    if isinstance(cause, CancelledError):
        return Failed(CallError("cancelled", f"{who} was cancelled"))
    if isinstance(cause, TerminatedError):
        return Failed(CallError("terminated", f"{who} was terminated"))
    if isinstance(cause, TimeoutError):
        return Failed(CallError("timeout", f"{who} took longer than {timeout:g} s" if timeout else f"{who} timed out"))
    return Failed(CallError(type(cause).__name__, f"{who} failed: {cause or failure}"))
