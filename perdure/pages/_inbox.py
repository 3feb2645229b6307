"""The inbox: approval requests that wait, and their decisions; and its live part, one query for all open pages."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Final
from urllib.parse import quote, unquote

from markupsafe import Markup
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from perdure.client.perdure import Perdure
from perdure.client.run import Run
from perdure.client.selection import WaitingPage, WaitingRequest, WaitingRow
from perdure.errors import JsonError, PerdureError, RunError, RunNotFoundError, ServerError
from perdure.gateway.bounds import OpenWork, open_streams
from perdure.gateway.callers import Caller
from perdure.gateway.errors import HttpError, problem_of
from perdure.gateway.guards import Guards, TooManyGuessesError
from perdure.gateway.streams import EventStream, StreamHost, encode_event
from perdure.pages._decision_forms import Find, FormError, decide, fields_of, request_drawing, waiting_request
from perdure.pages._site import STATIC, Site
from perdure.values.json import JsonObject, dumps

_TRIED: Final = 5
"""The most approval requests of the list that are tried: the list's index lags, and some may be decided already."""
_LONGEST_NAME: Final = 200
_LOOPBACK: Final = ["localhost", "127.0.0.1"]


STREAMS: Final = 50
"""The most concurrent event streams of a caller of `perdure inbox`: one for each open page."""


@dataclass
class _Host:
    """The `StreamHost` of `perdure inbox`."""

    guards: Guards
    streams: OpenWork
    stopping: asyncio.Event


class Inbox:
    """The approval requests of a tenant's runs; with `everywhere`, of the whole namespace, for callers with all rights."""

    def __init__(self, perdure: Perdure, site: Site, find: Find, host: StreamHost, *, everywhere: bool = False) -> None:
        """`find`: see `Find`."""
        self._perdure = perdure
        self._site = site
        self._find = find
        self._host = host
        self._everywhere = everywhere
        self._live: dict[str | None, LiveApprovals] = {}

    def routes(self, under: str = "") -> list[BaseRoute]:
        """Return the routes, with this prefix of their paths."""
        return [
            Route(f"{under}/", self._show),
            Route(f"{under}/list", self._list),
            Route(f"{under}/events", self._events),
            Route(f"{under}/decide", self._decide, methods=["POST"]),
        ]

    async def _show(self, request: Request) -> Response:
        return await self._page(request, notice=self._site.notice_of(request))

    async def _page(
        self,
        request: Request,
        *,
        notice: str = "",
        problem: str = "",
        typed: dict[str, str] | None = None,
        status: int = 200,
    ) -> Response:
        caller = self._site.guards.caller(request)
        if caller is None:
            return self._site.ask_for_token(request)
        caller.check("read", "read approval requests")
        found, chosen = WaitingPage([], 0, {}, None), None
        try:
            found = await self._live_of(caller).look(request.query_params.get("page"))
            chosen = await self._chosen(caller, found.waiting, request.query_params if typed is None else typed)
        except (RunError, ServerError) as error:
            problem = problem or str(error)
        return self._site.page(
            request,
            "inbox.html",
            status=status,
            found=found,
            chosen=chosen,
            asked=next(
                (one for one in found.waiting if chosen and _key(one) == (chosen.run_id, chosen.request.call)), None
            ),
            last_message=await self._last_message(chosen) if chosen else None,
            everywhere=self._everywhere,
            elsewhere=await self._elsewhere(request, caller),
            fields=fields_of(chosen, typed),
            drawing=Markup(await self._drawing(chosen)) if chosen else "",
            gone=not chosen and "run" in request.query_params,
            typed=typed or {},
            by=(typed or {}).get("by", unquote(request.cookies.get("perdure_by", ""))),
            notice=notice,
            problem=problem,
        )

    async def _list(self, request: Request) -> Response:
        """Return only the list, to update an open page."""
        caller = self._site.guards.caller(request)
        if caller is None:
            return self._site.ask_for_token(request)
        caller.check("read", "read approval requests")
        try:
            found = await self._live_of(caller).look(request.query_params.get("page"))
            key = (request.query_params.get("run", ""), request.query_params.get("call", ""))
            # A request that the page does not list may wait all the same. The run is not queried: an open page must not
            # cost Actions.
            listed = not key[0] or any(_key(one) == key for one in found.waiting)
            gone = not listed and not await (await self._find(caller, key[0])).may_wait(key[1])
        except (RunError, ServerError) as error:
            status = 404 if isinstance(error, RunNotFoundError) else 503
            return self._site.guards.finish(request, PlainTextResponse(str(error), status))
        return self._site.fragment(request, "list.html", found=found, key=key, gone=gone, everywhere=self._everywhere)

    async def _events(self, request: Request) -> Response:
        caller = self._site.guards.caller(request)
        if caller is None:
            return self._site.ask_for_token(request)
        caller.check("read", "read approval requests")
        return self._site.guards.finish(request, EventStream(self._host, caller, self._live_of(caller).events()))

    async def _decide(self, request: Request) -> Response:
        caller = self._site.guards.caller(request)
        if caller is None:
            return self._site.ask_for_token(request)
        form = await self._site.form(request)
        try:
            caller.check("approve", "decide approval requests")
            run = await self._find(caller, form.get("run", ""))
            notice = await decide(run, form, caller=None if self._everywhere else caller)
        except (RunError, ServerError, FormError, JsonError) as error:
            return await self._page(request, problem=str(error), typed=form, status=422)
        response = self._site.go_to(request, "./?" + self._site.notice_query(request, notice))
        # A cookie holds Latin-1 only, a name any character.
        name = quote(form.get("by", "")[:_LONGEST_NAME])
        response.set_cookie("perdure_by", name, httponly=True, samesite="strict", max_age=30_000_000)
        return response

    def _live_of(self, caller: Caller) -> LiveApprovals:
        tenant = None if self._everywhere else caller.tenant
        return self._live.setdefault(tenant, LiveApprovals(self._perdure, tenant))

    async def _chosen(
        self, caller: Caller, listed: list[WaitingRow], wanted: Mapping[str, str]
    ) -> WaitingRequest | None:
        """Return the `wanted` approval request, by default the oldest one whose run answers.

        Raises `RunError` if none of the oldest runs answers.
        """
        if "run" in wanted:
            return await waiting_request(await self._find(caller, wanted["run"]), wanted.get("call", ""))

        async def in_full(one: WaitingRow) -> WaitingRequest | RunError | None:
            try:  # the list has the tenant's runs only
                return await waiting_request(self._perdure.get_run(one.run_id), one.entry.call)
            except RunError as error:
                return error

        problems: list[RunError] = []
        # The others are queried concurrently: the query of a run without a worker takes seconds to fail.
        for rows in (listed[:1], listed[1:_TRIED]):
            for found in await asyncio.gather(*map(in_full, rows)):
                if isinstance(found, WaitingRequest):
                    return found
                problems += [found] if found else []
        if problems:
            raise problems[0]
        return None

    async def _last_message(self, chosen: WaitingRequest) -> JsonObject | None:
        """Return the last message of the run's conversation; `None` without a message, or if the query fails."""
        try:
            view = await self._perdure.session_of(chosen.run_id).show()
        except PerdureError:
            return None
        return next((entry for entry in reversed(view.entries) if entry["type"] == "message"), None)

    async def _elsewhere(self, request: Request, caller: Caller) -> dict[str, int]:
        """Count the waiting runs by tenant, for a caller who may see all tenants."""
        if self._everywhere or not self._site.guards.sees_all_tenants(caller):
            return {}
        try:
            found = await self._perdure.approvals(size=SHOWN)
        except (RunError, ServerError):  # the page shows this error anyway
            return {}
        counted = Counter(one.tenant or "" for one in found.waiting)
        others = dict.fromkeys(await self._site.tenants(request, self._perdure), 0)
        return {tenant: counted.get(tenant, 0) for tenant in others}

    async def _drawing(self, chosen: WaitingRequest) -> str:
        try:
            view = await self._perdure.get_run(chosen.run_id).view()
        except RunError as error:
            return f"<p>{escape(str(error))}</p>"
        return request_drawing(view, chosen.request.call)


