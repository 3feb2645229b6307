"""The effects of a run with the state of their undo, from the server and the workers (R23.4)."""

from __future__ import annotations

from typing import Final

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from perdure.errors import RunError, RunNotFoundError
from perdure.queries._answers import answer_of, continued_execution, execution_before
from perdure.runs.claim_check import EFFECTS, PAYLOADS_QUERY
from perdure.runs.undo import Effect, EffectChunk, RunEffects, effect_of_runs, undo_id
from perdure.runs.wire import AGENT_WORKFLOW
from perdure.values.limits import MAX_UNDO_DEPTH

_NEVER_BEGAN: Final = "closed before WorkflowTaskStarted"
"""The server's message for an execution that ended before a worker took it."""


async def read_effects(client: Client, run_id: str, depth: int = 0) -> RunEffects:
    """Return the effects of all executions of a run, with the state of their undo.

    `below` of a delegate's call lists the child runs whose effects can be undone. The call is left out if its child runs
    have had no effects, such as a run that was refused before its preparation. A child run that is running or gone makes
    the call unknown.

    Raises `RunNotFoundError` for a run with an execution that is no longer kept, and the errors of a query.
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
    try:
        answer = await answer_of(handle, PAYLOADS_QUERY, EFFECTS.name, [str(number)], result_type=dict, client=client)
    except RPCError as error:
        if _NEVER_BEGAN not in error.message:
            raise
        answer = {}
    if (chunk := answer.get(str(number))) is not None:
        return EffectChunk.model_validate(chunk)
    # An execution without preparation has no effects of its own.
    return EffectChunk(earlier=await continued_execution(handle) != "")


async def _take_in_undos(client: Client, found: RunEffects) -> None:
    while (description := await describe(client, found.next_id)) is not None:
        goes_on = description.status is WorkflowExecutionStatus.RUNNING
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
    return {effect.call for effect in found.effects if effect.status == "undone" and not effect.stays}


async def _below(client: Client, run_id: str, effect: Effect, depth: int) -> Effect | None:
    """Return the effect, with those of child runs for a delegate or a loop of runs; `None` if these runs have none."""
    return (
        effect_of_runs(effect, await _read_runs(client, f"{run_id}/{effect.call}", depth + 1))
        if effect.runs
        else effect
    )


async def _read_runs(client: Client, workflow_id: str, depth: int) -> dict[str, list[Effect] | str]:
    """Return, by run id, the effects of each child run, or the reason why they are not known. `workflow_id`: a delegate's run, or
    a loop.
    """
    runs: dict[str, list[Effect] | str] = {}
    try:
        description = await client.get_workflow_handle(workflow_id).describe()
        is_run = description.workflow_type == AGENT_WORKFLOW
        for each in () if is_run else await children_of(client, workflow_id, AGENT_WORKFLOW):
            runs |= await _read_runs(client, each, depth)
        if description.status is WorkflowExecutionStatus.RUNNING:
            runs[workflow_id] = f"{workflow_id} is running: which effects it will have is not known"
        elif is_run:
            runs[workflow_id] = (await read_effects(client, workflow_id, depth)).effects
    except (RPCError, RunNotFoundError) as error:
        runs[workflow_id] = _explain_gone(error, workflow_id)
    return runs


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
