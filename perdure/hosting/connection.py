"""The connection to Temporal, with Temporal's own settings, and a wait for a server that is down."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import (
    DataConverter,
    DefaultFailureConverter,
    DefaultFailureConverterWithEncodedAttributes,
    DefaultPayloadConverter,
)
from temporalio.envconfig import ClientConfig
from temporalio.runtime import Runtime
from temporalio.service import RPCError, RPCStatusCode, TLSConfig

from perdure.activities.secrets import keep_secret
from perdure.errors import ServerError
from perdure.hosting._storage import external_storage
from perdure.hosting.codec import GuardedCodec, PayloadConverter, guarded, payload_codec
from perdure.hosting.process import leave_cleanly
from perdure.hosting.sdk_internals import Converter
from perdure.hosting.telemetry import interceptors

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 5.0
"""The longest pause between two attempts, in seconds."""
_TIMEOUT: Final = timedelta(seconds=10)
_log: Final = logging.getLogger("perdure.worker")

_COMES: Final = ("Connection refused", "dns error", "timed out", "deadline exceeded", "connection reset")
"""Texts of errors that mean that the server cannot be reached yet."""
_ENDED: Final = ("transport error", "operation was canceled")
"""The SDK's words for a connection that the server ended: before the first call was sent, or while it was."""


async def connect_with_retry(connect: Callable[[], Awaitable[Client]], wait: float) -> Client:
    """Return a client whose server knows its namespace. Retry for at most `wait` seconds, and log each reason once.

    Raises `ServerError`, at once for an error that is not worth a retry.
    """
    clock = asyncio.get_running_loop().time
    until, pause, last_error = clock() + wait, _FIRST_PAUSE, ""
    while True:
        try:
            client = await connect()
            await _check_namespace(client)
            return client
        except ServerError as error:
            left = until - clock()
            if error.final or left <= 0:
                raise
            if str(error) != last_error:
                last_error = str(error)
                _log.warning("waiting up to %g s more: %s", round(left), last_error)
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 2, _LONGEST_PAUSE)


async def _check_namespace(client: Client) -> None:
    request = DescribeNamespaceRequest(namespace=client.namespace)
    try:
        await client.workflow_service.describe_namespace(request, retry=False, timeout=_TIMEOUT)
    except RPCError as error:
        address = client.service_client.config.target_host
        if error.status is RPCStatusCode.NOT_FOUND:
            raise no_namespace(client) from None
        if error.status is not RPCStatusCode.UNIMPLEMENTED:  # the test server's status
            raise unreachable_error(error, {"target_host": address, "namespace": client.namespace}) from None


def no_namespace(client: Client) -> ServerError:
    """Return the error for a server that does not know the client's namespace, with what to do."""
    address = client.service_client.config.target_host
    return ServerError(
        f"the namespace {client.namespace!r} does not exist at {address}: check TEMPORAL_NAMESPACE, or create it"
    )


def unreachable_error(error: Exception, settings: dict[str, Any]) -> ServerError:
    """Return the error with its cause and the setting to check. `settings` are those of `Client.connect`."""
    text, address = str(error), settings["target_host"]
    status = error.status if isinstance(error, RPCError) else None
    known = next((words for words in _COMES if words.lower() in text.lower()), None)
    if known is not None or status in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED):
        reason = known.lower() if known else text.splitlines()[0][:120] if text else "unavailable"
        return ServerError(
            f"no Temporal server answers at {address} ({reason}); start one with 'perdure dev', or set TEMPORAL_ADDRESS"
        )
    if status is RPCStatusCode.UNAUTHENTICATED or "Unauthenticated" in text:
        return ServerError(f"{address} does not accept the API key: check TEMPORAL_API_KEY", final=True)
    if status is RPCStatusCode.PERMISSION_DENIED or "PermissionDenied" in text:
        namespace = settings.get("namespace", "default")
        words = f"{address} denies this key or certificate access to namespace {namespace!r}: check TEMPORAL_NAMESPACE and TEMPORAL_API_KEY"
        return ServerError(words, final=True)
    if (problem := _tls_problem(text, address)) is not None:
        return ServerError(problem, final=True)
    if any(words in text for words in _ENDED):  # a proxy without a server ends the connection too
        want = "need a certificate: set TEMPORAL_TLS_CLIENT_CERT_PATH and TEMPORAL_TLS_CLIENT_KEY_PATH"
        want = want if isinstance(settings.get("tls"), TLSConfig) else "need TLS: set TEMPORAL_TLS=true"
        return ServerError(f"{address} ended the connection: it may {want}")
    reason = text.splitlines()[0][:120] if text else type(error).__name__
    return ServerError(f"{address} does not answer as a Temporal server ({reason}): check TEMPORAL_ADDRESS")


