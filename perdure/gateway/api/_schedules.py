"""Schedules over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from perdure.client.schedules import Schedule
from perdure.gateway.api._forms import BackfillSchedule, CreateSchedule, ScheduleNote, TriggerSchedule
from perdure.gateway.api._operations import OBJECT, ApiRequest, Operation, answered
from perdure.gateway.callers import READ, SEND, STOP
from perdure.runs.schedules import with_time
from perdure.values.references import MISSING


def _named(request: ApiRequest[Any, Any]) -> Schedule:
    """Return the schedule that the path names. A path cannot name another tenant's."""
    return request.gateway.perdure.schedule(request.named("schedule"), tenant=request.caller.tenant)


async def create(request: ApiRequest[CreateSchedule]) -> Response:
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


async def show(request: ApiRequest) -> Response:
    return answered((await _named(request).show()).as_json())


async def pause(request: ApiRequest[ScheduleNote]) -> Response:
    await _named(request).pause(request.body.note)
    return Response(status_code=204)


async def resume(request: ApiRequest[ScheduleNote]) -> Response:
    await _named(request).resume(request.body.note)
    return Response(status_code=204)


async def trigger(request: ApiRequest[TriggerSchedule]) -> Response:
    await _named(request).trigger(overlap=request.body.overlap)
    return Response(status_code=202)


async def backfill(request: ApiRequest[BackfillSchedule]) -> Response:
    body = request.body
    await _named(request).backfill(body.from_, body.to, overlap=body.overlap)
    return Response(status_code=202)


async def delete(request: ApiRequest) -> Response:
    await _named(request).delete()
    return Response(status_code=204)


_S: Final = "/v1/schedules/{schedule}"
_LISTED: Final = {
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
        create,
        SEND,
        body=CreateSchedule,
        answers={201: OBJECT},
    ),
    Operation("listSchedules", "GET", "/v1/schedules", "List schedules.", list_schedules, READ, answers={200: _LISTED}),
    Operation(
        "pauseSchedule",
        "POST",
        f"{_S}/pause",
        "Pause a schedule.",
        pause,
        STOP,
        body=ScheduleNote,
        answers={204: None},
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
    Operation("showSchedule", "GET", _S, "Show a schedule.", show, READ, answers={200: OBJECT}),
    Operation("deleteSchedule", "DELETE", _S, "Delete a schedule.", delete, STOP, answers={204: None}),
)
