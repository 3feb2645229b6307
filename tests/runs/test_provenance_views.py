"""Where values come from, as people are told before and after (R15.6, R15.7): lines, and the red edges of a drawing."""

from __future__ import annotations

from perdure.runs.diagrams import draw_plan, to_mermaid, to_svg
from perdure.runs.views import plan_ways, run_view, run_ways, waiting_views
from perdure.testing import check
from tests.runs.test_provenance import READ, TOOLS, pay, play

CALLS = [READ, pay("†state.mail.iban", text="x"), pay("†input.iban")]


def test_an_offer_shows_each_parameters_way() -> None:
    played = play()
    played.request(*CALLS)
    (offer,) = waiting_views(played.run)
    assert offer.ways == [
        "send_money.iban ← †state.mail.iban ← read_mail (written by others)",
        "send_money.text ← model",
    ]
    played.decide({"decision": "approve", "endorse": ["iban"]})
    view = run_view(played.run, "r")
    assert list(run_ways(view)) == ["1.1 send_money.iban ← user", "1.2 send_money.iban ← user"]
    played.request(READ, pay("DE99"))
    played.decide({"decision": "reject"})
    last = list(run_ways(run_view(played.run, "r")))[-1]
    assert last == "2.1 send_money.iban ← read_mail (written by others), model"


def test_a_plan_tells_its_flows_before_anything_runs() -> None:
    tools = [{"type": "tool", "tool": each} for each in TOOLS]
    context = [*tools, {"type": "input", "input": {"iban": "x"}}]
    agent = {"name": "a", "config": {"approval": {"ask": "untrusted"}}, "context": context}
    checked = check(agent, {"calls": CALLS})
    assert checked.ok
    assert list(checked.approvals) == ["1.1"]
    assert list(plan_ways(checked.plan)) == checked.sources
    assert checked.sources == [
        ("1.1", "send_money.iban ← †state.mail.iban ← read_mail (written by others)"),
        ("1.2", "send_money.iban ← †input.iban ← agent"),
    ]
    text = to_mermaid(draw_plan(checked.plan))
    assert "linkStyle 0 stroke:#c62828" in text
    drawing = draw_plan(checked.plan, paths=True)
    assert drawing.untrusted == {("1.0", "†state.mail"), ("†state.mail", "1.1")}
    assert to_svg(drawing).count("url(#others)") == 2
