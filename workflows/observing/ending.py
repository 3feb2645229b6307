"""The end of a run, as operators find it later: what it used, and in the log and the metrics why it ended."""

from __future__ import annotations

from typing import Any, Final

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate
from temporalio.exceptions import ApplicationError, is_cancelled_exception

from perdure.workflows.observing import tell
from perdure.workflows.observing.listing import may_list

with workflow.unsafe.imports_passed_through():
    from perdure.run.running import Run
    from perdure.run.views.observing import run_ended
    from perdure.run.wire import COST_ATTRIBUTE, LONGEST_KEYWORD, MODEL_REFUSED, STOP_ATTRIBUTE, USAGE_MEMO
    from perdure.values.limits import MAX_MEMO
    from perdure.values.limits.fitting import cut_to

_REASON: Final = SearchAttributeKey.for_keyword(STOP_ATTRIBUTE)
_COST: Final = SearchAttributeKey.for_float(COST_ATTRIBUTE)


def end(run: Run, error: BaseException | None, *, below: bool) -> None:
    """Tell it, whatever ends the run; `below`: it is a delegate's, and is not told twice where telling is a billed Action."""
    if isinstance(error, GeneratorExit):  # it is only put out of memory
        return
    if run.progress.usage.by_model and not below:
        workflow.upsert_memo({USAGE_MEMO: cut_to(run.progress.usage.as_json(), MAX_MEMO)})
    reason: str | None
    if error is None:
        status, reason = "completed", run.stop_reason
        run.notes.run_ended(run.stop_reason, run.output)
    elif isinstance(error, ApplicationError):
        refused = error.type == MODEL_REFUSED
        limit = None if run.limit is None or refused else run.limit.reason
        status, reason = "refused" if refused else "failed", limit or error.type
        run.notes.run_failed(status, error.message, limit)
    elif is_cancelled_exception(error):
        status, reason = "cancelled", None
        run.notes.run_failed(status, None)
    else:
        return  # it goes on as new, or has met a bug that a fixed worker gets past
    tell(run_ended(run.agent.name, status, reason))
    if not below:
        _list(run, reason)


def _list(run: Run, reason: str | None) -> None:
    """Keep for lists why it ended and what it cost, where the namespace knows such attributes; one Action."""
    known, cost = run.prepared.attributes, run.progress.usage.cost
    updates: list[SearchAttributeUpdate[Any]] = []
    if STOP_ATTRIBUTE in known and reason is not None:
        updates.append(_REASON.value_set(reason[:LONGEST_KEYWORD]))
    if COST_ATTRIBUTE in known and cost is not None and run.progress.usage.by_model:
        updates.append(_COST.value_set(cost))
    if updates and may_list("end"):
        workflow.upsert_search_attributes(updates)
