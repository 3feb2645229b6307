"""Lists of runs from Temporal's visibility, page by page. No run is queried."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeAlias

from temporalio.api.workflowservice.v1 import ListWorkflowExecutionsRequest
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionAsyncIterator, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode

from perdure.client._pending_activities import check_ends
from perdure.client.selection import (
    ListedRun,
    ListedSession,
    RunPage,
    Selection,
    SessionPage,
    of_tenant,
    quote_text,
    schedule_name,
)
from perdure.errors import RunError, ServerRefusalError
from perdure.models.requests import ModelWait
from perdure.queries import UNANSWERED, read_memo
from perdure.runs.wire import (
    AGENT_ATTRIBUTE,
    AGENT_WORKFLOW,
    ATTRIBUTES,
    COST_ATTRIBUTE,
    LONGEST_KEYWORD,
    MODEL_MEMO,
    MODEL_REFUSED,
    POLICY,
    SCHEDULE_ATTRIBUTE,
    SCHEDULED_ATTRIBUTE,
    SENDER_ATTRIBUTE,
    STOP_ATTRIBUTE,
    TENANT_ATTRIBUTE,
    USAGE_MEMO,
    VERSION_ATTRIBUTE,
    WAITING_ATTRIBUTE,
    RunStatus,
)
from perdure.sessions.wire import SESSION_WORKFLOW
from perdure.values.json import JsonObject, shorten

STATUS: Final[dict[WorkflowExecutionStatus, RunStatus]] = {
    WorkflowExecutionStatus.RUNNING: "running",
    WorkflowExecutionStatus.COMPLETED: "completed",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.TERMINATED: "terminated",
    WorkflowExecutionStatus.TIMED_OUT: "timed_out",
    WorkflowExecutionStatus.CONTINUED_AS_NEW: "running",
}
KEY_MEMO: Final = "session"
"""Key of the memo that holds a session's key: its id is a digest."""
TITLE_MEMO: Final = "title"
"""Key of the memo that holds the first line of a session's first message, its title in a list."""
TITLE: Final = 120
"""Characters of the title."""
TENANTS: Final = 50
"""The most tenants that a list returns."""
_LOOKED_AT: Final = 200
_IDS: Final = 100
"""Ids that one query names."""
OnRun: TypeAlias = Callable[[str], None]
"""Receives the id of each run that has accepted a change."""
AT_ONCE: Final = 16
"""Runs that are queried, or signalled, at a time."""
_KEYWORDS: Final = {
    name: SearchAttributeKey.for_keyword(name) for name, kind in ATTRIBUTES.items() if kind == "Keyword"
}
_KNOWS_PAGE: Final = timedelta(seconds=5)
_NOT_A_PAGE: Final = {RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.INTERNAL, RPCStatusCode.UNKNOWN}
"""The statuses for a token that the server cannot read. They depend on its database."""
WAITING: Final = SearchAttributeKey.for_int(WAITING_ATTRIBUTE)
AGENT: Final = _KEYWORDS[AGENT_ATTRIBUTE]
SENDER: Final = _KEYWORDS[SENDER_ATTRIBUTE]
TENANT: Final = _KEYWORDS[TENANT_ATTRIBUTE]
_PROBLEMS: Final = SearchAttributeKey.for_keyword_list("TemporalReportedProblems")
"""The server's own attribute: `category=WorkflowTaskFailed`, and `cause=` with the name of the cause."""
_COST: Final = SearchAttributeKey.for_float(COST_ATTRIBUTE)
SCHEDULE: Final = SearchAttributeKey.for_keyword(SCHEDULE_ATTRIBUTE)
SCHEDULED: Final = SearchAttributeKey.for_datetime(SCHEDULED_ATTRIBUTE)


def start_attributes(agent: str, sender: str | None, tenant: str | None, version: str = "") -> TypedSearchAttributes:
    """Return the search attributes of a run at its start."""
    values = (
        (AGENT_ATTRIBUTE, agent),
        (SENDER_ATTRIBUTE, sender),
        (TENANT_ATTRIBUTE, tenant),
        (VERSION_ATTRIBUTE, version),
    )
    return TypedSearchAttributes(
        [SearchAttributePair(_KEYWORDS[name], value[:LONGEST_KEYWORD]) for name, value in values if value]
    )


