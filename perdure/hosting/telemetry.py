"""Traces and metrics, with OpenTelemetry and the Temporal SDK."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig

from perdure.errors import SettingsError
from perdure.hosting.logs import core_logging
from perdure.hosting.settings import in_force
from perdure.runs.metrics import METRICS

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExportResult

_SWITCHES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def interceptors() -> list[Any]:
    """Return the tracing interceptors if OpenTelemetry's own settings name a place to send spans to; else an empty list.

    A run and its delegates share one trace. `perdure.hosting._traces` names the spans.
    Raises `SettingsError` when the extra is not installed.
    """
    if not any(map(os.environ.get, _SWITCHES)):
        return []
    if importlib.util.find_spec("opentelemetry") is None:
        raise SettingsError(f"{_SWITCHES[0]} is set, but tracing is not installed: pip install 'perdure[otel]'")
    from perdure.hosting._traces import SpanWriter, TracingInterceptor

    return [TracingInterceptor(SpanWriter(_provider(), content=in_force().trace_content))]


def flush() -> None:
    """Send spans that have not been sent yet. Do nothing without tracing."""
    if _provider.cache_info().currsize:
        _provider().force_flush()


def worker_runtime(metrics: str | None = None) -> Runtime:
    """Return a worker's runtime: the SDK logs to Python's logging. With an address, it serves Perdure's and the
    SDK's metrics for Prometheus at `HOST:PORT/metrics`. Raises `SettingsError`."""
    if metrics is None:
        return Runtime(telemetry=TelemetryConfig(logging=core_logging()))
    buckets = {metric.name: metric.buckets for metric in METRICS.values() if metric.buckets}
    served = PrometheusConfig(bind_address=metrics, histogram_bucket_overrides=buckets)
    try:
        return Runtime(telemetry=TelemetryConfig(logging=core_logging(), metrics=served))
    except (RuntimeError, ValueError) as error:
        raise SettingsError(
            f"metrics cannot be served at {metrics!r}: {error}; expected HOST:PORT such as 127.0.0.1:9464"
        ) from None


def silent_runtime() -> Runtime:
    """Return a runtime without a log: the SDK logs to stdout, where a command prints its output."""
    return Runtime(telemetry=TelemetryConfig(logging=None))


@cache
def _provider() -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from perdure.hosting._traces import Ids

    class Wordless(OTLPSpanExporter):
        """An exporter that removes the messages of exceptions from a tool's own spans: they may hold data of runs."""

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return super().export([_wordless(span) for span in spans])

    resource = Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: "perdure"})
    provider = TracerProvider(resource=resource, id_generator=Ids())
    provider.add_span_processor(BatchSpanProcessor(Wordless()))
    return provider


def _wordless(span: ReadableSpan) -> ReadableSpan:
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.trace import Status

    def kept(event: Event) -> Event:
        attributes = {name: value for name, value in (event.attributes or {}).items() if name == "exception.type"}
        return Event(event.name, attributes, event.timestamp)

    return ReadableSpan(
        span.name,
        span.context,
        span.parent,
        span.resource,
        span.attributes,
        [kept(event) for event in span.events],
        span.links,
        span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )
