"""What waits for a person, across the namespace, and deciding it, through a Temporal client."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from temporalio.client import Client, WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.client.runs import QUERY_TIMEOUT
from perdure.errors import RunError
from perdure.run.wire import AGENT_WORKFLOW, DECIDE, POLICY, WAITING_ATTRIBUTE, WAITING_QUERY, WaitingView
from perdure.values.jsons import Json, JsonObject, dumps

_AT_ONCE: Final = 16
"""Runs asked at a time."""


@dataclass(frozen=True)
class Waiting:
    """One thing that waits, and in which run."""

    run_id: str
    offer: WaitingView

    def as_json(self) -> JsonObject:
        return {"runId": self.run_id, **self.offer.as_json()}


def age(since: str) -> str:
    """How long ago, in the largest unit that says something."""
    seconds = int((datetime.now(UTC) - datetime.fromisoformat(since)).total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{max(seconds, 0)} s"


async def list_waiting(client: Client, run_id: str | None = None) -> tuple[list[Waiting], list[str]]:
    """All that waits, oldest first, and the runs that have something but whose worker does not answer (R7.8).

    Raises `RunError` when the namespace cannot list them, or there is no such run.
    """
    # A run is asked itself, for the index is a moment late; its delegates' runs are named after it.
    if run_id is None:
        runs = await _runs(client)
    else:
        await _check_exists(client, run_id)
        runs = [run_id, *await _runs(client, below=run_id)]
    limit = asyncio.Semaphore(_AT_ONCE)
    silent: list[str] = []

    async def ask(run: str) -> list[Waiting]:
        async with limit:
            try:
                offers: list[WaitingView] = await client.get_workflow_handle(run).query(
                    WAITING_QUERY, result_type=list[WaitingView], rpc_timeout=QUERY_TIMEOUT
                )
            except (RPCError, WorkflowQueryFailedError) as error:
                if not (isinstance(error, RPCError) and error.status == RPCStatusCode.NOT_FOUND):
                    silent.append(run)  # what is not there any more has nothing waiting
                return []
            return [Waiting(run, offer) for offer in offers]

    found = await asyncio.gather(*map(ask, runs))
    return sorted((one for each in found for one in each), key=lambda one: one.offer.requested_at), silent


async def _check_exists(client: Client, run_id: str) -> None:
    try:
        await client.get_workflow_handle(run_id).describe()
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            raise RunError(f"there is no run {run_id!r} in namespace {client.namespace!r}") from None
        raise


async def _runs(client: Client, below: str | None = None) -> list[str]:
    query = f"WorkflowType = '{AGENT_WORKFLOW}' AND ExecutionStatus = 'Running' AND {WAITING_ATTRIBUTE} > 0"
    if below is not None:
        query += f" AND WorkflowId STARTS_WITH {dumps(below + '/')}"
    try:
        return [run.id async for run in client.list_workflows(query)]
    except RPCError as error:
        if error.status == RPCStatusCode.INVALID_ARGUMENT and WAITING_ATTRIBUTE in error.message:
            raise RunError(
                f"namespace {client.namespace!r} does not know the search attribute {WAITING_ATTRIBUTE}: a worker "
                "registers it at its start; where it may not, have it added as an Int"
            ) from None
        raise


async def decide(client: Client, run_id: str, decision: JsonObject) -> JsonObject:
    """Decide, and be told at once; `{"call", "decision"}`. Raises `RunError` with the reason why nothing changed."""
    result: JsonObject = await _update(client, run_id, DECIDE, decision)
    return result


async def change_policy(client: Client, run_id: str, change: JsonObject) -> JsonObject:
    """The run's policy as it stands then. Raises `RunError`."""
    result: JsonObject = await _update(client, run_id, POLICY, change)
    return result


async def _update(client: Client, run_id: str, name: str, argument: JsonObject) -> Json:
    try:
        return await client.get_workflow_handle(run_id).execute_update(name, argument, rpc_timeout=QUERY_TIMEOUT)
    except WorkflowUpdateFailedError as error:
        reason = error.cause.message if isinstance(error.cause, ApplicationError) else str(error.cause)
        raise RunError(f"nothing changed: {reason}") from None
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            gone = "has ended" if "completed" in error.message else f"does not exist in namespace {client.namespace!r}"
            raise RunError(f"nothing changed: the run {run_id!r} {gone}") from None
        if error.status in (RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED):
            raise RunError(f"no worker answers for {run_id!r}; the decision may still be taken later") from None
        raise