def names_attribute(error: RPCError) -> bool:
    """Whether the server rejects a request because it lacks one of Perdure's search attributes."""
    return error.status == RPCStatusCode.INVALID_ARGUMENT and "Perdure" in error.message


async def walk_runs(client: Client, selection: Selection, limit: int | None = None) -> AsyncGenerator[ListedRun, None]:
    """Yield runs over all pages, at most `limit`. Raises `RunError`."""
    try:
        async for run in _selected(client, selection, limit):
            yield await _row(run)
    except RPCError as error:
        raise _refusal(client, error, selection.query) from None


async def _selected(client: Client, selection: Selection, limit: int | None = None) -> AsyncIterator[WorkflowExecution]:
    left, found = limit, client.list_workflows(selection.text())
    while left is None or left > 0:
        await found.fetch_next_page()
        for run in await _without_replaced(client, found.current_page or ()):
            if left == 0:
                return
            if selection.takes(run.parent_id):
                yield run
                left = None if left is None else left - 1
        if not found.next_page_token:
            return


async def _without_replaced(client: Client, page: Sequence[WorkflowExecution]) -> list[WorkflowExecution]:
    """Leave out ended executions that a reset has replaced: their run is the newer execution with the same id."""
    ids = sorted({run.id for run in page if run.status != WorkflowExecutionStatus.RUNNING})
    newest: dict[str, str] = {}
    for start in range(0, len(ids), _IDS):
        named = ", ".join(map(quote_text, ids[start : start + _IDS]))
        async for each in client.list_workflows(f"WorkflowId IN ({named}) AND ExecutionStatus != 'ContinuedAsNew'"):
            newest.setdefault(each.id, each.run_id)  # the newest come first
    return [run for run in page if newest.get(run.id, run.run_id) == run.run_id]


async def list_runs(client: Client, selection: Selection, *, size: int, page: str | None = None) -> RunPage:
    """Return a page of runs; `page`: `following` of the page before. Raises `RunError` for an invalid selection."""
    token = await read_page(client, text := selection.text(), page)
    found = client.list_workflows(text, page_size=size, next_page_token=token)
    try:
        await found.fetch_next_page()
    except RPCError as error:
        raise _refusal(client, error, selection.query) from None
    rows = await _without_replaced(client, found.current_page or ())
    return RunPage([await _row(run) for run in rows], following_page(found))


async def walk_sessions(client: Client, tenant: str) -> AsyncGenerator[ListedSession, None]:
    """Yield the sessions of a tenant, the most recently active first."""
    try:
        async for each in client.list_workflows(_sessions_of(tenant)):
            yield await _session(each)
    except RPCError as error:
        if not names_attribute(error):  # without the attribute no worker has run here, so there is no session
            raise


async def list_sessions(client: Client, tenant: str, *, size: int, page: str | None) -> SessionPage:
    """Return one page of sessions; `page`: `following` of the page before. Raises `RunError` for an invalid page."""
    token = await read_page(client, text := _sessions_of(tenant), page)
    found = client.list_workflows(text, page_size=size, next_page_token=token)
    try:
        await found.fetch_next_page()
    except RPCError as error:
        if names_attribute(error):
            return SessionPage([], None)
        raise _refusal(client, error) from None
    return SessionPage([await _session(each) for each in found.current_page or ()], following_page(found))


def _sessions_of(tenant: str) -> str:
    return f"WorkflowType = '{SESSION_WORKFLOW}' AND ExecutionStatus = 'Running' AND {of_tenant(tenant)}"


async def list_tenants(client: Client) -> list[str]:
    """Return the tenants that runs or sessions of this namespace were started for, at most `TENANTS`, in alphabetical order."""
    found: set[str] = set()
    kinds = f"WorkflowType IN ('{AGENT_WORKFLOW}', '{SESSION_WORKFLOW}')"
    try:
        while len(found) < TENANTS:
            # The server does not list the values of an attribute: each query leaves out the tenants that are known.
            others = "".join(f" AND {TENANT_ATTRIBUTE} != {quote_text(tenant)}" for tenant in found)
            query = f"{kinds} AND {TENANT_ATTRIBUTE} IS NOT NULL{others}"
            named = {
                tenant
                async for each in client.list_workflows(query, limit=_LOOKED_AT)
                if (tenant := each.typed_search_attributes.get(TENANT))
            }
            if not named - found:
                break
            found |= named
    except RPCError as error:
        if not names_attribute(error):
            raise
    return sorted(found)[:TENANTS]


