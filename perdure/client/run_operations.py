"""Operations on runs through a Temporal client: start, fetch, wait, and undo (R23.4)."""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.common import TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.exceptions import TerminatedError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.client._pending_activities import (
    explain_wait,
    note_paused_and_silent,
    note_progress,
    note_trouble,
    note_unserved,
    task_failure,
    unanswered,
)
from perdure.client._run_lists import SENDER, STATUS, TENANT, names_attribute, schedule_of, start_attributes
from perdure.client.errors import clear_errors, no_answer
from perdure.client.selection import RunOrigin
from perdure.client.tenancy import owned_memo, queue_priority
from perdure.errors import RunError, RunExistsError, RunNotFoundError, RunTimeoutError, ServerError, pluralize
from perdure.hooks.events import RunOwner
from perdure.hosting.settings import TASK_QUEUE
from perdure.queries import SearchAttributes, answer_of, execution_before, failed_result, query_problem, read_effects
from perdure.runs.agent import AgentSpec, check_new_id, parse_agent
from perdure.runs.notifications import NotificationResult, NotificationView, check_callback, delivery_id
from perdure.runs.schedules import with_time
from perdure.runs.undo import UNDO_FORM, RunEffects, UndoPlan, UndoRecord, plan_undo
from perdure.runs.views import summary
from perdure.runs.wire import (
    AGENT_WORKFLOW,
    RUN_QUERY,
    VALUE_QUERY,
    VERSION_ATTRIBUTE,
    RunInput,
    RunResult,
    RunStatus,
    RunView,
)
from perdure.sessions.wire import WaitResult
from perdure.values.json import Json, JsonObject, Packed, ValuePage, pack
from perdure.values.limits import MAX_PAYLOAD, MAX_STORED, bytes_text
from perdure.values.sizes import Sizes

AgentHandle = WorkflowHandle[object, RunResult]


async def start_run(
    client: Client,
    agent: AgentSpec,
    document: Json,
    run_input: Json = None,
    *,
    has_input: bool = False,
    run_id: str | None = None,
    task_queue: str = TASK_QUEUE,
    approval: JsonObject | None = None,
    prompt: JsonObject | None = None,
    sender: str | None = None,
    tenant: str | None = None,
    context: JsonObject | None = None,
    priority: int | None = None,
    delegates: Mapping[str, JsonObject] | None = None,
    memo: Mapping[str, Any] | None = None,
    source: str = "",
    callback: str | None = None,
    fork: Packed | None = None,
    requesters: Sequence[str] = (),
) -> AgentHandle:
    """Start an agent; `approval` is the run's own override of its approval policy (R7.1), `prompt` that of its
    `config.prompt` (R10.19), `sender` and `tenant` its owner in lists, `context` more data about the sender (R19.1),
    `priority` the run's own (default: that of the agent's `config`, R24.3), `delegates` the delegates' agent files by
    name (R8.1), `memo` further memo fields. `fork`: the record of the forked run (R22.1). `source`: the input's source,
    if the user did not write it (R15.2). `callback`: the address that receives its end (R19.8). `requesters`: people,
    besides the sender, whose messages it begins with (R24.6).

    Raises `RunExistsError`, or `RunError` for an invalid id or too large an input. The run itself rejects an input that
    breaks its schema (R2.3).
    """
    if run_id is not None:
        check_new_id(run_id)
    if callback is not None and (problem := check_callback(callback)):
        raise RunError(problem)
    given = RunInput(
        agent=document,
        input=run_input,
        has_input=has_input,
        approval=approval or {},
        prompt=prompt or {},
        delegates=dict(delegates or {}),
        whose=RunOwner(tenant=tenant or "", sender=sender or "", context=context or {}),
        sources={"†input": [source]} if source and has_input else {},
        callback=callback or "",
        fork=fork,
        requesters=[*requesters],
    )
    _check_size(given, MAX_PAYLOAD if client.data_converter.external_storage is None else MAX_STORED)
    try:
        return await start_workflow(
            client,
            start_attributes(agent.name, sender, tenant, agent.version),
            AGENT_WORKFLOW,
            given,
            id=new_run_id(agent) if run_id is None else run_id,
            task_queue=task_queue,
            # An id is never used again: idempotency keys rely on that.
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            result_type=RunResult,
            static_summary=summary(_task(agent, run_input)),
            static_details=agent.description or None,
            memo=owned_memo(tenant) | dict(memo or {}),
            priority=queue_priority(tenant, priority or agent.config.priority),
        )
    except WorkflowAlreadyStartedError:
        raise RunExistsError(f"there is already a run {run_id!r}; show it with: perdure show {run_id}") from None


