"""What names exactly what was shown, made once for each large value (R7.2, R18.1)."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perdure.approvals import decisions
from perdure.approvals.decisions import Digests, approval_digest, digest
from perdure.approvals.policy import Guard, Policy
from perdure.approvals.queue import ApprovalQueue
from perdure.plan import Plan
from perdure.runs.views import waiting_entry
from perdure.tools.tool import parse_tool
from perdure.values.json import Json, dumps, loads
from perdure.values.state import State, Write
from tests.cpu import Cpu, in_one_try
from tests.strategies import json_values

LARGE: list[Json] = [["x" * 100] for _ in range(1000)]


@given(st.lists(json_values(), min_size=2, max_size=2), st.booleans())
def test_r7_2_a_digest_is_of_the_value_and_of_nothing_else(values: list[Any], large: bool) -> None:
    first, second = ({"p": [LARGE, each] if large else each, "q": "x" * 5000} for each in values)
    known = Digests()
    copied = loads(dumps(dict(reversed(first.items()))))
    assert known.of(first) == known.of(first) == digest(copied)
    assert (digest(first) == digest(second)) == (dumps(first, sort_keys=True) == dumps(second, sort_keys=True))
    assert approval_digest("a", first, known) == approval_digest("a", copied)


def test_r7_2_no_value_looks_like_the_digest_of_another() -> None:
    inside = Digests()._written(LARGE, decisions._DEEP - 1)
    assert inside.startswith("#")
    assert digest({"p": inside}) != digest({"p": LARGE})


def test_r18_5_what_five_hundred_offers_show_is_looked_through_once() -> None:
    def is_quick() -> bool:
        first, again = _looks_at_many_offers()
        return first < 100 and again < 6

    assert in_one_try(is_quick)


def _looks_at_many_offers() -> tuple[float, float]:
    tool = parse_tool({"name": "t", "properties": {"x": {}, "n": {}}}, activities=["t"])
    plan = Plan(1, tools={"t": tool}, state=State([Write(path=(), value={"v": list(range(270_000))})]))
    desk = ApprovalQueue(guard=Guard(policy=Policy(ask="always")))
    for n in range(500):
        plan.add({"_tool": "t", "x": ["†state.v"], "n": n})
    for call in plan.take_ready():
        desk.add_call(plan, call, "2026-11-29T10:00:00+00:00")
    cpu = Cpu()
    found = {waiting_entry(offer).digest for offer in desk.waiting.values()}
    first = cpu.laps()
    assert len(found) == 500
    cpu = Cpu()
    assert {offer.digest for offer in desk.waiting.values()} == found
    return first, cpu.laps()
