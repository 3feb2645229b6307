"""Who may look and decide: the token, the CSRF token, and the headers that keep other sites out."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from hashlib import sha256
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

SESSION: Final = "perdure_session"
TOKEN: Final = "perdure_token"
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


class Guards:
    """One per server. Without a `token` it trusts whoever reaches it, which is for loopback only."""

    def __init__(self, token: str | None) -> None:
        self._token = token
        self._secret = secrets.token_bytes(32)

    def admits(self, request: Request) -> bool:
        """Whether the request knows the token: as a bearer, or in the cookie that `sign_in` set."""
        if self._token is None:
            return True
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        return any(map(self.is_token, (bearer, request.cookies.get(TOKEN, ""))))

    def is_token(self, text: str) -> bool:
        return self._token is not None and hmac.compare_digest(text.encode(), self._token.encode())

    def sign_in(self, response: Response) -> None:
        assert self._token is not None
        response.set_cookie(TOKEN, self._token, httponly=True, samesite="strict")

    def csrf(self, request: Request) -> tuple[str, str]:
        """The session, new if there is none, and the token that its forms carry."""
        session = request.cookies.get(SESSION) or secrets.token_urlsafe(16)
        return session, self._sign(session)

    def is_own_form(self, request: Request, csrf: str) -> bool:
        """Whether a form came from a page of ours, shown to this browser."""
        session = request.cookies.get(SESSION, "")
        return bool(session) and hmac.compare_digest(csrf.encode(), self._sign(session).encode())

    def finish(self, response: Response, session: str | None = None) -> Response:
        """Add the headers, and the session's cookie."""
        response.headers.update(_HEADERS)
        if session is not None:
            response.set_cookie(SESSION, session, httponly=True, samesite="strict")
        return response

    def _sign(self, session: str) -> str:
        return hmac.new(self._secret, session.encode(), sha256).hexdigest()
