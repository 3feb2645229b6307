"""The pages, and what their buttons do."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote, urlencode

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from perdure.client.ages import age
from perdure.client.lists import Offered, Waiting, WaitingPage
from perdure.client.perdure import Perdure
from perdure.client.run import Run
from perdure.errors import JsonError, RunError, ServerError
from perdure.gateway.callers import APPROVE, Caller
from perdure.gateway.guards import Guards, TooManyGuessesError
from perdure.gateway.problems import HttpError
from perdure.pages.forms import PREFIX, Field, FormError, make_fields, read_fields
from perdure.pages.live import Live
from perdure.run.views.drawing import Drawing, draw_run
from perdure.run.views.svg import to_svg
from perdure.values.jsons import JsonObject, dumps, loads
from perdure.values.marks import changes

HERE: Final = Path(__file__).parent
_TRIED: Final = 5
"""Of the list, whose index is a moment late: so many may have been decided already."""
_LARGEST_FORM: Final = 8_000_000
"""Bytes: the largest parameters that a run takes, with three for a byte, as a form writes them."""
_LONGEST_NAME: Final = 200
_LOOPBACK: Final = ["localhost", "127.0.0.1"]


Streamed: TypeAlias = Callable[[Caller, AsyncGenerator[str, None]], Response]


def _stream(_: Caller, events: AsyncGenerator[str, None]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream")


class Inbox:
    """The pages over one namespace; `token` is asked for where others than this machine can reach them.

    In a gateway they have its `guards`, and its way of answering with events (`streamed`); with `tenants` whoever looks sees and decides what
    waits for the tenant of their token, under the name that it says, where it has the right `approve`.
    """

    def __init__(
        self,
        perdure: Perdure,
        token: str | None = None,
        *,
        guards: Guards | None = None,
        streamed: Streamed = _stream,
        tenants: bool = False,
    ) -> None:
        self._perdure = perdure
        self._guards = guards or Guards(token)
        self._streamed = streamed
        self._tenants = tenants
        self._looking: dict[str | None, Live] = {}
        self._pages = Environment(loader=FileSystemLoader(HERE / "templates"), autoescape=True, trim_blocks=True)
        self._pages.globals.update(age=age, dumps=dumps, prefix=PREFIX)
        # A page of another site, under a name that leads here, would be read as ours: only our own names are answered.
        hosts = _LOOPBACK if self._guards.open else ["*"]
        self.app = Starlette(
            routes=[
                Route("/", self._show),
                Route("/list", self._list),
                Route("/events", self._events),
                Route("/decide", self._decide, methods=["POST"]),
                Route("/sign-in", self._sign_in, methods=["POST"]),
                Mount("/static", StaticFiles(directory=HERE / "static")),
            ],
            exception_handlers={TooManyGuessesError: self._wait, HttpError: _refuse},
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)],
        )

    async def _show(self, request: Request) -> Response:
        return await self._page(request, said=request.query_params.get("said", ""))

    async def _page(
        self,
        request: Request,
        *,
        said: str = "",
        problem: str = "",
        typed: dict[str, str] | None = None,
        status: int = 200,
    ) -> Response:
        if (caller := self._guards.caller(request)) is None:
            return self._ask_for_token(request)
        found, chosen = WaitingPage([], 0, {}, None), None
        try:
            found = await self._live(caller).look(request.query_params.get("page"))
            chosen = await self._chosen(caller, found.waiting, request.query_params if typed is None else typed)
        except (RunError, ServerError) as error:
            problem = problem or str(error)
        session, csrf = self._guards.csrf(request)
        page = self._pages.get_template("inbox.html").render(
            found=found,
            chosen=chosen,
            fields=_fields(chosen, typed),
            drawing=Markup(await self._drawing(caller, chosen)) if chosen else "",
            gone=not chosen and "run" in request.query_params,
            typed=typed or {},
            by=(typed or {}).get("by", unquote(request.cookies.get("perdure_by", ""))),
            sender=caller.sender if self._tenants else None,
            namespace=self._perdure.client.namespace,
            csrf=csrf,
            said=said,
            problem=problem,
        )
        return self._guards.finish(request, HTMLResponse(page, status), session)

    async def _list(self, request: Request) -> Response:
        """The list alone, for a page that is open."""
        if (caller := self._guards.caller(request)) is None:
            return self._ask_for_token(request)
        try:
            found = await self._live(caller).look(request.query_params.get("page"))
            key = (request.query_params.get("run", ""), request.query_params.get("call", ""))
            # What the page does not list may wait all the same. The run is not asked: a page that only stands open costs no Action.
            listed = not key[0] or any((one.run_id, one.entry.call) == key for one in found.waiting)
            gone = not listed and not await (await self._run(caller, key[0])).may_wait(key[1])
        except (RunError, ServerError) as error:
            return self._guards.finish(request, PlainTextResponse(str(error), 503))
        part = self._pages.get_template("list.html").render(found=found, key=key, gone=gone)
        return self._guards.finish(request, HTMLResponse(part))

    async def _events(self, request: Request) -> Response:
        if (caller := self._guards.caller(request)) is None:
            return self._ask_for_token(request)
        return self._guards.finish(request, self._streamed(caller, self._live(caller).events()))

    async def _decide(self, request: Request) -> Response:
        if (caller := self._guards.caller(request)) is None:
            return self._ask_for_token(request)
        form = await _read_form(request)
        if not self._guards.is_own_form(request, form.get("csrf", "")):
            refusal = "This form did not come from this page. Reload the page and try again."
            return self._guards.finish(request, PlainTextResponse(refusal, 403))
        if not caller.may(APPROVE):
            return await self._page(
                request, problem=f"{caller.sender} may look, and not decide.", typed=form, status=403
            )
        if self._tenants:
            form["by"] = caller.sender
        try:
            if lacking := [key for key in ("run", "call", "action") if not form.get(key)]:
                raise FormError(f"the form lacks {', '.join(lacking)}: reload the page and try again")
            decision = await self._decision(caller, form)
            done = await (await self._run(caller, form["run"])).decide(decision)
        except (RunError, ServerError, FormError, JsonError) as error:
            return await self._page(request, problem=str(error), typed=form, status=422)
        words = {
            "approve": "approved",
            "reject": "rejected",
            "edit": "approved with changes",
            "replace": "replaced",
            "answer": "answered",
        }
        said = f"{form['run']} {done['call']}: {words[done['decision']]}"
        response = RedirectResponse("./?" + urlencode({"said": said}), 303)
        # A cookie holds Latin-1 at most, a name anything.
        name = quote(form.get("by", "")[:_LONGEST_NAME])
        response.set_cookie("perdure_by", name, httponly=True, samesite="strict", max_age=30_000_000)
        return self._guards.finish(request, response)

    async def _decision(self, caller: Caller, form: dict[str, str]) -> JsonObject:
        decision: JsonObject = {key: form[key] for key in ("call", "digest", "by", "reason") if form.get(key)}
        if form["action"] == "answer":
            return decision | {"decision": "answer", "answer": form.get("answer", "")}
        if form["action"] == "reject":
            return decision | {"decision": "reject"}
        if form["action"] == "replace":
            return decision | {"decision": "replace", "with": loads(form.get("with", ""), source="the other call")}
        if form["action"] == "endorse":
            decision["endorse"] = True
        if form["action"] == "remember":
            decision["remember"] = True
        chosen = await self._offer(caller, form["run"], form["call"])
        if chosen is None:
            return decision | {"decision": "approve"}  # the run itself says best what has become of it
        if chosen.offer.calls is not None:
            calls = loads(form.get("calls", dumps(chosen.offer.calls)), source="the calls")
            return decision | (
                {"decision": "approve"} if calls == chosen.offer.calls else {"decision": "edit", "calls": calls}
            )
        params = read_fields(make_fields(chosen.offer.parameters, chosen.offer.params), form)
        changed = changes(chosen.offer.params, params)
        return decision | ({"decision": "edit", "params": changed} if changed else {"decision": "approve"})

    async def _sign_in(self, request: Request) -> Response:
        form = await _read_form(request)
        caller = self._guards.caller_with(form.get("token", ""), request)
        if caller is None:
            return self._ask_for_token(request, "That is not the token.")
        response = RedirectResponse("./", 303)
        self._guards.sign_in(request, response, caller)
        return self._guards.finish(request, response)

    def _ask_for_token(self, request: Request, problem: str = "") -> Response:
        page = self._pages.get_template("sign_in.html").render(problem=problem)
        return self._guards.finish(request, HTMLResponse(page, 401))

    async def _wait(self, request: Request, error: Exception) -> Response:
        """One who guesses tokens."""
        assert isinstance(error, TooManyGuessesError)
        response = PlainTextResponse(str(error), 429, {"Retry-After": str(int(error.seconds) + 1)})
        return self._guards.finish(request, response)

    def _live(self, caller: Caller) -> Live:
        whose = caller.tenant if self._tenants else None
        return self._looking.setdefault(whose, Live(self._perdure, whose))

    async def _run(self, caller: Caller, id: str) -> Run[Any]:
        """Raises `RunNotFoundError` for another tenant's as for none."""
        return await self._perdure.find_run(id, tenant=caller.tenant) if self._tenants else self._perdure.get_run(id)

    async def _chosen(self, caller: Caller, listed: list[Waiting], wanted: Any) -> Offered | None:
        """What is asked for; without being asked, the oldest. Only its run is asked."""
        if "run" in wanted:
            return await self._offer(caller, wanted["run"], wanted.get("call", ""))
        for one in listed[:_TRIED]:
            if (offered := await self._offer(caller, one.run_id, one.entry.call)) is not None:
                return offered
        return None

    async def _offer(self, caller: Caller, run_id: str, call: str) -> Offered | None:
        run = await self._run(caller, run_id)
        return next((Offered(run_id, offer) for offer in await run.waiting(call)), None)

    async def _drawing(self, caller: Caller, chosen: Offered) -> str:
        """The plan of the Request that the call belongs to, with the call lit."""
        try:
            view = await (await self._run(caller, chosen.run_id)).view()
        except RunError as error:
            return f"<p>{escape(str(error))}</p>"
        number = chosen.offer.call.split(".")[0]
        whole = draw_run(view)
        nodes = [node for node in whole.nodes if node.id.split(".")[0] == number]
        ids = {node.id for node in nodes}
        edges = [edge for edge in whole.edges if edge[0] in ids and edge[1] in ids]
        return to_svg(Drawing(nodes, edges), lit=chosen.offer.call)


async def _refuse(_: Request, error: Exception) -> Response:
    """What the gateway around it bounds."""
    assert isinstance(error, HttpError)
    return PlainTextResponse(str(error), error.status, error.headers)


async def _read_form(request: Request) -> dict[str, str]:
    """The form's texts. Refuses one that is too large before it is read."""
    length = request.headers.get("content-length", "")
    if not length.isdecimal():
        raise HTTPException(411)
    if int(length) > _LARGEST_FORM:
        raise HTTPException(413)
    form = await request.form(max_files=0, max_part_size=_LARGEST_FORM)
    return {key: value for key, value in form.items() if isinstance(value, str)}


def _fields(chosen: Offered | None, typed: dict[str, str] | None) -> list[Field]:
    """The form's fields, with what was typed where it could not be taken."""
    if chosen is None or chosen.offer.calls is not None:
        return []
    fields = make_fields(chosen.offer.parameters, chosen.offer.params)
    if typed is None:
        return fields
    return [replace(each, text=typed.get(PREFIX + each.name, each.text)) for each in fields]