async def _session(found: WorkflowExecution) -> ListedSession:
    key = await read_memo(found, KEY_MEMO, "", str)
    title = await read_memo(found, TITLE_MEMO, "", str)
    return ListedSession(
        key, found.id, found.typed_search_attributes.get(_KEYWORDS[AGENT_ATTRIBUTE]), found.start_time, title
    )


async def count_runs(client: Client, selection: Selection) -> int:
    """Return the number of runs, also counting the executions that resets have replaced. Raises `RunError`."""
    try:
        if selection.outermost:
            return sum([1 async for _ in _selected(client, selection)])
        return (await client.count_workflows(selection.text())).count
    except RPCError as error:
        raise _refusal(client, error, selection.query) from None


async def cancel_runs(client: Client, selection: Selection, on_run: OnRun) -> int:
    """Cancel all selected runs that are running, and return their number. Runs that end meanwhile are skipped.

    Raises `RunError` as `act_on_all` does, also for a run whose workflow tasks fail.
    """

    async def cancel(run_id: str) -> None:
        await client.get_workflow_handle(run_id).cancel()
        await check_ends(client, run_id)

    return await _each(client, selection, cancel, on_run)


async def terminate_runs(client: Client, selection: Selection, reason: str, on_run: OnRun) -> int:
    """Terminate all selected runs that are running, and return their number. Runs that end meanwhile are skipped."""
    handle = client.get_workflow_handle
    return await _each(client, selection, lambda run_id: handle(run_id).terminate(reason=reason or None), on_run)


async def change_policies(
    client: Client, selection: Selection, change: JsonObject, on_run: OnRun = lambda _: None
) -> int:
    """Change the policy of all selected runs that are running, by signal, and return their number. No worker has to
    answer.
    """
    handle = client.get_workflow_handle
    return await _each(client, selection, lambda run_id: handle(run_id).signal(POLICY, change), on_run)


async def _each(client: Client, selection: Selection, act: Callable[[str], Awaitable[None]], on_run: OnRun) -> int:
    try:
        # List all runs first: the action could move them from page to page.
        ids = [run.id async for run in _running(client, selection)]
    except RPCError as error:
        raise _refusal(client, error, selection.query) from None
    return await act_on_all(ids, act, on_run)


async def act_on_all(
    run_ids: Sequence[str], act: Callable[[str], Awaitable[None]], on_run: OnRun = lambda _: None
) -> int:
    """Call `act` for each run, and return the number of successes. Ended runs are skipped. `on_run` receives the id
    after each success.

    Raises `RunError` with the number of successes if a run rejects the action; the others continue. If the server does
    not answer, no more are begun.
    """
    limit, done = asyncio.Semaphore(AT_ONCE), 0
    refused: dict[str, RPCError | RunError] = {}

    async def one(run_id: str) -> None:
        nonlocal done
        async with limit:
            if any(isinstance(error, RPCError) and error.status in UNANSWERED for error in refused.values()):
                return
            try:
                await act(run_id)
                done += 1
                on_run(run_id)
            except RPCError as error:
                if error.status != RPCStatusCode.NOT_FOUND:
                    refused[run_id] = error
            except RunError as error:
                refused[run_id] = error

    async with asyncio.TaskGroup() as group:
        for run_id in run_ids:
            group.create_task(one(run_id))
    if refused:
        run_id, error = next(iter(refused.items()))
        more = f" and {len(refused) - 1:,} more" if len(refused) > 1 else ""
        why = str(error) if isinstance(error, RunError) else error.message or error.status.name
        raise RunError(f"{done:,} of {len(run_ids):,} runs accepted the change, {run_id!r}{more} did not: {why}")
    return done


