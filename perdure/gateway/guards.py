"""Guards: tokens, sign-in sessions, the CSRF token, and the headers that protect against other sites."""

from __future__ import annotations

import base64
import getpass
import hmac
import ipaddress
import json
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Final, Literal, TypeAlias
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response

from perdure.gateway.callers import FORM, Caller, OneToken, Tokens
from perdure.gateway.errors import HttpError
from perdure.hosting.oidc import SignedInPerson
from perdure.sessions.wire import EVERYTHING
from perdure.values.json import dumps

SESSION: Final = "perdure_session"
"""The cookie with a browser's id, for its forms."""
SIGNED_IN: Final = "perdure_signed_in"
"""The cookie of a signed-in browser. It does not hold the token."""
SESSION_SECONDS: Final = 12 * 3600
"""The lifetime of a sign-in: a working day. A stolen cookie is not valid for longer."""
TENANT: Final = "perdure_tenant"
"""The cookie with the tenant that the pages of a server without tokens show."""
LOCAL: Final = "local"
"""The token id of the caller of a server without tokens."""
FREE_GUESSES: Final = 5
"""The number of wrong tokens of an address before the next one must wait."""
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
_PAIR: Final = re.compile(r'\b(for|proto)=("[^"]*"|[^;,\s]+)')
"""A pair of the header `Forwarded` (RFC 7239)."""
LONGEST_WAIT: Final = 60.0
"""The longest wait between guesses in seconds: 1,440 guesses a day."""
_REMEMBERED: Final = 10_000
"""The most addresses with wrong guesses that are kept; the oldest is forgotten first."""
_PERSON: Final = "~"
"""The prefix of a person's session; no token's id has it."""
_PERSON_ID: Final = re.compile(r"person-(\d+)-[0-9a-f]{12}")
"""A person's id in place of a token's: the end of the sign-in, in seconds since 1970, and a digest of the person."""
_LARGEST_COOKIE: Final = 3_500
"""The most characters of a person. Browsers keep 4,096, with the cookie's name, end and signature."""
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; form-action 'self'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    # With `no-referrer`, a browser sends `Origin: null` with our own forms too.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class TooManyGuessesError(Exception):
    """An address must wait this many seconds before its next token is checked."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"Too many wrong tokens from this address. Try again in {seconds:.0f} s.")
        self.seconds = seconds

    def as_problem(self) -> HttpError:
        """Return the error as an HTTP problem."""
        return HttpError(429, str(self), headers={"Retry-After": str(int(self.seconds) + 1)})


def local_caller() -> Caller:
    """Return the caller of a server without tokens: a person on this machine, with all rights."""
    try:
        return Caller("", getpass.getuser(), frozenset({EVERYTHING}), LOCAL)
    except (OSError, KeyError):  # a user without a name
        return Caller("", LOCAL, frozenset({EVERYTHING}), LOCAL)


class Guards:
    """The authentication of one server. Without `tokens` it trusts every client, which is for loopback only. Raises `SettingsError`."""

    def __init__(
        self,
        tokens: Tokens | str | None,
        clock: Callable[[], float] = time.time,
        *,
        cookie: str = SIGNED_IN,
        api_host: str | None = None,
        secret: str | None = None,
        proxies: Sequence[str] = (),
    ) -> None:
        """`tokens`: a text is the only token. `cookie`: the name of the sign-in cookie. `api_host`: an origin whose pages send the
        cookie, instead of this server's own. `secret` signs cookies; servers with the same secret accept each other's; random by
        default. `proxies`: addresses and networks whose `Forwarded` and `X-Forwarded-For` are trusted."""
        self._tokens = OneToken(tokens) if isinstance(tokens, str) else tokens
        self._is_word = isinstance(tokens, str)  # a token of any length, as for the inbox and the codec server
        self._clock = clock
        self._cookie = cookie
        self._api_host = api_host
        self._secret = secrets.token_bytes(32) if secret is None else sha256(secret.encode()).digest()
        self._guesses: dict[str, tuple[int, float]] = {}
        """By address and by token id: the number of wrong tokens, and the time of the next check."""
        self._proxies = [ipaddress.ip_network(each, strict=False) for each in proxies]

    @property
    def open(self) -> bool:
        """Whether no token is required."""
        return self._tokens is None

    def scheme(self, request: Request) -> str:
        """Return the client's scheme: `http` or `https`."""
        return client_address(request, self._proxies)[1]

    def caller(self, request: Request) -> Caller | None:
        """Return the caller, by a bearer token or a sign-in session; `None` for an unknown caller. Raises
        `TooManyGuessesError`.

        On a server without tokens, a person sees all tenants, and works in a chosen one.
        """
        caller = self.signed_in(request) or self.bearer(request)
        if caller is not None and self.sees_all_tenants(caller):
            return replace(caller, tenant=unquote(request.cookies.get(TENANT, "")))
        return caller

    def sees_all_tenants(self, caller: Caller) -> bool:
        """Whether the caller may see every tenant's runs: on a server without tokens, which only this machine can reach."""
        return self._tokens is None and caller.token == LOCAL

    def choose_tenant(self, request: Request, response: Response, tenant: str) -> None:
        """Make this browser's pages show a tenant; empty: runs without a tenant."""
        self._set_cookie(request, response, TENANT, quote(tenant, safe=""))

    def bearer(self, request: Request) -> Caller | None:
        """Return the caller by a bearer token only. Raises `TooManyGuessesError`."""
        if self._tokens is None:
            return local_caller()
        kind, _, text = request.headers.get("authorization", "").partition(" ")
        return self.caller_with(text.strip(), request) if kind.lower() == "bearer" else None

    def signed_in(self, request: Request) -> Caller | None:
        """Return the caller of a browser's sign-in session, while the session lasts and its token is valid."""
        named = self.signed_cookie(request, self._cookie)
        if named is None or self._tokens is None:
            return None
        who, _, _ = named.partition(".")
        return _person(who.removeprefix(_PERSON)) if who.startswith(_PERSON) else self._tokens.named(who)

    def is_valid(self, caller: Caller) -> bool:
        """Whether the caller's token is still valid, or the person's sign-in still lasts."""
        if self._tokens is None:
            return True
        if (person := _PERSON_ID.fullmatch(caller.token)) is not None:
            return int(person[1]) > self._clock()
        return self._tokens.named(caller.token) is not None

    def caller_with(self, text: str, request: Request) -> Caller | None:
        """Return the owner of this token. A wrong token counts for its address and for the token's id. A valid token is
        accepted despite wrong guesses from its address, unless tokens are chosen texts. Raises `TooManyGuessesError`
        for a guess that comes too soon.
        """
        if self._tokens is None:
            return None
        now, form = self._clock(), FORM.fullmatch(text)
        counted = [f"from {self.address(request)}", *([f"of {form[1]}"] if form else [])]
        free_at = max(self._guesses.get(each, (0, now))[1] for each in counted)
        caller = self._tokens.find(text)
        if free_at > now and (caller is None or self._is_word):
            raise TooManyGuessesError(free_at - now)
        if caller is not None:
            if self._is_word:  # a client with the only valid token does not guess
                self._guesses.pop(counted[0], None)
            return caller
        for each in counted:
            wrong = self._guesses.pop(each, (0, now))[0] + 1
            wait = min(LONGEST_WAIT, 2.0 ** (wrong - FREE_GUESSES)) if wrong >= FREE_GUESSES else 0.0
            self._guesses[each] = (min(wrong, 1000), now + wait)
        while len(self._guesses) > _REMEMBERED:
            del self._guesses[next(iter(self._guesses))]
        return None

    def address(self, request: Request) -> str:
        """Return the client's address behind the trusted proxies; for IPv6 the network, because one machine has many addresses."""
        return _network(client_address(request, self._proxies)[0])

    def sign_in(self, request: Request, response: Response, caller: Caller) -> None:
        """Set the browser's sign-in cookie. It holds the token's id only."""
        self.keep(request, response, self._cookie, f"{caller.token}.{secrets.token_urlsafe(16)}", SESSION_SECONDS)

    def sign_in_person(self, request: Request, response: Response, person: SignedInPerson, seconds: float) -> None:
        """Set the sign-in cookie of a person whom a provider has identified. The cookie holds the person, signed.

        Raises `HttpError` (403) if a cookie is too small for their roles.
        """
        until = int(self._clock() + seconds)
        words = dumps([until, person.tenant, person.sender, list(person.roles), list(person.rights)])
        packed = base64.urlsafe_b64encode(words.encode()).decode()
        if len(packed) > _LARGEST_COOKIE:
            raise HttpError(403, "This account has too many roles for a cookie. Map a claim with fewer roles.")
        self.keep(request, response, self._cookie, f"{_PERSON}{packed}.{secrets.token_urlsafe(16)}", seconds)

    def keep(self, request: Request, response: Response, name: str, text: str, seconds: float) -> None:
        """Set a signed cookie for this many seconds. Cookies of sign-in and forms are strict: other sites' requests do not send them."""
        named = f"{int(self._clock() + seconds)}.{text}"
        strict = name in (self._cookie, SESSION)
        self._set_cookie(request, response, name, f"{named}.{self._sign(name, named)}", strict=strict)

    def signed_cookie(self, request: Request, name: str) -> str | None:
        """Return the text of a cookie that this server has signed, until it expires; `None` without one."""
        named, _, signature = request.cookies.get(name, "").rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(name, named).encode()):
            return None
        until, _, text = named.partition(".")
        return text if int(until) > self._clock() else None

    def forget(self, response: Response, name: str) -> None:
        """Delete a cookie."""
        response.delete_cookie(name, httponly=True)

    def sign_out(self, response: Response) -> None:
        """Delete the sign-in cookie."""
        response.delete_cookie(self._cookie, httponly=True)

    def csrf(self, request: Request) -> tuple[str, str]:
        """Return the browser's session, new if there is none, and its CSRF token."""
        session = request.cookies.get(SESSION) or secrets.token_urlsafe(16)
        return session, self._sign(SESSION, session)

    def sign_notice(self, request: Request, words: str) -> str:
        """Return the signature of words in a URL for this browser."""
        return self._sign("words", f"{request.cookies.get(SESSION, '')}:{words}")

    def verify_notice(self, request: Request, words: str, signature: str) -> str:
        """Return the words if they were signed for this browser, else an empty text: a foreign link must not put words on a page."""
        same = hmac.compare_digest(signature.encode(), self.sign_notice(request, words).encode())
        return words if same else ""

    def is_own_form(self, request: Request, csrf: str) -> bool:
        """Whether a form came from our own page, in this browser."""
        session = request.cookies.get(SESSION, "")
        return bool(session) and hmac.compare_digest(csrf.encode(), self._sign(SESSION, session).encode())

    def finish(self, request: Request, response: Response, session: str | None = None) -> Response:
        """Add the headers, and the session's cookie."""
        response.headers.update(_HEADERS)
        if session is not None:
            self._set_cookie(request, response, SESSION, session)
        return response

    def _set_cookie(self, request: Request, response: Response, name: str, value: str, *, strict: bool = True) -> None:
        # Pages of `api_host` send the cookie with cross-site requests (SameSite=None), which requires TLS.
        elsewhere = (self._api_host or "").startswith("https:")
        secure = elsewhere or self.scheme(request) == "https"
        same_site: Literal["none", "strict", "lax"] = "none" if elsewhere else "strict" if strict else "lax"
        response.set_cookie(name, value, httponly=True, samesite=same_site, secure=secure)

    def _sign(self, use: str, text: str) -> str:
        return hmac.new(self._secret, f"{use}:{text}".encode(), sha256).hexdigest()


