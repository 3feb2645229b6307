"""The spans of workflows: `invoke_agent` for each run, over continue-as-new too, and `plan` for each Request in it.

A workflow's code runs again whenever it is replayed, so nothing here is made as it begins: ids are reckoned from the run's own, which is how
those below know theirs, and a span is told of once, when it has ended and no replay is under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final, NoReturn

from pydantic import ValidationError
from temporalio import worker, workflow
from temporalio.exceptions import ApplicationError, FailureError

from perdure.errors import PerdureError
from perdure.hosting.tracing import names
from perdure.hosting.tracing.carrier import Place, place_in, span_id, trace_id
from perdure.hosting.tracing.spans import Attributes, Ended
from perdure.model.wire import RequestInput
from perdure.run.wire import AGENT_WORKFLOW, REQUEST_ACTIVITY, RunResult
from perdure.sessions.wire import SESSION_WORKFLOW

END: Final = "__perdure_span"
SAMPLED: Final = "__perdure_sampled"
_ENDS: Final = (FailureError, PerdureError, ValidationError)
"""What ends a run; anything else fails a task, which is tried again."""


class _Trace:
    """Where one execution stands."""

    def __init__(self) -> None:
        info = workflow.info()
        functions = workflow.extern_functions()
        self._end: Callable[[Ended], None] = functions[END]
        self._run = f"{info.workflow_id} {info.first_execution_run_id}"
        self.parent = place_in(info.headers)
        """A continued execution is told its own parent."""
        self.agent = ""
        self.late: list[Ended] = []
        """Of Requests that were cancelled: whether by the run, or only because this worker forgets it, shows when it goes on."""
        self.here = self.parent
        if info.workflow_type == AGENT_WORKFLOW:
            own = span_id(f"{names.INVOKE_AGENT} {self._run}")
            began = self.parent.began if self.parent is not None else None
            self.began = began if began is not None else round(info.start_time.timestamp() * 1e9)
            if self.parent is not None:
                self.here = Place(self.parent.trace, own, self.parent.sampled)
            else:
                trace = trace_id(self._run)
                self.here = Place(trace, own, functions[SAMPLED](trace, names.INVOKE_AGENT))
        elif info.workflow_type == SESSION_WORKFLOW:
            self.here = None  # it has no end: each of its runs is a trace of its own, and names the conversation

    def at(self, what: str) -> Place | None:
        """The place of something in this run."""
        return None if self.here is None else Place(self.here.trace, span_id(f"{what} {self._run}"), self.here.sampled)

    def going_on(self) -> Place | None:
        """What the execution that follows is told."""
        if workflow.info().workflow_type != AGENT_WORKFLOW or self.here is None:
            return self.here
        return Place(self.here.trace, self.parent.span if self.parent is not None else 0, self.here.sampled, self.began)

    def attributes(self, operation: str) -> Attributes:
        info = workflow.info()
        found: Attributes = {names.OPERATION: operation, names.WORKFLOW_ID: info.workflow_id, names.RUN_ID: info.run_id}
        if self.agent:
            found[names.AGENT] = self.agent
        if info.root is not None and info.root.workflow_id.startswith("session-"):
            found[names.CONVERSATION] = info.root.workflow_id
        return found

    def ended(self, span: Ended) -> None:
        if not workflow.unsafe.is_replaying():
            for each in (*self.late, span):
                self._end(each)
        self.late.clear()


class TracedWorkflow(worker.WorkflowInboundInterceptor):
    """Round one execution."""

    def init(self, outbound: worker.WorkflowOutboundInterceptor) -> None:
        super().init(_Outbound(outbound, self))

    @cached_property
    def trace(self) -> _Trace:
        """Of this execution; it cannot be asked who it is before it begins."""
        return _Trace()

    async def execute_workflow(self, input: worker.ExecuteWorkflowInput) -> Any:
        if workflow.info().workflow_type != AGENT_WORKFLOW:
            return await super().execute_workflow(input)
        self.trace.agent = _agent(input.args)
        try:
            result = await super().execute_workflow(input)
        except _ENDS as error:
            self._ended(_failure(error), _result(error))
            raise
        except asyncio.CancelledError:
            if workflow.cancellation_reason() is not None:  # else this worker only forgets it
                self._ended("cancelled", None)
            raise
        self._ended(None, result if isinstance(result, RunResult) else None)
        return result

    def _ended(self, error: str | None, result: RunResult | None) -> None:
        trace = self.trace
        assert trace.here is not None
        attributes = trace.attributes(names.INVOKE_AGENT)
        if result is not None:
            used = result.usage
            attributes |= {names.INPUT_TOKENS: used.prompt_tokens, names.OUTPUT_TOKENS: used.completion_tokens}
            attributes |= {names.CACHED_TOKENS: used.cached_tokens} if used.cached_tokens else {}
            attributes |= {names.STOP: result.stop_reason} if result.stop_reason else {}
        name = f"{names.INVOKE_AGENT} {trace.agent}".rstrip()
        parent = trace.parent if trace.parent is not None and trace.parent.span else None
        trace.ended(Ended(name, trace.here, parent, trace.began, workflow.time_ns(), attributes, error))


class _Outbound(worker.WorkflowOutboundInterceptor):
    def __init__(self, next: worker.WorkflowOutboundInterceptor, above: TracedWorkflow) -> None:
        super().__init__(next)
        self._above = above

    @property
    def _trace(self) -> _Trace:
        return self._above.trace

    def start_activity(self, input: worker.StartActivityInput) -> workflow.ActivityHandle[Any]:
        place = self._trace.here
        if input.activity == REQUEST_ACTIVITY and place is not None:
            place, began = self._trace.at(f"{names.PLAN} {input.activity_id}"), workflow.time_ns()
            assert place is not None
            input.headers = place.headers(input.headers)
            handle = super().start_activity(input)
            number = next((each.number for each in input.args if isinstance(each, RequestInput)), 0)
            handle.add_done_callback(lambda done: self._planned(done, place, began, number))
            return handle
        if place is not None:
            input.headers = place.headers(input.headers)
        return super().start_activity(input)

    def _planned(self, done: asyncio.Future[Any], place: Place, began: int, number: int) -> None:
        trace = self._trace
        attributes = trace.attributes(names.PLAN) | {names.REQUEST: number}
        error = None if done.cancelled() else done.exception()
        kind = "cancelled" if done.cancelled() else None if error is None else _failure(error)
        name = f"{names.PLAN} {trace.agent}".rstrip()
        span = Ended(name, place, trace.here, began, workflow.time_ns(), attributes, kind)
        if done.cancelled():
            trace.late.append(span)
        else:
            trace.ended(span)

    async def start_child_workflow(
        self, input: worker.StartChildWorkflowInput
    ) -> workflow.ChildWorkflowHandle[Any, Any]:
        if self._trace.here is not None:
            input.headers = self._trace.here.headers(input.headers)
        return await super().start_child_workflow(input)

    def continue_as_new(self, input: worker.ContinueAsNewInput) -> NoReturn:
        if (place := self._trace.going_on()) is not None:
            input.headers = place.headers(input.headers)
        super().continue_as_new(input)


def _agent(given: Any) -> str:
    """The agent's name; empty where it comes later."""
    try:
        return str(given[0]["agent"]["name"])
    except (LookupError, TypeError):
        return ""


def _failure(error: BaseException) -> str:
    while not isinstance(error, ApplicationError) and isinstance(error.__cause__, FailureError):
        error = error.__cause__
    return (isinstance(error, ApplicationError) and error.type) or type(error).__name__


def _result(error: BaseException) -> RunResult | None:
    if not isinstance(error, ApplicationError) or not error.details:
        return None
    try:
        return RunResult.model_validate(error.details[0])
    except ValidationError:
        return None