async def start_workflow(client: Client, attributes: TypedSearchAttributes, *args: Any, **options: Any) -> AgentHandle:
    """Start a workflow with search attributes. Missing ones are registered, as a worker does. Without success it starts
    without them.
    """

    async def started(found_by: TypedSearchAttributes | None) -> AgentHandle | None:
        try:
            handle: AgentHandle = await client.start_workflow(*args, search_attributes=found_by, **options)
        except RPCError as error:
            if not names_attribute(error):
                raise
            return None
        return handle

    if (handle := await started(attributes)) is None:
        await SearchAttributes().ensure(client)
        handle = await started(attributes) or await started(_without_version(attributes)) or await started(None)
    assert handle is not None
    return handle


def _without_version(attributes: TypedSearchAttributes) -> TypedSearchAttributes:
    """Return the search attributes that namespaces of Perdure 0.1.0 know."""
    return TypedSearchAttributes([each for each in attributes if each.key.name != VERSION_ATTRIBUTE])


def _check_size(given: RunInput, limit: int) -> None:
    """Raise `RunError` with the part that is too large, and the limit (R18.8)."""
    if len(given.model_dump_json().encode()) <= limit:
        return
    sizes = {"the input": Sizes().of(given.input), "the agent file": Sizes().of(given.agent)}
    sizes |= {"its delegates": Sizes().of(given.delegates)} if given.delegates else {}
    sizes |= {"the record of the fork": Sizes().of(given.fork.data)} if given.fork else {}
    largest = max(sizes, key=lambda name: sizes[name])
    both = " and ".join(f"{name} has {bytes_text(size)}" for name, size in sizes.items())
    what = (
        f"{largest} has {bytes_text(sizes[largest])}"
        if sizes[largest] > limit
        else f"together they are too large: {both}"
    )
    hint = "" if limit == MAX_STORED else "; a larger one needs external storage (PERDURE_STORAGE), or a file's path"
    raise RunError(f"{what}; the limit is {limit:,}{hint}")


def new_run_id(agent: AgentSpec) -> str:
    name = re.sub(r"[^\w-]+", "-", agent.name).strip("-") or "run"
    return f"{name}-{uuid.uuid4().hex[:8]}"


def _task(agent: AgentSpec, run_input: Json) -> str:
    """Return the task as text: the person's request, if the input has it."""
    if isinstance(run_input, dict):
        for key in ("request", "task", "instruction", "question", "text"):
            if isinstance(run_input.get(key), str):
                return f"{agent.name}: {run_input[key]}"
    return agent.name if agent.description == "" else f"{agent.name}: {agent.description}"


async def describe(client: Client, run_id: str) -> WorkflowExecutionDescription:
    """Describe the run. Raise `RunNotFoundError` if it does not exist, and for another workflow."""
    try:
        description = await client.get_workflow_handle(run_id).describe()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        with clear_errors(client, run_id):
            raise
    if description.workflow_type != AGENT_WORKFLOW:
        raise RunNotFoundError(f"{run_id!r} is a {description.workflow_type} workflow, not a run of an agent")
    return description


