"""Traces and metrics, by OpenTelemetry's and Temporal's own means, and a log that tells no key."""

from __future__ import annotations

import importlib.util
import logging
import os
from functools import cache
from typing import TYPE_CHECKING, Any

from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig

from perdure.activities.secrets import masked
from perdure.errors import SettingsError
from perdure.run.views.observing import METRICS

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_SWITCHES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def interceptors() -> list[Any]:
    """Temporal's tracing interceptor, when OpenTelemetry's own settings name a place to send spans to; else none.

    One trace per run: the start, the workflow, and under it a span for each Request and each call, under the tool's name.
    Raises `SettingsError` when the extra is not installed.
    """
    if not any(map(os.environ.get, _SWITCHES)):
        return []
    if importlib.util.find_spec("opentelemetry") is None:
        raise SettingsError(f"{_SWITCHES[0]} is set, but tracing is not installed: pip install 'perdure[otel]'")
    from temporalio.contrib.opentelemetry import TracingInterceptor

    # Also for a run that was started where nobody traces, from the Web UI for example.
    return [TracingInterceptor(_provider().get_tracer("perdure"), always_create_workflow_spans=True)]


def flush() -> None:
    """Send what has not been sent yet; nothing without tracing."""
    if _provider.cache_info().currsize:
        _provider().force_flush()


def metrics_runtime(address: str) -> Runtime:
    """A runtime that serves Perdure's metrics and the SDK's for Prometheus at `HOST:PORT/metrics`. Raises `SettingsError`."""
    buckets = {metric.name: metric.buckets for metric in METRICS.values() if metric.buckets}
    served = PrometheusConfig(bind_address=address, histogram_bucket_overrides=buckets)
    try:
        return Runtime(telemetry=TelemetryConfig(metrics=served))
    except (RuntimeError, ValueError) as error:
        raise SettingsError(
            f"metrics cannot be served at {address!r}: {error}; expected HOST:PORT such as 127.0.0.1:9464",
        ) from None


def silent_runtime() -> Runtime:
    """A runtime without a log of its own: the SDK writes it to stdout, where a command prints its document."""
    return Runtime(telemetry=TelemetryConfig(logging=None))


class _Masking(logging.Formatter):
    def __init__(self, inner: logging.Formatter | None) -> None:
        super().__init__()
        self._inner = inner or logging.Formatter()

    def format(self, record: logging.LogRecord) -> str:
        return masked(self._inner.format(record))


def mask_logs() -> None:
    """Mask keys in every line, tracebacks included, that the handlers there are now write; calling it again changes nothing."""
    for handler in [*logging.getLogger().handlers, logging.lastResort]:
        if handler is not None and not isinstance(handler.formatter, _Masking):
            handler.setFormatter(_Masking(handler.formatter))


@cache
def _provider() -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: "perdure"})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
