"""Who may look and decide: the token, sessions, the CSRF token, and the headers that keep other sites out."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from perdure.errors import SettingsError

SESSION: Final = "perdure_session"
"""Names a browser, for its forms."""
SIGNED_IN: Final = "perdure_signed_in"
"""Says that a browser has shown the token, without being it."""
SESSION_SECONDS: Final = 12 * 3600
"""A working day; whoever takes a cookie away has it for no longer."""
FREE_GUESSES: Final = 5
"""Wrong tokens of one address before the next has to wait."""
LONGEST_WAIT: Final = 60.0
"""Seconds between guesses in the end: 1,440 a day."""
_REMEMBERED: Final = 10_000
"""Addresses that guessed wrong; the oldest is forgotten first."""
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; form-action 'self'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_token(token: str | None) -> None:
    """Raises `SettingsError` for one that is empty: a variable that is not set would let everybody in."""
    if token is not None and not token.strip():
        raise SettingsError("the token is empty: give one with --token or PERDURE_INBOX_TOKEN, or none at all")


class TooManyGuessesError(Exception):
    """An address has to wait so many seconds before another token of its is looked at."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"Too many wrong tokens from here. Try again in {seconds:.0f} s.")
        self.seconds = seconds


class Guards:
    """One per server. Without a `token` it trusts whoever reaches it, which is for loopback only. Raises `SettingsError`."""

    def __init__(
        self,
        token: str | None,
        clock: Callable[[], float] = time.time,
        *,
        cookie: str = SIGNED_IN,
        asked_from: str | None = None,
    ) -> None:
        """`cookie` names the session of who signed in; `asked_from` is an origin whose pages ask with it, in place of this server's own."""
        check_token(token)
        self._token = token
        self._clock = clock
        self._cookie = cookie
        self._asked_from = asked_from
        self._secret = secrets.token_bytes(32)
        self._guesses: dict[str, tuple[int, float]] = {}
        """By address: how many wrong ones, and when the next is looked at."""

    def admits(self, request: Request) -> bool:
        """Whether the request knows the token, as a bearer, or has signed in. Raises `TooManyGuessesError`."""
        if self._token is None or self.is_signed_in(request):
            return True
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and self.is_token(bearer, request)

    def is_token(self, text: str, request: Request) -> bool:
        """Whether this is the token; a wrong one counts for the address. Raises `TooManyGuessesError`."""
        if self._token is None:
            return False
        who, now = _who(request), self._clock()
        wrong, free_at = self._guesses.get(who, (0, now))
        if free_at > now:
            raise TooManyGuessesError(free_at - now)
        if hmac.compare_digest(_digest(text), _digest(self._token)):
            self._guesses.pop(who, None)
            return True
        wait = min(LONGEST_WAIT, 2.0 ** (wrong + 1 - FREE_GUESSES)) if wrong + 1 >= FREE_GUESSES else 0.0
        self._guesses.pop(who, None)
        self._guesses[who] = (min(wrong + 1, 1000), now + wait)
        while len(self._guesses) > _REMEMBERED:
            del self._guesses[next(iter(self._guesses))]
        return False

    def sign_in(self, request: Request, response: Response) -> None:
        """Give the browser a session of its own, which says nothing about the token."""
        named = f"{int(self._clock()) + SESSION_SECONDS}.{secrets.token_urlsafe(16)}"
        cookie = f"{named}.{self._sign(self._cookie, named)}"
        self._set_cookie(request, response, self._cookie, cookie)

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

    def is_signed_in(self, request: Request) -> bool:
        """Whether the browser has a session that goes on."""
        named, _, signature = request.cookies.get(self._cookie, "").rpartition(".")
        own = hmac.compare_digest(signature.encode(), self._sign(self._cookie, named).encode())
        return own and int(named.partition(".")[0]) > self._clock()

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


def _digest(text: str) -> bytes:
    return sha256(text.encode(errors="replace")).digest()
