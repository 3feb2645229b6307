"""Runs: the list with its search, and one run with its graph, its calls, its timeline, and its cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from datetime import datetime
from html import escape
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup
from markupsafe import escape as markupsafe_escape
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perdure.client.run import Run
from perdure.client.selection import STATUSES, RunOrigin, Selection
from perdure.errors import PerdureError, RunError, ScheduleError, ServerError
from perdure.gateway.adapter import Gateway
from perdure.gateway.callers import SEND, UNDO, Caller, permitted_caller
from perdure.gateway.errors import HttpError
from perdure.gateway.streams import NO_PAUSE, EventStream, encode_event, with_pauses
from perdure.pages._decision_forms import Find
from perdure.pages._markdown import prepare_answers
from perdure.pages._site import Site, path
from perdure.runs.diagrams import COLOURS, DRAWN, draw_run, to_svg
from perdure.runs.evaluation import RunScore
from perdure.runs.run_player import differences, plan_graph
from perdure.runs.views import run_ways
from perdure.runs.wire import RunView
from perdure.values.json import JsonObject

WIDTH: Final = 900
_LABEL: Final = 260
"""The width in pixels of the labels before the bars."""
_ROW: Final = 22
_LONGEST: Final = 30
"""The most characters of a label. The bar's tooltip has the whole text."""


class TimelineBar(NamedTuple):
    """A call's bar. `begins`, `ends`: seconds since the first call began."""

    label: str
    status: str
    begins: float
    ends: float


def timeline_bars(view: RunView) -> list[TimelineBar]:
    """Return a bar for each call that has begun. The bar of a running call ends at the run's last known time."""
    begun = [(call, _seconds(call.started_at), call.ended_at) for call in view.calls if call.started_at is not None]
    if not begun:
        return []
    first = min(start for _, start, _ in begun)
    last = max([start for _, start, _ in begun] + [_seconds(end) for _, _, end in begun if end is not None])
    return [
        TimelineBar(
            f"{call.id} {call.tool}", call.status, start - first, (last if end is None else _seconds(end)) - first
        )
        for call, start, end in begun
    ]


def timeline(view: RunView) -> str:
    """Return an SVG document, in the graph's colours; empty if no call has begun."""
    found = timeline_bars(view)
    if not found:
        return ""
    whole = max(max(bar.ends for bar in found), 0.001)
    height = _ROW * (len(found) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="ui-monospace, monospace" font-size="13" role="img" aria-label="When the calls ran">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        *_rows(found, whole),
        f'<text x="{_LABEL}" y="{height - 6}" fill="#444">0 s</text>',
        f'<text x="{WIDTH - 4}" y="{height - 6}" fill="#444" text-anchor="end">{whole:.2f} s</text>',
        "</svg>",
    ]
    return "\n".join(parts)


def _rows(found: list[TimelineBar], whole: float) -> Iterator[str]:
    scale = (WIDTH - _LABEL - 4) / whole
    for number, bar in enumerate(found):
        y = number * _ROW
        fill, colour = COLOURS.get(bar.status, COLOURS["pending"])
        x, width = _LABEL + bar.begins * scale, max(2.0, (bar.ends - bar.begins) * scale)
        label = bar.label if len(bar.label) <= _LONGEST else bar.label[: _LONGEST - 1] + "…"
        told = f"{bar.label}: {bar.begins:.2f}–{bar.ends:.2f} s, {bar.status}"
        yield (
            f'<g><title>{escape(told)}</title><text x="4" y="{y + 15}" fill="#222">{escape(label)}</text>'
            f'<rect x="{x:.1f}" y="{y + 4}" width="{width:.1f}" height="{_ROW - 8}" rx="3" fill="{fill}" stroke="{colour}"/></g>'
        )


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


SIZE: Final = 50
"""Runs on a page of the list."""
PAUSE: Final = 0.5
"""Seconds between two queries of a whole run, for an open page."""
_SEARCH: Final = ("agent", "status", "sender", "since", "version", "schedule")


