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
from perdure.gateway.api._operations import OBJECT, ApiRequest, Operation, answered
from perdure.gateway.callers import GRANT, READ, SEND, STOP
from perdure.runs.schedules import with_time
from perdure.runs.standing_approvals import StandingApproval
from perdure.values.json import JsonObject
from perdure.values.references import MISSING


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


async def list_agents(request: ApiRequest) -> Response:
    return answered(
        {"agents": [{**_described(agent), "name": name} for name, agent in request.gateway.agents.by_name().items()]}
    )


async def show_agent(request: ApiRequest) -> Response:
    name = request.named("agent")
    return answered({**_described(request.gateway.agents.get(name)), "name": name})


AGENTS: Final = (
    Operation("listAgents", "GET", "/v1/agents", "List the agents.", list_agents, READ, answers={200: OBJECT}),
    Operation(
        "showAgent",
        "GET",
        "/v1/agents/{agent}",
        "Show what an agent takes and gives.",
        show_agent,
        READ,
        answers={200: OBJECT},
    ),
)


def _schedule_of(request: ApiRequest[Any, Any]) -> Schedule:
    """Return the schedule that the path names. A path cannot name another tenant's."""
    return request.gateway.perdure.schedule(request.named("schedule"), tenant=request.caller.tenant)


async def create_schedule(request: ApiRequest[CreateSchedule]) -> Response:
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
    return answered(view.as_json(), 201, {"Location": f"/v1/schedules/{quote(view.name)}"})


async def list_schedules(request: ApiRequest) -> Response:
    found = [each async for each in request.gateway.perdure.list_schedules(tenant=request.caller.tenant)]
    return answered({"schedules": [each.as_json() for each in sorted(found, key=lambda each: each.name)]})


async def show_schedule(request: ApiRequest) -> Response:
    return answered((await _schedule_of(request).show()).as_json())


async def pause(request: ApiRequest[ScheduleNote]) -> Response:
    await _schedule_of(request).pause(request.body.note)
    return Response(status_code=204)


async def resume(request: ApiRequest[ScheduleNote]) -> Response:
    await _schedule_of(request).resume(request.body.note)
    return Response(status_code=204)


async def trigger(request: ApiRequest[TriggerSchedule]) -> Response:
    await _schedule_of(request).trigger(overlap=request.body.overlap)
    return Response(status_code=202)


async def backfill(request: ApiRequest[BackfillSchedule]) -> Response:
    body = request.body
    await _schedule_of(request).backfill(body.from_, body.to, overlap=body.overlap)
    return Response(status_code=202)


async def delete(request: ApiRequest) -> Response:
    await _schedule_of(request).delete()
    return Response(status_code=204)


_S: Final = "/v1/schedules/{schedule}"
_LISTED_SCHEDULES: Final = {
    "type": "object",
    "properties": {"schedules": {"type": "array", "items": OBJECT}},
    "required": ["schedules"],
}
SCHEDULES: Final = (
    Operation(
        "createSchedule",
        "POST",
        "/v1/schedules",
        "Create a schedule.",
        create_schedule,
        SEND,
        body=CreateSchedule,
        answers={201: OBJECT},
    ),
    Operation(
        "listSchedules",
        "GET",
        "/v1/schedules",
        "List schedules.",
        list_schedules,
        READ,
        answers={200: _LISTED_SCHEDULES},
    ),
    Operation(
        "pauseSchedule", "POST", f"{_S}/pause", "Pause a schedule.", pause, STOP, body=ScheduleNote, answers={204: None}
    ),
    Operation(
        "resumeSchedule",
        "POST",
        f"{_S}/resume",
        "Resume a schedule.",
        resume,
        SEND,
        body=ScheduleNote,
        answers={204: None},
    ),
    Operation(
        "triggerSchedule",
        "POST",
        f"{_S}/trigger",
        "Start a run of a schedule now.",
        trigger,
        SEND,
        body=TriggerSchedule,
        answers={202: None},
    ),
    Operation(
        "backfillSchedule",
        "POST",
        f"{_S}/backfill",
        "Start the runs of a time that has passed.",
        backfill,
        SEND,
        body=BackfillSchedule,
        answers={202: None},
    ),
    Operation("showSchedule", "GET", _S, "Show a schedule.", show_schedule, READ, answers={200: OBJECT}),
    Operation("deleteSchedule", "DELETE", _S, "Delete a schedule.", delete, STOP, answers={204: None}),
)


async def grant(request: ApiRequest[GrantStandingApproval]) -> Response:
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
    return answered(granted.as_json(), 201, {"Location": f"/v1/standing-approvals/{quote(granted.name)}"})


async def list_granted(request: ApiRequest) -> Response:
    found = await request.gateway.perdure.standing_approvals(tenant=request.caller.tenant)
    return answered({"standingApprovals": [each.as_json() for each in found]})


async def revoke(request: ApiRequest) -> Response:
    caller = request.caller
    revoked = await request.gateway.perdure.revoke_standing_approval(
        request.named("standing"), by=caller.sender, tenant=caller.tenant
    )
    return answered(revoked.as_json())


_STANDING: Final = "/v1/standing-approvals"
_LISTED_APPROVALS: Final = {"type": "object", "properties": {"standingApprovals": {"type": "array", "items": OBJECT}}}
STANDING_APPROVALS: Final = (
    Operation(
        "grantStandingApproval",
        "POST",
        _STANDING,
        "Approve coming runs of a procedure.",
        grant,
        GRANT,
        body=GrantStandingApproval,
        answers={201: StandingApproval},
    ),
    Operation(
        "listStandingApprovals",
        "GET",
        _STANDING,
        "List standing approvals, the newest first.",
        list_granted,
        READ,
        answers={200: _LISTED_APPROVALS},
    ),
    Operation(
        "revokeStandingApproval",
        "DELETE",
        _STANDING + "/{standing}",
        "Revoke a standing approval.",
        revoke,
        GRANT,
        answers={200: StandingApproval},
    ),
)
