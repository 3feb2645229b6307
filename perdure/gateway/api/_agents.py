"""Agents over HTTP, and what allows and starts their coming runs: schedules and standing approvals."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from perdure.agents.agent import Agent
from perdure.client.schedules import Schedule
from perdure.gateway.api._forms import (
    BackfillSchedule,
    CreateSchedule,
    GrantStandingApproval,
    ScheduleNote,
    TriggerSchedule,
)
from perdure.gateway.api._operations import OBJECT, ApiRequest, json_response, operation
from perdure.gateway.callers import GRANT, READ, SEND, STOP
from perdure.runs.schedules import with_time
from perdure.runs.standing_approvals import StandingApproval
from perdure.values.json import JsonObject
from perdure.values.references import MISSING

_S: Final = "/v1/schedules/{schedule}"
_LISTED_SCHEDULES: Final = {
    "type": "object",
    "properties": {"schedules": {"type": "array", "items": OBJECT}},
    "required": ["schedules"],
}
_STANDING: Final = "/v1/standing-approvals"
_LISTED_APPROVALS: Final = {"type": "object", "properties": {"standingApprovals": {"type": "array", "items": OBJECT}}}


def _described(agent: Agent[Any]) -> JsonObject:
    """Return a client's description of the agent."""
    document = agent.document()
    inputs = [each.get("schema", True) for each in document["context"] if each.get("type") == "input"]
    return {
        "name": agent.name,
        "description": agent.description,
        "input": inputs[0] if inputs else None,
        "output": document.get("schema", True),
    }


@operation("GET", "/v1/agents", READ, answers={200: OBJECT})
async def list_agents(request: ApiRequest) -> Response:
    """List the agents."""
    return json_response(
        {"agents": [{**_described(agent), "name": name} for name, agent in request.gateway.agents.by_name().items()]}
    )


@operation("GET", "/v1/agents/{agent}", READ, answers={200: OBJECT})
async def show_agent(request: ApiRequest) -> Response:
    """Show an agent's input and output."""
    name = request.named("agent")
    return json_response({**_described(request.gateway.agents.get(name)), "name": name})


AGENTS: Final = (list_agents, show_agent)


def _schedule_of(request: ApiRequest[Any, Any]) -> Schedule:
    """Return the schedule that the path names. A path cannot name another tenant's."""
    return request.gateway.perdure.schedule(request.named("schedule"), tenant=request.caller.tenant)


@operation("POST", "/v1/schedules", SEND, body=CreateSchedule, answers={201: OBJECT})
async def create_schedule(request: ApiRequest[CreateSchedule]) -> Response:
    """Create a schedule."""
    body, caller = request.body, request.caller
    if body.replace:
        caller.check(STOP, "change a schedule")
    given = "input" in body.model_fields_set
    agent = request.gateway.agents.get(body.agent)
    agent.check_context(caller.context)
    agent.check_input(with_time(body.input, datetime.now(UTC).isoformat()) if given else MISSING)
    view = await request.gateway.perdure.schedule(body.schedule, tenant=caller.tenant).create(
        body.agent,
        body.input if given else MISSING,
        cron=body.cron,
        every=body.every,
        timezone=body.timezone,
        overlap=body.overlap,
        catchup=body.catchup,
        jitter=body.jitter,
        note=body.note,
        paused=body.paused,
        sender=caller.sender,
        context=caller.context,
        replace=body.replace,
    )
    return json_response(view.as_json(), 201, {"Location": f"/v1/schedules/{quote(view.name)}"})


@operation("GET", "/v1/schedules", READ, answers={200: _LISTED_SCHEDULES})
async def list_schedules(request: ApiRequest) -> Response:
    """List schedules."""
    found = [each async for each in request.gateway.perdure.list_schedules(tenant=request.caller.tenant)]
    return json_response({"schedules": [each.as_json() for each in sorted(found, key=lambda each: each.name)]})


@operation("GET", _S, READ, answers={200: OBJECT})
async def show_schedule(request: ApiRequest) -> Response:
    """Show a schedule."""
    return json_response((await _schedule_of(request).show()).as_json())


@operation("POST", f"{_S}/pause", STOP, body=ScheduleNote, answers={204: None})
async def pause_schedule(request: ApiRequest[ScheduleNote]) -> Response:
    """Pause a schedule."""
    await _schedule_of(request).pause(request.body.note)
    return Response(status_code=204)


@operation("POST", f"{_S}/resume", SEND, body=ScheduleNote, answers={204: None})
async def resume_schedule(request: ApiRequest[ScheduleNote]) -> Response:
    """Resume a schedule."""
    await _schedule_of(request).resume(request.body.note)
    return Response(status_code=204)


@operation("POST", f"{_S}/trigger", SEND, body=TriggerSchedule, answers={202: None})
async def trigger_schedule(request: ApiRequest[TriggerSchedule]) -> Response:
    """Start a run of a schedule now."""
    await _schedule_of(request).trigger(overlap=request.body.overlap)
    return Response(status_code=202)


@operation("POST", f"{_S}/backfill", SEND, body=BackfillSchedule, answers={202: None})
async def backfill_schedule(request: ApiRequest[BackfillSchedule]) -> Response:
    """Start the runs of a past period."""
    body = request.body
    await _schedule_of(request).backfill(body.from_, body.to, overlap=body.overlap)
    return Response(status_code=202)


@operation("DELETE", _S, STOP, answers={204: None})
async def delete_schedule(request: ApiRequest) -> Response:
    """Delete a schedule."""
    await _schedule_of(request).delete()
    return Response(status_code=204)


SCHEDULES: Final = (
    create_schedule,
    list_schedules,
    pause_schedule,
    resume_schedule,
    trigger_schedule,
    backfill_schedule,
    show_schedule,
    delete_schedule,
)


@operation("POST", _STANDING, GRANT, body=GrantStandingApproval, answers={201: StandingApproval})
async def grant_standing_approval(request: ApiRequest[GrantStandingApproval]) -> Response:
    """Approve coming runs of a procedure."""
    body, caller = request.body, request.caller
    granted = await request.gateway.perdure.grant_standing_approval(
        request.gateway.agents.get(body.procedure),
        uses=body.uses,
        until=body.until,
        by=caller.sender,
        bounds=body.bounds,
        sources=body.sources,
        name=body.name,
        reason=body.reason,
        tenant=caller.tenant,
    )
    return json_response(granted.as_json(), 201, {"Location": f"/v1/standing-approvals/{quote(granted.name)}"})


@operation("GET", _STANDING, READ, answers={200: _LISTED_APPROVALS})
async def list_standing_approvals(request: ApiRequest) -> Response:
    """List standing approvals, newest first."""
    found = await request.gateway.perdure.standing_approvals(tenant=request.caller.tenant)
    return json_response({"standingApprovals": [each.as_json() for each in found]})


@operation("DELETE", _STANDING + "/{standing}", GRANT, answers={200: StandingApproval})
async def revoke_standing_approval(request: ApiRequest) -> Response:
    """Revoke a standing approval."""
    caller = request.caller
    revoked = await request.gateway.perdure.revoke_standing_approval(
        request.named("standing"), by=caller.sender, tenant=caller.tenant
    )
    return json_response(revoked.as_json())


STANDING_APPROVALS: Final = (grant_standing_approval, list_standing_approvals, revoke_standing_approval)
