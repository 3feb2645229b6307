"""The ledger of a tenant: accounts that runs use together, such as the refunds of a day.

A run reserves an amount before it uses it. The ledger grants it, or refuses it if the account would pass its limit. So
two runs that reserve at once cannot pass the limit together. The same key never counts twice in a period.
"""

from __future__ import annotations

import calendar
import hashlib
import operator
from collections.abc import Iterable
from fractions import Fraction
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field

from perdure.plan import Call
from perdure.rules import CountAtMost, RuleBook
from perdure.rules.rules import exact_fraction
from perdure.runs.standing_approvals import StandingRecord
from perdure.values.json import WireModel, dumps
from perdure.values.limits import MAX_ACCOUNTS, MAX_AMOUNT, MAX_KEPT_RESERVATIONS, CheckBudget

LEDGER_WORKFLOW: Final = "Ledger"
RESERVE: Final = "reserve"
"""Update: reserve amounts under a key, all or none of them."""
ACCOUNTS_QUERY: Final = "accounts"
RESERVE_ACTIVITY: Final = "perdure.reserve"

Period: TypeAlias = Literal["day", "month"]
Amount: TypeAlias = Annotated[float, Field(ge=0, le=MAX_AMOUNT, allow_inf_nan=False)]
_OLDER: Final = ""
"""Key of the sum of the oldest reservations of a period."""
_SPENT: Final = (
    "{title}: {used} of {limit}{unit} a {period} are used or reserved. It is available again from {free} (UTC)"
)
_FULL: Final = f"the tenant has {MAX_ACCOUNTS:,} accounts of rules and budgets, which is the limit"
_PERIODS: Final = 2
"""Periods of an account that are kept: the present one, and the one before."""


def ledger_id(tenant: str) -> str:
    """Return the workflow id of a tenant's ledger; no other tenant can name it."""
    return f"perdure-ledger-{hashlib.sha256(dumps([tenant]).encode(errors='surrogatepass')).hexdigest()[:32]}"


class ReservedAmount(WireModel):
    """One amount of a reservation."""

    account: str
    """The account's name in the ledger."""
    title: str
    """The account in words: `at_most(refund.euros, sum=5000, per="tenant/day")`."""
    amount: Amount
    limit: float = Field(allow_inf_nan=False)
    period: Period = "day"
    unit: str = ""
    """The unit of the amounts, such as `calls` or `tokens`."""
    spare: Amount | None = Field(default=None, exclude_if=lambda spare: spare is None)
    """A further amount, for a last Request. Without room for both, the rest is granted, and the answer says so. `None`:
    the amount is granted or refused."""


class Settlement(WireModel):
    """The amount of an account that a key has used, in place of its reservation; 0 gives the whole reservation back.

    It is final: the key holds no reservation afterwards.
    """

    key: str
    account: str
    amount: Amount


class Reservation(WireModel):
    """Amounts that a run reserves under one key: all are granted, or none."""

    key: str
    amounts: list[ReservedAmount]
    settled: list[Settlement] = Field(default_factory=list, exclude_if=lambda settled: not settled)
    """Settlements of earlier reservations: they are applied first, and always."""


class ReserveInput(WireModel):
    """The input of the activity that reserves."""

    tenant: str
    reservation: Reservation


def reservation_of(rules: RuleBook, call: Call, checks: CheckBudget) -> Reservation | None:
    """Return the reservation that a call needs before it begins, for rules over all runs of the tenant."""
    shared = rules.shared(call, checks)
    if not shared:
        return None
    amounts = [
        ReservedAmount(
            account=rule.key,
            title=rule.words,
            amount=float(amount),
            limit=float(rule.limit),
            period="month" if rule.per == "tenant/month" else "day",
            unit="calls" if isinstance(rule, CountAtMost) else "",
        )
        for rule, amount in shared
    ]
    return Reservation(key=rules.entry_of(call), amounts=amounts)


