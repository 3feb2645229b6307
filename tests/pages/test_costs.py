"""What runs cost, by day and agent: dollars, and tokens where no price is known."""

from __future__ import annotations

from datetime import UTC, datetime

from perdure.client.selection import ListedRun
from perdure.pages._site import format_cost
from perdure.pages._tenant_pages import DailyCost, added_up

DAY = datetime(2026, 11, 22, 12, tzinfo=UTC)


def run(agent: str, cost: float | None, tokens: int | None) -> ListedRun:
    return ListedRun("r", "completed", DAY, DAY, agent=agent, cost=cost, tokens=tokens)


def test_r17_5_runs_without_a_price_are_counted_in_tokens() -> None:
    rows = added_up([run("a", 0.5, 10), run("a", None, 1_000), run("b", None, 2_000), run("c", None, None)])
    assert rows == [DailyCost("2026-11-22", "a", 2, 0.5, 1_000), DailyCost("2026-11-22", "b", 1, None, 2_000)]


def test_r17_5_a_cost_is_in_dollars_where_the_price_is_known() -> None:
    assert format_cost(0.5, 10) == "$0.5000"
    assert format_cost(None, 1_234) == "1,234 tokens"
    assert format_cost(0.5, 1_234, both=True) == "$0.5000 and 1,234 tokens"
    assert format_cost(None, None) == ""
