"""Lists of approval requests across the namespace, decisions, and standing approvals (R23.3), through a Temporal client.

Lists come from visibility and query no run. A query to one run returns its approval requests in full.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Final

from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.approvals.requests import STEER, WITHDRAW, IncomingMessage, WaitingMemo, WaitingView
from perdure.client._pending_activities import task_failure, unanswered
from perdure.client._run_lists import AT_ONCE, SENDER, TENANT, WAITING, following_page, read_page
from perdure.client.errors import clear_errors, no_answer
from perdure.client.selection import WaitingPage, WaitingRequest, WaitingRow, check_time_zone, of_tenant
from perdure.errors import DecisionError, DecisionRefusedError, NoWorkerError, RunEndedError, RunError, RunNotFoundError
from perdure.queries import TIMEOUT, answer_of, cancellable, query_problem, read_memo, update_ledger
from perdure.runs.agent import parse_agent
from perdure.runs.procedures import PROCEDURE, procedure_digest
from perdure.runs.standing_approvals import (
    GRANT,
    REVOKE,
    StandingAnswer,
    StandingApproval,
    StandingRevocation,
    check_bounds,
    parse_standing_approval,
)
from perdure.runs.wire import AGENT_WORKFLOW, DECIDE, POLICY, WAITING_ATTRIBUTE, WAITING_MEMO, WAITING_QUERY
from perdure.values.json import Json, JsonObject, dumps
from perdure.values.messages import merge_data

PAGE: Final = 1000
"""The default number of runs on a page: the size of visibility's own pages."""

ANSWER_TIMEOUT: Final = timedelta(seconds=15)
"""The timeout of the query that checks that a worker answers, before an update is sent. For ten seconds after a worker
was killed, the server sends it the queries about the runs in its cache. Where no worker polls, the query ends after
half a second."""

_QUERY: Final = f"WorkflowType = '{AGENT_WORKFLOW}' AND ExecutionStatus = 'Running' AND {WAITING_ATTRIBUTE} > 0"


async def list_waiting(
    client: Client, *, size: int = PAGE, page: str | None = None, tenant: str | None = None
) -> WaitingPage:
    """List the runs that wait for a person across the namespace, from visibility alone. No worker has to answer (R7.8).

    `page`: `following` of the page before. `tenant`: only its runs; `""`: only runs without a tenant. The index is a moment late. Raises
    `RunError` when the namespace cannot list it.
    """
    whose = "" if tenant is None else f" AND {of_tenant(tenant)}"
    token = await read_page(client, _QUERY + whose, page)
    found = client.list_workflows(_QUERY + whose, page_size=size, next_page_token=token)
    with _clear_refusal(client):
        await found.fetch_next_page()
    runs = list(found.current_page or ())
    waiting = [one for run in runs for one in await _named(run)]
    named = Counter(one.run_id for one in waiting)
    more = {run.id: (run.typed_search_attributes.get(WAITING) or 0) - named[run.id] for run in runs}
    waiting.sort(key=lambda one: one.entry.requested_at)
    unnamed = {run_id: count for run_id, count in more.items() if count}
    return WaitingPage(waiting, len(runs), unnamed, following_page(found))


async def listed_below(client: Client, run_id: str) -> list[WaitingRow]:
    """List the approval requests of a run and of the runs below it, as visibility names them.

    No run is queried, and it costs no Action. Raises `RunError`.
    """
    below = f"(WorkflowId = {dumps(run_id)} OR WorkflowId STARTS_WITH {dumps(run_id + '/')})"
    with _clear_refusal(client):
        return [one async for run in client.list_workflows(f"{_QUERY} AND {below}") for one in await _named(run)]


async def _named(run: WorkflowExecution) -> list[WaitingRow]:
    memo, known = await _memo(run), run.typed_search_attributes
    sender, tenant = known.get(SENDER), known.get(TENANT)
    return [WaitingRow(run.id, memo.agent, entry, sender, tenant) for entry in memo.calls]