class ReservationAnswer(WireModel):
    """The answer to a reservation: granted, or the reason why not."""

    refused: str = ""
    last: str = Field(default="", exclude_if=lambda last: not last)
    """Reason why the granted amount is the last: there is no room for the `spare` beside it."""
    unit: str = Field(default="", exclude_if=lambda unit: not unit)
    """The unit of the account that is spent."""
    held: bool = Field(default=False, exclude_if=operator.not_)
    """Whether the key held an amount before: an execution that a reset has ended may have spent it."""


class AccountView(WireModel):
    """An account of a ledger, as `perdure limits` prints it.

    ```python
    for account in await perdure.limits(tenant="acme"):
        print(account.title, account.used, account.limit)
    ```
    """

    title: str
    unit: str = ""
    period: Period
    since: str
    """The day, `2026-01-31`, or the month, `2026-01`, in UTC."""
    used: float
    limit: float
    """The limit that the last reservation named."""
    reservations: int = 0


class Account(WireModel):
    """The state of one account."""

    title: str
    unit: str = ""
    period: Period
    limit: float
    amounts: dict[str, dict[str, float]] = Field(default_factory=dict)
    """By period, then by key."""
    counts: dict[str, int] = Field(default_factory=dict)
    """By period, the number of reservations."""


class LedgerInput(WireModel):
    """The input of the ledger's workflow: the tenant, with the accounts and standing approvals of the execution before."""

    tenant: str
    accounts: dict[str, Account] = Field(default_factory=dict)
    standing: list[StandingRecord] = Field(default_factory=list, exclude_if=lambda standing: not standing)
    """The standing approvals of the tenant (R23.3)."""


