"""Standing approvals over HTTP."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from perdure.gateway.api._forms import GrantStandingApproval
from perdure.gateway.api._operations import OBJECT, ApiRequest, Operation, answered
from perdure.gateway.callers import GRANT, READ
from perdure.runs.standing_approvals import StandingApproval


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


_PATH: Final = "/v1/standing-approvals"
_LISTED: Final = {"type": "object", "properties": {"standingApprovals": {"type": "array", "items": OBJECT}}}
STANDING_APPROVALS: Final = (
    Operation(
        "grantStandingApproval",
        "POST",
        _PATH,
        "Approve coming runs of a procedure.",
        grant,
        GRANT,
        body=GrantStandingApproval,
        answers={201: StandingApproval},
    ),
    Operation(
        "listStandingApprovals",
        "GET",
        _PATH,
        "List standing approvals, the newest first.",
        list_granted,
        READ,
        answers={200: _LISTED},
    ),
    Operation(
        "revokeStandingApproval",
        "DELETE",
        _PATH + "/{standing}",
        "Revoke a standing approval.",
        revoke,
        GRANT,
        answers={200: StandingApproval},
    ),
)
