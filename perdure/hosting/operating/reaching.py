"""Reaching the Temporal server: one line about what is wrong with address, TLS, key or namespace, and waiting for what may still come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode, TLSConfig

from perdure.errors import ServerError

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 5.0
"""Seconds between two tries."""
_TIMEOUT: Final = timedelta(seconds=10)
_log: Final = logging.getLogger("perdure.worker")

_COMES: Final = ("Connection refused", "dns error", "timed out", "deadline exceeded", "connection reset")
"""Of a server, or of the way to it, that is not there yet."""
_ENDED: Final = ("transport error", "operation was canceled")
"""What the SDK says of a connection that the server ended: before the first call was sent, or while it was."""


async def reached(connect: Callable[[], Awaitable[Client]], wait: float) -> Client:
    """A client whose server knows its namespace. What may come by itself is waited for, `wait` seconds at most, and told once.

    Raises `ServerError`: at once for what waiting does not mend.
    """
    clock = asyncio.get_running_loop().time
    until, pause, told = clock() + wait, _FIRST_PAUSE, ""
    while True:
        try:
            client = await connect()
            await _check_namespace(client)
            return client
        except ServerError as error:
            left = until - clock()
            if error.final or left <= 0:
                raise
            if str(error) != told:
                told = str(error)
                _log.warning("waits up to %g s more: %s", round(left), told)
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
        if error.status is not RPCStatusCode.UNIMPLEMENTED:  # as of the server for tests
            raise unreachable(error, {"target_host": address, "namespace": client.namespace}) from None


def no_namespace(client: Client) -> ServerError:
    """What to do where the server does not know the client's namespace."""
    address = client.service_client.config.target_host
    return ServerError(
        f"there is no namespace {client.namespace!r} at {address}: look at TEMPORAL_NAMESPACE, or create it"
    )


def unreachable(error: Exception, settings: dict[str, Any]) -> ServerError:
    """What is wrong, and which setting to look at. `settings` are those of `Client.connect`."""
    text, address = str(error), settings["target_host"]
    status = error.status if isinstance(error, RPCError) else None
    known = next((words for words in _COMES if words.lower() in text.lower()), None)
    if known is not None or status in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED):
        reason = known.lower() if known else text.splitlines()[0][:120] if text else "unavailable"
        return ServerError(
            f"no Temporal server answers at {address} ({reason}); start one with 'perdure dev', or set TEMPORAL_ADDRESS"
        )
    if status is RPCStatusCode.UNAUTHENTICATED or "Unauthenticated" in text:
        return ServerError(f"{address} does not accept the key: look at TEMPORAL_API_KEY", final=True)
    if status is RPCStatusCode.PERMISSION_DENIED or "PermissionDenied" in text:
        namespace = settings.get("namespace", "default")
        words = f"{address} refuses namespace {namespace!r} to this key or certificate: look at TEMPORAL_NAMESPACE and TEMPORAL_API_KEY"
        return ServerError(words, final=True)
    if (problem := _tls_problem(text, address)) is not None:
        return ServerError(problem, final=True)
    if any(words in text for words in _ENDED):  # or whatever stands before the server has no server yet
        want = "want a certificate: set TEMPORAL_TLS_CLIENT_CERT_PATH and TEMPORAL_TLS_CLIENT_KEY_PATH"
        want = want if isinstance(settings.get("tls"), TLSConfig) else "want TLS: set TEMPORAL_TLS=true"
        return ServerError(f"{address} ended the connection: it may {want}")
    reason = text.splitlines()[0][:120] if text else type(error).__name__
    return ServerError(f"{address} does not answer as a Temporal server ({reason}): look at TEMPORAL_ADDRESS")


def _tls_problem(text: str, address: str) -> str | None:
    if "NotValidForName" in text:
        return f"the TLS certificate of {address} is for another name: look at TEMPORAL_ADDRESS, or set TEMPORAL_TLS_SERVER_NAME"
    if "InvalidCertificate" in text or "invalid peer certificate" in text:
        return (
            f"the TLS certificate of {address} is not trusted: set TEMPORAL_TLS_SERVER_CA_CERT_PATH to its authority's"
        )
    if "InvalidContentType" in text:
        return f"{address} does not speak TLS: leave out TEMPORAL_TLS and TEMPORAL_API_KEY, which turn it on"
    if "ParseError" in text:
        return "the TLS certificate or key cannot be read: look at TEMPORAL_TLS_CLIENT_CERT_PATH, TEMPORAL_TLS_CLIENT_KEY_PATH"
    return None
