"""Errors of failed runs, and errors of a server in clear words. The tree of all errors is `perdure.errors`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from temporalio.api.errordetails.v1 import NamespaceNotFoundFailure
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure.errors import NoWorkerError, RunError, RunNotFoundError, ServerError, ServerRefusalError
from perdure.hosting.connection import no_namespace, unreachable_error
from perdure.queries import UNANSWERED
from perdure.runs.wire import RunView

_NOT_CONNECTED: Final = "Failed client connect"
"""Beginning of the SDK's `RuntimeError` where a lazy client cannot connect at its first use."""


class RunFailedError(RunError):
    """The run ended without an output: it was refused, failed, was cancelled or terminated, or ran out of time.

    ```python
    try:
        await run.result()
    except RunFailedError as error:
        print(error.view.status, error.view.error)
    ```
    """

    def __init__(self, view: RunView) -> None:
        super().__init__(view)
        self.view = view
        """The whole run: `status`, `error`, `errors`, `calls`, `state`, …"""

    def __str__(self) -> str:
        how = {"refused": "was refused by the model", "failed": "failed", "timed_out": "timed out"}.get(
            self.view.status, f"was {self.view.status}"
        )
        why = f": {self.view.error}" if self.view.error else ""
        return f"the run {self.view.run_id!r} {how}{why}; show the run with: perdure show {self.view.run_id}"


class RunRefusedError(RunFailedError):
    """The run's model refused, twice in a row or in the last Request; `view.error` has the model's text.

    ```python
    try:
        await run.result()
    except RunRefusedError as error:
        print(error.view.error)
    ```
    """


def run_failed(view: RunView) -> RunFailedError:
    """Return the error of a run that ended without an output, by its status and stop reason."""
    return RunRefusedError(view) if view.status == "refused" else RunFailedError(view)


def silent_server(client: Client, message: str = "no response") -> ServerError:
    """Return the error of a server that does not answer: its message, and its address."""
    address = client.service_client.config.target_host
    return ServerError(
        f"the Temporal server at {address} does not answer ({message}): start the server, or check TEMPORAL_ADDRESS"
    )


@contextmanager
def clear_errors(client: Client, id: str | None = None, kind: str = "run") -> Iterator[None]:
    """Translate the server's errors into errors with a remedy. With `id` they also name a missing run, or another
    `kind`.
    """
    try:
        yield
    except ExceptionGroup as group:  # of tasks that ran at once: the first error is the reason
        first = group.exceptions[0]
        with clear_errors(client, id, kind):
            raise first from None
    except RuntimeError as error:
        if not str(error).startswith(_NOT_CONNECTED):
            raise
        address, namespace = client.service_client.config.target_host, client.namespace
        raise unreachable_error(error, {"target_host": address, "namespace": namespace}) from None
    except RPCError as error:
        if any(detail.Is(NamespaceNotFoundFailure.DESCRIPTOR) for detail in error.grpc_status.details):
            raise no_namespace(client) from None
        if error.status == RPCStatusCode.NOT_FOUND and id is not None:
            raise RunNotFoundError(f"there is no {kind} {id!r} in namespace {client.namespace!r}") from None
        if error.status in UNANSWERED:
            raise silent_server(client, error.message) from None
        raise _server_error(error) from None


def _server_error(error: RPCError) -> ServerError:
    """Return the error for a status of the server that no other error names."""
    return ServerError(f"the Temporal server answered: {error.message}")


def no_answer(error: RPCError, run_id: str, more: str = "") -> RunError | ServerError:
    """Return the error of a run that did not answer (R18.8).

    A rate limit, or an error of the server, is returned as such. Otherwise no worker answered; `more` ends the text.
    """
    if error.status == RPCStatusCode.RESOURCE_EXHAUSTED:
        return _server_error(error)
    if error.status in UNANSWERED or error.status == RPCStatusCode.FAILED_PRECONDITION:
        return NoWorkerError(f"no worker answers for {run_id!r}{more}")
    return ServerRefusalError(f"{run_id!r} cannot be queried: {error.message or error.status.name}")
