"""Costs of runs, by day and agent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perdure.client.selection import ListedRun, Selection
from perdure.gateway.adapter import Gateway
from perdure.gateway.callers import caller_of
from perdure.gateway.errors import HttpError
from perdure.pages._site import Site
from perdure.runs.wire import AGENT_ATTRIBUTE

MOST: Final = 10_000
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


class CostsPage:
    """The page `/costs`."""

    def __init__(self, gateway: Gateway, site: Site) -> None:
        self._gateway = gateway
        self._site = site

    def routes(self) -> list[BaseRoute]:
        return [Route("/costs", self._show)]

    async def _show(self, request: Request) -> Response:
        caller = caller_of(request)
        caller.check("read", "look at what runs cost")
        days = request.query_params.get("days", "7")
        if days not in map(str, DAYS):
            raise HttpError(400, f"days must be one of {', '.join(map(str, DAYS))}")
        # A delegate's run is left out: its cost and its tokens are part of its parent run's.
        query = f"{AGENT_ATTRIBUTE} IS NOT NULL AND ExecutionStatus != 'Running'"
        selection = Selection(tenant=caller.tenant, since=f"{days}d", query=query)
        async with aclosing(self._gateway.perdure.list_runs(selection, limit=MOST)) as found:
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
            most=MOST,
        )
