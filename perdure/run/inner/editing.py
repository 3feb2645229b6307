"""A plan that a person has edited as a whole (R7.6)."""

from __future__ import annotations

from perdure.plan.plan import Plan


def edited(plan: Plan, other: Plan, time: str) -> Plan:
    """The plan as a person would have it: the other one. Where calls of earlier Requests are in it, they stay, and what has not been
    begun gives way to the other's calls (R10.5)."""
    if not plan.goes_on:
        return other
    plan.keeping.hold_back()
    plan.keeping.drop("a person has edited the plan", time)
    plan.reopen()
    for call in other.calls:
        plan.add(call.raw).approval = call.approval
    plan.close(drain=other.drained)
    return plan
