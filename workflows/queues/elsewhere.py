"""A call whose worker lacks its tool is for another one: it goes by way of the server, not at once to the worker that sends it (R12.5)."""

from __future__ import annotations

from typing import Any

from temporalio import worker, workflow

with workflow.unsafe.imports_passed_through():
    from perdure.tools.wire import ToolInput


class Elsewhere(worker.Interceptor):
    """A worker takes up itself, "eagerly", what its own workflow tasks send, which is fast; what it lacks would come back to it each time."""

    def workflow_interceptor_class(self, _: worker.WorkflowInterceptorClassInput) -> type[_Inbound]:
        return _Inbound


class _Inbound(worker.WorkflowInboundInterceptor):
    def init(self, outbound: worker.WorkflowOutboundInterceptor) -> None:
        super().init(_Outbound(outbound))


class _Outbound(worker.WorkflowOutboundInterceptor):
    def start_activity(self, input: worker.StartActivityInput) -> workflow.ActivityHandle[Any]:
        if any(isinstance(argument, ToolInput) and argument.elsewhere for argument in input.args):
            input.disable_eager_execution = True
        return super().start_activity(input)
