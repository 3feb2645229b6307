"""What was sent to the model and what it answered, word for word.

No prompt is stored: a run's history reproduces each exactly, so the history is replayed, and every Request's context taken
down as it is made (R6.8). Answers are in the history themselves.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from temporalio import workflow
from temporalio.client import Client, WorkflowHistory
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.worker import (
    ExecuteWorkflowInput,
    Interceptor,
    Replayer,
    StartActivityInput,
    UnsandboxedWorkflowRunner,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from perdure.client.histories import executions, quiet_runtime
from perdure.errors import RunError
from perdure.model.wire import RequestContext, RequestInput, RequestResult
from perdure.run.wire import MODEL_REFUSED, REQUEST_ACTIVITY, RunStatus, RunView
from perdure.tools.tool import Tool
from perdure.workflows.agent import AgentWorkflow


@dataclass
class Exchange:
    """One Request: what was sent, and what came back (`None`: nothing yet, or nothing at all)."""

    request: RequestInput
    context: RequestContext
    """What the prompt was made of."""
    answer: RequestResult | None = None
    """`None`: there is none yet, or it never came."""


@dataclass
class Audit:
    """What a run's history reproduces."""

    exchanges: list[Exchange] = field(default_factory=list)
    """Every Request, in its order."""
    view: RunView | None = None
    """The run at its end; `None`: it has not ended."""
    tools: list[Tool] = field(default_factory=list)
    """Those that it had."""


async def exchanges(client: Client, run_id: str) -> list[Exchange]:
    """Every Request of the run, in its order. Raises `RunError` where its history is another program's."""
    return (await audit_run(client, run_id)).exchanges


async def audit_run(client: Client, run_id: str) -> Audit:
    """What the run's history reproduces; no worker has to run. Raises `RunError` where its history is another program's."""
    found = Audit()
    async for history in executions(client, run_id):
        recorder = _Recorder()
        replayer = Replayer(
            workflows=[AgentWorkflow],
            interceptors=[recorder],
            data_converter=client.data_converter,
            workflow_runner=UnsandboxedWorkflowRunner(),
            runtime=quiet_runtime(),
        )
        result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
        if result.replay_failure is not None:
            message = f"the history of {run_id} cannot be replayed by this version of Perdure: {result.replay_failure}"
            raise RunError(message)
        answers = await _answers(client, history)
        for exchange in recorder.audit.exchanges:
            exchange.answer = answers.get((exchange.request.number, exchange.request.earlier_attempts))
        found.exchanges += recorder.audit.exchanges
        found.view, found.tools = recorder.audit.view, recorder.audit.tools
    return found


async def _answers(client: Client, history: WorkflowHistory) -> dict[tuple[int, int], RequestResult]:
    answers: dict[tuple[int, int], RequestResult] = {}
    asked: dict[int, RequestInput] = {}
    for event in history.events:
        scheduled = event.activity_task_scheduled_event_attributes
        completed = event.activity_task_completed_event_attributes
        if scheduled.activity_type.name == REQUEST_ACTIVITY:
            [request] = await client.data_converter.decode(scheduled.input.payloads, [RequestInput])
            asked[event.event_id] = request
        elif completed.scheduled_event_id in asked:
            [answer] = await client.data_converter.decode(completed.result.payloads, [RequestResult])
            request = asked[completed.scheduled_event_id]
            answers[request.number, request.earlier_attempts] = answer
    return answers


class _Recorder(Interceptor):
    """Takes down the context of every Request at the moment when its activity is started, and the run at its end."""

    def __init__(self) -> None:
        self.audit = Audit()

    def workflow_interceptor_class(self, _: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        audit = self.audit

        class Outbound(WorkflowOutboundInterceptor):
            def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
                if input.activity == REQUEST_ACTIVITY:
                    request: RequestInput = input.args[0]
                    run: AgentWorkflow = workflow.instance()
                    audit.exchanges.append(Exchange(request, run.context(request.number)))
                return super().start_activity(input)

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(Outbound(outbound))

            async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
                try:
                    result = await super().execute_workflow(input)
                except BaseException as error:
                    if not isinstance(error, GeneratorExit):  # then it is only put out of memory
                        self._take(_status_of(error))
                    raise
                self._take("completed")
                return result

            def _take(self, status: RunStatus) -> None:
                run: AgentWorkflow = workflow.instance()
                audit.view, audit.tools = run.view(), run.tools
                audit.view.status = status

        return Inbound


def _status_of(error: BaseException) -> RunStatus:
    if isinstance(error, ApplicationError) and error.type == MODEL_REFUSED:
        return "refused"
    return _STATUS.get(type(error), "failed")


_STATUS: Final[dict[type[BaseException], RunStatus]] = {
    asyncio.CancelledError: "cancelled",
    CancelledError: "cancelled",
    workflow.ContinueAsNewError: "running",
}
