"""Undo of runs over HTTP."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from perdure.gateway.api._forms import StartedRun, UndoQuery, UndoRun
from perdure.gateway.api._operations import OBJECT, ApiRequest, Operation, answered
from perdure.gateway.callers import READ, UNDO
from perdure.runs.undo import UndoPlan


async def effects(request: ApiRequest) -> Response:
    found = await (await request.run()).effects()
    return answered({"effects": [each.as_json() for each in found]})


async def plan(request: ApiRequest[UndoRun, UndoQuery]) -> Response:
    query = request.query
    found = await (await request.run()).undo_plan(to=query.to, no_effect=query.calls)
    return answered(found.as_json())


async def undo(request: ApiRequest[UndoRun]) -> Response:
    body, run = request.body, await request.run()
    started = await run.undo(to=body.to, no_effect=body.no_effect, by=request.caller.sender)
    return answered({"runId": started.id}, 201, {"Location": f"/v1/runs/{quote(started.id)}"})


_R: Final = "/v1/runs/{run}"
_EFFECTS: Final = {"type": "object", "properties": {"effects": {"type": "array", "items": OBJECT}}}
UNDOS: Final = (
    Operation(
        "listEffects",
        "GET",
        f"{_R}/effects",
        "List what a run has done outside, and what was undone of it.",
        effects,
        READ,
        answers={200: _EFFECTS},
    ),
    Operation(
        "planUndo",
        "GET",
        f"{_R}/undo",
        "Show what an undo of a run would take back, and what stays.",
        plan,
        READ,
        query=UndoQuery,
        answers={200: UndoPlan},
    ),
    Operation(
        "undoRun",
        "POST",
        f"{_R}/undo",
        "Take back what a run that has ended has done.",
        undo,
        UNDO,
        body=UndoRun,
        answers={201: StartedRun},
    ),
)
"""These come before `showRun`, whose path matches any suffix."""