async def _running(client: Client, selection: Selection) -> AsyncIterator[WorkflowExecution]:
    async for run in _selected(client, selection):
        # An `OR` in the user's query may match other workflows, and runs that have ended.
        if run.status == WorkflowExecutionStatus.RUNNING and run.workflow_type == AGENT_WORKFLOW:
            yield run


async def _row(run: WorkflowExecution) -> ListedRun:
    known = run.typed_search_attributes
    status = STATUS[run.status] if run.status is not None else "running"
    if status == "failed" and known.get(_KEYWORDS[STOP_ATTRIBUTE]) == MODEL_REFUSED:
        status = "refused"
    return ListedRun(
        id=run.id,
        status=status,
        started_at=run.start_time,
        ended_at=run.close_time,
        agent=known.get(_KEYWORDS[AGENT_ATTRIBUTE]),
        version=known.get(_KEYWORDS[VERSION_ATTRIBUTE]),
        stop_reason=known.get(_KEYWORDS[STOP_ATTRIBUTE]),
        cost=known.get(_COST),
        tokens=await _tokens(run),
        sender=known.get(SENDER),
        tenant=known.get(TENANT),
        waiting=(known.get(WAITING) or 0) if status == "running" else 0,
        wait=await _model_wait(run) if status == "running" else None,
        trouble=_task_problems(known) if status == "running" else None,
        **schedule_of(known),
    )


def schedule_of(known: TypedSearchAttributes) -> dict[str, Any]:
    """Return the fields `schedule` and `scheduled_at` of a run with these search attributes; empty if no schedule
    started it.
    """
    if not (id := known.get(SCHEDULE)):
        return {}
    return {"schedule": schedule_name(id), "scheduled_at": known.get(SCHEDULED)}


def _task_problems(known: TypedSearchAttributes) -> str | None:
    problems = [each.partition("=")[2] for each in known.get(_PROBLEMS) or ()]
    return f"its workflow tasks fail: {', '.join(problems)}" if problems else None


async def _tokens(run: WorkflowExecution) -> int | None:
    """Return the tokens that the run recorded at its end; `None` if they were encrypted with another key."""
    with contextlib.suppress(Exception):
        usage: JsonObject | None = await run.memo_value(USAGE_MEMO, None, type_hint=dict)
        if usage is not None:
            return int(usage["promptTokens"]) + int(usage["completionTokens"])
    return None


async def _model_wait(run: WorkflowExecution) -> ModelWait | None:
    """Return the run's record of its wait for a model's provider; `None` if it was encrypted with another key."""
    return await read_memo(run, MODEL_MEMO, None, ModelWait)


def _refusal(client: Client, error: RPCError, query: str | None = None) -> Exception:
    if names_attribute(error):
        return ServerRefusalError(
            f"namespace {client.namespace!r} lacks a search attribute of this list ({error.message}). A worker registers them at its start; without that permission, ask an administrator to add them"
        )
    if error.status == RPCStatusCode.INVALID_ARGUMENT:
        what = "this cannot be listed" if query is None else f"the query {shorten(query, 80)} is refused"
        return ServerRefusalError(f"{what}: {error.message}")
    return error


async def read_page(client: Client, query: str, page: str | None) -> bytes | None:
    """Return the server's token for a page. Raises `RunError` for an invalid one.

    One request without retries checks the token first. The SDK would retry the errors for an invalid token for seconds.
    """
    if page is None:
        return None
    try:
        token = base64.b64decode(page, altchars=b"-_", validate=True)
        asked = ListWorkflowExecutionsRequest(
            namespace=client.namespace, page_size=1, next_page_token=token, query=query
        )
        await client.workflow_service.list_workflow_executions(asked, retry=False, timeout=_KNOWS_PAGE)
    except RPCError as error:
        if error.status not in _NOT_A_PAGE:
            raise
        raise RunError(f"{shorten(page, 40)} is not a page: give the token of the previous page") from None
    except (binascii.Error, ValueError):
        raise RunError(f"{shorten(page, 40)} is not a page: give the token of the previous page") from None
    return token


def following_page(found: WorkflowExecutionAsyncIterator) -> str | None:
    """Return the name of the page after the last fetched page."""
    return base64.urlsafe_b64encode(found.next_page_token).decode() if found.next_page_token else None
