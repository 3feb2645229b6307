"""Parts that all pages share: templates, callers, forms, and the page for a refusal."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from perdure.agents.media import Media
from perdure.client.perdure import Perdure
from perdure.client.selection import format_age
from perdure.errors import ServerError, clip
from perdure.gateway.callers import caller_of
from perdure.gateway.errors import HttpError
from perdure.gateway.guards import Guards, TooManyGuessesError
from perdure.pages._decision_forms import PREFIX
from perdure.pages._markdown import render_markdown
from perdure.runs.caller_context import masked_context
from perdure.values.json import Json, dumps, shorten
from perdure.values.limits import MAX_FILES_SHOWN
from perdure.values.media import PICTURES, MediaValue, media_within

HERE: Final = Path(__file__).parent
LARGEST_FORM: Final = 8_000_000
"""The most bytes of a form: the largest parameters of a run, at three bytes for each byte (form encoding)."""
STATIC: Final = StaticFiles(directory=HERE / "static")


class Site:
    """The pages of one server. `home`: the path of all pages; `None`: the inbox is the only page.

    `provider`: the name of the sign-in provider, if there is one. `takes_tokens`: whether people may sign in with a
    token too. `takes_files`: whether there is storage for files that people attach to a message.
    """

    def __init__(
        self,
        guards: Guards,
        namespace: str,
        *,
        home: str | None = "/",
        web_ui: str = "",
        provider: str = "",
        takes_tokens: bool = True,
        takes_files: bool = False,
    ) -> None:
        self.guards = guards
        self.home = home
        self._templates = Environment(loader=FileSystemLoader(HERE / "templates"), autoescape=True, trim_blocks=True)
        self._templates.globals.update(
            age=format_age,
            dumps=dumps,
            masked_context=masked_context,
            clip=clip,
            shorten=shorten,
            path=path,
            markdown=render_markdown,
            files_of=files_of,
            pictures=PICTURES,
            clock=format_time,
            spent=format_cost,
            prefix=PREFIX,
            namespace=namespace,
            home=home,
            web_ui=web_ui.rstrip("/"),
            provider=provider,
            takes_tokens=takes_tokens,
            takes_files=takes_files,
            static="static" if home is None else "/static",
        )

    def page(self, request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
        """Return a whole page, with the token that its forms carry."""
        session, csrf = self.guards.csrf(request)
        try:
            caller = self.guards.caller(request)
        except TooManyGuessesError:
            caller = None
        text = self._templates.get_template(template).render(
            csrf=csrf,
            caller=caller,
            signed_in=self.guards.signed_in(request) is not None,
            all_tenants=caller is not None and self.guards.sees_all_tenants(caller),
            back=_here(request),
            **{"tenants": [], **values},
        )
        return self.guards.finish(request, HTMLResponse(text, status), session)

    def part(self, template: str, **values: Any) -> str:
        """Return a part of a page, to update an open page."""
        return self._templates.get_template(template).render(**values)

    def fragment(self, request: Request, template: str, **values: Any) -> Response:
        """Return a part of a page as a response."""
        return self.guards.finish(request, HTMLResponse(self.part(template, **values)))

    def csrf(self, request: Request) -> str:
        """Return the CSRF token of this browser's forms."""
        return self.guards.csrf(request)[1]

    def go_to(self, request: Request, address: str) -> Response:
        """Redirect the browser after a form was accepted."""
        return self.guards.finish(request, RedirectResponse(address, 303))

    def notice_query(self, request: Request, words: str) -> str:
        """Return a query that makes the next page show this notice."""
        return urlencode({"notice": words, "by": self.guards.sign_notice(request, words)})

    def notice_of(self, request: Request) -> str:
        """Return the notice of the query, if this server has signed it."""
        query = request.query_params
        return self.guards.verify_notice(request, query.get("notice", ""), query.get("by", ""))

    async def form(self, request: Request) -> dict[str, str]:
        """Return the texts of a form. Raises `HttpError` if the form is not from our own page, or is too large."""
        return self._own_texts(request, await read_form(request))

    async def form_with_files(self, request: Request) -> tuple[dict[str, str], list[Media]]:
        """Return the texts and the files of a form.

        Raises `HttpError` as `form` does, and `MediaError` for a file that is too large. The gateway bounds the body.
        """
        async with request.form(max_files=MAX_FILES_SHOWN, max_part_size=LARGEST_FORM) as form:
            texts = self._own_texts(request, _texts(form))
            uploads = [each for each in form.getlist("files") if isinstance(each, UploadFile)]
            # A browser sends an empty file without a name if no file was chosen.
            files = [Media(data=await each.read(), name=each.filename) for each in uploads if each.filename]
        return texts, files

    def _own_texts(self, request: Request, form: dict[str, str]) -> dict[str, str]:
        if not self.guards.is_own_form(request, form.get("csrf", "")):
            raise HttpError(403, "This form is not from this page. Reload the page and try again.", kind="foreign-form")
        return form

    def problem(self, request: Request, problem: HttpError) -> Response:
        """Return a page with the error; for status 401, the sign-in page."""
        if problem.status == 401:
            return self.ask_for_token(request)
        if request.headers.get("hx-request"):
            text = self.part("problem_part.html", problem=problem.detail)
            response: Response = HTMLResponse(text, 200, {"HX-Retarget": "#problem", "HX-Reswap": "innerHTML"})
            return self.guards.finish(request, response)
        response = self.page(
            request, "problem.html", status=problem.status, title=problem.title, problem=problem.detail
        )
        response.headers.update(problem.headers)
        return response

    def ask_for_token(self, request: Request, problem: str = "") -> Response:
        """Return the sign-in page."""
        return self.page(request, "sign_in.html", status=401, problem=problem)

    def sign_in_routes(self) -> list[Route]:
        """Return the routes of sign-in and sign-out. Their callers are not authenticated."""
        return [Route("/sign-in", self.sign_in, methods=["POST"]), Route("/sign-out", self.sign_out, methods=["POST"])]

    async def sign_in(self, request: Request) -> Response:
        """Sign a browser in by its token."""
        form = await read_form(request)
        try:
            caller = self.guards.caller_with(form.get("token", ""), request)
        except TooManyGuessesError as error:
            raise error.as_problem() from None
        if caller is None:
            return self.ask_for_token(request, "The token is wrong.")
        response = self.go_to(request, _own(form.get("back", ""), self.home or "./"))
        self.guards.sign_in(request, response, caller)
        return response

    async def sign_out(self, request: Request) -> Response:
        """Sign a browser out."""
        await self.form(request)
        response = self.go_to(request, self.home or "./")
        self.guards.sign_out(response)
        return response

    def signed_in_page(self, request: Request, back: str) -> Response:
        """Return a page that opens the next page. After a redirect from another site, browsers send no strict cookie."""
        return self.page(request, "signed_in.html", to=_own(back, self.home or "./"))

    async def tenants(self, request: Request, perdure: Perdure) -> list[str]:
        """Return the tenants that the caller may choose; none for a caller with a tenant."""
        caller = self.guards.caller(request)
        if caller is None or not self.guards.sees_all_tenants(caller):
            return []
        try:
            found = await perdure.list_tenants()
        except ServerError:  # the page shows this error anyway
            return []
        return [tenant for tenant in ["", *found] if tenant != caller.tenant] if found else []

    async def choose_tenant(self, request: Request) -> Response:
        """Show the tenant that a form names; 403 for a caller who may not see it."""
        form = await self.form(request)
        caller = caller_of(request)
        if not self.guards.sees_all_tenants(caller):
            raise HttpError(403, "a token gives access to its own tenant only", kind="forbidden")
        response = self.go_to(request, _own(form.get("back", ""), self.home or "./"))
        self.guards.choose_tenant(request, response, form.get("tenant", ""))
        return response


