"""Budgets that many runs share: tokens or dollars of a tenant, a sender or an agent, for a day or a month.

A run reserves one Request's share before each Request, and one more for its best answer. The tenant's ledger grants both,
or the first alone: then that Request is the last. The next reservation, or the run's end, settles what was used.
Each run settles its own Requests and the reports of its tools. So a delegate's usage counts once, for the agent of the
outermost run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from perdure.hooks.events import RunOwner
from perdure.models.requests import RequestView
from perdure.models.usage import Price, RunUsage, Usage, price_of
from perdure.runs.budget import ASSUMED, ExpectedUsage
from perdure.runs.ledger import Period, ReservedAmount, Settlement
from perdure.values.json import WireModel, dumps
from perdure.values.limits import MAX_BUDGET

_Name = Annotated[str, Field(max_length=200)]


class SharedBudget(WireModel):
    """A budget of a worker's setting `budgets`: each tenant, sender or agent has this sum in each period.

    ```python
    SharedBudget(of="tenant", unit="tokens", sum=2_000_000, per="day")
    ```
    """

    of: Literal["tenant", "sender", "agent"]
    """`sender` and `agent`: within each tenant. A delegate's usage counts for the agent of the outermost run."""
    unit: Literal["tokens", "dollars"]
    sum: float = Field(gt=0, le=MAX_BUDGET, allow_inf_nan=False)
    per: Period
    """A day or a month in UTC."""
    names: list[_Name] = Field(default_factory=list, max_length=1_000, exclude_if=lambda names: not names)
    """The tenants, senders or agents that have this budget; by default each has."""
    share: float | None = Field(
        default=None, gt=0, le=MAX_BUDGET, allow_inf_nan=False, exclude_if=lambda share: share is None
    )
    """The least amount that one Request reserves; by default 1,000 tokens, or their price."""


class SharedAccount(WireModel):
    """The account of one tenant, sender or agent for a shared budget."""

    budget: SharedBudget
    key: str
    title: str

    def share(self, expected: ExpectedUsage, price: Price | None) -> float | None:
        """Return the amount that one Request reserves; `None`: dollars for a model without a known price."""
        if self.budget.unit == "tokens":
            return max(float(expected.own_tokens), self.budget.share or float(ASSUMED))
        least = Usage(prompt_tokens=ASSUMED).cost_at(price)
        return None if least is None else max(expected.own_cost, self.budget.share or least)


def accounts_of(budgets: Sequence[SharedBudget], owner: RunOwner, agent: str) -> list[SharedAccount]:
    """Return the accounts of a run; `agent`: the agent of the outermost run. A run without a sender has no account of a
    sender.
    """
    own = {"tenant": owner.tenant, "sender": owner.sender, "agent": agent}
    found = []
    for budget in budgets:
        name = own[budget.of]
        if (budget.names and name not in budget.names) or (not name and budget.of != "tenant"):
            continue
        key = dumps(["budget", budget.of, name, budget.unit, budget.per])
        shown = name if name.isprintable() else dumps(name)
        title = f"budget of {budget.of} {shown}" if name else "budget of runs without a tenant"
        found.append(SharedAccount(budget=budget, key=key, title=title))
    return found


def merged_budgets(above: Sequence[SharedBudget], own: Sequence[SharedBudget]) -> list[SharedBudget]:
    """Return the budgets of the run above and those of the worker, each once."""
    return [*above, *(budget for budget in own if budget not in above)]


def amounts_of(
    accounts: Sequence[SharedAccount], model: str, expected: ExpectedUsage, prices: Mapping[str, Price]
) -> list[ReservedAmount] | str:
    """Return the amounts that a Request to this model reserves, or the reason why they cannot be reserved."""
    amounts = []
    for account in accounts:
        share = account.share(expected, price_of(model, prices))
        if share is None:
            return f"the price of {model} is not known, so the {account.title} in dollars cannot be kept"
        budget = account.budget
        amounts.append(
            ReservedAmount(
                account=account.key,
                title=account.title,
                amount=share,
                spare=share,
                limit=budget.sum,
                period=budget.per,
                unit=budget.unit,
            )
        )
    return amounts


def settlements_of(
    accounts: Sequence[SharedAccount], key: str, request: RequestView | None, reported: RunUsage
) -> list[Settlement]:
    """Return the usage of a Request, as `show` counts it, with the usage that its calls have `reported`.

    A Request without an answer has used nothing. The reservation for an answer of unknown price stays.
    """
    used: dict[str, float | None] = {"tokens": 0.0, "dollars": 0.0}
    if request is not None and request.status == "done":
        used = {"tokens": float(request.usage.tokens), "dollars": request.cost}
    if reported.by_model:
        dollars = None if used["dollars"] is None or reported.cost is None else used["dollars"] + reported.cost
        used = {"tokens": (used["tokens"] or 0.0) + reported.tokens, "dollars": dollars}
    return [
        Settlement(key=key, account=account.key, amount=amount)
        for account in accounts
        if (amount := used[account.budget.unit]) is not None
    ]
