"""Traces: spans by OpenTelemetry's conventions for generative AI, over continue-as-new.

The conventions are https://github.com/open-telemetry/semantic-conventions-genai at 002c8a6, based on v1.41.1 of the
general ones. Other attributes begin with `perdure.`, or have the names of Temporal's own interceptors.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any, Final, NoReturn

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from pydantic import ValidationError
from temporalio import activity, client, worker, workflow
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadConverter
from temporalio.exceptions import ApplicationError, FailureError

from perdure.activities.active_executions import TRACE, AttemptTrace
from perdure.activities.secrets import mask_value
from perdure.errors import PerdureError
from perdure.models.requests import SAMPLE_ACTIVITY, RequestInput, RequestResult, SampleResult
from perdure.runs.wire import AGENT_WORKFLOW, REQUEST_ACTIVITY, RunResult
from perdure.sessions.compaction import SUMMARY_ACTIVITY, SummaryResult
from perdure.sessions.wire import SESSION_WORKFLOW
from perdure.tools.invocation import ToolResult
from perdure.values.json import JsonObject, dumps

SCHEMA: Final = "https://opentelemetry.io/schemas/1.41.0"

INVOKE_AGENT: Final = "invoke_agent"
PLAN: Final = "plan"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
AGENT: Final = "gen_ai.agent.name"
CONVERSATION: Final = "gen_ai.conversation.id"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
TOOL: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
CALL: Final = "gen_ai.tool.call.id"
ERROR: Final = "error.type"

# Only with the setting `trace_content`.
INPUT: Final = "gen_ai.input.messages"
OUTPUT: Final = "gen_ai.output.messages"
ARGUMENTS: Final = "gen_ai.tool.call.arguments"
RESULT: Final = "gen_ai.tool.call.result"

WORKFLOW_ID: Final = "temporalWorkflowID"
RUN_ID: Final = "temporalRunID"
ACTIVITY_ID: Final = "temporalActivityID"
ATTEMPT: Final = "perdure.attempt"
"""1 for the first attempt; a higher number for a retry."""
REQUEST: Final = "perdure.request"
"""The Request's number."""
STOP: Final = "perdure.stop_reason"
"""The reason why the run ended."""
PROBLEM: Final = "perdure.problem"
"""The code of the problem of an answer."""

OPENAI: Final = "openai"
"""The protocol: Perdure does not know the provider behind an endpoint."""
FUNCTION: Final = "function"
"""The type of every tool: Perdure executes tools itself."""


HEADER: Final = "_tracer-data"
"""The name that Temporal's own interceptors use, in every SDK."""
_PARENT: Final = "traceparent"
_BEGAN: Final = "perdure-began"
_FORM: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
Headers = Mapping[str, Payload]


@dataclass(frozen=True, slots=True)
class SpanPlace:
    """A span's ids, as its child spans need them."""

    trace: int
    span: int
    """0: no span, the root of the trace."""
    sampled: bool = True
    began: int | None = None
    """The time at which a continued run began, in nanoseconds."""

    def headers(self, headers: Headers) -> dict[str, Payload]:
        """Return the headers with this span's ids."""
        carrier = {_PARENT: f"00-{self.trace:032x}-{self.span:016x}-{int(self.sampled):02x}"}
        if self.began is not None:
            carrier[_BEGAN] = str(self.began)
        return {**headers, HEADER: PayloadConverter.default.to_payload(carrier)}


def place_in(headers: Headers) -> SpanPlace | None:
    """Return the span that headers name. `None` for invalid headers, because anybody may have written them."""
    try:
        carrier: Any = PayloadConverter.default.from_payload(headers[HEADER])
        found = _FORM.fullmatch(carrier[_PARENT])
        if found is None or int(found[1], 16) == 0:
            return None
        began = carrier.get(_BEGAN)
        return SpanPlace(
            int(found[1], 16), int(found[2], 16), bool(int(found[3], 16) & 1), None if began is None else int(began)
        )
    except Exception:
        return None


def trace_id(of: str) -> int:
    """Return the id of the trace that begins with the run or session of this name."""
    return int.from_bytes(sha256(f"trace {of}".encode()).digest()[:16]) or 1


def span_id(of: str) -> int:
    """Return the id of the span with this name."""
    return int.from_bytes(sha256(f"span {of}".encode()).digest()[:8]) or 1


Attributes = dict[str, str | int | bool | list[str]]
_chosen: Final[ContextVar[tuple[int, int] | None]] = ContextVar("chosen", default=None)


