"""The ledger of a tenant (R23.1): amounts that runs reserve together, by period and key."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from perdure.runs.ledger import Account, Ledger, LedgerInput, Reservation, ReservedAmount, Settlement, _previous
from perdure.values.limits import MAX_ACCOUNTS, MAX_PAYLOAD


def asks(key: str, amount: float, **more: Any) -> Reservation:
    given = {"account": "euros", "title": "refunds", "limit": 10.0} | more
    return Reservation(key=key, amounts=[ReservedAmount(amount=amount, **given)])


def used(ledger: Ledger, today: str) -> float:
    return ledger.views(today)[0].used


def test_a_key_counts_once_and_a_period_begins_at_nothing() -> None:
    ledger = Ledger()
    for _ in range(2):
        assert ledger.reserve(asks("a", 6), "2026-01-31").refused == ""
    assert ledger.reserve(asks("b", 5), "2026-01-31").refused == (
        "11 would be used this day; the limit is 10 (refunds)"
    )
    assert used(ledger, "2026-01-31") == 6
    assert ledger.reserve(asks("b", 5), "2026-02-01").refused == ""
    assert ledger.reserve(asks("c", 5), "2026-02-02").refused == ""
    assert sorted(ledger.accounts["euros"].amounts) == ["2026-02-01", "2026-02-02"]


def test_all_amounts_of_a_reservation_are_granted_or_none() -> None:
    ledger = Ledger()
    both = asks("a", 6)
    both.amounts += asks("a", 2, account="calls", limit=1.0, unit="calls").amounts
    assert "2 calls would be used this day" in ledger.reserve(both, "2026-01-31").refused
    assert ledger.accounts == {}


def test_a_settlement_gives_back_what_was_not_used() -> None:
    ledger = Ledger()
    ledger.reserve(asks("a", 10, period="month"), "2026-01-31")
    assert ledger.reserve(asks("b", 1, period="month"), "2026-01-01").refused != ""
    ledger.settle(Settlement(key="a", account="euros", amount=4))
    ledger.settle(Settlement(key="nobody", account="euros", amount=0))
    assert ledger.reserve(asks("b", 6, period="month"), "2026-01-01").refused == ""
    assert used(ledger, "2026-01-05") == 10


def test_an_answer_says_that_the_key_held_an_amount_before() -> None:
    ledger = Ledger()
    assert [ledger.reserve(asks("a", 6), day).held for day in ("2026-01-30", "2026-01-30", "2026-01-31")] == [
        False,
        True,
        True,
    ]
    assert not ledger.reserve(asks("b", 1), "2026-01-31").held


@pytest.mark.parametrize("amount", [-1, 1e301, float("nan"), float("inf")])
def test_a_ledger_takes_no_amounts_that_it_cannot_sum(amount: float) -> None:
    for wrong in (lambda: asks("a", amount), lambda: Settlement(key="a", account="euros", amount=amount)):
        with pytest.raises(ValidationError):
            wrong()


def test_the_oldest_reservations_are_kept_as_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.runs.ledger.MAX_KEPT_RESERVATIONS", 100)
    ledger, count = Ledger(), 110
    for number in range(count):
        assert ledger.reserve(asks(str(number), 1, limit=1e9), "2026-01-31").refused == ""
    amounts = ledger.accounts["euros"].amounts["2026-01-31"]
    assert len(amounts) < 100
    assert (used(ledger, "2026-01-31"), ledger.views("2026-01-31")[0].reservations) == (count, count)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["reserve", "settle", "again"]),
            st.sampled_from("abcdef"),
            st.integers(0, 8),
            st.sampled_from(["2026-01-30", "2026-01-31"]),
        ),
        max_size=40,
    )
)
def test_no_order_of_reservations_passes_a_limit(deeds: list[tuple[str, str, int, str]]) -> None:
    ledger, granted, final = Ledger(), dict[tuple[str, str], int](), set[tuple[str, str]]()
    for what, key, amount, day in deeds:
        if what == "reserve" and (key, day) not in granted:
            if not ledger.reserve(asks(f"{key}{day}", amount), day).refused:
                granted[key, day] = amount
        elif what == "settle" and (key, day) in granted and (key, day) not in final:
            final.add((key, day))
            granted[key, day] = min(amount, granted[key, day])
            ledger.settle(Settlement(key=f"{key}{day}", account="euros", amount=granted[key, day]))
        elif what == "again":
            state = {name: account.model_dump(mode="json") for name, account in ledger.accounts.items()}
            ledger = Ledger({name: Account.model_validate(account) for name, account in state.items()})
        for each in ("2026-01-30", "2026-01-31"):
            total = sum(amount for (_, on), amount in granted.items() if on == each)
            assert total <= 10
            assert not ledger.accounts or used(ledger, each) == total


def test_an_account_leaves_with_its_last_kept_period() -> None:
    """Each sender under a budget had an account for ever, until the ledger was too large to continue as new."""
    ledger = Ledger()
    ledger.reserve(asks("a", 6, account="ann"), "2026-01-30")
    ledger.reserve(asks("m", 6, account="monthly", period="month"), "2026-01-30")
    ledger.reserve(asks("b", 1, account="bob"), "2026-01-31")
    assert {*ledger.accounts} == {"ann", "monthly", "bob"}
    ledger.reserve(asks("c", 1, account="carl"), "2026-02-01")
    assert {*ledger.accounts} == {"monthly", "bob", "carl"}
    ledger.reserve(asks("c", 1, account="carl"), "2026-03-01")
    assert {*ledger.accounts} == {"carl"}


def test_a_tenant_with_too_many_accounts_is_told_so_and_the_ledger_can_continue() -> None:
    many = {f"sender {number}": Account(title="t", period="day", limit=10) for number in range(MAX_ACCOUNTS)}
    for account in many.values():
        account.amounts["2026-01-31"] = {"a": 1.0}
    ledger = Ledger(many)
    assert "5,000 accounts" in ledger.reserve(asks("new", 1, account="one more"), "2026-01-31").refused
    assert ledger.reserve(asks("known", 1, account="sender 7"), "2026-01-31").refused == ""
    assert len(LedgerInput(tenant="acme", accounts=ledger.accounts).model_dump_json()) < MAX_PAYLOAD


@given(st.dates(date(1000, 1, 2)))
def test_the_period_before_is_that_of_the_day_before_its_first(today: date) -> None:
    day_before, month_before = today - timedelta(days=1), today.replace(day=1) - timedelta(days=1)
    assert _previous("day", today.isoformat()) == day_before.isoformat()
    assert _previous("month", today.isoformat()) == month_before.isoformat()[:7]
