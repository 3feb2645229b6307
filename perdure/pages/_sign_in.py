"""Sign-in: a browser shows its token once."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure.gateway.guards import TooManyGuessesError
from perdure.pages._site import Site, read_form


def signing_in(site: Site, under: str = "") -> list[Route]:
    """Return the routes for it; whoever asks for them has shown nothing yet."""

    async def sign_in(request: Request) -> Response:
        form = await read_form(request)
        try:
            caller = site.guards.caller_with(form.get("token", ""), request)
        except TooManyGuessesError as error:
            raise error.as_problem() from None
        if caller is None:
            return site.ask_for_token(request, "That is not the token.")
        return site.sign_in(request, caller, form.get("back", ""))

    async def sign_out(request: Request) -> Response:
        await site.form(request)
        response = site.go_to(request, site.home or "./")
        site.guards.sign_out(response)
        return response

    return [
        Route(f"{under}/sign-in", sign_in, methods=["POST"]),
        Route(f"{under}/sign-out", sign_out, methods=["POST"]),
    ]
