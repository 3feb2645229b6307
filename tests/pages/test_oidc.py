"""Sign-in by OpenID Connect, with a provider that answers as a test tells it to (R24.7)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from temporalio.testing import WorkflowEnvironment

from perdure.errors import SettingsError
from perdure.gateway.app import check_reachable
from perdure.gateway.http_server import serve_app
from perdure.hosting.oidc import OidcConfig
from perdure.hosting.settings import load, replace_settings
from perdure.pages.adapter import pages, sign_in
from tests.gateway.support import Served, gateway, write_tokens
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = RSAKey.generate_key(2048, {"kid": "one"})
OTHER = RSAKey.generate_key(2048, {"kid": "one"})


@dataclass
class Provider:
    """A provider of OpenID Connect whose ID tokens a test can spoil."""

    issuer: str = ""
    claims: dict[str, Any] = field(default_factory=lambda: {"email": "ann@example.com", "groups": ["finance"]})
    spoil: Callable[[dict[str, Any]], None] = lambda _: None
    key: RSAKey = field(default_factory=lambda: KEY)
    nonce: str = ""
    exchanged: list[dict[str, str]] = field(default_factory=list)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._metadata),
                Route("/keys", lambda _: JSONResponse({"keys": [KEY.as_dict(private=False)]})),
                Route("/token", self._token, methods=["POST"]),
            ]
        )

    def _metadata(self, _: Request) -> Response:
        at = self.issuer
        return JSONResponse(
            {
                "issuer": at,
                "authorization_endpoint": f"{at}/authorize",
                "token_endpoint": f"{at}/token",
                "jwks_uri": f"{at}/keys",
                "id_token_signing_alg_values_supported": ["RS256"],
            }
        )

    async def _token(self, request: Request) -> Response:
        form = await request.form()
        self.exchanged.append({key: str(value) for key, value in form.items()})
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": "perdure", "sub": "u-1", "iat": now, "exp": now + 60}
        claims |= {"nonce": self.nonce, **self.claims}
        self.spoil(claims)
        return JSONResponse(
            {
                "access_token": "at",
                "token_type": "Bearer",
                "id_token": jwt.encode({"alg": "RS256", "kid": "one"}, claims, self.key),
            }
        )


@asynccontextmanager
async def provided(client: Any, **given: Any) -> AsyncIterator[tuple[Served, Provider]]:
    """A gateway whose people sign in at a provider."""
    provider = Provider()
    async with serve_app(provider.app(), None, "127.0.0.1", 0) as issuer:
        provider.issuer = issuer
        config = OidcConfig(
            issuer=issuer,
            client_id="perdure",
            roles="groups",
            rights={"finance": ("read", "approve")},
            label="Example",
        )
        async with gateway(client, [sign_in, pages], gateway_oidc=config, **given) as it:
            yield it, provider


async def begin(it: Served, provider: Provider, back: str = "/inbox/") -> dict[str, str]:
    """Go to the provider; the query with which it is asked."""
    found = await it.http.get("/sign-in/provider", params={"back": back})
    assert found.status_code == 302
    assert found.headers["location"].startswith(f"{provider.issuer}/authorize?")
    query = {key: value[0] for key, value in parse_qs(urlsplit(found.headers["location"]).query).items()}
    provider.nonce = query["nonce"]
    return query


async def come_back(it: Served, query: dict[str, str], **given: str) -> httpx2.Response:
    return await it.http.get("/sign-in/callback", params={"code": "c", "state": query["state"], **given})


async def test_a_person_signs_in_and_goes_on_where_they_were(dev_server: WorkflowEnvironment) -> None:
    async with provided(dev_server.client) as (it, provider):
        asked = await it.http.get("/inbox/")
        assert asked.status_code == 401
        assert 'href="/sign-in/provider?back=/inbox/"' in asked.text
        assert 'name="token"' not in asked.text, "there are no tokens"
        query = await begin(it, provider)
        assert query["code_challenge_method"] == "S256"
        assert query["redirect_uri"] == f"{it.address}/sign-in/callback"
        found = await come_back(it, query)
        assert found.status_code == 200, found.text
        assert 'content="0;url=/inbox/"' in found.text
        assert "SameSite=strict" in found.headers["set-cookie"]
        assert provider.exchanged[0]["code_verifier"]
        page = await it.http.get("/inbox/")
        assert page.status_code == 200
        assert "ann@example.com" in page.text


async def test_a_sign_in_ends_and_its_cookie_is_nobody_elses(dev_server: WorkflowEnvironment) -> None:
    async with provided(dev_server.client) as (it, provider):
        assert (await come_back(it, await begin(it, provider))).status_code == 200
        guards = it.gateway.guards
        clock = guards._clock
        guards._clock = lambda: clock() + 12 * 3600 + 1
        assert (await it.http.get("/inbox/")).status_code == 401
        guards._clock = clock
        assert (await it.http.get("/inbox/")).status_code == 200
        cookie = it.http.cookies["perdure_signed_in"]
        async with httpx2.AsyncClient(base_url=it.address, timeout=HANG) as other:
            for sent, status in ((cookie, 200), (cookie[:-1] + ("0" if cookie[-1] != "0" else "1"), 401)):
                found = await other.get("/inbox/", headers={"Cookie": f"perdure_signed_in={sent}"})
                assert found.status_code == status


def wrong(**claims: Any) -> Callable[[dict[str, Any]], None]:
    return lambda found: found.update(claims)


@pytest.mark.parametrize(
    "spoil",
    [
        wrong(nonce="other"),
        wrong(iss="https://evil.example"),
        wrong(aud="another-client"),
        wrong(exp=1),
        lambda claims: claims.pop("exp"),
    ],
    ids=["nonce", "issuer", "audience", "expired", "without end"],
)
async def test_an_id_token_that_is_not_ours_lets_nobody_in(
    dev_server: WorkflowEnvironment, spoil: Callable[[dict[str, Any]], None]
) -> None:
    async with provided(dev_server.client) as (it, provider):
        provider.spoil = spoil
        found = await come_back(it, await begin(it, provider))
        assert found.status_code in (400, 502)
        assert "Traceback" not in found.text
        assert (await it.http.get("/inbox/")).status_code == 401


async def test_a_foreign_signature_lets_nobody_in(dev_server: WorkflowEnvironment) -> None:
    async with provided(dev_server.client) as (it, provider):
        provider.key = OTHER
        assert (await come_back(it, await begin(it, provider))).status_code == 502
        assert (await it.http.get("/inbox/")).status_code == 401


async def test_a_callback_counts_once_in_the_browser_that_began(dev_server: WorkflowEnvironment) -> None:
    async with provided(dev_server.client) as (it, provider):
        query = await begin(it, provider)
        async with httpx2.AsyncClient(base_url=it.address, timeout=HANG) as other:
            stolen = await other.get("/sign-in/callback", params={"code": "c", "state": query["state"]})
        assert stolen.status_code == 400
        assert "belongs to another browser" in stolen.text
        assert (await come_back(it, {"state": "guessed"})).status_code == 400
        assert not provider.exchanged, "nothing is asked for a state that is not ours"
        assert (await come_back(it, query)).status_code == 200
        assert (await come_back(it, query)).status_code == 400


async def test_a_refusal_and_a_missing_right_are_said(dev_server: WorkflowEnvironment) -> None:
    async with provided(dev_server.client) as (it, provider):
        query = await begin(it, provider)
        found = await it.http.get("/sign-in/callback", params={"error": "access_denied", "state": query["state"]})
        assert found.status_code == 400
        assert "access_denied" in found.text
        provider.claims["groups"] = ["guests"]
        found = await come_back(it, await begin(it, provider))
        assert found.status_code == 403
        assert "no role of this account has a right in this gateway" in found.text
        assert (await it.http.get("/inbox/")).status_code == 401


async def test_a_provider_that_is_away_is_named(dev_server: WorkflowEnvironment) -> None:
    config = OidcConfig(issuer="http://127.0.0.1:9", client_id="perdure", rights={"*": ("read",)})
    async with gateway(dev_server.client, [sign_in, pages], gateway_oidc=config) as it:
        found = await it.http.get("/sign-in/provider")
        assert found.status_code == 502
        assert "127.0.0.1:9 does not answer" in found.text


async def test_no_other_site_is_gone_to(dev_server: WorkflowEnvironment) -> None:
    async with provided(dev_server.client) as (it, provider):
        found = await come_back(it, await begin(it, provider, back="//evil.example"))
        assert "evil.example" not in found.text


async def test_tokens_stay_beside_a_provider(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    (token,) = write_tokens(tmp_path / "tokens.json", ("", "bot", ["read"]))
    async with provided(dev_server.client, gateway_tokens=tmp_path / "tokens.json") as (it, _):
        asked = await it.http.get("/inbox/")
        assert 'name="token"' in asked.text
        assert "Sign in with Example" in asked.text
        signed = await it.http.post("/sign-in", data={"token": token, "back": "/inbox/"})
        assert signed.status_code == 303
        assert "bot" in (await it.http.get("/inbox/")).text


async def test_a_gateway_with_a_provider_may_be_reached_by_others() -> None:
    config = OidcConfig(issuer="https://a.example", client_id="x", rights={"*": ("read",)})
    check_reachable(replace_settings(load(), {"gateway_host": "0.0.0.0", "gateway_oidc": config}))
    with pytest.raises(SettingsError, match="or set gateway_oidc"):
        check_reachable(replace_settings(load(), {"gateway_host": "0.0.0.0"}))
