"""Schedules: their next times and last runs, and buttons that pause, resume and start them."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perdure.client.schedules import ListedSchedule
from perdure.errors import RunError, ScheduleError, ServerError
from perdure.gateway.adapter import Gateway
from perdure.gateway.callers import READ, SEND, STOP, caller_of
from perdure.gateway.errors import HttpError
from perdure.pages._site import Site

_ACTIONS: Final = {
    "pause": (STOP, "pause a schedule", "is paused"),
    "resume": (SEND, "resume a schedule", "is active again"),
    "trigger": (SEND, "start a schedule", "starts a run now, unless its last one still works"),
}
"""By the form's `do`: the required right, the words for a refusal, and the page's notice."""


class SchedulesPage:
    """The page `/schedules`."""

    def __init__(self, gateway: Gateway, site: Site) -> None:
        self._gateway = gateway
        self._site = site

    def routes(self) -> list[BaseRoute]:
        return [Route("/schedules", self._show), Route("/schedules", self._act, methods=["POST"])]

    async def _show(self, request: Request) -> Response:
        caller_of(request).check(READ, "look at schedules")
        return await self._page(
            request, changed=request.query_params.get("schedule", ""), notice=self._site.notice_of(request)
        )

    async def _page(
        self, request: Request, *, changed: str = "", notice: str = "", problem: str = "", status: int = 200
    ) -> Response:
        """Return the page. `changed`: a schedule that is read itself, because the list lags and may show its former state."""
        caller, perdure = caller_of(request), self._gateway.perdure
        schedules: list[ListedSchedule] = []
        try:
            schedules = [each async for each in perdure.list_schedules(tenant=caller.tenant) if each.name != changed]
            if changed:
                schedules.append(await perdure.schedule(changed, tenant=caller.tenant).show())
        except (RunError, ServerError, ScheduleError) as error:
            problem = problem or str(error)
        return self._site.page(
            request,
            "schedules.html",
            status=status,
            schedules=sorted(schedules, key=lambda each: each.name),
            may_send=caller.may(SEND),
            may_stop=caller.may(STOP),
            tenants=await self._site.tenants(request, perdure),
            notice=notice,
            problem=problem,
        )

    async def _act(self, request: Request) -> Response:
        caller = caller_of(request)
        form = await self._site.form(request)
        action = form.get("do", "")
        if action not in _ACTIONS:
            raise HttpError(400, f"do is one of {', '.join(_ACTIONS)}")
        right, what, words = _ACTIONS[action]
        caller.check(right, what)
        try:
            schedule = self._gateway.perdure.schedule(form.get("schedule", ""), tenant=caller.tenant)
            await (
                schedule.pause()
                if action == "pause"
                else schedule.resume()
                if action == "resume"
                else schedule.trigger()
            )
        except (RunError, ServerError, ScheduleError) as error:
            return await self._page(request, problem=str(error), status=422)
        notice = self._site.notice_query(request, f"{schedule.name} {words}")
        return self._site.go_to(request, f"/schedules?{urlencode({'schedule': schedule.name})}&{notice}")