async def may_wait(client: Client, run_id: str, call: str) -> bool:
    """Whether this call still waits, as visibility has it. No run is queried, and it costs no Action.

    Raises `RunError` when the namespace cannot list it.
    """
    with _clear_refusal(client):
        async for run in client.list_workflows(f"{_QUERY} AND WorkflowId = {dumps(run_id)}", limit=1):
            named = (await _memo(run)).calls
            return any(entry.call == call for entry in named) or (run.typed_search_attributes.get(WAITING) or 0) > len(
                named
            )
    return False


async def requests_of_run(client: Client, run_id: str, call: str | None = None) -> list[WaitingRequest]:
    """Return the approval requests of one run in full, oldest first; with `call` only that one.

    Raises `RunNotFoundError`, `NoWorkerError` when no worker answers for it, and `RunError` with the reason when the query fails (R18.8).
    """
    await _check_exists(client, run_id)
    return await _ask(client, run_id, call)


async def waiting_below(client: Client, run_id: str) -> tuple[list[WaitingRequest], list[str]]:
    """Return the approval requests of a run and of its delegates' runs, oldest first, and one line with the reason for each run that does not
    answer.

    Raises `RunNotFoundError`.
    """
    # Query the run itself, because the index is a moment late. Its delegates' runs have ids that begin with its own.
    await _check_exists(client, run_id)
    below = client.list_workflows(f"{_QUERY} AND WorkflowId STARTS_WITH {dumps(run_id + '/')}")
    runs = [run_id]
    with contextlib.suppress(RunError), _clear_refusal(client):  # a namespace without the attribute lists no delegates
        runs += [run.id async for run in below]
    found, problems = await waiting_in(client, runs)
    return found, [str(problem) for problem in problems]


async def waiting_in(client: Client, runs: Iterable[str]) -> tuple[list[WaitingRequest], list[RunError]]:
    """Return the approval requests of these runs, oldest first, and the error of each run that does not answer.

    A run that no longer exists has none.
    """
    limit = asyncio.Semaphore(AT_ONCE)

    async def ask(run: str) -> list[WaitingRequest] | RunError:
        async with limit:
            try:
                return await _ask(client, run, None)
            except RunError as error:
                return error

    answers = await asyncio.gather(*map(ask, runs))
    found = [one for answer in answers if not isinstance(answer, RunError) for one in answer]
    problems = [each for each in answers if isinstance(each, RunError)]
    return sorted(found, key=lambda one: one.request.requested_at), problems


async def list_below(client: Client, run_id: str, *, asked: bool) -> dict[str, str]:
    """Return the ids of the runs below a run, at most `PAGE`, each with the id of its newest execution.

    `asked`: of ended runs only those that had an approval request. A namespace without the attribute then lists none.
    """
    query = f"WorkflowType = '{AGENT_WORKFLOW}' AND ExecutionStatus != 'ContinuedAsNew'"
    query += f" AND WorkflowId STARTS_WITH {dumps(run_id + '/')}"
    if asked:
        query += f" AND (ExecutionStatus = 'Running' OR {WAITING_ATTRIBUTE} IS NOT NULL)"
    found: dict[str, str] = {}
    with contextlib.suppress(RunError), _clear_refusal(client):
        async for run in client.list_workflows(query, limit=PAGE):  # the newest come first
            found.setdefault(run.id, run.run_id)
    return found


async def _ask(client: Client, run_id: str, call: str | None) -> list[WaitingRequest]:
    """Return the run's approval requests; none if it no longer exists. Raise `RunError` if it does not answer."""
    handle = client.get_workflow_handle(run_id)
    found: list[WaitingRequest] = []
    more = True
    try:
        while more:  # as many as fit into an answer
            requests: list[WaitingView] = await answer_of(
                handle, WAITING_QUERY, call, len(found), result_type=list[WaitingView], client=client
            )
            found += [WaitingRequest(run_id, request) for request in requests]
            more = bool(requests) and requests[-1].more > 0
    except WorkflowQueryFailedError as error:
        raise RunError(f"the approval requests of {run_id!r} cannot be read: {query_problem(run_id, error)}") from None
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return []
        raise await unanswered(client, run_id, no_answer(error, run_id, ", which has a waiting call")) from None
    return [each for each in found if not each.request.client]


