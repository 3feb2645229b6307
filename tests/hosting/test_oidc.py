"""Claims of a provider become tenant, sender, roles and rights."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from perdure.errors import SettingsError
from perdure.hosting.oidc import ClaimsError, OidcConfig, SignedInPerson, check_rights
from perdure.values.json import JsonObject

CLAIMS: JsonObject = {
    "sub": "u-1",
    "email": "ann@example.com",
    "org": "acme",
    "realm_access": {"roles": ["finance", "staff"]},
    "https://example.com/roles": ["staff"],
}


def config(**given: Any) -> OidcConfig:
    return OidcConfig(
        **{"issuer": "https://login.example.com", "client_id": "perdure", "rights": {"*": ("read",)}, **given}
    )


def test_claims_become_a_person() -> None:
    mapped = config(
        tenant="org", roles="realm_access.roles", rights={"*": ("read",), "finance": ("approve",), "boss": ("*",)}
    )
    assert mapped.person(CLAIMS) == SignedInPerson("acme", "ann@example.com", ("finance", "staff"), ("approve", "read"))


def test_a_claims_name_may_hold_dots() -> None:
    assert config(roles="https://example.com/roles").person(CLAIMS).roles == ("staff",)


def test_one_text_is_one_role() -> None:
    assert config(roles="org").person(CLAIMS).roles == ("acme",)


@pytest.mark.parametrize(
    ("given", "claims", "message"),
    [
        ({}, {"email_verified": False}, "has not verified the address"),
        ({}, {"email_verified": "false"}, "has not verified the address"),
        ({"sender": "name"}, {}, "the claim `name` is missing"),
        ({"tenant": "realm_access"}, {}, "the claim `realm_access` is missing, or is not a text"),
        ({"tenant": "org"}, {"org": ""}, "the claim `org` is missing"),
        ({"rights": {"boss": ("*",)}}, {}, "no role of this account has a right in this gateway"),
        ({"roles": "groups"}, {"groups": [f"g{n}" for n in range(51)]}, "has 51 roles, at most 50"),
        ({"require": {"hd": "example.com"}}, {"hd": "evil.example"}, "the claim `hd` does not have the value"),
        ({"require": {"hd": "example.com"}}, {}, "the claim `hd` does not have the value"),
    ],
)
def test_claims_that_let_nobody_in(given: dict[str, Any], claims: JsonObject, message: str) -> None:
    with pytest.raises(ClaimsError, match=message):
        config(**given).person({**CLAIMS, **claims})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"issuer": "http://login.example.com"}, "https://"),
        ({"issuer": "login.example.com"}, "https://"),
        ({"scopes": "profile"}, "openid"),
        ({"seconds": 100_000}, "43200"),
        ({"right": {}}, "right"),
    ],
)
def test_wrong_settings_name_what_is_accepted(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config(**given)


def test_rights_have_no_default() -> None:
    with pytest.raises(ValidationError, match="rights"):
        OidcConfig.model_validate({"issuer": "https://a.example", "client_id": "x"})


def test_an_unknown_right_is_refused() -> None:
    with pytest.raises(
        SettingsError, match=r"gateway_oidc.rights.finance: `aprove` is not a valid right. Use one of: read"
    ):
        check_rights(config(rights={"finance": ("aprove",)}), {"read": "", "approve": ""})
