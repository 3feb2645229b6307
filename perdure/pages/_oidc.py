"""Sign-in by OpenID Connect with Authlib, which checks state, nonce, signature and issuer."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from httpx2 import HTTPError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure.errors import SettingsError, clip
from perdure.gateway.callers import RIGHTS
from perdure.gateway.errors import HttpError
from perdure.hosting.oidc import ClaimsError, OidcConfig, check_rights
from perdure.pages._site import Site

if TYPE_CHECKING:
    from authlib.integrations.starlette_client import StarletteOAuth2App

UNDER_WAY: Final = "perdure_oidc"
"""The cookie of an unfinished sign-in: its state, nonce and code verifier, signed."""
PATIENCE: Final = 600
"""Seconds in which a person must sign in at the provider."""
_TIMEOUT: Final = 10.0
"""Timeout in seconds of each request to the provider."""


class OidcSignIn:
    """The redirects of a browser to the provider and back. Raises `SettingsError` without Authlib."""

    def __init__(self, site: Site, config: OidcConfig, pages_url: str) -> None:
        check_rights(config, RIGHTS)
        self._site, self._config, self._pages_url = site, config, pages_url.rstrip("/")
        self._client = _client(config)

    def routes(self) -> list[Route]:
        """Return the routes. Their callers are not authenticated."""
        return [Route("/sign-in/provider", self._begin), Route("/sign-in/callback", self._finish)]

    async def _begin(self, request: Request) -> Response:
        back = request.query_params.get("back", "")
        request.scope["session"] = {"back": back[:2000]}
        response = await self._ask(self._client.authorize_redirect(request, self._callback(request)))
        self._site.guards.keep(request, response, UNDER_WAY, _packed(request.session), PATIENCE)
        return self._site.guards.finish(request, response)

    async def _finish(self, request: Request) -> Response:
        session = _unpacked(self._site.guards.signed_cookie(request, UNDER_WAY))
        if session is None:
            raise HttpError(400, "This sign-in has expired, or belongs to another browser. Sign in again.")
        request.scope["session"] = session
        token = await self._ask(self._client.authorize_access_token(request))
        try:
            person = self._config.person(token.get("userinfo") or {})
        except ClaimsError as error:
            raise HttpError(
                403, f"{self._config.name} accepted the sign-in, but this gateway rejected it: {error}."
            ) from None
        response = self._site.signed_in_page(request, str(session.get("back", "")))
        self._site.guards.sign_in_person(request, response, person, self._config.seconds)
        self._site.guards.forget(response, UNDER_WAY)
        return response

    def _callback(self, request: Request) -> str:
        here = self._pages_url or f"{self._site.guards.scheme(request)}://{request.headers.get('host', '')}"
        return f"{here}/sign-in/callback"

    async def _ask(self, asked: Any) -> Any:  # a response, or Authlib's token with its claims
        """Return the provider's answer. Raises `HttpError` if the provider refuses, is down, or sends an invalid answer."""
        from authlib.common.errors import AuthlibBaseError
        from authlib.integrations.starlette_client import OAuthError
        from joserfc.errors import JoseError

        try:
            return await asked
        except OAuthError as error:
            why = clip(str(error.description or error.error))
            raise HttpError(400, f"{self._config.name} rejected the sign-in: {why}. Sign in again.") from None
        except HTTPError as error:
            raise HttpError(
                502, f"{self._config.name} does not answer ({type(error).__name__}). Try again later."
            ) from None
        except (AuthlibBaseError, JoseError, ValueError, KeyError, RuntimeError) as error:
            raise HttpError(
                502, f"{self._config.name} sent an answer that is not valid ({type(error).__name__})."
            ) from None


def oidc_routes(site: Site, config: OidcConfig | None, pages_url: str) -> list[Route]:
    """Return the routes of a sign-in by a provider; none without a provider. Raises `SettingsError`."""
    return [] if config is None else OidcSignIn(site, config, pages_url).routes()


def _client(config: OidcConfig) -> StarletteOAuth2App:
    try:
        from authlib.integrations.starlette_client import OAuth
    except ImportError:
        raise SettingsError("gateway_oidc needs the package authlib: pip install 'perdure[oidc]'") from None
    secret = config.client_secret
    client: StarletteOAuth2App = OAuth().register(
        "perdure",
        server_metadata_url=f"{config.issuer}/.well-known/openid-configuration",
        client_id=config.client_id,
        client_secret=None if secret is None else secret.get_secret_value(),
        client_kwargs={
            "scope": config.scopes,
            "code_challenge_method": "S256",
            "timeout": _TIMEOUT,
            **({} if secret else {"token_endpoint_auth_method": "none"}),
        },
    )
    return client


def _packed(session: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(dict(session)).encode()).decode()


def _unpacked(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        read = json.loads(base64.urlsafe_b64decode(text.encode()))
    except (binascii.Error, ValueError):
        return None
    return read if isinstance(read, dict) else None
