"""A budget shared out to what runs at once (R18.7)."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from perdure.models.usage import RunUsage, Usage
from perdure.plan import Plan, Returned
from perdure.runs.budget import BudgetPool, ExpectedUsage, count_rivals
from perdure.runs.delegates import ChildUsage
from perdure.runs.limits import OUTAGE, Budget, Limit, WorkClock
from perdure.tools.tool import parse_tool
from perdure.values.json import Json
from perdure.values.state import State
from perdure.workflows.children import BudgetShare


def used(tokens: int) -> RunUsage:
    usage = RunUsage()
    usage.count("m", Usage(prompt_tokens=tokens), {})
    return usage


@pytest.mark.parametrize("sent", [{"tokens": 10**399}, {"cost": math.inf}, {"cost": math.nan}, {"deadline": math.inf}])
def test_r18_6_what_cannot_be_divided_is_no_budget(sent: dict[str, Any]) -> None:
    """Such a signal to a delegate, or such a number in an agent file, failed the task that shared it out, again and again."""
    with pytest.raises(ValidationError):
        Budget.model_validate(sent)


@given(
    st.integers(1, 10_000),
    st.integers(0, 3000),
    st.lists(st.tuples(st.integers(1, 3000), st.booleans()), min_size=1, max_size=30),
    st.integers(1, 8),
    st.integers(0, 12),
)
@example(budget=5, request=1, holders=[(1, False), (1, False)], at_once=1, early=1)  # from 1.25 to 1.67 tokens
def test_all_together_have_no_more_than_is_left(
    budget: int, request: int, holders: list[tuple[int, bool]], at_once: int, early: int
) -> None:
    """Takers that use what they like of their share, some of which cannot tell it, and some of which begin `early`, while the
    answer is written; nobody waits for ever."""
    shares, usage = BudgetPool(Budget(tokens=budget)), RunUsage()
    shares.expected.note_request(Usage(prompt_tokens=request), None)
    running: dict[str, tuple[int, int, bool]] = {}
    waiting = [(str(index), *holder) for index, holder in enumerate(holders)]
    for name, wants, tells in waiting[:early]:
        share = shares.take(name, usage, writing=True)
        if not isinstance(share, Budget):
            break
        waiting = waiting[1:]
        running[name] = (share.tokens or 0, wants, tells)
    for name, raised in shares.level(usage, beside=len(waiting)).items():
        before, wants, tells = running[name]
        assert (raised.tokens or 0) > before
        running[name] = (raised.tokens or 0, wants, tells)
    assert sum(tokens for tokens, *_ in running.values()) <= budget + len(running)
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
    assert shares.holders == frozenset()


def test_what_may_run_beside_shares_alike_and_what_is_left_over_comes_back() -> None:
    shares, usage = BudgetPool(Budget(tokens=9000, cost=3.0, deadline=60.0)), RunUsage()
    first = shares.take("a", usage, beside=3, worked=20.0)
    assert first == Budget(tokens=3000, cost=1.0, deadline=40.0)
    assert shares.take("b", usage, beside=2) == Budget(tokens=3000, cost=1.0, deadline=60.0)
    assert shares.take("c", usage, beside=1) == Budget(tokens=3000, cost=1.0, deadline=60.0)
    assert shares.take("d", usage) is None
    shares.settle("a", used(0))
    assert shares.take("d", usage) == Budget(tokens=3000, cost=1.0, deadline=60.0)


def test_where_the_budget_is_tight_one_runs_after_the_other() -> None:
    shares, usage = BudgetPool(Budget(tokens=5000), ExpectedUsage(tokens=2500)), RunUsage()
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


def test_r6_3_while_an_answer_is_written_each_begins_with_a_part_and_is_told_of_more() -> None:
    shares, usage = BudgetPool(Budget(tokens=80_000)), RunUsage()
    for name in "abcdefgh":
        assert shares.take(name, usage, writing=True) == Budget(tokens=10_000)
    assert shares.take("i", usage, writing=True) is None
    for name in "bcdefgh":
        shares.settle(name, used(5000))
        usage.include(used(5000))
    # One that has begun and two that wait share what is left, 45,000.
    assert shares.level(usage, beside=2) == {"a": Budget(tokens=15_000)}
    taken = [shares.take(name, usage, beside=2 - index) for index, name in enumerate("ij")]
    assert [isinstance(share, Budget) and share.tokens for share in taken] == [15_000] * 2


def test_r6_3_nobody_begins_with_less_than_it_is_thought_to_need_nor_with_what_the_answer_costs() -> None:
    expected = ExpectedUsage()
    expected.note_request(Usage(prompt_tokens=1000), None)
    shares, usage = BudgetPool(Budget(tokens=8000), expected), RunUsage()
    taken = [shares.take(name, usage, writing=True) for name in "abcd"]
    assert taken == [*[Budget(tokens=2000)] * 3, None]


def test_r18_7_where_nothing_is_known_few_begin_at_first() -> None:
    """What a Request takes is not known, so no forty begin with a fortieth."""
    many, tight = BudgetPool(Budget(tokens=80_000)), BudgetPool(Budget(tokens=5000))
    taken = [many.take(str(index), RunUsage(), beside=40 - index) for index in range(9)]
    assert taken == [*[Budget(tokens=10_000)] * 8, None]
    taken = [tight.take(str(index), RunUsage(), beside=40 - index) for index in range(3)]
    assert taken == [*[Budget(tokens=2000)] * 2, None]
    # A loop goes by what the run above it has seen.
    told = BudgetPool(Budget(tokens=5000), ExpectedUsage(tokens=500))
    taken = [told.take(str(index), RunUsage(), beside=40 - index) for index in range(11)]
    assert taken == [*[Budget(tokens=500)] * 10, None]


def test_r18_7_a_share_keeps_the_last_request_free_and_is_never_used_twice() -> None:
    shares = BudgetPool(Budget(), share=Budget(tokens=3000))
    usage = used(1000)
    shares.expected.note_request(Usage(prompt_tokens=1000), None)
    assert shares.limit(usage) is None
    usage.include(used(500))
    limit = shares.limit(usage)
    assert limit is not None
    assert (limit.reason, shares.used_up(usage)) == ("token_budget", False)
    shares.raise_to(Budget(tokens=5000, deadline=1.0))
    assert (shares.limit(usage), shares.share) == (None, Budget(tokens=5000))
    # What it gives to those below it leaves it a Request of its own.
    assert shares.take("a", usage) == Budget(tokens=2500)
    usage.include(used(3500))
    assert shares.used_up(usage)


def test_r18_7_what_is_left_and_does_for_no_request_starts_nobody() -> None:
    shares, usage = BudgetPool(Budget(tokens=5000)), RunUsage()
    shares.take("a", usage)
    usage.include(used(4500))
    shares.settle("a", used(4500))
    spent = shares.take("b", usage)
    assert isinstance(spent, Limit)
    assert spent.words == "the rest of the budget is not enough for one Request"


async def test_a_holder_that_is_cancelled_as_it_gets_its_share_returns_it() -> None:
    rivals: list[int | None] = [None]
    pool = BudgetPool(Budget(tokens=34_000))
    pool.expected.note_request(Usage(prompt_tokens=5_000), None)
    delegate = RunUsage()
    delegate.count("m", Usage(prompt_tokens=30_000), {})
    pool.expected.note_usage(delegate)
    shares = BudgetShare(pool, usage=RunUsage, rivals=lambda: rivals[0], frees_unused=lambda: True)
    first, second = asyncio.create_task(shares.take("1.0")), asyncio.create_task(shares.take("2.0"))
    await asyncio.sleep(0)
    assert pool.holders == frozenset()
    rivals[0] = 1
    shares.level()
    first.cancel()
    share = await second
    assert isinstance(share, Budget)
    assert (share.tokens, pool.holders) == (34_000, frozenset({"2.0"}))


@pytest.mark.parametrize(("frees_unused", "left"), [(True, 40_000), (False, 34_000)])  # `False`: a run of 0.2.0
async def test_a_holder_that_has_not_started_returns_its_share(*, frees_unused: bool, left: int) -> None:
    pool = BudgetPool(Budget(tokens=40_000))
    pool.expected.note_request(Usage(prompt_tokens=3_000), None)
    shares = BudgetShare(pool, usage=RunUsage, rivals=lambda: 1, frees_unused=lambda: frees_unused)
    await shares.take("1.0")
    shares.settle("1.0", ChildUsage())
    assert (pool.unreserved(RunUsage()).tokens, pool.expected.measured) == (left, False)


def test_without_a_limit_everybody_has_none() -> None:
    shares = BudgetPool(Budget(deadline=5.0), ExpectedUsage(tokens=100, cost=1.0))
    assert [shares.take(name, used(100), beside=9) for name in "abc"] == [Budget(deadline=5.0)] * 3


def test_what_waits_for_another_delegate_is_no_rival() -> None:
    tools: dict[str, Any] = {
        "d": parse_tool({"name": "d", "_delegate": "child", "additionalProperties": True}),
        "t": parse_tool({"name": "t", "_activity": "t", "additionalProperties": True}, activities=["t"]),
    }
    plan = Plan(1, tools=tools, state=State([]))
    calls: list[Json] = [
        {"_tool": "d", "_outputPath": "†state.a"},
        {"_tool": "d", "_outputPath": "†state.b"},
        {"_tool": "t", "p": "†state.a", "_outputPath": "†state.c"},
        {"_tool": "d", "p": "†state.c"},
    ]
    for call in calls:
        plan.add(call)
    plan.close()
    assert count_rivals(plan, frozenset()) == 2
    assert count_rivals(plan, frozenset({"1.0"})) == 1
    first, second = plan.take_ready()
    plan.end(first, Returned(1))
    plan.end(second, Returned(1))
    plan.end(plan.take_ready()[0], Returned(1))
    assert count_rivals(plan, frozenset()) == 1


@given(
    st.lists(st.tuples(st.floats(0, 30), st.booleans()), max_size=30),
    st.floats(1, 60),
)
def test_r9_5_all_time_of_work_counts_while_a_task_comes_at_the_deadline(
    gaps: list[tuple[float, bool]], deadline: float
) -> None:
    """A gap is the time until the next task, and whether the run works in it."""
    clock, plain, now = WorkClock(), WorkClock(), 0.0
    clock.deadline = deadline
    for gap, works in gaps:
        for each in (clock, plain):
            each.work(now) if works else each.pause(now)
        clock.look(now)
        left = deadline - plain.worked(now)
        if works and 0 < left < gap:
            clock.look(now + left)  # the deadline's timer
        now += gap
        clock.look(now)
        assert math.isclose(clock.worked(now), plain.worked(now), abs_tol=1e-6)


def test_r9_5_an_outage_of_all_workers_at_the_deadline_does_not_count() -> None:
    clock = WorkClock()
    clock.deadline = 600
    clock.work(0)
    clock.look(100)
    assert clock.worked(600 + OUTAGE - 1) == 600 + OUTAGE - 1  # the worker was busy
    assert clock.worked(4_000) == 100
    clock.look(4_000)
    assert clock.worked(4_499) == 599
    clock.look(4_500)
    assert clock.worked(5_000) == 1_100, "work after the deadline counts"
