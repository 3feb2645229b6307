"""Signatures of deliveries: pure functions of the secrets, the headers, the body and the time (R19.7).

Standard Webhooks, GitHub and Stripe sign with HMAC-SHA256. They differ in the signed data and in the signature's
header.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final, Literal, TypeAlias

from standardwebhooks import Webhook

Scheme: TypeAlias = Literal["standard", "github", "stripe"]
TOLERANCE: Final = 300
"""The most seconds between a signed time and now; both specifications name five minutes."""
SECRETS: Final = 4
"""The most secrets of a trigger. Every delivery is compared with as many: the time must reveal neither their number nor an unknown name."""
SIGNATURES: Final = 16
"""The most signatures of a delivery that are checked: a sender sends one for each rotated secret."""
_PREFIX: Final = "whsec_"
_SECONDS: Final = re.compile(r"[0-9]{1,11}")
_DECOY: Final = base64.b64encode(b"nobody's secret").decode()


def check_secret(scheme: Scheme, secret: str) -> str | None:
    """Return a secret's problem, without the secret; `None` for a valid one."""
    if not secret:
        return "is empty"
    if scheme != "standard":
        return None
    digits = secret.removeprefix(_PREFIX).rstrip("=")
    try:
        key = base64.b64decode(digits + "=" * (-len(digits) % 4), validate=True)
    except (binascii.Error, ValueError):
        return f"must be base64, as in {_PREFIX}MfKQ9r8…"
    return None if key else "is empty"


def verify(scheme: Scheme, secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now: float) -> bool:
    """Whether one of the secrets has signed this body, within `TOLERANCE` of `now`, in seconds since 1970.

    `headers`: by lower-case name. GitHub signs no time. Always compares with `SECRETS` secrets. Raises nothing.
    """
    padded = [*secrets[:SECRETS], *[_DECOY] * (SECRETS - len(secrets))]
    if scheme == "github":
        at, timely = "", True
        sent = [headers.get("x-hub-signature-256", "").removeprefix("sha256=")]
    elif scheme == "stripe":
        at, sent = _stripe(headers.get("stripe-signature", ""))
        timely = _is_timely(at, now)
    else:
        at = headers.get("webhook-timestamp", "")
        listed = headers.get("webhook-signature", "").split(" ")
        sent = [each for each in listed if each.startswith("v1,")]
        timely = _is_timely(at, now)
    moment = int(at) if _SECONDS.fullmatch(at) else 0
    matches = False
    for number, secret in enumerate(padded):
        right = _signature(scheme, secret, headers, moment, body)
        for each in sent[:SIGNATURES]:
            same = hmac.compare_digest(each.encode(errors="replace"), right.encode())
            matches |= same and right != "" and number < len(secrets)
    return matches and timely


def _signature(scheme: Scheme, secret: str, headers: Mapping[str, str], moment: int, body: bytes) -> str:
    """Return the valid signature by this secret; empty for data that cannot be signed."""
    if scheme == "standard":
        try:
            when = datetime.fromtimestamp(moment, UTC)
            return Webhook(secret).sign(headers.get("webhook-id", ""), when, body.decode())
        except (ValueError, OverflowError):  # a body that is not text, or an invalid year
            return ""
    signed = body if scheme == "github" else b"%d." % moment + body
    return hmac.new(secret.encode(), signed, sha256).hexdigest()


def _stripe(header: str) -> tuple[str, list[str]]:
    """Return the time and the signatures of `t=1700000000,v1=…,v1=…`."""
    pairs = [each.strip().partition("=") for each in header.split(",")]
    times = [value for key, _, value in pairs if key == "t"]
    return times[0] if len(times) == 1 else "", [value for key, _, value in pairs if key == "v1"]


def _is_timely(at: str, now: float) -> bool:
    return _SECONDS.fullmatch(at) is not None and abs(now - int(at)) <= TOLERANCE


def delivery_id(scheme: Scheme, headers: Mapping[str, str], body: Mapping[str, object]) -> str:
    """Return the sender's id of a delivery, the same for each retry; empty without one."""
    if scheme == "stripe":
        id = body.get("id")
        return id if isinstance(id, str) else ""
    return headers.get("webhook-id" if scheme == "standard" else "x-github-delivery", "")


def event_of(scheme: Scheme, headers: Mapping[str, str], body: Mapping[str, object]) -> str:
    """Return the type of the event: `issues.opened`, `invoice.paid`; empty if the delivery names none."""
    kind = headers.get("x-github-event", "") if scheme == "github" else body.get("type")
    if not isinstance(kind, str):
        return ""
    action = body.get("action") if scheme == "github" else None
    return f"{kind}.{action}" if isinstance(action, str) else kind


def is_wanted(event: str, wanted: Sequence[str]) -> bool:
    """Whether an event matches one of these names: `issues` matches `issues.opened`. An empty list matches all events."""
    return not wanted or any(event == each or event.startswith(f"{each}.") for each in wanted)
