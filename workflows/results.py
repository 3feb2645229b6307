"""The view of a run, and its end: its result, or its failure with the result so far."""

from __future__ import annotations

from itertools import islice

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from perdure.workflows.observability import now

with workflow.unsafe.imports_passed_through():
    from perdure.runs.delegates import SpentBudget
    from perdure.runs.limits import WorkClock
    from perdure.runs.records import record
    from perdure.runs.run import RunState
    from perdure.runs.views import fit_result, result_for_parent, run_view
    from perdure.runs.wire import MODEL_REFUSED, RunResult, RunView
    from perdure.values.limits import MAX_MESSAGE


def view_of(run: RunState | None, run_id: str) -> RunView:
    """Return the run's present state, for `show` and `watch`."""
    if run is None:
        return RunView(run_id=run_id)
    return fit_result(_whole_view(run, run_id), sizes=run.sizes, calls=run.records.count(run.plan))


def _whole_view(run: RunState, run_id: str) -> RunView:
    view = run_view(run, run_id)
    view.resets = len(run.journal.events.resets)
    if run.identity.in_session:  # the ended calls were recorded at their end
        view.calls = [call.model_copy() for call in view.calls]
        newest = () if run.plan is None else [*islice(run.plan.every_call_reversed(), len(view.calls))][::-1]
        record(view.calls, newest, run.sizes, run.provenance.recorded)
    return view


def spent_by(run: RunState, clock: WorkClock) -> SpentBudget:
    """Return the usage of the run and its child runs so far."""
    used = run.progress
    worked = clock.worked(workflow.time())
    return SpentBudget(
        usage=used.usage,
        worked=worked,
        sent=used.sent,
        rule_record=run.rule_record,
        changed=run.approval_queue.is_changed,
    )


def result_of(run: RunState, clock: WorkClock) -> RunResult:
    """Return the run's result so far, cut to the size that its parent or starter can receive."""
    run.progress.worked = clock.worked(workflow.time())
    result = _whole_view(run, workflow.info().workflow_id).result()
    result.ended_at = now()
    if workflow.info().parent is not None and not run.identity.in_session:
        result = result_for_parent(result, run.sizes)
    if workflow.info().parent is not None:
        result.rule_record = run.rule_record
        result.changed = run.approval_queue.is_changed
    count = run.records.count(run.plan) if result.calls else 0
    return fit_result(result, run.prepared.max_payload, run.sizes, calls=count)


def failure_of(run: RunState, clock: WorkClock, message: str, kind: str) -> ApplicationError:
    """Return the failure that ends the run, of this type, with the result so far as detail."""
    result = result_of(run, clock)
    if workflow.info().parent is not None:
        result.output = None
        result.sources = run.provenance.untrusted_read(run.progress, run.records.table.sets)
    message = message[:MAX_MESSAGE]
    refused = kind == MODEL_REFUSED
    result.status, result.error = "refused" if refused else "failed", message
    result.stop_reason = None if run.limits.reached is None or refused else run.limits.reached.reason
    details = result.model_dump(mode="json", by_alias=True)
    return ApplicationError(message, details, type=kind, non_retryable=True)
