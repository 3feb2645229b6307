"""Idempotency keys name effects (R6.7)."""

from __future__ import annotations

import hashlib

from perdure.tools.invocation import idempotency_key


def test_r6_7_a_key_names_the_effect_and_not_the_place_alone() -> None:
    key = idempotency_key("run", "1.0", "pay", {"to": "Ann", "sum": 5})
    assert key == "run/1.0:" + hashlib.sha256(b'["pay",{"sum":5,"to":"Ann"}]').hexdigest()[:12]
    assert key == idempotency_key("run", "1.0", "pay", {"sum": 5, "to": "Ann"})
    others = [
        idempotency_key("run", "1.0", "pay", {"to": "Ann", "sum": 6}),
        idempotency_key("run", "1.0", "refund", {"to": "Ann", "sum": 5}),
        idempotency_key("run", "1.1", "pay", {"to": "Ann", "sum": 5}),
        idempotency_key("other", "1.0", "pay", {"to": "Ann", "sum": 5}),
    ]
    assert len({key, *others}) == 5


def test_a_key_stands_for_whatever_a_model_writes() -> None:
    assert idempotency_key("run", "1.0", "say", {"text": "\ud800"}).startswith("run/1.0:")
