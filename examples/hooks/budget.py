"""A budget: once a tenant has spent `BUDGET_DOLLARS` in a day, over all its runs, no call is made any more."""

from __future__ import annotations

import os

from examples.hooks.database import run
from perdure import hook, refuse
from perdure.hooks import AgentEnd, BeforeToolCall, Refused

# What a run has used so far takes the place of what was known of it: said twice it is the same. It counts for the day it began on.
NOTE = "insert into spent (run, tenant, day, dollars) values ($1, $2, $3, $4) on conflict (run) do update set dollars = excluded.dollars"
FORGET = "delete from spent where run = $1"
TOTAL = "select coalesce(sum(dollars), 0) from spent where tenant = $1 and day = $2"


@hook("before_tool_call")
async def within_budget(event: BeforeToolCall) -> Refused | None:
    """It fails closed: where nobody can say what was spent, nothing more is."""
    if event.cost is None:
        return refuse("what the run has cost is not known: give the price of its model (PERDURE_PRICES)")
    most, day = float(os.environ.get("BUDGET_DOLLARS", "5")), event.at[:10]
    rows = await run((NOTE, (event.run_id, event.tenant, day, event.cost)), (TOTAL, (event.tenant, day)))
    spent = float(rows[0][0])
    if spent < most:
        return None
    whose = f"the budget of {event.tenant}" if event.tenant else "the budget"
    return refuse(
        f"{whose} for today is used up: {spent:.4f} of {most:.2f} dollars. Give your best answer without tools."
    )


@hook("agent_end")
async def at_the_end(event: AgentEnd) -> None:
    """A run's last Request counts, too. What a delegate has used the run above counts from now on."""
    if event.above:
        await run((FORGET, (event.run_id,)))
    elif event.cost is not None:
        await run((NOTE, (event.run_id, event.tenant, event.at[:10], event.cost)))
