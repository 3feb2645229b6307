"""Signatures of deliveries: what their senders sign is accepted, and nothing else is (R19.7)."""

from __future__ import annotations

import hmac
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from perdure.gateway.triggers import (
    SECRETS,
    TOLERANCE,
    Scheme,
    check_secret,
    delivery_id,
    event_of,
    is_wanted,
    verify,
)

NOW = 1_800_000_000.0
WORD = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=16, max_size=40).map(lambda text: text * 4)
SECRET = WORD.map(lambda text: f"whsec_{text}")
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
NAMES = {
    "standard": ("webhook-id", "webhook-timestamp", "webhook-signature"),
    "github": ("x-github-delivery", "x-github-event", "x-hub-signature-256"),
    "stripe": ("stripe-signature",),
}


def signed(
    scheme: Scheme, secret: str, body: bytes, at: float = NOW, id: str = "msg_1", event: str = ""
) -> dict[str, str]:
    """The headers that the sender would send."""
    if scheme == "standard":
        signature = Webhook(secret).sign(id, datetime.fromtimestamp(at, UTC), body.decode())
        return {"webhook-id": id, "webhook-timestamp": str(int(at)), "webhook-signature": signature}
    if scheme == "github":
        signature = hmac.new(secret.encode(), body, sha256).hexdigest()
        return {"x-github-delivery": id, "x-github-event": event, "x-hub-signature-256": f"sha256={signature}"}
    signature = hmac.new(secret.encode(), f"{int(at)}.".encode() + body, sha256).hexdigest()
    return {"stripe-signature": f"t={int(at)},v1={signature},v0=none"}


@given(st.sampled_from(SCHEMES), SECRET, st.text(), st.lists(SECRET, max_size=SECRETS - 1))
def test_what_a_holder_of_a_secret_signs_is_accepted(scheme: Scheme, secret: str, text: str, others: list[str]) -> None:
    body = text.encode()
    headers = signed(scheme, secret, body)
    assert verify(scheme, [*others, secret], headers, body, NOW)
    assert verify(scheme, [secret, *others], headers, body, NOW)


@given(st.sampled_from(SCHEMES), SECRET, SECRET, st.binary(min_size=1), st.integers(0, 200))
def test_another_secret_and_another_body_are_refused(
    scheme: Scheme, secret: str, other: str, noise: bytes, at: int
) -> None:
    body = b'{"id": "evt_1"}'
    headers = signed(scheme, secret, body)
    if other != secret:
        assert not verify(scheme, [other], headers, body, NOW)
    place = at % len(body)
    changed = body[:place] + noise + body[place:]
    assert not verify(scheme, [secret], headers, changed, NOW)
    assert not verify(scheme, [], headers, body, NOW)


@given(st.sampled_from(SCHEMES), SECRET, st.data())
def test_a_changed_header_is_refused(scheme: Scheme, secret: str, data: st.DataObject) -> None:
    """GitHub signs the body alone: its id and its event are not among what is signed."""
    body = b"{}"
    headers = signed(scheme, secret, body)
    names = NAMES[scheme] if scheme != "github" else ("x-hub-signature-256",)
    name = data.draw(st.sampled_from(names))
    text = data.draw(st.text(max_size=80).filter(lambda text: text.removeprefix("sha256=") not in headers[name]))
    assert not verify(scheme, [secret], {**headers, name: text}, body, NOW)
    assert not verify(scheme, [secret], {key: value for key, value in headers.items() if key != name}, body, NOW)


@given(st.sampled_from(["standard", "stripe"]), SECRET, st.integers(-2 * TOLERANCE, 2 * TOLERANCE))
def test_a_time_that_is_far_from_now_is_refused(scheme: Any, secret: str, late: int) -> None:
    headers = signed(scheme, secret, b"{}", NOW + late)
    assert verify(scheme, [secret], headers, b"{}", NOW) is (abs(late) <= TOLERANCE)


@given(
    st.sampled_from(SCHEMES),
    st.dictionaries(st.sampled_from([name for names in NAMES.values() for name in names]), st.text(max_size=60)),
    st.binary(max_size=60),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_whatever_a_stranger_sends_is_refused_and_raises_nothing(
    scheme: Scheme, headers: dict[str, str], body: bytes, now: float
) -> None:
    assert not verify(scheme, ["whsec_c2VjcmV0c2VjcmV0"], headers, body, now)
    assert not verify(scheme, [], headers, body, now)


@pytest.mark.parametrize(
    "times", ["t=1,t=1800000000", "t=+1800000000", "t=1800000000.0", "t=", "v1=x", "t=99999999999"]
)
def test_a_time_that_is_none_is_refused(times: str) -> None:
    digests = [
        hmac.new(b"s" * 16, at + b".{}", sha256).hexdigest() for at in (b"1", b"1800000000", b"0", b"99999999999")
    ]
    header = ",".join([times, *(f"v1={each}" for each in digests)])
    assert not verify("stripe", ["s" * 16], {"stripe-signature": header}, b"{}", NOW)


def test_a_secret_of_standard_webhooks_is_base64() -> None:
    assert check_secret("standard", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw") is None
    assert check_secret("standard", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS") is None
    for wrong in ("whsec_not base64", "whsec_é", "whsec_a"):
        assert str(check_secret("standard", wrong)).startswith("must be base64")
    assert {check_secret("standard", "whsec_"), check_secret("github", ""), check_secret("stripe", "")} == {"is empty"}
    assert check_secret("github", "any words") is None


def test_ids_and_events_are_where_each_sender_has_them() -> None:
    headers = {"webhook-id": "msg_1", "x-github-delivery": "d-1", "x-github-event": "issues"}
    body = {"id": "evt_1", "type": "invoice.paid", "action": "opened"}
    assert [delivery_id(each, headers, body) for each in SCHEMES] == ["msg_1", "d-1", "evt_1"]
    assert [event_of(each, headers, body) for each in SCHEMES] == ["invoice.paid", "issues.opened", "invoice.paid"]
    assert [delivery_id(each, {}, {"id": 5}) for each in SCHEMES] == ["", "", ""]
    assert [event_of(each, {}, {"type": 5}) for each in SCHEMES] == ["", "", ""]
    assert event_of("github", {"x-github-event": "push"}, {}) == "push"
    assert is_wanted("issues.opened", ["issues.opened"])
    assert is_wanted("issues.opened", ["push", "issues"])
    assert is_wanted("", [])
    assert not is_wanted("issues_comment.created", ["issues"])
    assert not is_wanted("issues.closed", ["issues.opened"])
