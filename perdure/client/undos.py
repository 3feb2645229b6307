"""Undo of a run through a client: its effects, the plan, and the start of the undo run (R23.4)."""

from __future__ import annotations

from collections.abc import Sequence

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from perdure.client._run_lists import start_attributes
from perdure.client.run_operations import AgentHandle, describe, start_workflow
from perdure.client.tenancy import owned_memo, share
from perdure.errors import RunError, RunExistsError
from perdure.queries import read_effects
from perdure.runs.agent import parse_agent
from perdure.runs.undo import UNDO_FORM, RunEffects, UndoPlan, UndoRecord, plan_undo
from perdure.runs.views import summary
from perdure.runs.wire import AGENT_WORKFLOW, RunInput, RunResult
from perdure.values.json import pack


async def effects_of(client: Client, run_id: str) -> RunEffects:
    """Return the effects of a run, with the state of their undo."""
    handle: AgentHandle = client.get_workflow_handle(run_id, result_type=RunResult)
    await describe(handle)
    return await read_effects(client, run_id)


async def plan_undo_of(
    client: Client, run_id: str, to: str | None = None, no_effect: Sequence[str] = ()
) -> tuple[RunEffects, UndoPlan, RunInput | None]:
    """Return the plan of a run's undo. Raises `RunError` for a run that has not ended, or is being undone."""
    handle: AgentHandle = client.get_workflow_handle(run_id, result_type=RunResult)
    if (await describe(handle)).status is WorkflowExecutionStatus.RUNNING:
        raise RunError(
            f"{run_id} goes on: only a run that has ended can be undone. End it with: perdure cancel {run_id}"
        )
    found = await read_effects(client, run_id)
    found.settle(no_effect)
    if found.open:
        raise RunError(f"{run_id} is being undone already: perdure show {found.open}")
    return found, *plan_undo(found, to=to)


async def start_undo(
    client: Client, run_id: str, to: str | None = None, no_effect: Sequence[str] = (), by: str = ""
) -> AgentHandle:
    """Start the undo of a run. Raises `RunError` if it has nothing to undo."""
    found, plan, given = await plan_undo_of(client, run_id, to, no_effect)
    if given is None:
        stays = len(plan.cannot) + len(plan.waits)
        more = f"; {stays} calls stay: perdure undo {run_id} --dry-run" if stays else ""
        raise RunError(f"{run_id} has nothing that can be undone now{more}")
    if by and given.undo is not None:
        record = given.undo.read(UndoRecord, UNDO_FORM, "the record of the undo")
        given = given.model_copy(update={"undo": pack(record.model_copy(update={"by": by}), UNDO_FORM)})
    description = await describe(client.get_workflow_handle(run_id))
    agent, owner = parse_agent(given.agent), given.whose
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
            priority=share(owner.tenant or None, agent.config.priority),
        )
    except WorkflowAlreadyStartedError:
        raise RunExistsError(f"{run_id} is being undone already: perdure show {found.next_id}") from None