class Ledger:
    """The accounts of one tenant."""

    def __init__(self, accounts: dict[str, Account] | None = None) -> None:
        self.accounts = accounts or {}
        self._swept = ""

    def reserve(self, wanted: Reservation, today: str) -> ReservationAnswer:
        """Reserve all amounts, or none. `today`: the day, `2026-01-31`, in UTC."""
        self._sweep(today)
        for settled in wanted.settled:
            self.settle(settled)
        added = {each.account for each in wanted.amounts} - self.accounts.keys()
        if added and len(self.accounts) + len(added) > MAX_ACCOUNTS:
            return ReservationAnswer(refused=_FULL, unit=wanted.amounts[0].unit)
        for each in wanted.amounts:
            if (why := self._problem(each, wanted.key, today)) is not None:
                return ReservationAnswer(refused=why, unit="" if each.spare is None else each.unit)
        answer = ReservationAnswer(held=any(self._holds(each.account, wanted.key) for each in wanted.amounts))
        for each in wanted.amounts:
            amount, left = (
                exact_fraction(each.amount),
                exact_fraction(each.limit) - self._others(each, wanted.key, today),
            )
            if each.spare is not None and amount + exact_fraction(each.spare) > left:
                amount = min(amount, left)
                if not answer.last:
                    answer = ReservationAnswer(last=self._spent(each, wanted.key, today), unit=each.unit)
            elif each.spare is not None:
                amount += exact_fraction(each.spare)
            self._note(each, float(amount), wanted.key, today)
        return answer

    def _sweep(self, today: str) -> None:
        """Remove accounts of which no period is kept, once a day: senders of the past use no room."""
        if today == self._swept:
            return
        self._swept = today
        for name, account in [*self.accounts.items()]:
            if max(account.amounts, default="") < _previous(account.period, today):
                del self.accounts[name]

    def settle(self, settled: Settlement) -> None:
        """Set the amount that a key has used, in the period of its last reservation. A second settlement changes
        nothing.
        """
        account = self.accounts.get(settled.account)
        if account is None:
            return
        holding = [since for since in sorted(account.amounts) if settled.key in account.amounts[since]]
        for since in holding:
            del account.amounts[since][settled.key]
        if holding:
            amounts = account.amounts[holding[-1]]
            amounts[_OLDER] = float(_total([amounts.get(_OLDER, 0.0), settled.amount]))

    def _holds(self, account: str, key: str) -> bool:
        known = self.accounts.get(account)
        return known is not None and any(key in amounts for amounts in known.amounts.values())

    def views(self, today: str) -> list[AccountView]:
        """Return the accounts in their present periods."""
        return [
            AccountView(
                title=account.title,
                unit=account.unit,
                period=account.period,
                since=_since(account.period, today),
                used=float(_total(account.amounts.get(_since(account.period, today), {}).values())),
                limit=account.limit,
                reservations=account.counts.get(_since(account.period, today), 0),
            )
            for account in self.accounts.values()
        ]

    def _others(self, wanted: ReservedAmount, key: str, today: str) -> Fraction:
        account = self.accounts.get(wanted.account)
        amounts = {} if account is None else account.amounts.get(_since(wanted.period, today), {})
        return _total(amount for name, amount in amounts.items() if name != key)

    def _problem(self, wanted: ReservedAmount, key: str, today: str) -> str | None:
        others = self._others(wanted, key, today)
        if wanted.spare is not None:
            return self._spent(wanted, key, today) if others >= exact_fraction(wanted.limit) else None
        total = others + exact_fraction(wanted.amount)
        if total <= exact_fraction(wanted.limit):
            return None
        unit = f" {wanted.unit}" if wanted.unit else ""
        return (
            f"{float(total):,.10g}{unit} would be used this {wanted.period}; the limit is {wanted.limit:,.10g}"
            f" ({wanted.title})"
        )

    def _spent(self, wanted: ReservedAmount, key: str, today: str) -> str:
        return _SPENT.format(
            title=wanted.title,
            used=f"{float(self._others(wanted, key, today)):,.10g}",
            limit=f"{wanted.limit:,.10g}",
            unit=f" {wanted.unit}" if wanted.unit else "",
            period=wanted.period,
            free=_next(wanted.period, today),
        )

    def _note(self, wanted: ReservedAmount, amount: float, key: str, today: str) -> None:
        account = self.accounts.get(wanted.account)
        if account is None:
            account = self.accounts[wanted.account] = Account(
                title=wanted.title, unit=wanted.unit, period=wanted.period, limit=wanted.limit
            )
        since = _since(wanted.period, today)
        account.title, account.limit = wanted.title, wanted.limit
        for older in sorted({*account.amounts, since})[:-_PERIODS]:
            account.amounts.pop(older, None)
            account.counts.pop(older, None)
        amounts = account.amounts.setdefault(since, {})
        if key not in amounts:
            account.counts[since] = account.counts.get(since, 0) + 1
        amounts[key] = amount
        if len(amounts) > MAX_KEPT_RESERVATIONS:  # the oldest are no longer repeated
            oldest = [name for name in amounts if name != _OLDER][: MAX_KEPT_RESERVATIONS // 2]
            amounts[_OLDER] = float(_total([amounts.get(_OLDER, 0.0), *(amounts.pop(name) for name in oldest)]))


def _since(period: Period, today: str) -> str:
    return today if period == "day" else today[:7]


def _previous(period: Period, today: str) -> str:
    """Return the period before the present one."""
    year, month, day = map(int, today.split("-"))
    if period == "day" and day > 1:
        return f"{year:04}-{month:02}-{day - 1:02}"
    year, month = (year, month - 1) if month > 1 else (year - 1, 12)
    return _since(period, f"{year:04}-{month:02}-{calendar.monthrange(year, month)[1]:02}")


def _next(period: Period, today: str) -> str:
    """Return the first day of the next period."""
    year, month, day = map(int, today.split("-"))
    if period == "day" and day < calendar.monthrange(year, month)[1]:
        return f"{year:04}-{month:02}-{day + 1:02}"
    return f"{year + month // 12:04}-{month % 12 + 1:02}-01"


def _total(amounts: Iterable[float]) -> Fraction:
    return sum(map(exact_fraction, amounts), Fraction())
