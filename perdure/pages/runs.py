"""Runs: the list with its search, and one of them, with its graph, its calls and what they cost, as it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perdure.client.lists import RunOrigin
from perdure.client.run import Run
from perdure.client.selection import STATUSES, Selection
from perdure.errors import PerdureError, RunError, ServerError
from perdure.gateway.callers import caller_of
from perdure.gateway.door import Gateway
from perdure.gateway.problems import HttpError
from perdure.gateway.streams import EventStream, frame
from perdure.pages.deciding import Find
from perdure.pages.markdown import prepare_answers
from perdure.pages.pausing import with_pauses
from perdure.pages.site import Site, path
from perdure.pages.timeline import timeline
from perdure.run.views.drawing import draw_run
from perdure.run.views.svg import to_svg
from perdure.run.views.ways import run_ways
from perdure.run.wire import RunView
from perdure.values.jsons import JsonObject

SIZE: Final = 50
"""Runs on a page of the list."""
DRAWN: Final = 300
"""Calls of a run that are drawn; more are a table alone."""
PAUSE: Final = 0.5
"""Seconds between two looks at a whole run, for a page that is open."""
_SEARCH: Final = ("agent", "status", "sender", "since")


class RunMessages(NamedTuple):
    """What a run's page shows of its conversation."""

    messages: list[JsonObject]
    """Those that the run has answered, or answers."""
    fork: str
    """Of which session it is a fork, and from where on; empty: it is none."""


class Runs:
    """The pages below `/runs`."""

    def __init__(self, gateway: Gateway, site: Site, find: Find) -> None:
        self._gateway = gateway
        self._site = site
        self._find = find

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/runs", self._list),
            Route("/runs/{id:path}", self._show),
            Route("/cancel/{id:path}", self._cancel, methods=["POST"]),
            Route("/live/runs/{id:path}", self._live),
        ]

    async def _list(self, request: Request) -> Response:
        caller = caller_of(request)
        caller.check("read", "look at runs")
        asked = {name: value for name in _SEARCH if (value := request.query_params.get(name, "").strip())}
        chosen: dict[str, Any] = dict(asked)
        selection = Selection(**chosen, tenant=caller.tenant, waiting="waiting" in request.query_params)
        rows, following, problem = [], None, ""
        try:
            found = await self._gateway.perdure.page_of_runs(
                selection, size=SIZE, page=request.query_params.get("page") or None
            )
            rows, following = found.rows, found.following
        except (RunError, ServerError) as error:
            problem = str(error)
        more = urlencode({**asked, "page": following}) if following else ""
        return self._site.page(
            request,
            "runs.html",
            rows=rows,
            more=more,
            asked=asked,
            statuses=list(STATUSES),
            problem=problem,
            waiting=selection.waiting,
            tenants=await self._site.tenants(request, self._gateway.perdure),
            status=422 if problem else 200,
        )

    async def _show(self, request: Request) -> Response:
        caller = caller_of(request)
        caller.check("read", "look at runs")
        run = await self._find(caller, self._id(request))
        view, origin = await run.view(), await run.origin()
        await _prepare(view)
        return self._site.page(
            request,
            "run.html",
            id=run.id,
            may_stop=caller.may("stop"),
            **shown(view, origin, await self._talk(run, origin)),
        )

    async def _talk(self, run: Run, origin: RunOrigin) -> RunMessages | None:
        """The conversation that a run belongs to, as far as its page shows it; `None`: it is no session's, or nobody answers for it."""
        if not origin.session:
            return None
        try:
            view = await self._gateway.perdure.session_of(run.id).show()
        except PerdureError:
            return None
        said = [entry for entry in view.entries if entry["type"] == "message" and entry.get("runId") == run.id]
        forks = [entry for entry in view.entries if entry["type"] == "command" and entry.get("command") == "fork"]
        return RunMessages(said, str(forks[-1].get("text", "")) if forks else "")

    async def _cancel(self, request: Request) -> Response:
        caller = caller_of(request)
        caller.check("stop", "cancel runs")
        await self._site.form(request)
        run = await self._find(caller, self._id(request))
        await run.cancel()
        return self._site.go_to(request, f"/runs/{path(run.id)}")

    async def _live(self, request: Request) -> Response:
        caller = caller_of(request)
        caller.check("read", "look at runs")
        run = await self._find(caller, self._id(request))
        return self._site.guards.finish(
            request, EventStream(self._gateway, caller, self._frames(run, request.headers.get("last-event-id")))
        )

    async def _frames(self, run: Run, cursor: str | None) -> AsyncGenerator[str, None]:
        """`run`: the page's body as it stands, at most every `PAUSE` seconds; `delta` and `answer` as in a conversation; `over` at its end."""
        clock = asyncio.get_running_loop().time
        stale, looked, at = True, -PAUSE, ""
        origin = await run.origin()
        talk = await self._talk(run, origin)

        def pause() -> float | None:
            return max(0.0, looked + PAUSE - clock()) if stale else None

        async for event in with_pauses(self._gateway.perdure.events(run.id, cursor), pause):
            if event is None:
                stale, looked = False, clock()
                yield frame(await self._body(run, origin, talk), event="run", id=at)
                continue
            at = event.cursor
            if event.topic == "assistant":
                written = event.phase == "delta"
                part = str(escape(event.data["text"])) if written else self._site.part("answer.html")
                yield frame(part, event="delta" if written else "answer", id=at)
            elif event.topic != "reasoning":
                stale = True
        yield frame(await self._body(run, origin, talk), event="run", id=at)
        yield frame("", event="over")

    async def _body(self, run: Run, origin: RunOrigin, talk: RunMessages | None) -> str:
        view = await run.view()
        await _prepare(view)
        return self._site.part("run_body.html", id=run.id, **shown(view, origin, talk))

    def _id(self, request: Request) -> str:
        id = str(request.path_params["id"])
        if not id or len(id) > 1000:
            raise HttpError(404, "there is no such run")
        return id


async def _prepare(view: RunView) -> None:
    if isinstance(view.output, str):
        await prepare_answers([view.output])


def shown(view: RunView, origin: RunOrigin, talk: RunMessages | None) -> dict[str, Any]:
    """What the page tells of a run."""
    drawn = 0 < len(view.calls) <= DRAWN
    ways: dict[str, list[str]] = {}
    for line in run_ways(view):
        call, _, words = line.partition(" ")
        ways.setdefault(call, []).append(words)
    return {
        "view": view,
        "origin": origin,
        "talk": talk,
        "drawing": Markup(to_svg(draw_run(view))) if drawn else "",
        "bars": Markup(timeline(view)) if drawn else "",
        "ways": ways,
    }
