"""The sentence in which a person is asked: one for the inbox, conversations, the chat and `perdure approvals` (R7.1)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from perdure.approvals.policy import Guard, Policy
from perdure.approvals.requests import NO_WORDS, WaitingEntry, WaitingView, ask_words, call_words, condition_words
from perdure.tools.tool import resolve_tools
from perdure.values.json import JsonObject
from tests.strategies import json_values

ABOVE = {"properties": {"euros": {"exclusiveMinimum": 100}}, "required": ["euros"]}


PHOTO: JsonObject = {"_media": f"sha256:{'5e' * 32}", "type": "image/png", "bytes": 8286, "name": "lamp.png"}


@pytest.mark.parametrize(
    ("tool", "params", "words"),
    [
        ("refund", {"euros": 120, "to": "ann@example.com"}, "refund 120 EUR to ann@example.com"),
        ("refund", {"order": "A-17", "amount": 20}, "refund order A-17, amount 20"),
        ("pay", {"amount": 20.5, "currency": "CHF", "to": "bo"}, "pay 20.5 CHF to bo"),
        ("deploy_service", {"service": "shop", "replicas": 3}, "deploy service shop, 3 replicas"),
        ("set", {"status": 5, "force": True, "label": None}, "set status 5, force true, label null"),
        ("mail", {"to": "ann and nobody else", "text": "a: b"}, 'mail to "ann and nobody else", text "a: b"'),
        ("mail", {"to": "a\u202eb"}, 'mail to "a\\u202eb"'),
        ("mail", {"to": "a\ufe0fb\u034f"}, 'mail to "a\\ufe0fb\\u034f"'),
        ("clean_logs", {"folder": "/a", "older_than_days": 7}, "clean logs folder /a, older than days 7"),
        ("noop", {}, "noop"),
        ("publish", {"picture": PHOTO, "in": "blog"}, "publish picture lamp.png (image/png, 8,286 bytes) in blog"),
        ("scan", {"file": PHOTO | {"name": "x: approved"}}, 'scan file "x: approved" (image/png, 8,286 bytes)'),
        ("many", dict.fromkeys("abcdefgh", 1), "many a 1, b 1, c 1, d 1, e 1, f 1, and 2 more parameters"),
    ],
)
def test_r7_1_a_call_in_words(tool: str, params: JsonObject, words: str) -> None:
    assert call_words(tool, params) == words


@pytest.mark.parametrize(
    ("when", "params", "words"),
    [
        (ABOVE, {"euros": 120}, "euros is above 100"),
        (ABOVE, None, "it is not known whether euros is above 100"),
        ({"properties": {"to": {"not": {"pattern": "@us$"}}}}, {"to": "a@b"}, 'not: to matches "@us$"'),
        ({"properties": {"to": {"not": {"const": "ann"}}}}, {"to": "bo"}, "to is not ann"),
        ({"properties": {"to": {"enum": ["ann", "bo"]}}}, {"to": "bo"}, "to is ann or bo"),
        ({"properties": {"a": {"properties": {"b": {"minimum": 1}}}}}, {"a": {"b": 2}}, "a.b is 1 or more"),
        ({"anyOf": [ABOVE, {"required": ["all"]}]}, {"euros": 120}, "euros is above 100 or all is given"),
        ({"allOf": [ABOVE, {"properties": {"x": {"maxLength": 3}}}]}, {"euros": 1}, "euros is above 100"),
        ({"type": "object"}, {"euros": 120}, NO_WORDS),
        (True, {}, NO_WORDS),
    ],
)
def test_r7_1_a_condition_in_words(when: Any, params: JsonObject | None, words: str) -> None:
    assert condition_words(when, params) == words


def test_r7_1_the_question_is_one_sentence_from_call_and_policy() -> None:
    params: JsonObject = {"euros": 120, "to": "ann@example.com"}
    tool = resolve_tools(
        ["refund"], {"refund": {"name": "refund", "properties": {"euros": {}, "to": {}}, "_dangerous": True}}
    )["refund"]
    reason = Guard(Policy(tools={"refund": {"when": ABOVE}})).why(tool, params)
    assert reason is not None
    given: Any = {
        "tool": "refund",
        "params": params,
        "reason": reason,
        "requested_at": "2026-11-29T10:00:00+00:00",
        "digest": "",
    }
    sentence = "refund 120 EUR to ann@example.com: euros is above 100"
    assert WaitingView(call="1.0", agent="desk", **given).sentence == sentence
    assert WaitingEntry(call="1.0", **given).sentence == sentence
    assert "sentence" not in WaitingEntry(call="1.0", **given).as_json()
    assert ask_words("ask_person", {"question": "Red?"}, "Red?", question=True) == "Red?"
    plan = given | {"tool": "plan", "params": {}, "calls": [{}, {}]}
    assert WaitingView(call="1", agent="desk", **plan).sentence == "run a plan of 2 calls: euros is above 100"


@given(json_values(), json_values())
def test_r7_1_any_condition_and_any_parameters_have_words(when: Any, params: Any) -> None:
    for given_params in (None, params if isinstance(params, dict) else {"x": params}):
        words = ask_words("t", given_params, condition_words(when, given_params))
        assert words.isprintable()
