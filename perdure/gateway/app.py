"""The frame around all adapters: checks before a route is called, and headers and log of its response; and the paths `/livez` and `/readyz`."""

from __future__ import annotations

import inspect
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure.activities.secrets import mask_value
from perdure.client.perdure import Perdure
from perdure.errors import PerdureError, SettingsError
from perdure.gateway.adapter import Adapter, AdapterMaker, Gateway
from perdure.gateway.bounds import HEADERS, BoundedBody, too_large
from perdure.gateway.callers import READ, UNSIGNED, Caller, NoTokens, OneToken, TokenFile, Tokens
from perdure.gateway.errors import HttpError, as_problem_json, log_problem
from perdure.gateway.guards import Guards, TooManyGuessesError, is_loopback
from perdure.gateway.webhooks import Declared, trigger_adapter
from perdure.hosting.settings import Settings, in_force
from perdure.queries import record_entries
from perdure.runs.audit import AuditBatch, AuditData, AuditEntry, entry
from perdure.runs.caller_context import read_context

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""The default headers of every response."""
_LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_SAFE: Final = ("GET", "HEAD", "OPTIONS")
_IN_URLS: Final = ("token", "access_token", "api_key", "authorization")
CLIENT_GONE: Final = 499
"""The status in the audit log for a client that disconnected before the answer, as in nginx."""
_log: Final = logging.getLogger("perdure.gateway")


ContextOf: TypeAlias = Callable[[Caller], "object | Awaitable[object]"]
"""An application's function that returns an authenticated caller's context, as in `Perdure.start`; sync or async."""


def create_app(
    perdure: Perdure,
    settings: Settings | None = None,
    adapters: Iterable[AdapterMaker] = (),
    *,
    triggers: Declared | None = None,
    context_of: ContextOf | None = None,
) -> Starlette:
    """Return the gateway as an ASGI application; `app.state.gateway` is its `Gateway`. Raises `SettingsError` for
    tokens that cannot be read.

    `settings`: by default those in force. `triggers`: signed webhooks by name, or their file (R19.7).
    `context_of`: the context of a caller, in place of their token's (R19.1).

    Without tokens in the settings, every client has access, under the names of loopback only: serve it on loopback
    only.
    """
    settings = in_force() if settings is None else settings
    guards = Guards(tokens_of(settings), secret=settings.gateway_secret, proxies=settings.gateway_proxies)
    gateway = Gateway(perdure, settings, guards)
    makers = [*adapters, *([] if triggers is None else [trigger_adapter(triggers)])]
    opened = [make(gateway) for make in makers]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for adapter in opened:
                await stack.enter_async_context(adapter.lifespan())
            yield
            gateway.stopping.set()

    def not_found(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        words = "the address does not exist" if error.status_code in (404, 405) else str(error.detail)
        problem = HttpError(error.status_code, words, headers=error.headers)
        own = next(
            (adapter for adapter in opened if adapter.below and request.url.path.startswith(adapter.below)), None
        )
        return _finish(as_problem_json(problem) if own is None else own.problem(request, problem))

    app = Starlette(
        routes=[_GuardedRoute(gateway, adapter, route, context_of) for adapter in opened for route in adapter.routes],
        exception_handlers={HTTPException: not_found},
        middleware=[Middleware(_OneLength), *_for_pages_of(settings.gateway_origins)],
        lifespan=lifespan,
    )
    app.state.gateway = gateway
    app.state.adapters = opened
    return app


class _OneLength:
    """Rejects a request with two body lengths: a proxy and the gateway could read it as different requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        names = [name for name, _ in scope.get("headers", ()) if name in (b"content-length", b"transfer-encoding")]
        answer: ASGIApp = self._app
        if len(names) > 1:
            words = "a request must have Content-Length or Transfer-Encoding once"
            answer = _finish(
                as_problem_json(HttpError(400, words, kind="two-lengths", headers={"Connection": "close"}))
            )
        await answer(scope, receive, send)


def _for_pages_of(origins: Sequence[str]) -> list[Middleware]:
    """Return the middleware that lets pages of these sites send requests and read responses. They need a token: cookies are not sent."""
    if not origins:
        return []
    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],  # OpenAI's client sends a dozen of its own; without cookies no header has a user's rights
        expose_headers=["Location", "Retry-After", "X-Request-Id", "X-Should-Retry", "Mcp-Session-Id"],
    )
    return [cors]


