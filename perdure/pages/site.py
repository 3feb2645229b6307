"""What all pages have: templates, who looks, their forms, and how a page says that something was refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from perdure.client.ages import age
from perdure.errors import clip
from perdure.gateway.callers import Caller
from perdure.gateway.guards import Guards, TooManyGuessesError
from perdure.gateway.problems import HttpError
from perdure.pages.forms import PREFIX
from perdure.values.jsons import dumps, shorten

HERE: Final = Path(__file__).parent
LARGEST_FORM: Final = 8_000_000
"""Bytes: the largest parameters that a run takes, with three for a byte, as a form writes them."""
STATIC: Final = StaticFiles(directory=HERE / "static")


class Site:
    """The pages of one server. `home`: the path below which they all stand; `None`: the inbox is all there is."""

    def __init__(self, guards: Guards, namespace: str, *, home: str | None = "/", web_ui: str = "") -> None:
        self.guards = guards
        self.home = home
        self._templates = Environment(loader=FileSystemLoader(HERE / "templates"), autoescape=True, trim_blocks=True)
        self._templates.globals.update(
            age=age,
            dumps=dumps,
            clip=clip,
            shorten=shorten,
            path=path,
            prefix=PREFIX,
            namespace=namespace,
            home=home,
            web_ui=web_ui.rstrip("/"),
            static="static" if home is None else "/static",
        )

    def page(self, request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
        """A whole page, with the token that its forms carry."""
        session, csrf = self.guards.csrf(request)
        try:
            caller = self.guards.caller(request)
        except TooManyGuessesError:
            caller = None
        text = self._templates.get_template(template).render(
            csrf=csrf, caller=caller, signed_in=self.guards.signed_in(request) is not None, **values
        )
        return self.guards.finish(request, HTMLResponse(text, status), session)

    def part(self, template: str, **values: Any) -> str:
        """A part of a page, for one that is open."""
        return self._templates.get_template(template).render(**values)

    def fragment(self, request: Request, template: str, **values: Any) -> Response:
        """The same as an answer."""
        return self.guards.finish(request, HTMLResponse(self.part(template, **values)))

    def csrf(self, request: Request) -> str:
        """What the forms of this browser's pages carry."""
        return self.guards.csrf(request)[1]

    def go_to(self, request: Request, address: str) -> Response:
        """What follows a form that was taken."""
        return self.guards.finish(request, RedirectResponse(address, 303))

    async def form(self, request: Request) -> dict[str, str]:
        """The texts of a form that came from a page of ours. Raises `HttpError` where it did not, or is too large."""
        form = await read_form(request)
        if not self.guards.is_own_form(request, form.get("csrf", "")):
            raise HttpError(
                403, "This form did not come from this page. Reload the page and try again.", kind="foreign-form"
            )
        return form

    def problem(self, request: Request, problem: HttpError) -> Response:
        """A page that says why there is no page; for whoever has to sign in, the one to do that on."""
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
        """Where a token is shown."""
        return self.page(request, "sign_in.html", status=401, problem=problem, back=_here(request))

    def sign_in(self, request: Request, caller: Caller, back: str) -> Response:
        """Go on, as somebody who has shown a token."""
        response = self.go_to(request, _own(back, self.home or "./"))
        self.guards.sign_in(request, response, caller)
        return response


async def read_form(request: Request) -> dict[str, str]:
    """The form's texts. Refuses one that is too large before it is read."""
    length = request.headers.get("content-length", "")
    if not length.isdecimal():
        raise HTTPException(411)
    if int(length) > LARGEST_FORM:
        raise HTTPException(413)
    form = await request.form(max_files=0, max_part_size=LARGEST_FORM)
    return {key: value for key, value in form.items() if isinstance(value, str)}


def path(text: str) -> str:
    """A key or an id as a part of an address; a run's slashes stay."""
    return quote(text, safe="/")


def _here(request: Request) -> str:
    return request.url.path + (f"?{request.url.query}" if request.url.query else "") if request.method == "GET" else ""


def _own(back: str, otherwise: str) -> str:
    """A path of ours, and no other site's."""
    return back if back.startswith("/") and not back.startswith(("//", "/\\")) else otherwise
