"""What runs cost, by day and agent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perdure.client.lists import ListedRun
from perdure.client.selection import Selection
from perdure.gateway.callers import caller_of
from perdure.gateway.door import Gateway
from perdure.gateway.problems import HttpError
from perdure.pages.site import Site
from perdure.run.wire import COST_ATTRIBUTE

MOST: Final = 10_000
"""Runs that are added up, the newest: the server lists a thousand at a time."""
DAYS: Final = (1, 7, 30, 90)
"""What can be asked for."""


@dataclass(frozen=True)
class Spent:
    """A day of an agent's runs that have ended, and whose models have prices."""

    day: str
    agent: str
    runs: int
    dollars: float


def added_up(runs: Iterable[ListedRun]) -> list[Spent]:
    """By the day on which a run began (UTC), the newest first, and in it by cost."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in runs:
        if run.cost is not None:
            found[run.started_at.date().isoformat(), run.agent or ""].append(run.cost)
    rows = [Spent(day, agent, len(costs), sum(costs)) for (day, agent), costs in found.items()]
    return sorted(sorted(rows, key=lambda row: (-row.dollars, row.agent)), key=lambda row: row.day, reverse=True)


class Costs:
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
            raise HttpError(400, f"days is one of {', '.join(map(str, DAYS))}")
        # A delegate's run has none of its own: it is in that of the run above it.
        selection = Selection(tenant=caller.tenant, since=f"{days}d", query=f"{COST_ATTRIBUTE} IS NOT NULL")
        async with aclosing(self._gateway.perdure.list_runs(selection, limit=MOST)) as found:
            runs = [run async for run in found]
        rows = added_up(runs)
        return self._site.page(
            request,
            "costs.html",
            rows=rows,
            days=int(days),
            choices=DAYS,
            whole=sum(row.dollars for row in rows),
            runs=len(runs),
            most=MOST,
        )