def tokens_of(settings: Settings) -> Tokens | None:
    """Return the tokens that the settings name. Raises `SettingsError`."""
    if settings.gateway_tokens is not None and settings.gateway_token is not None:
        raise SettingsError("gateway_token and gateway_tokens are both set: set one of them")
    if settings.gateway_tokens is not None:
        return TokenFile(settings.gateway_tokens, report=lambda line: _log.info("%s", line))
    if settings.gateway_token is not None:
        return OneToken(settings.gateway_token)
    return None if settings.gateway_oidc is None else NoTokens()


class _GuardedRoute(BaseRoute):
    """An adapter's route, with the frame around it."""

    def __init__(
        self, gateway: Gateway, adapter: Adapter, route: BaseRoute, context_of: ContextOf | None = None
    ) -> None:
        self.route = route
        self._context_of = context_of
        self.adapter = adapter
        self._gateway = gateway
        self._template = getattr(route, "path", "").replace(":path}", "}")

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return self.route.matches(scope)

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        return self.route.url_path_for(name, **path_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise HTTPException(404)
        began, caller, started, ends = time.monotonic(), None, 0, False
        request = Request(scope, receive)
        most = self._gateway.settings.gateway_body
        body = BoundedBody(receive, most, empty=_has_no_body(request))
        # A webhook's sender may not retry: the work of its request continues after a disconnect.
        body.is_watched = self.adapter.access != "signed"
        id = secrets.token_hex(8)

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                body.is_watched = False
                await self._audit(scope, caller, id, message["status"])
                started = message["status"]
                headers = MutableHeaders(scope=message)
                _add_headers(headers, id)
                if ends:  # otherwise the server would read the rest of the rejected body
                    headers["Connection"] = "close"
            await send(message)

        self._gateway.under_way += 1
        try:
            if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADERS:
                raise HttpError(431, f"the headers are too large: the limit is {HEADERS:,} bytes")
            self._check_address(request)
            caller = replace(await self._with_context(self._caller(request)), checked={})
            scope.setdefault("state", {})["caller"] = caller
            if int(request.headers.get("content-length") or 0) > most:
                raise too_large(most)
            with nullcontext() if self.adapter.access == "open" else self._gateway.held.one_of(caller):
                await self._gateway.server.bound(self.route.handle(scope, body, sending), lambda: bool(started), body)
        except ClientDisconnect:  # there is no client to answer
            await self._leave(scope, caller, id)
        except Exception as error:
            if started:
                raise
            ends = not await body.discard()
            await self.adapter.problem(request, log_problem(error, id))(scope, receive, sending)
        finally:
            self._gateway.under_way -= 1
            self._log(scope, started, caller, id, time.monotonic() - began)

    async def _leave(self, scope: Scope, caller: Caller | None, id: str) -> None:
        """Record the request of a disconnected client in the audit log."""
        try:
            await self._audit(scope, caller, id, CLIENT_GONE)
        except Exception as error:
            log_problem(error, id)

    async def _audit(self, scope: Scope, caller: Caller | None, id: str, status: int) -> None:
        """Record the rights that a request used or lacked in the audit log, before the answer. The right to read is left out."""
        if self._gateway.settings.audit is None or caller is None:
            return
        used = {right: has for right, has in caller.checked.items() if right != READ}
        caller.checked.clear()
        batch = [self._entry(scope, caller, f"{id}/{right}", right, status, has) for right, has in used.items()]
        if batch:
            queue = self._gateway.perdure.task_queue
            clean = AuditBatch.model_validate(mask_value(AuditBatch(entries=batch).as_json()))
            await record_entries(self._gateway.perdure.client, queue, clean)

    def _entry(self, scope: Scope, caller: Caller, key: str, right: str, status: int, has: bool) -> AuditEntry:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        about: AuditData = {
            "by": caller.sender,
            "right": right,
            "token": caller.token,
            "roles": [*sorted(caller.roles)],
        }
        about |= {"method": scope["method"], "route": self._template, "status": status}
        found = entry("right_used" if has else "refusal", at, f"gateway/{key}", about)
        return found.model_copy(update={"tenant": caller.tenant})

    def _caller(self, request: Request) -> Caller:
        """Return the caller. Raises `HttpError` for an unknown caller, and for too many requests."""
        guards = self._gateway.guards
        if self.adapter.access == "open":
            return Caller("", "", frozenset(), "")
        if self.adapter.access == "signed":
            unknown = Caller("", "", frozenset(), f"{UNSIGNED}{guards.address(request)}")
            self._gateway.rates.take(unknown.token, "from this address")
            return unknown
        try:
            caller = guards.bearer(request) if self.adapter.access == "bearer" else guards.caller(request)
        except TooManyGuessesError as error:
            raise error.as_problem() from None
        if caller is None:
            words = "a token is needed: Authorization: Bearer …"
            raise HttpError(401, words, headers={"WWW-Authenticate": 'Bearer realm="perdure"'})
        self._gateway.rates.take(caller.token)
        return caller

    async def _with_context(self, caller: Caller) -> Caller:
        """Return the caller with the application's context."""
        if self._context_of is None or self.adapter.access in ("open", "signed"):
            return caller
        known = self._context_of(caller)
        return replace(caller, context=read_context(await known if inspect.isawaitable(known) else known))

    def _check_address(self, request: Request) -> None:
        """Check the request's host name and origin. Raise `HttpError`."""
        settings, headers = self._gateway.settings, request.headers
        host = headers.get("host", "")
        trusts = self._gateway.guards.open and self.adapter.access != "signed"
        names = settings.gateway_hosts or (_LOOPBACK if trusts else ())
        # DNS rebinding: a page of another site may have a host name that leads here.
        if names and _name(host) not in names:
            raise HttpError(
                421, f"{_name(host)!r} is not a host name of this gateway; the setting gateway_hosts has its names"
            )
        origin = headers.get("origin")
        # CSRF: a browser sends another site's requests with its user's cookies, and loopback needs no token.
        if origin is not None and _site(origin) != host and origin not in settings.gateway_origins:
            raise HttpError(
                403,
                f"pages of {origin} may not send requests to this gateway; the setting gateway_origins has the allowed sites",
                kind="foreign-origin",
            )
        if (
            origin is None
            and headers.get("sec-fetch-site") in ("cross-site", "same-site")
            and request.method not in _SAFE
        ):
            raise HttpError(
                403,
                "pages of other sites may not send requests to this gateway; the setting gateway_origins has the allowed sites",
                kind="foreign-origin",
            )
        if any(name in request.query_params for name in _IN_URLS):
            raise HttpError(
                400, "the address has a token, which proxies may log: send the token in the header Authorization"
            )

    def _log(self, scope: Scope, status: int, caller: Caller | None, id: str, seconds: float) -> None:
        # The route and not the URL: people choose the keys of sessions.
        fields = {"adapter": self.adapter.name, "status": status, "ms": round(seconds * 1000), "request": id}
        known = caller is not None and caller.token and not caller.token.startswith(UNSIGNED)
        fields |= {"token": caller.token} if caller is not None and known else {}
        level = logging.DEBUG if self.adapter.access == "open" else logging.INFO  # probes come every few seconds
        _log.log(level, "%s %s", scope["method"], self._template, extra={"perdure": fields})


def _has_no_body(request: Request) -> bool:
    """Whether the request's head excludes a body, as HTTP/1 defines it."""
    length, http1 = request.headers.get("content-length", "0"), request.scope.get("http_version", "").startswith("1")
    return http1 and length == "0" and "transfer-encoding" not in request.headers


def _name(host: str) -> str:
    """Return the host without its port."""
    return host if host.endswith("]") else host.rpartition(":")[0] or host


def _site(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # no browser sends this
        return None


def _add_headers(headers: MutableHeaders, id: str) -> None:
    for name, value in _HEADERS.items():
        headers.setdefault(name, value)
    headers["X-Request-Id"] = id


def _finish(response: Response) -> Response:
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def check_agents_folder(settings: Settings) -> None:
    """Raise `SettingsError` if the configured folder of agents cannot be read: the gateway would have no agents."""
    if settings.agents is None:
        return
    try:
        next(settings.agents.iterdir(), None)
    except OSError as error:
        raise SettingsError(f"--agents: the folder {settings.agents} cannot be read: {error.strerror}") from None


def check_reachable(settings: Settings) -> None:
    """Raise `SettingsError` for a gateway without tokens that others can reach, and for unreadable tokens."""
    if tokens_of(settings) is None and not is_loopback(settings.gateway_host):
        raise SettingsError(
            f"other machines can reach {settings.gateway_host}: require tokens, with --tokens FILE or --token TEXT, or set gateway_oidc"
        )


def health_adapter(gateway: Gateway) -> Adapter:
    """Return the adapter of the two paths. Everybody may call them; the answer is one word."""

    async def live(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_: Request) -> Response:
        if gateway.stopping.is_set():
            return PlainTextResponse("draining\n", 503)
        try:
            await gateway.perdure.has_worker()
        except PerdureError:
            return PlainTextResponse("the server does not answer\n", 503)
        return PlainTextResponse("ready\n")

    return Adapter("health", [Route("/livez", live), Route("/readyz", ready)], access="open")