async def fetch_origin(client: Client, run_id: str) -> RunOrigin:
    """Return the origin of a run: its input, its owner, and whether it was reset. No worker is queried. Raises `RunNotFoundError`."""
    handle: AgentHandle = client.get_workflow_handle(run_id, result_type=RunResult)
    description = await describe(client, run_id)
    known, given, reset = description.typed_search_attributes, RunInput(agent={}), False
    async for event in handle.fetch_history_events(page_size=1):
        started = event.workflow_execution_started_event_attributes
        reset = bool(started.original_execution_run_id) and started.original_execution_run_id != description.run_id
        # The input of another version's history, or of one without a key here, cannot be read.
        with contextlib.suppress(Exception):
            (given,) = await client.data_converter.decode(started.input.payloads, [RunInput])
        break
    scheduled = schedule_of(known)
    return RunOrigin(
        input=with_time(given.input, scheduled["scheduled_at"].isoformat())
        if given.agent_name and scheduled.get("scheduled_at")
        else given.input,
        has_input=given.has_input,
        sender=given.whose.sender or known.get(SENDER) or "",
        tenant=given.whose.tenant or known.get(TENANT) or "",
        session=given.whose.session,
        context=given.whose.context,
        above=description.parent_id or "",
        reset=reset,
        **scheduled,
    )


_ASKED_AFTER: Final = 20
"""The most notifications of a run whose outcomes are queried, the newest."""
FROM_HISTORY: Final = "no worker answers: the run is shown from its history, without models, reads and writes"
"""The note on a run that has ended, if no worker can replay it."""
WITHOUT_RESULT: Final = "no worker answers, and a terminated run has no result: start a worker to show its calls"
"""The same for a run that was cancelled, terminated, or timed out."""


async def fetch_run(client: Client, run_id: str) -> RunView:
    """Return the run as it is now or as it ended. Raises `RunNotFoundError`, or `NoWorkerError` if no worker answers."""
    handle: AgentHandle = client.get_workflow_handle(run_id, result_type=RunResult)
    description = await describe(client, run_id)
    status = STATUS[description.status] if description.status is not None else "running"
    away = False
    try:
        view: RunView = await answer_of(handle, RUN_QUERY, result_type=RunView, client=client)
    except (RPCError, WorkflowQueryFailedError) as error:
        view, away = RunView(run_id=run_id), True
        if status == "running":
            raise await unanswered(client, run_id, not_shown(error, run_id)) from None
    if status == "running":
        view.trouble = await task_failure(client, description)
        note_unserved(view, description)
        await note_trouble(client, view, description)
        await note_progress(client, view, description)
        note_paused_and_silent(view, description)
    if status in ("completed", "failed"):
        result = await _result(handle)
        if result is not None:  # if the run answers, its view has more than its result
            names = ("error", "stop_reason", "worked") if view.agent else RunResult.model_fields
            view = view.model_copy(update={name: getattr(result, name) for name in names})
            view.trouble = FROM_HISTORY if away else view.trouble
            if status == "failed":  # Temporal has no status for a refusal
                status = result.status
    view.status = status
    if scheduled := schedule_of(description.typed_search_attributes):
        at = scheduled["scheduled_at"]
        view.schedule, view.scheduled_at = scheduled["schedule"], None if at is None else at.isoformat()
    await _note_outcomes(client, view.notifications)
    if status in ("cancelled", "terminated", "timed_out"):
        _note_broken_off(view, status)
        view.trouble = WITHOUT_RESULT if away else view.trouble
    return view


async def _note_outcomes(client: Client, views: list[NotificationView]) -> None:
    """Add the outcomes of notifications that had not ended when the run, or an execution of it, ended."""
    left = [(view, each) for view in views for each in view.routes if each.status == "sending"]
    for view, outcome in left[-_ASKED_AFTER:]:
        id = delivery_id(view.key, outcome.route, alone=len(view.routes) == 1)
        handle = client.get_workflow_handle(id, result_type=NotificationResult)
        try:
            if (await handle.describe()).status == WorkflowExecutionStatus.COMPLETED:
                (ended,) = (await handle.result()).routes
                view.routes = [ended if each is outcome else each for each in view.routes]
        except (RPCError, ValidationError):
            continue  # it was deleted, or has not started


