"""Sign-in by OpenID Connect: its settings, and the tenant, sender, roles and rights that a provider's claims give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from perdure.errors import SettingsError
from perdure.values.json import Json
from perdure.values.limits import MAX_NAME, MAX_ROLES

EVERYBODY: Final = "*"
"""The role in `rights` of everybody who may sign in."""
LONGEST_SIGN_IN: Final = 12 * 3600.0
"""Seconds, a working day. A person whom the provider has removed keeps access for no longer."""
Claim = Annotated[str, Field(min_length=1, max_length=200)]
"""The name of a claim; a dot names a member of an object: `realm_access.roles`."""


@dataclass(frozen=True, slots=True)
class SignedInPerson:
    """A person who has signed in, as their provider's claims describe them."""

    tenant: str
    sender: str
    roles: tuple[str, ...]
    rights: tuple[str, ...]


class ClaimsError(ValueError):
    """Claims that do not permit a sign-in; the text names the claim."""


class OidcConfig(BaseModel):
    """A provider of OpenID Connect, and the meaning of its claims.

    ```toml
    [gateway_oidc]
    issuer = "https://login.example.com"
    client_id = "perdure"
    client_secret = "…"
    tenant = "org"
    roles = "groups"
    rights = {finance = ["read", "approve"], "*" = ["read", "send"]}
    ```
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: str
    """The issuer's URL. `/.well-known/openid-configuration` below it describes the provider."""
    client_id: str = Field(min_length=1)
    client_secret: SecretStr | None = None
    """Without one, the client is public and PKCE alone binds the code."""
    scopes: str = "openid profile email"
    """The scopes, separated by spaces. `openid` is required."""
    label: str = Field(default="", max_length=100)
    """The provider's name on the sign-in page; by default the issuer's host."""
    sender: Claim = "email"
    """The claim with the person's name in runs and decisions. An unverified `email` is rejected."""
    tenant: Claim | None = None
    """The claim with the tenant. Without one, people see runs of no tenant."""
    roles: Claim | None = None
    """The claim with roles: a list, or one text."""
    rights: dict[str, tuple[str, ...]]
    """Rights by role; `*` means all signed-in people. There is no default, because a provider may be public."""
    require: dict[Claim, Json] = Field(default_factory=dict)
    """Claims that must have these values: `{"hd": "example.com"}`."""
    seconds: float = Field(default=LONGEST_SIGN_IN, gt=0, le=LONGEST_SIGN_IN)
    """The seconds that a sign-in lasts."""

    @field_validator("issuer")
    @classmethod
    def _is_an_address(cls, issuer: str) -> str:
        parts = urlsplit(issuer)
        local = parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
        if not parts.netloc or not (parts.scheme == "https" or local):
            raise ValueError("must be a URL with https://, or with http:// on this machine")
        return issuer.rstrip("/")

    @field_validator("scopes")
    @classmethod
    def _has_openid(cls, scopes: str) -> str:
        if "openid" not in scopes.split():
            raise ValueError('must include "openid"')
        return scopes

    @property
    def name(self) -> str:
        """Return the provider's display name."""
        return self.label or urlsplit(self.issuer).netloc

    def person(self, claims: Mapping[str, Json]) -> SignedInPerson:
        """Return the person of these claims. Raises `ClaimsError` where a claim is missing, is wrong, or gives no right.

        ```python
        config = OidcConfig(issuer="https://login.example.com", client_id="perdure", rights={"*": ("read",)})
        config.person({"email": "ann@example.com"}).rights
        ```
        """
        for path, wanted in self.require.items():
            if _claim(claims, path) != wanted:
                raise ClaimsError(f"the claim `{path}` does not have the value that this gateway requires")
        if self.sender == "email" and claims.get("email_verified") in (False, "false"):  # some providers send a string
            raise ClaimsError("the provider has not verified the address in the claim `email`")
        roles = self._roles(claims)
        rights = {right for role, given in self.rights.items() if role == EVERYBODY or role in roles for right in given}
        if not rights:
            raise ClaimsError("no role of this account has a right in this gateway")
        tenant = "" if self.tenant is None else _text(claims, self.tenant, 100)
        return SignedInPerson(tenant, _text(claims, self.sender, 200), roles, tuple(sorted(rights)))

    def _roles(self, claims: Mapping[str, Json]) -> tuple[str, ...]:
        found = None if self.roles is None else _claim(claims, self.roles)
        listed = found if isinstance(found, list) else [] if found is None else [found]
        roles = [role for role in listed if isinstance(role, str) and 0 < len(role) <= MAX_NAME]
        if len(roles) > MAX_ROLES:
            raise ClaimsError(f"the claim `{self.roles}` has {len(roles)} roles, at most {MAX_ROLES}")
        return tuple(dict.fromkeys(roles))


def check_rights(config: OidcConfig, known: Mapping[str, object]) -> None:
    """Check that each right is one of the `known` ones. Raises `SettingsError` with the role and the accepted names."""
    for role, rights in config.rights.items():
        if unknown := [right for right in rights if right not in known]:
            raise SettingsError(
                f"gateway_oidc.rights.{role}: `{unknown[0]}` is not a valid right. Use one of: {', '.join(known)}."
            )


def _claim(claims: Mapping[str, Json], path: str) -> Json:
    if path in claims:  # such as https://example.com/roles, which contains dots
        return claims[path]
    found: object = claims
    for key in path.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found  # type: ignore[return-value]


def _text(claims: Mapping[str, Json], path: str, longest: int) -> str:
    found = _claim(claims, path)
    if not isinstance(found, str) or not 0 < len(found) <= longest:
        raise ClaimsError(f"the claim `{path}` is missing, or is not a text of 1 to {longest} characters")
    return found