def _person(packed: str) -> Caller:
    """Return the caller of a text that `sign_in_person` has packed and this server has signed."""
    until, tenant, sender, roles, rights = json.loads(base64.urlsafe_b64decode(packed.encode()))
    who = sha256(dumps([tenant, sender]).encode()).hexdigest()[:12]
    return Caller(tenant, sender, frozenset(rights), f"person-{until}-{who}", frozenset(roles))


def client_address(request: Request, proxies: Sequence[Network]) -> tuple[str, str]:
    """Return the client's address and scheme: the connection's, or those that the last trusted proxy reports."""
    host, scheme = "" if request.client is None else request.client.host, request.url.scheme
    if not _is_in(host, proxies):
        return host, scheme
    hops = [dict(_PAIR.findall(hop.lower())) for hop in ",".join(request.headers.getlist("forwarded")).split(",")]
    addresses = [_host(hop["for"]) for hop in hops if "for" in hop]
    if not addresses:
        addresses = [
            _host(each) for each in ",".join(request.headers.getlist("x-forwarded-for")).split(",") if each.strip()
        ]
    schemes = [hop["proto"] for hop in hops if "proto" in hop] or [request.headers.get("x-forwarded-proto", scheme)]
    # From the right: the client itself wrote the entries before the first address that is not a proxy's.
    others = (each for each in reversed(addresses) if not _is_in(each, proxies))
    return next(others, addresses[0] if addresses else host), schemes[-1].strip()


def _host(text: str) -> str:
    """Return the host without quotes, brackets and port."""
    plain = text.strip().strip('"')
    return (
        plain[1:].partition("]")[0]
        if plain.startswith("[")
        else plain.partition(":")[0]
        if plain.count(":") == 1
        else plain
    )


def _is_in(host: str, networks: Sequence[Network]) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return any(address in each for each in networks)


def _network(host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return str(ipaddress.ip_network(f"{host}/64", strict=False)) if address.version == 6 else host