async def read_form(request: Request) -> dict[str, str]:
    """Return the form's texts. Reject a form that is too large before it is read."""
    length = request.headers.get("content-length", "")
    if not length.isdecimal():
        raise HTTPException(411)
    if int(length) > LARGEST_FORM:
        raise HTTPException(413)
    return _texts(await request.form(max_files=0, max_part_size=LARGEST_FORM))


def _texts(form: FormData) -> dict[str, str]:
    return {key: value for key, value in form.items() if isinstance(value, str)}


def format_time(time: str) -> str:
    """Return an ISO 8601 time for people, in UTC: the time of day, with the date if it is not today."""
    when, now = datetime.fromisoformat(time), datetime.now(UTC)
    return f"{when:%H:%M}" if when.date() == now.date() else f"{when:%Y-%m-%d %H:%M}"


def format_cost(dollars: float | None, tokens: int | None, *, both: bool = False) -> str:
    """Return a cost in words: dollars, or tokens if no price is known. `both`: show both, for tokens of other runs."""
    known = [] if dollars is None else [f"${dollars:.4f}"]
    return " and ".join([*known, *([f"{tokens:,} tokens"] if tokens and (both or dollars is None) else [])])


def files_of(value: Json) -> list[MediaValue]:
    """Return the files of a value or a text, each once."""
    return list(dict.fromkeys(media_within(value)))[:MAX_FILES_SHOWN]


def path(text: str) -> str:
    """Return a key or an id as a part of a URL; slashes stay."""
    return quote(text, safe="/")


def _here(request: Request) -> str:
    return request.url.path + (f"?{request.url.query}" if request.url.query else "") if request.method == "GET" else ""


def _own(back: str, otherwise: str) -> str:
    """Return `back` if it is a path on this site, else `otherwise`."""
    return back if back.startswith("/") and not back.startswith(("//", "/\\")) else otherwise
