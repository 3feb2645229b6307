"""What was sent to the model and what it answered, word for word.

No prompt is stored: a run's history reproduces each exactly, so the history is replayed, and every Request's context taken
down as it is made (R6.8). Answers are in the history themselves.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from temporalio import workflow
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import (
    Interceptor,
    Replayer,
    StartActivityInput,
    UnsandboxedWorkflowRunner,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from perdure.errors import RunError
from perdure.model.wire import RequestContext, RequestInput, RequestResult
from perdure.run.wire import REQUEST_ACTIVITY
from perdure.workflows.agent import AgentWorkflow


@dataclass
class Exchange:
    """One Request: what was sent, and what came back (`None`: nothing yet, or nothing at all)."""

    request: RequestInput
    context: RequestContext
    answer: RequestResult | None = None


async def exchanges(client: Client, run_id: str) -> list[Exchange]:
    """Every Request of the run, in its order. Raises `RunError` where its history is another program's."""
    found: list[Exchange] = []
    async for history in _executions(client, run_id):
        recorder = _Recorder()
        replayer = Replayer(
            workflows=[AgentWorkflow],
            interceptors=[recorder],
            data_converter=client.data_converter,
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
        if result.replay_failure is not None:
            message = f"the history of {run_id} cannot be replayed by this version of Perdure: {result.replay_failure}"
            raise RunError(message)
        answers = await _answers(client, history)
        for exchange in recorder.exchanges:
            exchange.answer = answers.get((exchange.request.number, exchange.request.earlier_attempts))
        found += recorder.exchanges
    return found


async def _executions(client: Client, run_id: str) -> AsyncIterator[WorkflowHistory]:
    """The histories of a run that may have gone on as new, first to last (R6.8)."""
    description = await client.get_workflow_handle(run_id).describe()
    following = description.raw_info.first_run_id or description.run_id
    while following:
        history = await client.get_workflow_handle(run_id, run_id=following).fetch_history()
        yield history
        last = history.events[-1]
        following = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id


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
    """Takes down the context of every Request at the moment when its activity is started."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []

    def workflow_interceptor_class(self, _: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        exchanges = self.exchanges

        class Outbound(WorkflowOutboundInterceptor):
            def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
                if input.activity == REQUEST_ACTIVITY:
                    request: RequestInput = input.args[0]
                    run: AgentWorkflow = workflow.instance()
                    exchanges.append(Exchange(request, run.context(request.number)))
                return super().start_activity(input)

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(Outbound(outbound))

        return Inbound