def not_shown(error: RPCError | WorkflowQueryFailedError, run_id: str) -> RunError | ServerError:
    """Return the reason why a run that has not ended cannot be shown."""
    if isinstance(error, RPCError):
        return no_answer(error, run_id)
    # It answered: its message is the reason (R18.8).
    return RunError(f"{run_id!r} cannot be shown: {query_problem(run_id, error)}")


def _note_broken_off(view: RunView, status: RunStatus) -> None:
    """Mark the calls of a run that was terminated or timed out as no longer running. Its workflow could not record
    that.
    """
    words = f"the run was {status.replace('_', ' ')}"
    for call in view.calls:
        if (ended := call.status_without_outcome) != call.status:
            unknown = " before this call had an outcome: whether it took effect is not known"
            call.status, call.reason = ended, words + (unknown if ended == "unknown" else "")
    view.waiting = []


async def read_value(client: Client, run_id: str, what: str) -> str:
    """Return the whole JSON of a value that a view has cut: `output`, `state`, `calls`, `errors`, a reference or a
    call's id (R18.3).

    Raises `RunError` if there is no such value, `NoWorkerError` if no worker answers.
    """
    handle: WorkflowHandle[object, object] = client.get_workflow_handle(run_id)
    parts: list[str] = []
    offset: int | None = 0
    try:
        while offset is not None:
            answer: ValuePage = await answer_of(handle, VALUE_QUERY, what, offset, result_type=ValuePage, client=client)
            if answer.earlier:
                handle = await execution_before(client, handle)
                continue
            parts.append(answer.text)
            offset = answer.next
    except WorkflowQueryFailedError as error:
        raise RunError(f"{what!r} of {run_id!r} cannot be read: {query_problem(run_id, error)}") from None
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            raise
        raise await unanswered(client, run_id, no_answer(error, run_id)) from None
    return "".join(parts)


async def _result(handle: AgentHandle) -> RunResult | None:
    """Return the result of a run that has ended; for a failed one, the result in its failure's details."""
    try:
        return await handle.result(follow_runs=True)
    except WorkflowFailureError as error:
        return failed_result(handle.id, error)


async def wait_for_result(client: Client, run_id: str, timeout: float | None = None) -> RunResult | None:
    """Wait for the run's end, and return its result; `None` if it has none.

    Raises `RunTimeoutError` after `timeout` seconds, also with the reason if no worker runs; the run continues (R10.1).
    For a run that has already ended it never raises that: with 0 it only checks.
    """
    handle: AgentHandle = client.get_workflow_handle(run_id, result_type=RunResult)
    try:
        try:
            return await asyncio.wait_for(_awaited(client, handle), timeout)
        except TimeoutError:
            if goes_on := await _goes_on(client, run_id):
                raise RunTimeoutError(f"{run_id} has not ended after {timeout:g} s{goes_on}") from None
            return await _awaited(client, handle)
    except WorkflowFailureError:
        return None
    except ValidationError:
        await describe(client, run_id)
        raise


async def _awaited(client: Client, handle: AgentHandle) -> RunResult:
    """Return the run's result. Repeat the request if the server ends it without an answer, as the test server does.

    A reset terminates the run's execution, and the run continues in another one, whose end counts.
    """
    while True:
        try:
            return await handle.result()
        except RuntimeError as error:
            if "No completion event" not in str(error):
                raise
        except WorkflowFailureError as error:
            if not isinstance(error.cause, TerminatedError) or await _is_terminated(client, handle.id):
                raise


async def _is_terminated(client: Client, run_id: str) -> bool:
    """Whether the run's newest execution was terminated."""
    return (await describe(client, run_id)).status == WorkflowExecutionStatus.TERMINATED


async def _goes_on(client: Client, run_id: str) -> str:
    """Return a sentence about a run that has not ended in time; empty if it has."""
    with contextlib.suppress(RPCError):  # the server may not answer for a moment: the time is over
        description = await describe(client, run_id)
        if description.status is not None and STATUS[description.status] != "running":
            return ""
        if why := await explain_wait(client, description):
            return f": {why}"
    return "; it continues"


