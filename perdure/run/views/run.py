"""A run as it stands, as the wire carries it to whoever looks (section 11)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from perdure.people.offers import Offer, is_with_client
from perdure.people.policies import Guard
from perdure.plan.plan import Plan
from perdure.plan.simulation import simulate
from perdure.run.past import plan_reads, plan_writes
from perdure.run.running import Run
from perdure.run.telling.inbox import heard
from perdure.run.views.ways import ways
from perdure.run.wire import RunView, WaitingEntry, WaitingView
from perdure.values.limits import MAX_VIEWED, MAX_VIEWED_EDGES
from perdure.values.limits.sizes import preview

_SHOWN_IN_LISTS: Final = 300
"""Characters of parameters, and of a reason, in a list of what waits."""


def run_view(run: Run, run_id: str) -> RunView:
    """The run as it stands, with its newest `MAX_VIEWED` calls."""
    plan, past = run.plan, run.past
    newest = [] if plan is None else [*islice(plan.made_last(), MAX_VIEWED)][::-1]
    edges = [] if plan is None else plan.newest_edges(MAX_VIEWED_EDGES)
    earlier = past.calls[max(0, len(past.calls) + len(newest) - MAX_VIEWED) :]
    return RunView(
        run_id=run_id,
        agent=run.agent.name,
        status="running" if run.stop_reason is None else "completed",
        output=run.output,
        stop_reason=run.stop_reason,
        requests=len(past.log),
        usage=run.progress.usage,
        errors=run.errors,
        calls=[*earlier, *map(run.call_view, newest)],
        state=run.state.snapshot(),
        messages=heard(run.progress),
        worked=run.progress.worked,
        context_tokens=past.log[-1].usage.tokens if past.log else 0,
        sent=run.progress.sent,
        reasoning=run.thought,
        tight=run.progress.tight,
        sources=sorted(run.output_sources),
        left=run.reading.left(run.state, run.progress, run.table.sets, run.output_sources) if run.records else {},
        waiting=waiting_views(run),
        wait=run.wait,
        refusals=run.desk.refusals,
        log=past.log,
        reads=past.reads | plan_reads(newest),
        writes=past.writes | plan_writes(newest),
        sets=run.table.as_json(),
        met=run.reading.met(run.progress, run.table.sets),
        edges=[*past.edges, *edges],
        cut=[f"edges: the newest of loops are shown; whole: perdure show {run_id} --value edges"]
        if len(edges) >= MAX_VIEWED_EDGES
        else [],
    )


def waiting_views(run: Run, only: str | None = None, skip: int = 0) -> list[WaitingView]:
    """What waits for a person, oldest first, without the first `skip`; with `only` that call, or that Request's plan, alone."""
    offers = [offer for offer in run.desk.waiting.values() if only is None or offer.id == only][skip:]
    return [waiting_view(offer, run.agent.name, run.desk.guard, run.dry_plan) for offer in offers]


def waiting_view(offer: Offer, agent: str, guard: Guard, dry_run: Callable[[int], Plan]) -> WaitingView:
    """What a person is shown; of a plan also its simulation, played on an empty plan made by `dry_run`."""
    view = WaitingView(
        call=offer.id,
        agent=agent,
        tool="plan",
        reason=offer.reason,
        requested_at=offer.approval.requested_at,
        digest=offer.digest,
        question=offer.question,
        runs=offer.runs,
    )
    call = offer.call
    if call is not None:
        assert call.tool is not None
        view.tool, view.description = call.tool_name, call.tool.description
        view.params, view.parameters, view.items = call.params, call.tool.parameters, call.items
        view.ways = [] if offer.question else ways(call)
        view.client = is_with_client(call)
        return view
    view.calls = offer.shown
    dry = simulate(dry_run(offer.plan.request), [each.raw for each in offer.calls], asks=guard.asks)
    view.simulation = {
        "makespan": dry.makespan,
        "levels": [[step.call.id for step in steps] for steps in dry.levels().values()],
        "asks": [step.call.id for step in dry.steps if step.asks],
    }
    return view


def waiting_entry(offer: Offer) -> WaitingEntry:
    """What a list tells of one thing that waits."""
    call = offer.call
    return WaitingEntry(
        call=offer.id,
        tool="plan" if call is None else call.tool_name,
        params=None if call is None or len(preview(call.params, _SHOWN_IN_LISTS)) == _SHOWN_IN_LISTS else call.params,
        reason=offer.reason[:_SHOWN_IN_LISTS],
        requested_at=offer.approval.requested_at,
        digest=offer.digest,
        question=offer.question,
    )