async def _memo(run: WorkflowExecution) -> WaitingMemo:
    return await read_memo(run, WAITING_MEMO, WaitingMemo(agent="", calls=[]), WaitingMemo)


async def _check_exists(client: Client, run_id: str) -> None:
    with clear_errors(client, run_id):
        await client.get_workflow_handle(run_id).describe()


@contextlib.contextmanager
def _clear_refusal(client: Client) -> Iterator[None]:
    try:
        yield
    except RPCError as error:
        if error.status == RPCStatusCode.INVALID_ARGUMENT and WAITING_ATTRIBUTE in error.message:
            raise RunError(
                f"namespace {client.namespace!r} lacks the search attribute {WAITING_ATTRIBUTE}. A worker registers it at its start; without that permission, ask an administrator to add it as an Int"
            ) from None
        raise


async def decide(client: Client, run_id: str, decision: JsonObject) -> JsonObject:
    """Send a decision, and return the result: `{"call", "decision"}`. Raises `RunError` with the reason why nothing
    changed.
    """
    try:
        return await _update(client, run_id, DECIDE, decision)
    except DecisionRefusedError as error:
        raise DecisionRefusedError(f"{error}{await _waits_below(client, run_id, decision)}") from None


async def _waits_below(client: Client, run_id: str, decision: JsonObject) -> str:
    """Return a sentence with the call of a run below that the decision may mean; empty if the run itself has that call."""
    rows: list[WaitingRow] = []
    with contextlib.suppress(RPCError, RunError):
        rows = await listed_below(client, run_id)
    meant = [row for row in rows if row.entry.call == decision.get("call")] or rows
    if not meant or any(row.run_id == run_id for row in meant):
        return ""
    return f". A run below it has a call that waits: run {meant[0].run_id!r}, call {meant[0].entry.call!r}"


async def change_policy(client: Client, run_id: str, change: JsonObject) -> JsonObject:
    """Change the run's policy, and return the new policy. Raises `RunError` with the reason why nothing changed."""
    return await _update(client, run_id, POLICY, change)


async def withdraw(client: Client, run_id: str, message: str, sender: str | None) -> None:
    """Withdraw a message that no Request of the run holds; with a `sender` only that sender's.

    Raises `RunError` with the reason why nothing changed.
    """
    await _update(client, run_id, WITHDRAW, message if sender is None else {"id": message, "sender": sender})


async def steer(client: Client, run_id: str, message: IncomingMessage) -> None:
    """Send a message to a running run, and wait until its history has it. Raises `RunEndedError`."""
    try:
        await client.get_workflow_handle(run_id).signal(STEER, message.as_json(), rpc_timeout=TIMEOUT)
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND and "completed" in error.message:
            raise RunEndedError(f"{run_id} has already ended: the message was rejected") from None
        raise
    if failing := await task_failure(client, await client.get_workflow_handle(run_id).describe()):
        raise NoWorkerError(f"{run_id!r} received the message, but has not processed it: {failing}")


async def _update(client: Client, run_id: str, name: str, argument: Json) -> JsonObject:
    handle = client.get_workflow_handle(run_id)
    await _check_answers(client, handle)
    try:
        with cancellable():
            # The run uses this to detect a reset in between.
            id = f"{(await handle.describe(rpc_timeout=TIMEOUT)).run_id}/{uuid.uuid4().hex}"
            changed: JsonObject = await handle.execute_update(name, argument, id=id, rpc_timeout=TIMEOUT)
            return changed
    except WorkflowUpdateFailedError as error:
        reason = error.cause.message if isinstance(error.cause, ApplicationError) else str(error.cause)
        raise DecisionRefusedError(f"nothing changed: {reason}") from None
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            if "completed" in error.message or await _has_ended(handle):
                raise RunEndedError(f"nothing changed: the run {run_id!r} has ended") from None
            words = f"nothing changed: the run {run_id!r} does not exist in namespace {client.namespace!r}"
            raise RunNotFoundError(words) from None
        if error.status in (RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED):
            raise await unanswered(client, run_id, _unanswered(run_id)) from None
        raise
    except WorkflowUpdateRPCTimeoutOrCancelledError:
        raise await unanswered(client, run_id, _unanswered(run_id)) from None


