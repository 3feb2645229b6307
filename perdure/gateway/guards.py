"""Who may look and decide: the token, sessions, the CSRF token, and the headers that keep other sites out."""

from __future__ import annotations

import getpass
import hmac
import ipaddress
import secrets
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from perdure.gateway.callers import Caller
from perdure.gateway.problems import HttpError
from perdure.gateway.tokens import OneToken, Tokens
from perdure.sessions.wire import EVERYTHING

SESSION: Final = "perdure_session"
"""Names a browser, for its forms."""
SIGNED_IN: Final = "perdure_signed_in"
"""Says that a browser has shown the token, without being it."""
SESSION_SECONDS: Final = 12 * 3600
"""A working day; whoever takes a cookie away has it for no longer."""
LOCAL: Final = "local"
"""The id of no token at all."""
FREE_GUESSES: Final = 5
"""Wrong tokens of one address before the next has to wait."""
LONGEST_WAIT: Final = 60.0
"""Seconds between guesses in the end: 1,440 a day."""
_REMEMBERED: Final = 10_000
"""Addresses that guessed wrong; the oldest is forgotten first."""
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; form-action 'self'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    # With `no-referrer` a browser says of our own forms, too, that it cannot tell where they come from.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class TooManyGuessesError(Exception):
    """An address has to wait so many seconds before another token of its is looked at."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"Too many wrong tokens from here. Try again in {seconds:.0f} s.")
        self.seconds = seconds

    def as_problem(self) -> HttpError:
        """As HTTP says it."""
        return HttpError(429, str(self), headers={"Retry-After": str(int(self.seconds) + 1)})


def local_caller() -> Caller:
    """Whoever reaches a server that asks for no token: somebody on this machine, who may do everything."""
    try:
        return Caller("", getpass.getuser(), frozenset({EVERYTHING}), LOCAL)
    except (OSError, KeyError):  # a user without a name
        return Caller("", LOCAL, frozenset({EVERYTHING}), LOCAL)


class Guards:
    """One per server. Without `tokens` it trusts whoever reaches it, which is for loopback only. Raises `SettingsError`."""

    def __init__(
        self,
        tokens: Tokens | str | None,
        clock: Callable[[], float] = time.time,
        *,
        cookie: str = SIGNED_IN,
        asked_from: str | None = None,
        secret: str | None = None,
    ) -> None:
        """`tokens`: a text is the only one. `cookie` names the session of who signed in; `asked_from` is an origin whose pages ask with it, in
        place of this server's own. `secret` signs cookies: servers that have the same know each other's; by default its own."""
        self._tokens = OneToken(tokens) if isinstance(tokens, str) else tokens
        self._clock = clock
        self._cookie = cookie
        self._asked_from = asked_from
        self._secret = secrets.token_bytes(32) if secret is None else sha256(secret.encode()).digest()
        self._guesses: dict[str, tuple[int, float]] = {}
        """By address: how many wrong ones, and when the next is looked at."""

    @property
    def open(self) -> bool:
        """Whether no token is asked for."""
        return self._tokens is None

    def admits(self, request: Request) -> bool:
        """Whether the request knows a token, as a bearer, or has signed in. Raises `TooManyGuessesError`."""
        return self.caller(request) is not None

    def caller(self, request: Request) -> Caller | None:
        """Who asks, by a bearer or a session; `None`: nobody that is known. Raises `TooManyGuessesError`."""
        return self.signed_in(request) or self.bearer(request)

    def bearer(self, request: Request) -> Caller | None:
        """Who asks, by a bearer alone. Raises `TooManyGuessesError`."""
        if self._tokens is None:
            return local_caller()
        kind, _, text = request.headers.get("authorization", "").partition(" ")
        return self.caller_with(text.strip(), request) if kind.lower() == "bearer" else None

    def signed_in(self, request: Request) -> Caller | None:
        """Who asks, by the session that signing in has given their browser, while it goes on and the token is let in."""
        named, _, signature = request.cookies.get(self._cookie, "").rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(self._cookie, named).encode()):
            return None
        until, id, _ = named.split(".")
        return self._tokens.named(id) if self._tokens is not None and int(until) > self._clock() else None

    def is_let_in(self, caller: Caller) -> bool:
        """Whether the token that a caller has shown is let in still."""
        return self._tokens is None or self._tokens.named(caller.token) is not None

    def caller_with(self, text: str, request: Request) -> Caller | None:
        """Whose token this is; a wrong one counts for the address. Raises `TooManyGuessesError`."""
        if self._tokens is None:
            return None
        who, now = _who(request), self._clock()
        wrong, free_at = self._guesses.get(who, (0, now))
        if free_at > now:
            raise TooManyGuessesError(free_at - now)
        if (caller := self._tokens.find(text)) is not None:
            self._guesses.pop(who, None)
            return caller
        wait = min(LONGEST_WAIT, 2.0 ** (wrong + 1 - FREE_GUESSES)) if wrong + 1 >= FREE_GUESSES else 0.0
        self._guesses.pop(who, None)
        self._guesses[who] = (min(wrong + 1, 1000), now + wait)
        while len(self._guesses) > _REMEMBERED:
            del self._guesses[next(iter(self._guesses))]
        return None

    def sign_in(self, request: Request, response: Response, caller: Caller) -> None:
        """Give the browser a session of its own, which says nothing about the token but its id."""
        named = f"{int(self._clock()) + SESSION_SECONDS}.{caller.token}.{secrets.token_urlsafe(16)}"
        cookie = f"{named}.{self._sign(self._cookie, named)}"
        self._set_cookie(request, response, self._cookie, cookie)

    def sign_out(self, response: Response) -> None:
        """Have the browser forget its session."""
        response.delete_cookie(self._cookie, httponly=True)

    def csrf(self, request: Request) -> tuple[str, str]:
        """The session, new if there is none, and the token that its forms carry."""
        session = request.cookies.get(SESSION) or secrets.token_urlsafe(16)
        return session, self._sign(SESSION, session)

    def is_own_form(self, request: Request, csrf: str) -> bool:
        """Whether a form came from a page of ours, shown to this browser."""
        session = request.cookies.get(SESSION, "")
        return bool(session) and hmac.compare_digest(csrf.encode(), self._sign(SESSION, session).encode())

    def finish(self, request: Request, response: Response, session: str | None = None) -> Response:
        """Add the headers, and the session's cookie."""
        response.headers.update(_HEADERS)
        if session is not None:
            self._set_cookie(request, response, SESSION, session)
        return response

    def _set_cookie(self, request: Request, response: Response, name: str, value: str) -> None:
        # A browser sends it with another site's questions only where that site, and so this server, is served over TLS.
        elsewhere = (self._asked_from or "").startswith("https:")
        secure = elsewhere or request.url.scheme == "https"
        response.set_cookie(name, value, httponly=True, samesite="none" if elsewhere else "strict", secure=secure)

    def _sign(self, use: str, text: str) -> str:
        return hmac.new(self._secret, f"{use}:{text}".encode(), sha256).hexdigest()


def _who(request: Request) -> str:
    """The address that asks; of IPv6 the network, for one machine has many."""
    host = "" if request.client is None else request.client.host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return str(ipaddress.ip_network(f"{host}/64", strict=False)) if address.version == 6 else host
