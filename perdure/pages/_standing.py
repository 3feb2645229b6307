"""The page of standing approvals: the permitted calls, the uses, and a button that revokes the approval."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perdure.errors import DecisionRefusedError, RunError, ServerError
from perdure.gateway.adapter import Gateway
from perdure.gateway.callers import GRANT, READ, caller_of
from perdure.pages._site import Site
from perdure.runs.standing_approvals import STANDING_SHARED, StandingApproval


class StandingPage:
    """The page `/standing`."""

    def __init__(self, gateway: Gateway, site: Site) -> None:
        self._gateway = gateway
        self._site = site

    def routes(self) -> list[BaseRoute]:
        return [Route("/standing", self._show), Route("/standing", self._revoke, methods=["POST"])]

    async def _show(self, request: Request) -> Response:
        caller_of(request).check(READ, "look at standing approvals")
        return await self._page(request, notice=self._site.notice_of(request))

    async def _page(self, request: Request, *, notice: str = "", problem: str = "", status: int = 200) -> Response:
        caller, perdure = caller_of(request), self._gateway.perdure
        found: list[StandingApproval] = []
        try:
            found = await perdure.standing_approvals(tenant=caller.tenant)
        except (RunError, ServerError) as error:
            problem = problem or str(error)
        return self._site.page(
            request,
            "standing.html",
            status=status,
            found=found,
            may_revoke=caller.may(GRANT),
            tenants=await self._site.tenants(request, perdure),
            notice=notice,
            problem=problem,
        )

    async def _revoke(self, request: Request) -> Response:
        caller = caller_of(request)
        form = await self._site.form(request)
        caller.check(GRANT, "revoke a standing approval")
        try:
            revoked = await self._gateway.perdure.revoke_standing_approval(
                form.get("name", ""), by=caller.sender, tenant=caller.tenant
            )
        except (DecisionRefusedError, RunError, ServerError) as error:
            return await self._page(request, problem=str(error), status=422)
        words = f"{revoked.name} is revoked. Calls that begin in the next {STANDING_SHARED:g} seconds may still use it"
        return self._site.go_to(request, f"/standing?{self._site.notice_query(request, words)}")
