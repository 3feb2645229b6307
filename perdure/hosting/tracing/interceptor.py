"""What a client and its workers trace with."""

from __future__ import annotations

from typing import Any

from temporalio import client, worker

from perdure.hosting.tracing.activities import TracedActivity
from perdure.hosting.tracing.spans import Spans, current
from perdure.hosting.tracing.workflows import END, SAMPLED, TracedWorkflow


class Tracing(client.Interceptor, worker.Interceptor):
    """Spans by the names of `perdure.hosting.tracing.names`. A run that is started within a span of the caller's own stands below it."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def intercept_client(self, next: client.OutboundInterceptor) -> client.OutboundInterceptor:
        return _Outbound(next)

    def intercept_activity(self, next: worker.ActivityInboundInterceptor) -> worker.ActivityInboundInterceptor:
        return TracedActivity(next, self._spans)

    def workflow_interceptor_class(self, input: worker.WorkflowInterceptorClassInput) -> type[TracedWorkflow]:
        input.unsafe_extern_functions[END] = self._spans.end
        input.unsafe_extern_functions[SAMPLED] = self._spans.sampled
        return TracedWorkflow


class _Outbound(client.OutboundInterceptor):
    async def start_workflow(self, input: client.StartWorkflowInput) -> client.WorkflowHandle[Any, Any]:
        if (place := current()) is not None:
            input.headers = place.headers(input.headers)
        return await super().start_workflow(input)
