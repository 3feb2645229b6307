"""The codec server: it decrypts payloads for Temporal's Web UI and command line (docs/encryption.md)."""

from __future__ import annotations

import json
from typing import Final
from urllib.parse import urlsplit

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.common import RawValue
from temporalio.converter import DataConverter

from perdure.errors import SettingsError
from perdure.gateway.guards import Guards, TooManyGuessesError
from perdure.hosting.codec import is_unreadable
from perdure.values.limits import MAX_BODY

COOKIE: Final = "perdure_codec"
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Perdure codec server</title>
<h1>Perdure codec server</h1><p>{notice}</p>
<form method="post" action="/sign-in"><label>Token <input name="token" type="password" autofocus></label> <button>Sign in</button></form>"""


class CodecServer:
    """`POST /decode` and `/encode` in the protocol of Temporal's tools, also below a namespace's name; `app` is the
    ASGI application.

    A request needs the token: as a bearer, or as a browser session after a sign-in at `/`. Only pages of `origin` may
    send requests.
    """

    def __init__(self, converter: DataConverter, token: str, origin: str) -> None:
        """Raises `SettingsError` for an empty token or an invalid origin."""
        if not token.strip():
            raise SettingsError("the codec server needs a token: give it with --token or PERDURE_CODEC_TOKEN")
        parts = urlsplit(origin)
        if origin != f"{parts.scheme}://{parts.netloc}" or parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingsError(
                f"the origin must be the Web UI's, such as https://temporal.example.com, not {origin!r}"
            )
        self._converter, self._origin = converter, origin
        self._guards = Guards(token, cookie=COOKIE, api_host=origin)
        does = [("decode", self._decode), ("download", self._decode), ("encode", self._encode)]
        cors = Middleware(
            CORSMiddleware,
            allow_origins=[origin],
            allow_methods=["POST"],
            allow_headers=["Authorization", "Content-Type", "X-Namespace"],
            allow_credentials=True,
        )
        self.app = Starlette(
            routes=[
                Route("/", self._home),
                Route("/sign-in", self._sign_in, methods=["POST"]),
                *(Route(f"/{name}", do, methods=["POST"]) for name, do in does),
                *(Route(f"/{{namespace}}/{name}", do, methods=["POST"]) for name, do in does),
            ],
            middleware=[cors],
        )

    async def _decode(self, request: Request) -> Response:
        """Decode payloads. Return an unreadable payload unchanged, with the others."""
        found = await self._read_payloads(request)
        if isinstance(found, Response):
            return found
        return _answer([await self._read(one) for one in found.payloads])

    async def _encode(self, request: Request) -> Response:
        found = await self._read_payloads(request)
        if isinstance(found, Response):
            return found
        return _answer(await self._converter.encode([RawValue(one) for one in found.payloads]))

    async def _read(self, payload: Payload) -> Payload:
        try:
            [value] = await self._converter.decode([payload], [RawValue])
        except Exception:  # also a storage driver's own errors: a lost value must not hide the others
            return payload
        decoded: Payload = value.payload
        return payload if is_unreadable(decoded) else decoded

    async def _read_payloads(self, request: Request) -> Payloads | Response:
        """Return the payloads of a permitted request; otherwise the refusal."""
        if request.headers.get("origin", self._origin) != self._origin:
            return _finish(
                PlainTextResponse(
                    f"pages of this site may not send requests to the codec server; only those of {self._origin} may",
                    403,
                )
            )
        try:
            if self._guards.caller(request) is None:
                return _finish(PlainTextResponse("a token is needed: as a bearer, or sign in at /", 401))
        except TooManyGuessesError as error:
            return _finish(PlainTextResponse(str(error), 429, {"Retry-After": f"{error.seconds:.0f}"}))
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY:
                return _finish(PlainTextResponse(f"more than {MAX_BODY} bytes", 413))
        try:
            return ParseDict(json.loads(body), Payloads())
        except (ValueError, RecursionError, ParseError, AttributeError, TypeError) as error:
            reason = type(error).__name__
            return _finish(PlainTextResponse(f'expected {{"payloads": [...]}} as Temporal writes it ({reason})', 400))

    async def _home(self, request: Request) -> Response:
        signed_in = self._guards.signed_in(request) is not None
        notice = f"Signed in: the Web UI at {self._origin} may show encrypted values." if signed_in else ""
        return _finish(HTMLResponse(_PAGE.format(notice=notice)))

    async def _sign_in(self, request: Request) -> Response:
        async with request.form(max_files=0, max_fields=4) as form:
            token = str(form.get("token", ""))
        try:
            caller = self._guards.caller_with(token, request)
        except TooManyGuessesError as error:
            return _finish(HTMLResponse(_PAGE.format(notice=error), 429, {"Retry-After": f"{error.seconds:.0f}"}))
        if caller is None:
            return _finish(HTMLResponse(_PAGE.format(notice="The token is wrong."), 401))
        response = RedirectResponse("/", 303)
        self._guards.sign_in(request, response, caller)
        return _finish(response)


def _answer(payloads: list[Payload]) -> Response:
    return _finish(JSONResponse(MessageToDict(Payloads(payloads=payloads))))


def _finish(response: Response) -> Response:
    response.headers.update(_HEADERS)
    return response
