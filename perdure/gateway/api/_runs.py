"""Runs over HTTP, and the undo of a run."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from perdure.client.run import Run
from perdure.client.selection import Selection
from perdure.gateway._idempotency import HEADER
from perdure.gateway.adapter import check_same_context
from perdure.gateway.api._forms import (
    DecisionBody,
    DeliveredMessage,
    ListRuns,
    Paged,
    RunMessage,
    StartedRun,
    StartRun,
    TranscriptQuery,
    UndoQuery,
    UndoRun,
    WaitQuery,
)
from perdure.gateway.api._operations import OBJECT, ApiRequest, json_response, operation, page_schema, wait_response
from perdure.gateway.callers import APPROVE, READ, SEND, UNDO
from perdure.gateway.errors import HttpError
from perdure.runs.undo import UndoPlan
from perdure.runs.wire import RunResult
from perdure.sessions.wire import SESSION_PREFIX, WaitResult
from perdure.values.references import MISSING

_R: Final = "/v1/runs/{run}"
_EFFECTS: Final = {"type": "object", "properties": {"effects": {"type": "array", "items": OBJECT}}}


@operation("POST", "/v1/runs", SEND, body=StartRun, answers={201: StartedRun})
async def start_run(request: ApiRequest[StartRun]) -> Response:
    """Start a run."""
    body, caller = request.body, request.caller
    if body.approval:
        caller.check(APPROVE, "change a run's approval policy")
    header = request.request.headers.get(HEADER)
    if header is not None and body.key not in (None, header):
        raise HttpError(422, "the body's 'key' and the header Idempotency-Key are two different keys: leave one out")
    agent = request.gateway.agents.get(body.agent)
    run = await request.gateway.perdure.start(
        agent,
        body.input if "input" in body.model_fields_set else MISSING,
        key=body.key or header,
        approval=body.approval,  # type: ignore[arg-type]  # validated there
        sender=caller.sender,
        tenant=caller.tenant,
        context=caller.context,
        callback=request.body.callback,
    )
    return json_response({"runId": run.id}, 201, {"Location": f"/v1/runs/{quote(run.id)}"})


@operation("GET", "/v1/runs", READ, query=ListRuns, answers={200: page_schema("runs")})
async def list_runs(request: ApiRequest[Paged, ListRuns]) -> Response:
    """List runs, newest first."""
    query = request.query
    chosen = Selection(
        agent=query.agent,
        status=query.status,
        since=query.since,
        sender=query.sender,
        waiting=query.waiting,
        schedule=query.schedule,
        version=query.version,
        tenant=request.caller.tenant,
    )
    page = await request.gateway.perdure.page_of_runs(chosen, size=query.limit, page=query.page)
    return json_response({"runs": [row.as_json() for row in page.rows], "next": page.following})


@operation("GET", _R, READ, answers={200: RunResult})
async def show_run(request: ApiRequest) -> Response:
    """Show a run."""
    return json_response((await (await request.run()).view()).result().as_json())


@operation("GET", f"{_R}/wait", READ, query=WaitQuery, answers={200: WaitResult})
async def wait_for_run(request: ApiRequest[Paged, WaitQuery]) -> Response:
    """Wait for a run's end."""
    # For a session's run also before it begins.
    id, gateway = request.named("run"), request.gateway
    if id.startswith(SESSION_PREFIX):
        session = await gateway.own_session_of(request.caller, id)
        return await wait_response(request, lambda timeout: session.wait(id, timeout))
    run = await request.run()
    return await wait_response(request, run.waited)


@operation("GET", f"{_R}/value", READ, query=TranscriptQuery, answers={200: {}})
async def read_value(request: ApiRequest[Paged, TranscriptQuery]) -> Response:
    """Read one full value of a run."""
    text = await (await request.run()).value(request.query.what)
    return Response(text.encode(errors="backslashreplace"), media_type="application/json")