def _key(one: WaitingRow) -> tuple[str, str]:
    return one.run_id, one.entry.call


def inbox_app(perdure: Perdure, guards: Guards) -> Starlette:
    """Return an app with the inbox only, for the whole namespace: `perdure inbox`."""
    site = Site(guards, perdure.client.namespace, home=None)
    host = _Host(guards, open_streams(STREAMS), asyncio.Event())

    async def find(_: Caller, run_id: str) -> Run:
        return perdure.get_run(run_id)

    async def refused(request: Request, error: Exception) -> Response:
        if isinstance(error, TooManyGuessesError):
            error = error.as_problem()
        problem = problem_of(error)
        assert problem is not None
        return site.problem(request, problem)

    # DNS rebinding: a page of another site may have a host name that leads here. Only our own host names are accepted.
    hosts = _LOOPBACK if guards.open else ["*"]
    return Starlette(
        routes=[
            *Inbox(perdure, site, find, host, everywhere=True).routes(),
            *site.sign_in_routes(),
            Mount("/static", STATIC),
        ],
        exception_handlers={HttpError: refused, TooManyGuessesError: refused},
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)],
    )


INTERVAL: Final = 1.0
"""Seconds between queries while a page is open."""
SHOWN: Final = 50
"""Runs on a page of the list."""


class LiveApprovals:
    """The list of approval requests, queried by one loop for any number of open pages."""

    def __init__(self, perdure: Perdure, tenant: str | None) -> None:
        """`tenant`: the tenant of the runs; `None`: all."""
        self._perdure = perdure
        self._tenant = tenant
        self._fingerprint = ""
        self._watchers = 0
        self._changed = asyncio.Condition()
        self._looking: asyncio.Task[None] | None = None

    async def look(self, page: str | None = None) -> WaitingPage:
        """Return a page of waiting requests. Query visibility only, no run. Raises `RunError` or `ServerError`."""
        found = await self._perdure.approvals(size=SHOWN, page=page, tenant=self._tenant)
        if page is not None:
            return found
        fingerprint = dumps([(one.run_id, one.entry.call, one.entry.digest) for one in found.waiting])
        if fingerprint != self._fingerprint:
            self._fingerprint = fingerprint
            async with self._changed:
                self._changed.notify_all()
        return found

    async def events(self) -> AsyncGenerator[str, None]:
        """Yield server-sent events: `changed` after each change of the list."""
        self._watchers += 1
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_on())
        seen = [self._fingerprint]
        try:
            while True:
                async with self._changed:
                    await self._changed.wait_for(lambda: self._fingerprint not in seen)
                seen[:] = [self._fingerprint]
                yield encode_event("{}", event="changed")
        finally:
            self._watchers -= 1

    async def _look_on(self) -> None:
        while self._watchers:
            # A page shows the error when it is loaded. The loop continues, because the server may come back.
            with contextlib.suppress(RunError, ServerError):
                await self.look()
            await asyncio.sleep(INTERVAL)