@dataclass(frozen=True, slots=True)
class EndedSpan:
    """A workflow's span that has ended."""

    name: str
    place: SpanPlace
    """The span's own ids."""
    parent: SpanPlace | None
    began: int
    """Nanoseconds since the epoch, as `ended`."""
    ended: int
    attributes: Attributes = field(default_factory=dict)
    error: str | None = None


class Ids(IdGenerator):
    """Computed ids for a workflow's spans, random ids for others."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()

    def generate_trace_id(self) -> int:
        chosen = _chosen.get()
        return self._random.generate_trace_id() if chosen is None else chosen[0]

    def generate_span_id(self) -> int:
        chosen = _chosen.get()
        return self._random.generate_span_id() if chosen is None else chosen[1]


class SpanWriter:
    """Writes spans to a provider that uses `Ids`. `content`: whether spans hold prompts, answers, parameters and results."""

    def __init__(self, provider: TracerProvider, *, content: bool = False) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("perdure", schema_url=SCHEMA)
        self.content = content

    def sampled(self, trace_id: int, name: str) -> bool:
        """Whether the provider samples a trace with this root span."""
        return self._provider.sampler.should_sample(None, trace_id, name).decision is not Decision.DROP

    def end(self, span: EndedSpan) -> None:
        """Write a span that has ended."""
        token = _chosen.set((span.place.trace, span.place.span))
        try:
            made = self._tracer.start_span(
                span.name, _below(span.parent), SpanKind.INTERNAL, attributes=span.attributes, start_time=span.began
            )
        finally:
            _chosen.reset(token)
        if span.error is not None:
            record_failure(made, span.error)
        made.end(span.ended)

    @contextmanager
    def under_way(self, name: str, parent: SpanPlace | None, kind: SpanKind, attributes: Attributes) -> Iterator[Span]:
        """Record a span while the context lasts. Spans that begin meanwhile are its children, also those of a tool's libraries."""
        with self._tracer.start_as_current_span(
            name, _below(parent), kind, attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            yield span


def record_failure(span: Span, kind: str) -> None:
    """Record an error's kind only: its message may hold data of the run."""
    span.set_attribute(ERROR, kind)
    span.set_status(Status(StatusCode.ERROR))


def current_span() -> SpanPlace | None:
    """Return the caller's current span; `None` without one."""
    found = trace.get_current_span().get_span_context()
    return SpanPlace(found.trace_id, found.span_id, found.trace_flags.sampled) if found.is_valid else None


def _below(parent: SpanPlace | None) -> Context:
    if parent is None or not parent.span:
        return Context()
    flags = TraceFlags(TraceFlags.SAMPLED if parent.sampled else TraceFlags.DEFAULT)
    return trace.set_span_in_context(
        NonRecordingSpan(SpanContext(parent.trace, parent.span, is_remote=True, trace_flags=flags)), Context()
    )


_OURS: Final = "perdure."
"""The prefix of the engine's own activity names."""
_ASKS: Final = (REQUEST_ACTIVITY, SUMMARY_ACTIVITY, SAMPLE_ACTIVITY)


class TracedActivity(worker.ActivityInboundInterceptor):
    """Records a span for each attempt of an activity."""

    def __init__(self, next: worker.ActivityInboundInterceptor, spans: SpanWriter) -> None:
        super().__init__(next)
        self._spans = spans

    async def execute_activity(self, input: worker.ExecuteActivityInput) -> Any:
        info = activity.info()
        asks = info.activity_type in _ASKS
        if info.activity_type.startswith(_OURS) and not asks:
            return await super().execute_activity(input)
        request = next((each for each in input.args if isinstance(each, RequestInput)), None)
        attributes: Attributes = {
            OPERATION: CHAT if asks else EXECUTE_TOOL,
            ACTIVITY_ID: info.activity_id,
            WORKFLOW_ID: info.workflow_id or "",
            RUN_ID: info.workflow_run_id or "",
            ATTEMPT: info.attempt,
        }
        if asks:
            attributes[PROVIDER] = OPENAI
            if request is not None:
                attributes |= {REQUEST_MODEL: request.model, REQUEST: request.number}
            name, kind = CHAT if request is None else f"{CHAT} {request.model}", SpanKind.CLIENT
        else:
            name, kind = f"{EXECUTE_TOOL} {info.activity_type}", SpanKind.INTERNAL
            attributes |= {TOOL_TYPE: FUNCTION, TOOL: info.activity_type, CALL: info.activity_id}
        trace = AttemptTrace(content=self._spans.content)
        token = TRACE.set(trace)
        try:
            with self._spans.under_way(name, place_in(input.headers), kind, attributes) as span:
                try:
                    result = await super().execute_activity(input)
                except BaseException as error:
                    record_failure(span, _kind(error))
                    raise
                else:
                    _record_result(span, result, trace)
                    return result
                finally:
                    _record_prompt(span, trace, asks=asks)
        finally:
            TRACE.reset(token)


def _kind(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    return (isinstance(error, ApplicationError) and error.type) or type(error).__name__


def _record_prompt(span: Span, trace: AttemptTrace, *, asks: bool) -> None:
    if trace.tool is not None:
        span.update_name(f"{EXECUTE_TOOL} {trace.tool}")
        span.set_attribute(TOOL, trace.tool)
    if trace.finish_reason is not None:
        span.set_attribute(FINISH_REASONS, [trace.finish_reason])
    if trace.given is not None and asks:
        messages = [_message(str(each.get("role")), each.get("content") or "") for each in trace.given]
        span.set_attribute(INPUT, dumps(mask_value([*messages])))
    elif trace.given is not None:
        span.set_attribute(ARGUMENTS, dumps(mask_value(trace.given)))


def _record_result(span: Span, result: Any, trace: AttemptTrace) -> None:
    if isinstance(result, RequestResult | SummaryResult | SampleResult):
        used = result.usage
        span.set_attribute(RESPONSE_MODEL, result.model)
        span.set_attribute(INPUT_TOKENS, used.prompt_tokens)
        span.set_attribute(OUTPUT_TOKENS, used.completion_tokens)
        if used.cached_tokens:
            span.set_attribute(CACHED_TOKENS, used.cached_tokens)
        if used.reasoning_tokens:
            span.set_attribute(REASONING_TOKENS, used.reasoning_tokens)
    if isinstance(result, RequestResult):
        if result.problem is not None:
            span.set_attribute(PROBLEM, str(result.problem.get("code")))
        if trace.content:
            answer = _message("assistant", result.text or {"calls": result.calls, "output": result.output})
            span.set_attribute(OUTPUT, dumps(mask_value([answer | {"finish_reason": trace.finish_reason or ""}])))
    elif isinstance(result, ToolResult) and trace.content:
        span.set_attribute(RESULT, dumps(mask_value(result.value)))


def _message(role: str, content: Any) -> JsonObject:
    """Return a chat message in the format of the conventions."""
    text = content if isinstance(content, str) else dumps(content)
    return {"role": role, "parts": [{"type": "text", "content": text}]}


# A replay runs a workflow's code again, so a span is written once: when it has ended, outside of a replay. Ids are
# computed from the run's id, so that child spans know their parent's id before it is written.

END: Final = "__perdure_span"
SAMPLED: Final = "__perdure_sampled"
_ENDS: Final = (FailureError, PerdureError, ValidationError)
"""Errors that end a run. Any other error fails the workflow task, which is retried."""


class _Trace:
    """The trace of one execution: its place and its time."""

    def __init__(self) -> None:
        info = workflow.info()
        functions = workflow.extern_functions()
        self._end: Callable[[EndedSpan], None] = functions[END]
        self._run = f"{info.workflow_id} {info.first_execution_run_id}"
        self.parent = place_in(info.headers)
        """A continued execution gets its own parent."""
        self.agent = ""
        self.late: list[EndedSpan] = []
        """Spans of cancelled Requests. They are written only if the run continues: an eviction cancels Requests too."""
        self.here = self.parent
        if info.workflow_type == AGENT_WORKFLOW:
            own = span_id(f"{INVOKE_AGENT} {self._run}")
            began = self.parent.began if self.parent is not None else None
            self.began = began if began is not None else round(info.start_time.timestamp() * 1e9)
            if self.parent is not None:
                self.here = SpanPlace(self.parent.trace, own, self.parent.sampled)
            else:
                trace = trace_id(self._run)
                self.here = SpanPlace(trace, own, functions[SAMPLED](trace, INVOKE_AGENT))
        elif info.workflow_type == SESSION_WORKFLOW:
            self.here = None  # a session does not end: each of its runs is its own trace and names the conversation

    def at(self, what: str) -> SpanPlace | None:
        """Return the ids of a span of this run."""
        return (
            None if self.here is None else SpanPlace(self.here.trace, span_id(f"{what} {self._run}"), self.here.sampled)
        )

    def going_on(self) -> SpanPlace | None:
        """Return the ids that the continued execution starts from."""
        if workflow.info().workflow_type != AGENT_WORKFLOW or self.here is None:
            return self.here
        return SpanPlace(
            self.here.trace, self.parent.span if self.parent is not None else 0, self.here.sampled, self.began
        )

    def attributes(self, operation: str) -> Attributes:
        info = workflow.info()
        found: Attributes = {OPERATION: operation, WORKFLOW_ID: info.workflow_id, RUN_ID: info.run_id}
        if self.agent:
            found[AGENT] = self.agent
        if info.root is not None and info.root.workflow_id.startswith("session-"):
            found[CONVERSATION] = info.root.workflow_id
        return found

    def ended(self, span: EndedSpan) -> None:
        if not workflow.unsafe.is_replaying():
            for each in (*self.late, span):
                self._end(each)
        self.late.clear()


class TracedWorkflow(worker.WorkflowInboundInterceptor):
    """Records the spans of one execution."""

    def init(self, outbound: worker.WorkflowOutboundInterceptor) -> None:
        super().init(_TracingOutbound(outbound, self))

    @cached_property
    def trace(self) -> _Trace:
        """Return the trace of this execution. The workflow's id is unknown before it begins."""
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
            if workflow.cancellation_reason() is not None:  # otherwise the worker evicts the run
                self._ended("cancelled", None)
            raise
        self._ended(None, result if isinstance(result, RunResult) else None)
        return result

    def _ended(self, error: str | None, result: RunResult | None) -> None:
        trace = self.trace
        assert trace.here is not None
        attributes = trace.attributes(INVOKE_AGENT)
        if result is not None:
            used = result.usage
            attributes |= {INPUT_TOKENS: used.prompt_tokens, OUTPUT_TOKENS: used.completion_tokens}
            attributes |= {CACHED_TOKENS: used.cached_tokens} if used.cached_tokens else {}
            attributes |= {STOP: result.stop_reason} if result.stop_reason else {}
        name = f"{INVOKE_AGENT} {trace.agent}".rstrip()
        parent = trace.parent if trace.parent is not None and trace.parent.span else None
        trace.ended(EndedSpan(name, trace.here, parent, trace.began, workflow.time_ns(), attributes, error))


class _TracingOutbound(worker.WorkflowOutboundInterceptor):
    def __init__(self, next: worker.WorkflowOutboundInterceptor, above: TracedWorkflow) -> None:
        super().__init__(next)
        self._above = above

    @property
    def _trace(self) -> _Trace:
        return self._above.trace

    def start_activity(self, input: worker.StartActivityInput) -> workflow.ActivityHandle[Any]:
        place = self._trace.here
        if input.activity == REQUEST_ACTIVITY and place is not None:
            place, began = self._trace.at(f"{PLAN} {input.activity_id}"), workflow.time_ns()
            assert place is not None
            input.headers = place.headers(input.headers)
            handle = super().start_activity(input)
            number = next((each.number for each in input.args if isinstance(each, RequestInput)), 0)
            handle.add_done_callback(lambda done: self._planned(done, place, began, number))
            return handle
        if place is not None:
            input.headers = place.headers(input.headers)
        return super().start_activity(input)

    def _planned(self, done: asyncio.Future[Any], place: SpanPlace, began: int, number: int) -> None:
        trace = self._trace
        attributes = trace.attributes(PLAN) | {REQUEST: number}
        error = None if done.cancelled() else done.exception()
        kind = "cancelled" if done.cancelled() else None if error is None else _failure(error)
        name = f"{PLAN} {trace.agent}".rstrip()
        span = EndedSpan(name, place, trace.here, began, workflow.time_ns(), attributes, kind)
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
    """Return the agent's name; empty if the input does not hold it yet."""
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


class TracingInterceptor(client.Interceptor, worker.Interceptor):
    """Records the spans of `perdure.hosting._traces`. A run's span is a child of the caller's current span."""

    def __init__(self, spans: SpanWriter) -> None:
        self._spans = spans

    def intercept_client(self, next: client.OutboundInterceptor) -> client.OutboundInterceptor:
        return _InterceptorOutbound(next)

    def intercept_activity(self, next: worker.ActivityInboundInterceptor) -> worker.ActivityInboundInterceptor:
        return TracedActivity(next, self._spans)

    def workflow_interceptor_class(self, input: worker.WorkflowInterceptorClassInput) -> type[TracedWorkflow]:
        input.unsafe_extern_functions[END] = self._spans.end
        input.unsafe_extern_functions[SAMPLED] = self._spans.sampled
        return TracedWorkflow


class _InterceptorOutbound(client.OutboundInterceptor):
    async def start_workflow(self, input: client.StartWorkflowInput) -> client.WorkflowHandle[Any, Any]:
        if (place := current_span()) is not None:
            input.headers = place.headers(input.headers)
        return await super().start_workflow(input)
