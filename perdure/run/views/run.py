"""A run as it stands, as the wire carries it to whoever looks (section 11)."""

from __future__ import annotations

from perdure.run.running import Run
from perdure.run.views.calls import call_view, plan_reads, plan_writes, waiting_view
from perdure.run.wire import RunView, WaitingView


def run_view(run: Run, run_id: str) -> RunView:
    """The whole run."""
    plan, past = run.plan, run.past
    return RunView(
        run_id=run_id,
        agent=run.agent.name,
        status="running" if run.stop_reason is None else "completed",
        output=run.output,
        stop_reason=run.stop_reason,
        requests=len(past.log),
        usage=run.progress.usage,
        errors=run.errors,
        calls=[*past.calls, *(map(call_view, plan.calls) if plan else ())],
        state=run.state.snapshot(),
        worked=run.progress.worked,
        waiting=waiting_views(run),
        refusals=run.desk.refusals,
        log=past.log,
        reads=past.reads | (plan_reads(plan) if plan else {}),
        writes=past.writes | (plan_writes(plan) if plan else {}),
        edges=[*past.edges, *(plan.named_edges() if plan else ())],
    )


def waiting_views(run: Run) -> list[WaitingView]:
    """What waits for a person, oldest first."""
    return [waiting_view(offer, run.agent.name, run.desk.guard, run.dry_plan) for offer in run.desk.waiting.values()]