@operation("GET", f"{_R}/waiting", READ, answers={200: OBJECT})
async def list_waiting_in_run(request: ApiRequest) -> Response:
    """Show the approval requests and questions of a run and its descendants in full."""
    found, silent = await (await request.run()).waiting_below()
    return json_response({"waiting": [one.as_json() for one in found], "silent": [*silent]})


@operation("POST", f"{_R}/decisions", APPROVE, body=DecisionBody, answers={200: OBJECT})
async def decide(request: ApiRequest[DecisionBody]) -> Response:
    """Decide an approval request."""
    decision = request.body.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return json_response(await (await request.run()).decide(request.caller.signed(decision)))


async def _of_no_session(request: ApiRequest[Any, Any], otherwise: str) -> Run[Any]:
    """Return the run that the path names. Raises `HttpError` (409) for a run of a session, which compares the senders' rights itself (R10.9)."""
    run = await request.run()
    if run.id.startswith(SESSION_PREFIX):
        raise HttpError(409, f"this is a run of a session: {otherwise}")
    return run


@operation("POST", f"{_R}/messages", SEND, body=RunMessage, answers={202: DeliveredMessage})
async def tell_run(request: ApiRequest[RunMessage]) -> Response:
    """Send a message to an open run."""
    run = await _of_no_session(request, "send the message to the session")
    await check_same_context(request.caller, run)
    id = await run.steer(request.body.text, by=request.caller.sender, id=request.body.message_id)
    return json_response({"messageId": id}, 202)


@operation("DELETE", _R + "/messages/{message}", SEND, answers={204: None})
async def withdraw_from_run(request: ApiRequest) -> Response:
    """Withdraw a message that no Request of the run contains yet."""
    run = await _of_no_session(request, "withdraw it from the session")
    caller = request.caller
    await run.withdraw(request.named("message"), sender=None if caller.may("withdraw") else caller.sender)
    return Response(status_code=204)


@operation("POST", f"{_R}/cancel", "stop", answers={202: None})
async def cancel_run(request: ApiRequest) -> Response:
    """Cancel a run."""
    await (await request.run()).cancel()
    return Response(status_code=202)


@operation("GET", "/v1/approvals", READ, query=Paged, answers={200: page_schema("waiting")})
async def list_waiting(request: ApiRequest[Paged, Paged]) -> Response:
    """List approval requests and questions."""
    query = request.query
    found = await request.gateway.perdure.approvals(size=query.limit, page=query.page, tenant=request.caller.tenant)
    return json_response(
        {"waiting": [one.as_json() for one in found.waiting], "unnamed": {**found.unnamed}, "next": found.following}
    )


@operation("GET", f"{_R}/effects", READ, answers={200: _EFFECTS})
async def list_effects(request: ApiRequest) -> Response:
    """List a run's effects, and which of them are undone."""
    found = await (await request.run()).effects()
    return json_response({"effects": [each.as_json() for each in found]})


@operation("GET", f"{_R}/undo", READ, query=UndoQuery, answers={200: UndoPlan})
async def plan_undo(request: ApiRequest[UndoRun, UndoQuery]) -> Response:
    """Show the calls that an undo of a run undoes, and the calls that stay."""
    query = request.query
    found = await (await request.run()).undo_plan(to=query.to, no_effect=query.calls)
    return json_response(found.as_json())


@operation("POST", f"{_R}/undo", UNDO, body=UndoRun, answers={201: StartedRun})
async def undo_run(request: ApiRequest[UndoRun]) -> Response:
    """Undo the calls of a run that has ended."""
    body, run = request.body, await request.run()
    started = await run.undo(to=body.to, no_effect=body.no_effect, by=request.caller.sender)
    return json_response({"runId": started.id}, 201, {"Location": f"/v1/runs/{quote(started.id)}"})


RUNS: Final = (
    *(list_effects, plan_undo, undo_run),
    *(start_run, list_runs, list_waiting, decide, tell_run, withdraw_from_run, cancel_run),
    *(wait_for_run, list_waiting_in_run, read_value, show_run),
)
"""A longer path comes before its prefix, because ids may contain slashes."""
