"""What makes the spans themselves, with OpenTelemetry's SDK: those of activities as they happen, those of workflows when they have ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from perdure.hosting.tracing.carrier import Place
from perdure.hosting.tracing.names import ERROR, SCHEMA

Attributes = dict[str, str | int | bool | list[str]]
_chosen: Final[ContextVar[tuple[int, int] | None]] = ContextVar("chosen", default=None)


@dataclass(frozen=True, slots=True)
class Ended:
    """A span of a workflow, whole."""

    name: str
    place: Place
    """Its own."""
    parent: Place | None
    began: int
    """Nanoseconds, as `ended`."""
    ended: int
    attributes: Attributes = field(default_factory=dict)
    error: str | None = None


class Ids(IdGenerator):
    """Those that were reckoned, where a workflow's span is made; else random ones."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()

    def generate_trace_id(self) -> int:
        chosen = _chosen.get()
        return self._random.generate_trace_id() if chosen is None else chosen[0]

    def generate_span_id(self) -> int:
        chosen = _chosen.get()
        return self._random.generate_span_id() if chosen is None else chosen[1]


class Spans:
    """Spans of one provider, which was made with `Ids`. `content`: whether they tell what models and tools were told and said."""

    def __init__(self, provider: TracerProvider, *, content: bool = False) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("perdure", schema_url=SCHEMA)
        self.content = content

    def sampled(self, trace_id: int, name: str) -> bool:
        """Whether a trace that begins with such a span is kept."""
        return self._provider.sampler.should_sample(None, trace_id, name).decision is not Decision.DROP

    def end(self, span: Ended) -> None:
        """Tell of a span that has ended."""
        token = _chosen.set((span.place.trace, span.place.span))
        try:
            made = self._tracer.start_span(
                span.name, _below(span.parent), SpanKind.INTERNAL, attributes=span.attributes, start_time=span.began
            )
        finally:
            _chosen.reset(token)
        if span.error is not None:
            failed(made, span.error)
        made.end(span.ended)

    @contextmanager
    def under_way(self, name: str, parent: Place | None, kind: SpanKind, attributes: Attributes) -> Iterator[Span]:
        """A span for as long as the context lasts; what is traced meanwhile, by a tool's own libraries too, stands below it."""
        with self._tracer.start_as_current_span(
            name, _below(parent), kind, attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            yield span


def failed(span: Span, kind: str) -> None:
    """What went wrong, by its kind alone: its words may be anything that runs are about."""
    span.set_attribute(ERROR, kind)
    span.set_status(Status(StatusCode.ERROR))


def current() -> Place | None:
    """The span in which the caller stands, if there is one."""
    found = trace.get_current_span().get_span_context()
    return Place(found.trace_id, found.span_id, found.trace_flags.sampled) if found.is_valid else None


def _below(parent: Place | None) -> Context:
    if parent is None or not parent.span:
        return Context()
    flags = TraceFlags(TraceFlags.SAMPLED if parent.sampled else TraceFlags.DEFAULT)
    return trace.set_span_in_context(
        NonRecordingSpan(SpanContext(parent.trace, parent.span, is_remote=True, trace_flags=flags)), Context()
    )
