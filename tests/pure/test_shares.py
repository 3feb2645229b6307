"""A budget shared out to what runs at once (R18.7)."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perdure.model.usage import RunUsage, Usage
from perdure.plan.outcomes import Returned
from perdure.plan.plan import Plan
from perdure.run.shares import Expected, Shares, rivals
from perdure.run.stopping import Budget, Limit
from perdure.tools.tool import parse_tool
from perdure.values.state import State


def used(tokens: int) -> RunUsage:
    usage = RunUsage()
    usage.count("m", Usage(prompt_tokens=tokens), {})
    return usage


@given(
    st.integers(1, 10_000),
    st.integers(0, 3000),
    st.lists(st.tuples(st.integers(1, 3000), st.booleans()), min_size=1, max_size=30),
    st.integers(1, 8),
)
def test_all_together_have_no_more_than_is_left(
    budget: int, request: int, takers: list[tuple[int, bool]], at_once: int
) -> None:
    """Takers that use what they like of their share, some of which cannot tell it; nobody waits for ever."""
    shares, usage = Shares(Budget(tokens=budget)), RunUsage()
    shares.expected.note_request(Usage(prompt_tokens=request), None)
    running: dict[str, tuple[int, int, bool]] = {}
    waiting = [(str(index), *taker) for index, taker in enumerate(takers)]
    while waiting or running:
        while waiting and len(running) < at_once:
            name, wants, tells = waiting[0]
            share = shares.take(name, usage, beside=min(len(waiting), at_once - len(running)))
            if share is None:
                assert running
                break
            waiting.pop(0)
            if isinstance(share, Budget):
                assert share.tokens is not None
                running[name] = (share.tokens, wants, tells)
                assert share.tokens >= 1
                # What is rounded up, a token for each that has none, is all that goes beyond.
                assert sum(tokens for tokens, *_ in running.values()) <= max(0, budget - usage.tokens) + len(running)
        if running:
            name = next(iter(running))
            tokens, wants, tells = running.pop(name)
            spent = used(min(tokens, wants))
            if tells:
                usage.include(spent)
            shares.settle(name, spent if tells else None)
    assert shares.takers == frozenset()


def test_what_may_run_beside_shares_alike_and_what_is_left_over_comes_back() -> None:
    shares, usage = Shares(Budget(tokens=9000, cost=3.0, deadline=60.0)), RunUsage()
    first = shares.take("a", usage, beside=3, worked=20.0)
    assert first == Budget(tokens=3000, cost=1.0, deadline=40.0)
    assert shares.take("b", usage, beside=2) == Budget(tokens=3000, cost=1.0, deadline=60.0)
    assert shares.take("c", usage, beside=1) == Budget(tokens=3000, cost=1.0, deadline=60.0)
    assert shares.take("d", usage) is None
    shares.settle("a", used(0))
    assert shares.take("d", usage) == Budget(tokens=3000, cost=1.0, deadline=60.0)


def test_where_the_budget_is_tight_one_runs_after_the_other() -> None:
    shares, usage = Shares(Budget(tokens=5000), Expected(tokens=2500)), RunUsage()
    shares.take("a", usage, beside=40)
    shares.take("b", usage, beside=39)
    assert shares.take("c", usage, beside=38) is None
    usage.include(used(4900))
    shares.settle("a", used(4900))
    assert shares.take("c", usage, beside=38) is None
    usage.include(used(100))
    shares.settle("b", used(100))
    spent = shares.take("c", usage, beside=38)
    assert isinstance(spent, Limit)
    assert spent.reason == "token_budget"


def test_without_a_limit_everybody_has_none() -> None:
    shares = Shares(Budget(deadline=5.0), Expected(tokens=100, cost=1.0))
    assert [shares.take(name, used(100), beside=9) for name in "abc"] == [Budget(deadline=5.0)] * 3


def test_what_waits_for_another_delegate_is_no_rival() -> None:
    tools: dict[str, Any] = {
        "d": parse_tool({"name": "d", "_delegate": "child", "additionalProperties": True}),
        "t": parse_tool({"name": "t", "_activity": "t", "additionalProperties": True}, activities=["t"]),
    }
    plan = Plan(1, tools=tools, state=State([]))
    for call in (
        {"_tool": "d", "_outputPath": "†state.a"},
        {"_tool": "d", "_outputPath": "†state.b"},
        {"_tool": "t", "p": "†state.a", "_outputPath": "†state.c"},
        {"_tool": "d", "p": "†state.c"},
    ):
        plan.add(call)
    plan.close()
    assert rivals(plan, frozenset()) == 2
    assert rivals(plan, frozenset({"1.0"})) == 1
    first, second = plan.take_ready()
    plan.end(first, Returned(1))
    plan.end(second, Returned(1))
    plan.end(plan.take_ready()[0], Returned(1))
    assert rivals(plan, frozenset()) == 1
