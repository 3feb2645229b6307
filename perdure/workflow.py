"""Agents inside a user's own workflows (R13.5): `await perdure.workflow.run_agent(shopper, {...})`.

The worker needs `PerdurePlugin`, which lets this through the sandbox and makes every error here fail the workflow, not its task.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import Priority as TaskPriority
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import (
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    TerminatedError,
    TimeoutError,
    WorkflowAlreadyStartedError,
)
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy
from typing_extensions import TypeVar

from perdure.agents.agent import Agent
from perdure.agents.options import ApprovalOptions
from perdure.approvals.policy import parse_policy
from perdure.client.errors import run_failed
from perdure.errors import RunError, RunExistsError
from perdure.hooks.events import RunOwner
from perdure.runs.agent import check_run_id
from perdure.runs.views import summary
from perdure.runs.wire import AGENT_WORKFLOW, RunInput, RunResult, RunStatus, RunView
from perdure.values.json import JsonObject
from perdure.values.limits import MAX_PAYLOAD, MAX_STORED, bytes_text
from perdure.values.messages import Priority, check_priority
from perdure.values.references import MISSING

T = TypeVar("T")

__all__ = ["run_agent"]


async def run_agent(
    agent: Agent[T],
    input: object = MISSING,
    *,
    id: str | None = None,
    task_queue: str | None = None,
    approval: ApprovalOptions | None = None,
    sender: str | None = None,
    tenant: str | None = None,
    context: object = None,
    priority: Priority | None = None,
    timeout: timedelta | None = None,
) -> T:
    """Run the agent as a child of the calling workflow, wait for its end, and return its output as the type of the
    agent's output.

    `input`, `approval`, `sender`, `tenant`, `context`: as `Perdure.start` has them. `id`: the run's id; by default the workflow's id, the agent's name
    and a random part. `task_queue`: the queue of workers with the agent's tools (default: the workflow's own).
    `timeout`: of the whole run, waits for people included (default: none). `priority`: 1 to 5, 1 first (default: the agent's, or else the
    workflow's). If the workflow is cancelled or ends, the
    run is cancelled; a cancelled run is waited for.

    Raises `InputError` and `DecisionError` as `Perdure.start` does, `RunExistsError` if the id is taken, `RunError` if
    agent and input are too large, `RunFailedError` if the run ended without an output, and `OutputError` if the output
    is not of the type.

    ```python
    @workflow.defn
    class Order:
        @workflow.run
        async def run(self, request: str) -> Any:
            return await run_agent(shopper, {"request": request}, timeout=timedelta(hours=1))
    ```
    """
    agent.check_input(input)
    run_id = id or f"{workflow.info().workflow_id}/{agent.name}-{workflow.uuid4().hex[:8]}"
    chosen = agent.version_for(run_id, tenant=tenant or "")
    value = chosen.check_input(input)
    change: JsonObject = {**(approval or {})}
    parse_policy(change)
    given = RunInput(
        agent=chosen.document(),
        input=None if value is MISSING else value,
        has_input=value is not MISSING,
        approval=change,
        whose=RunOwner(tenant=tenant or "", sender=sender or "", context=chosen.check_context(context)),
        delegates=chosen.delegates(),
        free=MAX_STORED,  # nobody above keeps the room of its history for it
    )
    _check(given, run_id)
    try:
        result: RunResult = await workflow.execute_child_workflow(
            AGENT_WORKFLOW,
            given,
            id=run_id,
            task_queue=task_queue,
            result_type=RunResult,
            execution_timeout=timeout,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
            cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
            static_summary=summary(f"the agent {agent.name}"),
            priority=TaskPriority(priority_key=check_priority(priority) or chosen.parsed.config.priority),
        )
    except WorkflowAlreadyStartedError:
        raise RunExistsError(f"there is already a run {run_id!r}") from None
    except ChildWorkflowError as error:
        task = asyncio.current_task()
        if isinstance(error.cause, CancelledError) and task is not None and task.cancelling():
            raise asyncio.CancelledError from error
        raise run_failed(_view(run_id, error)) from error
    return agent.read_output(result.output)


def _check(given: RunInput, run_id: str) -> None:
    """Raise `RunError` for a start that the server would reject: it would fail the workflow task again and again."""
    size = len(given.model_dump_json().encode())
    if size > MAX_PAYLOAD:
        raise RunError(f"agent and input have {bytes_text(size)}; the limit is {MAX_PAYLOAD:,}")
    check_run_id(run_id)


def _view(run_id: str, error: ChildWorkflowError) -> RunView:
    """Return the view of a run that failed, from the details of its failure."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        details: Any = cause.details[0] if cause.details else None
        if isinstance(details, dict):
            return RunView.model_validate(details)
        return RunView(run_id=run_id, status="failed", error=cause.message)
    kinds: list[tuple[type[BaseException], RunStatus]] = [
        (CancelledError, "cancelled"),
        (TerminatedError, "terminated"),
        (TimeoutError, "timed_out"),
    ]
    status = next((status for kind, status in kinds if isinstance(cause, kind)), "failed")
    return RunView(run_id=run_id, status=status, error=None if status != "failed" else str(cause or error))