class RunMessages(NamedTuple):
    """The messages of the conversation on a run's page."""

    messages: list[JsonObject]
    """The messages that the run has taken."""
    fork: str
    """The session and the point that the session was forked from; empty if it is not a fork."""


def forkable_by(origin: RunOrigin, caller: Caller) -> bool:
    """Whether a fork would act for this caller only."""
    return caller.may(SEND) and origin.sender in ("", caller.sender)


def fork_points(view: RunView) -> list[tuple[str, str]]:
    """Return the points at which a run can be forked, in order, each with its description."""
    points = [(str(each.number), f"before Request {each.number}") for each in view.log if each.number]
    calls = [call for call in view.calls if "[" not in call.id]
    points += [(call.id, f"before call {call.id} {call.tool}") for call in calls]
    return sorted(points, key=lambda point: [int(part) if part.isdigit() else 0 for part in point[0].split(".")])


class RunPages:
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
            Route("/undo/{id:path}", self._ask_undo),
            Route("/undo/{id:path}", self._undo, methods=["POST"]),
            Route("/fork/{id:path}", self._ask_fork),
            Route("/fork/{id:path}", self._fork, methods=["POST"]),
            Route("/compare/{id:path}", self._compare),
            Route("/live/runs/{id:path}", self._live),
        ]

    async def _list(self, request: Request) -> Response:
        caller = permitted_caller(request, "read", "read runs")
        asked = {name: value for name in _SEARCH if (value := request.query_params.get(name, "").strip())}
        chosen: dict[str, Any] = dict(asked)
        selection = Selection(**chosen, tenant=caller.tenant, waiting="waiting" in request.query_params)
        rows, following, problem = [], None, ""
        try:
            found = await self._gateway.perdure.page_of_runs(
                selection, size=SIZE, page=request.query_params.get("page") or None
            )
            rows, following = found.rows, found.following
        except (RunError, ServerError, ScheduleError) as error:
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
        caller, run = await self._own_run(request, "read", "read runs")
        view, origin = await run.view(), await run.origin()
        await _prepare(view)
        return self._site.page(
            request,
            "run.html",
            id=run.id,
            may_stop=caller.may("stop"),
            may_fork=forkable_by(origin, caller),
            may_undo=caller.may(UNDO),
            **run_values(view, origin, await self._talk(run, origin), await _score(run, view)),
        )

    async def _talk(self, run: Run, origin: RunOrigin) -> RunMessages | None:
        """Return the messages of the run's conversation; `None` if the run has no session, or the query fails."""
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
        await self._site.form(request)
        _, run = await self._own_run(request, "stop", "cancel runs")
        await run.cancel()
        return self._site.go_to(request, f"/runs/{path(run.id)}")

    async def _ask_undo(self, request: Request) -> Response:
        _, run = await self._own_run(request, UNDO, "undo runs")
        return self._site.page(request, "undo.html", id=run.id, plan=await run.undo_plan())

    async def _undo(self, request: Request) -> Response:
        await self._site.form(request)
        caller, run = await self._own_run(request, UNDO, "undo runs")
        undo = await run.undo(by=caller.sender)
        return self._site.go_to(request, f"/runs/{path(undo.id)}")

    async def _ask_fork(self, request: Request) -> Response:
        run = await self._forkable(request)
        return self._site.page(request, "fork.html", id=run.id, points=fork_points(await run.view()))

    async def _fork(self, request: Request) -> Response:
        form = await self._site.form(request)
        run = await self._forkable(request)
        try:
            fork = await run.fork(str(form.get("at", "")))
        except RunError as error:
            raise HttpError(422, str(error)) from None
        return self._site.go_to(request, f"/runs/{path(fork.id)}")

    async def _forkable(self, request: Request) -> Run:
        """Return a run that the caller may fork. Only its sender may, because a fork's tools act for the sender."""
        caller, run = await self._own_run(request, SEND, "fork runs")
        if not forkable_by(await run.origin(), caller):
            raise HttpError(403, "the run has another sender: only its sender can fork it")
        return run

    async def _compare(self, request: Request) -> Response:
        """Show a fork beside its original run."""
        caller, fork = await self._own_run(request, "read", "read runs")
        after = await fork.view()
        if not after.forked:
            raise HttpError(404, f"{fork.id} is not a fork of another run")
        run = await self._find(caller, after.forked.rpartition(" at ")[0])
        before = await run.view()
        graphs = [{**plan_graph(each), "status": each.status, "output": each.output} for each in (before, after)]
        return self._site.page(
            request,
            "compare.html",
            runs=[(each.run_id, each.status, _drawing(each)) for each in (before, after)],
            forked=after.forked,
            lines=differences(*graphs),
        )

    async def _live(self, request: Request) -> Response:
        caller, run = await self._own_run(request, "read", "read runs")
        return self._site.guards.finish(
            request, EventStream(self._gateway, caller, self._frames(run, request.headers.get("last-event-id")))
        )

    async def _frames(self, run: Run, cursor: str | None) -> AsyncGenerator[str, None]:
        """Yield frames. `run`: the page's body, at most every `PAUSE` seconds; `delta`, `answer`: as in a conversation; `over`: the end."""
        clock = asyncio.get_running_loop().time
        stale, looked, at = True, -PAUSE, ""
        origin = await run.origin()
        talk = await self._talk(run, origin)

        def pauses() -> tuple[float, float]:
            return (max(0.0, looked + PAUSE - clock()), PAUSE) if stale else NO_PAUSE

        async for event in with_pauses(self._gateway.perdure.events(run.id, cursor), pauses):
            if event is None:
                stale, looked = False, clock()
                yield encode_event(await self._body(run, origin, talk), event="run", id=at)
                continue
            at = event.cursor
            if event.topic == "assistant":
                written = event.phase == "delta"
                part = str(markupsafe_escape(event.data["text"])) if written else self._site.part("answer.html")
                yield encode_event(part, event="delta" if written else "answer", id=at)
            elif event.topic != "reasoning":
                stale = True
        yield encode_event(await self._body(run, origin, talk), event="run", id=at)
        yield encode_event("", event="over")

    async def _body(self, run: Run, origin: RunOrigin, talk: RunMessages | None) -> str:
        view = await run.view()
        await _prepare(view)
        return self._site.part("run_body.html", id=run.id, **run_values(view, origin, talk, await _score(run, view)))

    async def _own_run(self, request: Request, right: str, what: str) -> tuple[Caller, Run]:
        """Return the caller, who must have a right, and the run that the address names. Raises `HttpError`."""
        caller, id = permitted_caller(request, right, what), str(request.path_params["id"])
        if not id or len(id) > 1000:
            raise HttpError(404, "the run does not exist")
        return caller, await self._find(caller, id)


async def _prepare(view: RunView) -> None:
    if isinstance(view.output, str):
        await prepare_answers([view.output])


async def _score(run: Run, view: RunView) -> RunScore | None:
    return None if view.status == "running" else await run.score()


def _drawing(view: RunView) -> str:
    """Return the plan's drawing; nothing for a run without calls, or with too many."""
    return Markup(to_svg(draw_run(view))) if 0 < len(view.calls) <= DRAWN else ""


def run_values(
    view: RunView, origin: RunOrigin, talk: RunMessages | None, score: RunScore | None = None
) -> dict[str, Any]:
    """Return the values that the run's template shows."""
    drawn = 0 < len(view.calls) <= DRAWN
    ways: dict[str, list[str]] = {}
    for line in run_ways(view):
        call, _, words = line.partition(" ")
        ways.setdefault(call, []).append(words)
    return {
        "view": view,
        "origin": origin,
        "talk": talk,
        "score": score,
        "drawing": _drawing(view),
        "bars": Markup(timeline(view)) if drawn else "",
        "ways": ways,
    }