async def wait_run(client: Client, run_id: str, timeout: float | None = None) -> RunView:
    """Wait for the run's end, and return its view, whatever its status. Raises as `wait_for_result` does."""
    await wait_for_result(client, run_id, timeout)
    return await fetch_run(client, run_id)


async def wait_for_status(client: Client, run_id: str, timeout: float) -> WaitResult:
    """Wait for the run's end, and return its status, or `timeout` (R10.1)."""
    handle: AgentHandle = client.get_workflow_handle(run_id, result_type=RunResult)
    with contextlib.suppress(RunTimeoutError):
        await wait_for_result(client, run_id, timeout)
    found = await describe(client, run_id)
    status = "running" if found.status is None else STATUS[found.status]
    began = found.start_time.isoformat(timespec="milliseconds")
    if status == "running" or found.close_time is None:
        return WaitResult(status="timeout", started_at=began)
    error = None
    if status != "completed":
        result = await _result(handle) if status == "failed" else None
        error = (result and result.error) or f"the run was {status.replace('_', ' ')}"
    over = found.close_time.isoformat(timespec="milliseconds")
    return WaitResult(status="ok" if error is None else "error", started_at=began, ended_at=over, error=error)


async def effects_of(client: Client, run_id: str) -> RunEffects:
    """Return the effects of a run, with the state of their undo."""
    await describe(client, run_id)
    return await read_effects(client, run_id)


async def plan_undo_of(
    client: Client, run_id: str, to: str | None = None, no_effect: Sequence[str] = ()
) -> tuple[RunEffects, UndoPlan, RunInput | None]:
    """Return the plan of a run's undo. Raises `RunError` for a run that has not ended, or is being undone."""
    if (await describe(client, run_id)).status is WorkflowExecutionStatus.RUNNING:
        raise RunError(
            f"{run_id} is running: only a run that has ended can be undone. End it with: perdure cancel {run_id}"
        )
    found = await read_effects(client, run_id)
    found.settle(no_effect)
    if found.open:
        raise RunExistsError(f"{run_id} is already being undone: perdure show {found.open}")
    return found, *plan_undo(found, to=to)


async def start_undo(
    client: Client, run_id: str, to: str | None = None, no_effect: Sequence[str] = (), by: str = ""
) -> AgentHandle:
    """Start the undo of a run. Raises `RunError` if it has nothing to undo."""
    found, plan, given = await plan_undo_of(client, run_id, to, no_effect)
    if given is None:
        stays = len(plan.cannot) + len(plan.waits)
        stay = "stays" if stays == 1 else "stay"
        more = f"; {pluralize(stays, 'call')} {stay}: perdure undo {run_id} --dry-run" if stays else ""
        raise RunError(f"{run_id} has no call that can be undone now{more}")
    if by and given.undo is not None:
        record = given.undo.read(UndoRecord, UNDO_FORM, "the record of the undo")
        named = pack(record.model_copy(update={"by": by}), UNDO_FORM)
        given = given.model_copy(update={"undo": named, "requesters": [*given.requesters, by]})
    description = await describe(client, run_id)
    agent, owner = parse_agent(given.agent), given.whose
    own = description.raw_description.workflow_execution_info.priority.priority_key
    try:
        return await start_workflow(
            client,
            start_attributes(agent.name, owner.sender or None, owner.tenant or None),
            AGENT_WORKFLOW,
            given,
            id=found.next_id,
            task_queue=description.task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            result_type=RunResult,
            static_summary=summary(f"undo of {run_id}"),
            static_details=agent.description or None,
            memo=owned_memo(owner.tenant or None),
            priority=queue_priority(owner.tenant or None, own or agent.config.priority),
        )
    except WorkflowAlreadyStartedError:
        raise RunExistsError(f"{run_id} is already being undone: perdure show {found.next_id}") from None
