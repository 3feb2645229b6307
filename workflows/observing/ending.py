"""The end of a run, as operators find it later: what it used, and in the log and the metrics why it ended."""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import ApplicationError, is_cancelled_exception

from perdure.workflows.observing import tell

with workflow.unsafe.imports_passed_through():
    from perdure.run.running import Run
    from perdure.run.views.observing import run_ended
    from perdure.values.limits import MAX_MEMO
    from perdure.values.limits.fitting import cut_to


def end(run: Run, error: BaseException | None, *, below: bool) -> None:
    """Tell it, whatever ends the run; `below`: it is a delegate's, and is not told twice where telling is a billed Action."""
    if isinstance(error, GeneratorExit):  # it is only put out of memory
        return
    name = run.agent.name
    if error is None:
        tell(run_ended(name, "completed", run.stop_reason))
    elif isinstance(error, ApplicationError):
        tell(run_ended(name, "failed", error.type if run.limit is None else run.limit.reason))
    elif is_cancelled_exception(error):
        tell(run_ended(name, "cancelled", None))
    # What else there is is no end: it goes on as new, or has met a bug that a fixed worker gets past.
    if run.progress.usage.by_model and not below:
        workflow.upsert_memo({"usage": cut_to(run.progress.usage.as_json(), MAX_MEMO)})
