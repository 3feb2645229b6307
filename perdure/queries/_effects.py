"""The effects of a run with the state of their undo, from the server and the workers (R23.4)."""

from __future__ import annotations

from contextlib import suppress

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from perdure.errors import RunError, RunNotFoundError
from perdure.queries._answers import answer_of, execution_before
from perdure.runs.claim_check import EFFECTS, PAYLOADS_QUERY
from perdure.runs.undo import Effect, EffectChunk, RunEffects, effect_of_runs, undo_id
from perdure.runs.wire import AGENT_WORKFLOW
from perdure.values.limits import MAX_UNDO_DEPTH


async def read_effects(client: Client, run_id: str, depth: int = 0) -> RunEffects:
    """Return the effects of all executions of a run, with the state of their undo.

    `below` of a delegate's call lists the child runs whose effects can be undone. The call is left out if its child runs
    have had no effects. A child run that is running or gone makes the call unknown.

    Raises `RunError` for a run that has not begun, `RunNotFoundError` for one with an execution that is no longer kept,
    and the errors of a query.
    """
    found, executions = RunEffects(run_id), []
    handle: WorkflowHandle[object, object] = client.get_workflow_handle(run_id)
    while True:
        chunks = [await _chunk(client, handle, 0)]
        while chunks[-1].more:
            chunks.append(await _chunk(client, handle, len(chunks)))
        executions.append(chunks)
        found.base = found.base or chunks[0].base
        if not chunks[0].earlier:
            break
        handle = await execution_before(client, handle)
    if found.base is None:
        raise RunError(f"{run_id} has not started, so it has nothing to undo")
    count = len(executions)
    for number, chunks in enumerate(reversed(executions)):
        for chunk in chunks:
            found.effects += chunk.effects
            found.order += [(_named(first, number), _named(second, number)) for first, second in chunk.order]
        if number < count - 1:
            ends = {second for _, second in found.order if second.startswith("plan ") and second.endswith(f"/{number}")}
            found.order += [(end, f"plan 0/{number + 1}") for end in ends]
    await _take_in_undos(client, found)
    if depth < MAX_UNDO_DEPTH:
        below = [await _below(client, run_id, effect, depth) for effect in found.effects]
        found.effects = [effect for effect in below if effect is not None]
    return found


def _named(node: str, execution: int) -> str:
    """Return the unique name of a barrier between plans: each execution counts its barriers from 0."""
    return f"{node}/{execution}" if node.startswith("plan ") else node


async def _chunk(client: Client, handle: WorkflowHandle[object, object], number: int) -> EffectChunk:
    answer = await answer_of(handle, PAYLOADS_QUERY, EFFECTS.name, [str(number)], result_type=dict, client=client)
    if (chunk := answer.get(str(number))) is None:
        raise RunError(f"{handle.id} has not started, so it has nothing to undo")
    return EffectChunk.model_validate(chunk)


async def _take_in_undos(client: Client, found: RunEffects) -> None:
    while (description := await describe(client, found.next_id)) is not None:
        goes_on = description.status is WorkflowExecutionStatus.RUNNING
        with suppress(RunError):
            undone = (await _chunk(client, client.get_workflow_handle(found.next_id), 0)).undone
            found.take_in(undone or {}, goes_on=goes_on)
        found.open = found.next_id if goes_on else found.open
        found.next += 1


async def describe(client: Client, workflow_id: str) -> WorkflowExecutionDescription | None:
    """Return the description of a workflow; `None`: there is none."""
    try:
        return await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise


async def was_undone(client: Client, run_id: str) -> bool:
    """Whether any effect of the run was ever undone."""
    return await describe(client, undo_id(run_id, 1)) is not None


async def undone_calls(client: Client, run_id: str) -> set[str]:
    """Return the ids of a run's calls whose effects were all undone. Raises `RunError` while it is being undone."""
    if not await was_undone(client, run_id):
        return set()
    found = await read_effects(client, run_id)
    if found.open:
        raise RunError(f"{run_id} is being undone: wait for the end of {found.open}")
    return {effect.call for effect in found.effects if effect.status == "undone"}


async def _below(client: Client, run_id: str, effect: Effect, depth: int) -> Effect | None:
    """Return the effect, with those of child runs for a delegate or a loop of runs; `None` if these runs have none."""
    if not effect.runs:
        return effect
    workflow_id = f"{run_id}/{effect.call}"
    runs: dict[str, list[Effect] | str] = {}
    try:
        description = await client.get_workflow_handle(workflow_id).describe()
        is_run = description.workflow_type == AGENT_WORKFLOW
        for each in [workflow_id] if is_run else await children_of(client, workflow_id, AGENT_WORKFLOW):
            runs[each] = await _read_below(client, each, depth + 1)
        if description.status is WorkflowExecutionStatus.RUNNING:
            runs[workflow_id] = _explain_running(workflow_id)
    except RPCError as error:
        runs[workflow_id] = _explain_gone(error, workflow_id)
    return effect_of_runs(effect, runs)


async def _read_below(client: Client, run_id: str, depth: int) -> list[Effect] | str:
    """Return the effects of a child run, or the reason why they are not known."""
    try:
        if (await client.get_workflow_handle(run_id).describe()).status is WorkflowExecutionStatus.RUNNING:
            return _explain_running(run_id)
        return (await read_effects(client, run_id, depth)).effects
    except (RPCError, RunNotFoundError) as error:
        return _explain_gone(error, run_id)


def _explain_running(workflow_id: str) -> str:
    return f"{workflow_id} is running: which effects it will have is not known"


def _explain_gone(error: RPCError | RunNotFoundError, workflow_id: str) -> str:
    """Return the reason why the effects of a workflow that is gone are unknown. Raises any other error."""
    if isinstance(error, RPCError) and error.status is not RPCStatusCode.NOT_FOUND:
        raise error
    gone = f"{workflow_id} is no longer on the server" if isinstance(error, RPCError) else str(error)
    return f"{gone}: whether it took effect is not known"


async def children_of(client: Client, workflow_id: str, workflow_type: str) -> list[str]:
    """Return the ids of the children of this type that a workflow has started, in order. Raise `RPCError` if its
    history is gone.
    """
    handle: WorkflowHandle[object, object] = client.get_workflow_handle(workflow_id)
    known: list[str] = []
    while True:
        first, here = "", list[str]()
        async for event in handle.fetch_history_events():
            first = first or event.workflow_execution_started_event_attributes.continued_execution_run_id
            if event.event_type == EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED:
                started = event.child_workflow_execution_started_event_attributes
                if started.workflow_type.name == workflow_type:
                    here.append(started.workflow_execution.workflow_id)
        known = [*here, *known]
        if not first:
            return list(dict.fromkeys(known))
        handle = client.get_workflow_handle(workflow_id, run_id=first)
