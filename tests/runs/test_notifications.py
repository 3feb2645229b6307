"""Texts, keys, links and rules of notifications (R19.5), and addresses of callbacks (R19.8)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from perdure.models.usage import Price, RunUsage, Usage
from perdure.runs.agent import parse_agent
from perdure.runs.notifications import (
    Notification,
    Notify,
    WaitingStep,
    WebhookRoute,
    approval_link,
    approval_routes,
    approval_text,
    check_callback,
    decide_command,
    end_digest,
    end_text,
    message_body,
    notification_key,
    one_line,
    run_link,
    show_command,
    used_words,
    webhook_id,
    without_markup,
)


def usage(tokens: int, cost: float | None = None) -> RunUsage:
    found = RunUsage()
    prices = {} if cost is None else {"m": Price(prompt=cost * 1_000_000 / tokens, completion=0)}
    found.count("m", Usage(prompt_tokens=tokens), prices)
    return found


def test_a_text_is_one_line_in_which_words_of_others_are_short_and_visible() -> None:
    text = approval_text("shop\n\u202eevil", "ann", ["ops", "boss", "night"], "pay\n" + "x" * 2000, question=False)
    assert text.startswith("The agent 'shop evil', for ann, asks ops, boss and night to decide: pay xxx")
    assert len(text) == 600
    assert text.isprintable()
    asked = approval_text("shop", "", ["ops"], "When?", question=True, waited=7200)
    assert asked == "The agent 'shop' asks ops, and has waited for 2 h: When?"


def test_a_text_has_no_character_that_nobody_sees() -> None:
    assert one_line("pay\u200b 5\ufe0f0\u034f0\u3164\u2800\U000e0041!", 80) == "pay 5 0 0 !"


def test_the_end_of_a_run_in_words() -> None:
    assert end_text("shop", "", "r1", "cancelled", None, usage(5)) == "The agent 'shop' was cancelled in the run 'r1'."
    failed = end_text("shop", "ann", "r1", "failed", "no\nmodel", usage(1000, 0.5))
    assert failed == "The agent 'shop', for ann, has failed in the run 'r1': no model It cost $0.5000."


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("<!channel> <http://evil|x>", "‹!channel› ‹http:∕∕evil|x›"),
        ("[here](https://evil.example)", "[here] (https:∕∕evil․example)"),
        ("@everyone, ann@example.com", "＠everyone, ann＠example․com"),
        ("www.evil.example/x, Evil.example", "www․evil․example/x, Evil․example"),
        ("at 1.5 s. Then 10.0.0.1 … a.b", "at 1.5 s. Then 10.0.0.1 … a.b"),
        ("*bold* `code` ~gone~ ||secret||", "∗bold∗ ˋcodeˋ ∼gone∼ ¦¦secret¦¦"),
        ("_soft_ older_than_days __init__", "＿soft＿ older_than_days ＿＿init＿＿"),
        ('{"a": ["b"]}', '{"a": ["b"]}'),
    ],
)
def test_no_markup_mention_or_link_reaches_a_chat(text: str, plain: str) -> None:
    assert without_markup(text) == plain
    said = Notification(key="k", kind="run_ended", at="", text=text, run_id="r", agent="a", link="https://p/runs/r")
    assert message_body(said) == f"{plain}\nhttps://p/runs/r"


def test_keys_ids_links_and_commands() -> None:
    key = notification_key("Ä run", "approval_requested", about="1.0", digest="0123456789abcdef")
    assert key == "Ä run/1.0:0123456789ab/approval_requested/1"
    assert webhook_id(key) == "%C3%84%20run/1%2E0:0123456789ab/approval_requested/1"
    assert notification_key("r", "run_ended") == "r/run_ended/1"
    ends = [("completed", None, {"a": 1, "b": 2}), ("completed", None, {"a": 1}), ("failed", "x", None)]
    keys = {notification_key("r", "callback", about="end", digest=end_digest(*end)) for end in ends}  # type: ignore[arg-type]
    assert len(keys) == 3
    assert all(re.fullmatch(r"r/end:[0-9a-f]{12}/callback/1", each) for each in keys)
    assert end_digest("completed", None, {"b": 2, "a": 1}) == end_digest("completed", None, {"a": 1, "b": 2})
    assert approval_link("https://p/", "a b/1.0", "1.0[2]") == "https://p/inbox/?run=a%20b%2F1.0&call=1.0%5B2%5D"
    assert run_link("https://p", "s/1&2") == "https://p/runs/s/1%262"
    assert (approval_link("", "r", "1.0"), run_link("", "r")) == ("", "")
    assert decide_command("a b", "1.0", question=True) == "perdure answer 'a b' 1.0 TEXT"
    assert show_command("$(x)") == "perdure show '$(x)'"


def test_a_budget_is_nearly_used_from_its_share_on() -> None:
    rules = Notify(budget_share=0.5)
    assert used_words(rules, 1000, None, usage(499)) is None
    assert used_words(rules, 1000, None, usage(500)) == "500 of 1,000 tokens (50%)"
    assert used_words(rules, None, 2.0, usage(10, 0.9)) is None
    assert used_words(rules, None, 2.0, usage(10, 1.5)) == "$1.5000 of $2 (75%)"
    assert used_words(rules, None, None, usage(10)) is None
    assert used_words(rules, None, 2.0, usage(10)) is None


def test_a_delegate_uses_the_routes_above_where_its_file_names_none_for_approvals() -> None:
    late, soon = WaitingStep(after=20, routes=["b"]), WaitingStep(after=10, routes=["a"])
    above = approval_routes(Notify(approval_waiting=[late, soon]), "here", None)
    assert above is not None
    assert [step.after for step in above.approval_waiting] == [10, 20]
    assert approval_routes(Notify(run_ended=["ops"]), "there", above) == above
    own = approval_routes(Notify(approval_requested=["own"]), "there", above)
    assert own is not None
    assert (own.approval_requested, own.approval_waiting, own.queue) == (["own"], [], "there")
    assert approval_routes(Notify(), "there", None) is None


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"aproval_requested": ["ops"]}, "config.notify"),
        ({"approval_requested": [""]}, "config.notify.approval_requested[0]"),
        ({"approval_waiting": [{"after": 0, "routes": ["ops"]}]}, "config.notify.approval_waiting[0].after"),
        ({"approval_waiting": [{"after": 5, "routes": []}]}, "config.notify.approval_waiting[0].routes"),
        ({"budget_share": 1.5}, "config.notify.budget_share"),
        ({"run_ended": ["ops"] * 21}, "config.notify.run_ended"),
    ],
)
def test_wrong_rules_are_named_with_their_place(rules: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words.replace("[", r"\[").replace(".", r"\.")):
        parse_agent({"name": "a", "config": {"notify": rules}})


def test_an_address_of_a_callback() -> None:
    for right in ("https://example.com", "http://127.0.0.1:8080/a?b=c#"[:-1], "https://[::1]/x"):
        assert check_callback(right) == ""
    for wrong in (
        "ftp://e.com",
        "https://ann@e.com",
        "https://e.com/#a",
        "e.com",
        "https://",
        "https://e.com/a b",
        "https://e.com:99999/a",
        "https://e.com:a/",
        "https://[::1/",
        "https://e.com/\n",
    ):
        assert "a callback must be a" in check_callback(wrong)


def test_a_webhook_needs_an_address_and_a_secret_of_the_right_form() -> None:
    for url, secret in (
        ("ftp://e.com", "whsec_" + "a" * 32),
        ("https://e.com", "whsec_short"),
        ("https://e.com", "a" * 40),
    ):
        with pytest.raises(ValidationError):
            WebhookRoute(url=url, secret=secret)


def test_one_line_is_cut_without_reading_all_of_a_long_text() -> None:
    assert one_line("a\tb\r\nc", 10) == "a b c"
    assert one_line("x" * 50, 10) == "x" * 9 + "…"