def _tls_problem(text: str, address: str) -> str | None:
    if "NotValidForName" in text:
        return f"the TLS certificate of {address} is for another name: check TEMPORAL_ADDRESS, or set TEMPORAL_TLS_SERVER_NAME"
    if "InvalidCertificate" in text or "invalid peer certificate" in text:
        return (
            f"the TLS certificate of {address} is not trusted: set TEMPORAL_TLS_SERVER_CA_CERT_PATH to its authority's"
        )
    if "InvalidContentType" in text:
        return f"{address} does not use TLS: leave out TEMPORAL_TLS and TEMPORAL_API_KEY, which turn it on"
    if "ParseError" in text:
        return "the TLS certificate or key cannot be read: check TEMPORAL_TLS_CLIENT_CERT_PATH, TEMPORAL_TLS_CLIENT_KEY_PATH"
    return None


leave_cleanly()  # a process that imports this module starts the SDK's threads


def data_converter() -> DataConverter:
    """Return Pydantic's converter, with the storage of `PERDURE_STORAGE` and the codec of `PERDURE_CODEC`, if set.

    A codec encodes the messages of failures too. Values are encoded before they are stored.
    """
    converter: DataConverter = Converter(payload_converter_class=PayloadConverter, external_storage=external_storage())
    codec = payload_codec()
    if codec is None:
        return converter
    encoded = DefaultFailureConverterWithEncodedAttributes
    return dataclasses.replace(converter, payload_codec=GuardedCodec(codec), failure_converter_class=encoded)


def with_perdure_converter(theirs: DataConverter, ours: DataConverter | None = None) -> DataConverter:
    """Return `theirs` with Perdure's payload converter in place of the SDK's. All other parts stay. Without a codec or
    a storage, it has that of `ours`.

    A user's own payload converter stays too, and must support pydantic models. It and the codec are guarded: their
    errors fail no workflow task.
    """
    kind = theirs.payload_converter_class
    plain = kind in (DefaultPayloadConverter, PydanticPayloadConverter)
    changes: dict[str, Any] = {"payload_converter_class": PayloadConverter if plain else guarded(kind)}
    codec = theirs.payload_codec
    if codec is not None and not isinstance(codec, GuardedCodec):
        changes["payload_codec"] = GuardedCodec(codec)
    if ours is not None and codec is None and ours.payload_codec is not None:
        changes["payload_codec"] = ours.payload_codec
        if theirs.failure_converter_class is DefaultFailureConverter:
            changes["failure_converter_class"] = ours.failure_converter_class
    if ours is not None and theirs.external_storage is None and ours.external_storage is not None:
        changes["external_storage"] = ours.external_storage
    if all(getattr(theirs, name) is value for name, value in changes.items()):
        return theirs
    if type(theirs) is not DataConverter:
        return dataclasses.replace(theirs, **changes)
    return Converter(
        **{
            "payload_codec": codec,
            "failure_converter_class": theirs.failure_converter_class,
            "external_storage": theirs.external_storage,
            **changes,
        }
    )


def with_converter(client: Client) -> Client:
    """Return the client with `with_perdure_converter`."""
    converter = with_perdure_converter(client.data_converter)
    if converter is client.data_converter:
        return client
    config = client.config(active_config=True)
    config["data_converter"] = converter
    config["plugins"] = []  # the configuration holds their changes already
    return Client(**config)


async def connect(runtime: Runtime | None = None, *, profile: str | None = None, **given: Any) -> Client:
    """Return a client for the server that `TEMPORAL_ADDRESS`, `TEMPORAL_PROFILE`, `temporal.toml`, … name.

    `runtime` is the SDK's, for metrics. `profile` is one of `temporal.toml`. `given`: arguments of `Client.connect`;
    they override the settings. Raises `ServerError` when no server answers, or when the settings cannot be read.
    """
    try:
        found = ClientConfig.load_client_connect_config(profile=profile)
        settings: dict[str, Any] = {"target_host": "localhost:7233", **found, **given}
    except Exception as error:
        raise ServerError(
            f"Temporal's connection settings cannot be read: {_without_source(error)}", final=True
        ) from None
    if isinstance(key := settings.get("api_key"), str):
        keep_secret(key)
    converter = data_converter()
    tracing = interceptors()
    try:
        return await Client.connect(**settings, data_converter=converter, interceptors=tracing, runtime=runtime)
    except (RuntimeError, RPCError, ValueError, OSError) as error:
        raise unreachable_error(error, settings) from None


def _without_source(error: Exception) -> str:
    """Return a file's error and its place, without the line's text: it may hold a key."""
    kept = [line.strip() for line in str(error).splitlines() if not re.match(r"\s*\d*\s*\|", line)]
    return ": ".join(filter(None, kept))