async def _has_ended(handle: WorkflowHandle[Any, Any]) -> bool:
    """Whether the server has the run as ended. It reports an update that came after the end in several ways."""
    with contextlib.suppress(RPCError):
        return (await handle.describe(rpc_timeout=TIMEOUT)).status is not WorkflowExecutionStatus.RUNNING
    return False


async def _check_answers(client: Client, handle: WorkflowHandle[Any, Any]) -> None:
    """Check that the run answers now: the server keeps an update, and a later worker would still execute it.

    Raises `NoWorkerError` if no worker answers within `ANSWER_TIMEOUT`. The update itself reports other errors.
    """
    try:
        await answer_of(handle, WAITING_QUERY, "", within=ANSWER_TIMEOUT, client=client)
    except WorkflowQueryFailedError as error:
        raise RunError(f"nothing changed: {handle.id!r} cannot answer now: {query_problem(handle.id, error)}") from None
    except RPCError as error:
        if error.status in (
            RPCStatusCode.CANCELLED,
            RPCStatusCode.DEADLINE_EXCEEDED,
            RPCStatusCode.FAILED_PRECONDITION,
        ):
            nobody = NoWorkerError(
                f"nothing changed: no worker answers for {handle.id!r}; send the decision again when a worker runs"
            )
            raise await unanswered(client, handle.id, nobody) from None
        if error.status != RPCStatusCode.NOT_FOUND:
            raise


def _unanswered(run_id: str) -> NoWorkerError:
    """Return the error for a run that stopped answering. The update was sent and cannot be withdrawn."""
    return NoWorkerError(
        f"no worker answers for {run_id!r} any more; the decision was sent and may still take effect when a worker runs"
    )


def standing_approval_of(
    document: JsonObject,
    *,
    uses: int,
    until: str | date,
    by: str,
    bounds: JsonObject,
    sources: Sequence[str],
    name: str | None,
    reason: str,
) -> StandingApproval:
    """Return a standing approval of this agent file. Raise `DecisionError` unless the agent is a procedure, and for
    invalid bounds; `ProtocolError` for a time without a time zone.
    """
    if isinstance(until, datetime):
        until = check_time_zone(until, "until").isoformat(timespec="seconds")
    elif isinstance(until, date):
        until = until.isoformat()
    agent = parse_agent(document)
    if PROCEDURE not in agent.metadata:
        raise DecisionError(f"{agent.name} is not a procedure: make one of a run with 'perdure promote'")
    merged = next((each for each in merge_data(agent.messages()) if each.kind == "input"), None)
    given: dict[str, Json] = {
        "name": name or agent.name,
        "procedure": agent.name,
        "digest": procedure_digest(agent),
        "bounds": bounds,
        "sources": [*sources],
        "uses": uses,
        "until": until,
        "by": by,
        "reason": reason,
    }
    standing = parse_standing_approval(given)
    check_bounds(standing.bounds, merged.data_schema if merged is not None and merged.data_schema else {})
    return standing


async def grant_standing_approval(
    client: Client, tenant: str, task_queue: str, wanted: StandingApproval
) -> StandingApproval:
    """Grant a standing approval. Raise `DecisionRefusedError` if the ledger rejects it."""
    answer = await update_ledger(client, tenant, task_queue, GRANT, wanted, StandingAnswer)
    if answer.approval is None:
        raise DecisionRefusedError(answer.refused)
    return answer.approval


async def revoke_standing_approval(
    client: Client, tenant: str, task_queue: str, name: str, by: str
) -> StandingApproval:
    """Revoke a standing approval. Raise `RunNotFoundError` if none has this name."""
    wanted = StandingRevocation(name=name, by=by)
    answer = await update_ledger(client, tenant, task_queue, REVOKE, wanted, StandingAnswer)
    if answer.approval is None:
        raise RunNotFoundError(answer.refused)
    return answer.approval
