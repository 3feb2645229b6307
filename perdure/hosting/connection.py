"""Connecting to Temporal, by Temporal's own settings (R12.6)."""

from __future__ import annotations

import dataclasses
from typing import Any

from temporalio.client import Client
from temporalio.converter import DataConverter, DefaultFailureConverterWithEncodedAttributes
from temporalio.envconfig import ClientConfig
from temporalio.runtime import Runtime
from temporalio.service import RPCError

from perdure.errors import ServerError
from perdure.hosting.codec import payload_codec
from perdure.hosting.converter import Converter, PayloadConverter
from perdure.hosting.storage import external_storage
from perdure.hosting.telemetry import interceptors


def data_converter() -> DataConverter:
    """Pydantic's, with external storage for large values where `PERDURE_STORAGE` says so, and the codec that `PERDURE_CODEC` names.

    With a codec the texts of failures are payloads too. What goes to the storage has gone through the codec before.
    """
    converter: DataConverter = Converter(payload_converter_class=PayloadConverter, external_storage=external_storage())
    codec = payload_codec()
    if codec is None:
        return converter
    encoded = DefaultFailureConverterWithEncodedAttributes
    return dataclasses.replace(converter, payload_codec=codec, failure_converter_class=encoded)


async def connect(runtime: Runtime | None = None) -> Client:
    """A client for the server that `TEMPORAL_ADDRESS`, `TEMPORAL_PROFILE`, `temporal.toml`, … name.

    `runtime` is the SDK's, for metrics. Raises `ServerError` when nothing answers there, or when the settings cannot be read.
    """
    try:
        settings: dict[str, Any] = {"target_host": "localhost:7233", **ClientConfig.load_client_connect_config()}
    except Exception as error:
        raise ServerError(f"Temporal's connection settings cannot be read: {error}") from None
    converter = data_converter()
    address, tracing = settings["target_host"], interceptors()
    try:
        return await Client.connect(**settings, data_converter=converter, interceptors=tracing, runtime=runtime)
    except (RuntimeError, RPCError, ValueError, OSError) as error:
        reason = _short(error)
        raise ServerError(
            f"no Temporal server answers at {address} ({reason}); start one with 'perdure dev', or set TEMPORAL_ADDRESS"
        ) from None


def _short(error: Exception) -> str:
    """The innermost words of a transport error."""
    text = str(error)
    for known in (
        "Connection refused",
        "dns error",
        "timed out",
        "invalid certificate",
        "Unauthenticated",
        "PermissionDenied",
    ):
        if known.lower() in text.lower():
            return known.lower()
    return text.splitlines()[0][:120] if text else type(error).__name__
