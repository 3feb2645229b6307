"""The pages of a tenant's schedules, standing approvals, costs and stored files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perdure.client.schedules import ListedSchedule
from perdure.client.selection import ListedRun, Selection
from perdure.errors import DecisionRefusedError, RunError, ScheduleError, ServerError
from perdure.gateway.adapter import Gateway
from perdure.gateway.callers import GRANT, READ, SEND, STOP, caller_of, permitted_caller
from perdure.gateway.errors import HttpError
from perdure.pages._site import Site
from perdure.queries.media_store import MediaStore
from perdure.runs.standing_approvals import STANDING_SHARED, StandingApproval
from perdure.runs.wire import AGENT_ATTRIBUTE
from perdure.values.media import PICTURES, file_name, is_digest, media_of

_SCHEDULE_ACTIONS: Final = {
    "pause": (STOP, "pause a schedule", "is paused"),
    "resume": (SEND, "resume a schedule", "is active again"),
    "trigger": (SEND, "start a schedule", "starts a run now, unless its last run is still open"),
}
"""By the form's `do`: the required right, the words for a refusal, and the page's notice."""


class _TenantPage:
    """A page of one gateway, in the frame of its site."""

    def __init__(self, gateway: Gateway, site: Site) -> None:
        self._gateway = gateway
        self._site = site


class SchedulesPage(_TenantPage):
    """The page `/schedules`."""

    def routes(self) -> list[BaseRoute]:
        return [Route("/schedules", self._show), Route("/schedules", self._act, methods=["POST"])]

    async def _show(self, request: Request) -> Response:
        caller_of(request).check(READ, "read schedules")
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
        if action not in _SCHEDULE_ACTIONS:
            raise HttpError(400, f"do is one of {', '.join(_SCHEDULE_ACTIONS)}")
        right, what, words = _SCHEDULE_ACTIONS[action]
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


class StandingPage(_TenantPage):
    """The page `/standing`."""

    def routes(self) -> list[BaseRoute]:
        return [Route("/standing", self._show), Route("/standing", self._revoke, methods=["POST"])]

    async def _show(self, request: Request) -> Response:
        caller_of(request).check(READ, "read standing approvals")
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
        words = f"{revoked.name} is revoked. Calls that start in the next {STANDING_SHARED:g} seconds may still use it"
        return self._site.go_to(request, f"/standing?{self._site.notice_query(request, words)}")


MOST_RUNS: Final = 10_000
"""The most runs that are added up, the newest ones: the server lists a thousand at a time."""
DAYS: Final = (1, 7, 30, 90)
"""The periods that a reader can choose, in days."""


@dataclass(frozen=True)
class DailyCost:
    """The cost of an agent's ended runs on one day."""

    day: str
    agent: str
    runs: int
    dollars: float | None
    """The cost of runs whose models have prices; `None` without such runs."""
    tokens: int
    """The tokens of the other runs."""


def added_up(runs: Iterable[ListedRun]) -> list[DailyCost]:
    """Sum the costs by the day on which a run began (UTC), the newest day first, and by cost within a day."""
    found: dict[tuple[str, str], list[ListedRun]] = defaultdict(list)
    for run in runs:
        if run.cost is not None or run.tokens:
            found[run.started_at.date().isoformat(), run.agent or ""].append(run)
    rows = []
    for (day, agent), spent in found.items():
        costs = [run.cost for run in spent if run.cost is not None]
        tokens = sum(run.tokens or 0 for run in spent if run.cost is None)
        rows.append(DailyCost(day, agent, len(spent), sum(costs) if costs else None, tokens))
    rows.sort(key=lambda row: (-(row.dollars or 0), -row.tokens, row.agent))
    return sorted(rows, key=lambda row: row.day, reverse=True)


class CostsPage(_TenantPage):
    """The page `/costs`."""

    def routes(self) -> list[BaseRoute]:
        return [Route("/costs", self._show)]

    async def _show(self, request: Request) -> Response:
        caller = permitted_caller(request, "read", "read the costs of runs")
        days = request.query_params.get("days", "7")
        if days not in map(str, DAYS):
            raise HttpError(400, f"days must be one of {', '.join(map(str, DAYS))}")
        # A delegate's run is left out: its cost and its tokens are part of its parent run's.
        query = f"{AGENT_ATTRIBUTE} IS NOT NULL AND ExecutionStatus != 'Running'"
        selection = Selection(tenant=caller.tenant, since=f"{days}d", query=query)
        async with aclosing(self._gateway.perdure.list_runs(selection, limit=MOST_RUNS)) as found:
            runs = [run async for run in found]
        rows = added_up(runs)
        return self._site.page(
            request,
            "costs.html",
            rows=rows,
            days=int(days),
            choices=DAYS,
            whole=sum(row.dollars or 0 for row in rows) if any(row.dollars is not None for row in rows) else None,
            tokens=sum(row.tokens for row in rows),
            runs=sum(row.runs for row in rows),
            tenants=await self._site.tenants(request, self._gateway.perdure),
            most=MOST_RUNS,
        )


_FILE_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    "Cache-Control": "private, max-age=86400, immutable",
}


class FilePages(_TenantPage):
    """The files below `/files`, by their digests. A caller reads files of its own tenant only."""

    def routes(self) -> list[BaseRoute]:
        return [Route("/files/{digest}", self._file)]

    async def _file(self, request: Request) -> Response:
        """Return a file. Its type is detected from its bytes. A browser shows pictures, and saves other files."""
        caller = permitted_caller(request, "read", "read files")
        digest = str(request.path_params["digest"]).removeprefix("sha256:")
        store = MediaStore(self._gateway.perdure.client.data_converter, caller.tenant)
        is_one = store.is_there and is_digest(f"sha256:{digest}")
        data = await store.find(f"sha256:{digest}") if is_one else None
        if data is None:
            raise HttpError(404, "this gateway does not store the file")
        file = media_of(data)
        shown = file.type in PICTURES
        name = quote(file_name(request.query_params.get("name", "")) or "file", safe="")
        response = Response(data, media_type=file.type if shown else "application/octet-stream")
        response.headers["Content-Disposition"] = f"{'inline' if shown else 'attachment'}; filename*=UTF-8''{name}"
        response = self._site.guards.finish(request, response)
        response.headers.update(_FILE_HEADERS)
        return response
