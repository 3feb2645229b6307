"""Metrics, logs, search attributes, details and watchers of an execution."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, Protocol, runtime_checkable

from temporalio import worker, workflow
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate, TypedSearchAttributes
from temporalio.exceptions import ApplicationError, is_cancelled_exception

from perdure.workflows.resets import was_reset_to_start

with workflow.unsafe.imports_passed_through():
    from perdure.models.requests import RequestContext, RequestResult
    from perdure.runs.claim_check import NEIGHBOURS
    from perdure.runs.event_journal import RunJournal
    from perdure.runs.events import WATCH_LASTS
    from perdure.runs.metrics import (
        EMISSIONS,
        METRICS,
        REPLAYED,
        MetricLabels,
        Observation,
        request_ended,
        run_ended,
    )
    from perdure.runs.run import RunState
    from perdure.runs.run_log import RunLog, RunStart
    from perdure.runs.wire import (
        AGENT_ATTRIBUTE,
        COST_ATTRIBUTE,
        LONGEST_KEYWORD,
        MODEL_REFUSED,
        SCHEDULE_ATTRIBUTE,
        SENDER_ATTRIBUTE,
        STOP_ATTRIBUTE,
        TENANT_ATTRIBUTE,
        USAGE_MEMO,
        VERSION_ATTRIBUTE,
        RunInput,
    )
    from perdure.values.limits import MAX_MEMO
    from perdure.values.sizes import cut_to


MOST_VALUES: Final = 500
"""Values of a label that one worker keeps apart; others are `other`. Agents may have any names."""
_LOG: Final = workflow.LoggerAdapter(logging.getLogger("perdure.run"), None)
_LOG.workflow_info_on_message = _LOG.workflow_info_on_extra = False
_seen: dict[str, set[str]] = {}


def observe(observation: Observation) -> None:
    """Count an observation and log it, once in this process, also if its task is repeated or replayed."""
    info = workflow.info()
    replays = workflow.unsafe.is_replaying() or info.namespace == REPLAYED
    if EMISSIONS.is_due(observation, workflow.instance(), info.run_id, replays=replays):
        _emit(observation)


def _emit(observation: Observation) -> None:
    meter = workflow.metric_meter()
    for name, value, labels in observation.counts:
        metric = METRICS[name]
        bounded = _bounded(labels)
        if metric.kind == "counter":
            meter.create_counter(name, metric.help).add(int(value), bounded)
        else:
            meter.create_histogram_float(name, metric.help).record(value, bounded)
    if _LOG.isEnabledFor(observation.level):
        _LOG.log(
            observation.level,
            observation.event,
            extra={"perdure": {"run": workflow.info().workflow_id, **observation.fields}},
        )


def observe_request(run: RunState, number: int, result: RequestResult, first_call: float | None) -> None:
    """Count a closed Request; number 0 called no model. `first_call`: seconds until its first call started."""
    if number:
        observe(request_ended(run.agent.name, run.records.past.log[-1], result, first_call))


def _bounded(labels: MetricLabels) -> MetricLabels:
    for name, value in labels.items():
        seen = _seen.setdefault(name, set())
        if value not in seen:
            if len(seen) >= MOST_VALUES:
                labels = {**labels, name: "other"}
            else:
                seen.add(value)
    return labels


def now() -> str:
    """Return the workflow's time as text: ISO 8601, UTC."""
    return _time_text(workflow.time())


@lru_cache(maxsize=256)
def _time_text(seconds: float) -> str:
    """Return a time as text. The workflow's time stays the same during a task, which needs its text dozens of times."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def run_journal() -> RunJournal:
    """Return the journal of this execution, from its workflow's first task on."""
    notes = RunJournal(now=now, run_id=workflow.info().workflow_id)
    if was_reset_to_start():
        notes.was_reset()
    return notes


def keep_log(run: RunState, run_input: RunInput) -> None:
    """Keep the log of this execution in the run from now on."""
    guard = run.approval_queue.guard
    start = RunStart(
        run_input,
        run.prepared,
        run.identity.queue,
        guard.floor,
        guard.floor_flows,
        guard.givers,
        guard.change,
        prefix=f"{workflow.info().workflow_id}/",
    )
    run.keep_log(RunLog(now, workflow.time, start))


_AGENT: Final = SearchAttributeKey.for_keyword(AGENT_ATTRIBUTE)
_VERSION: Final = SearchAttributeKey.for_keyword(VERSION_ATTRIBUTE)
_SCHEDULE: Final = SearchAttributeKey.for_keyword(SCHEDULE_ATTRIBUTE)
_SENDER: Final = SearchAttributeKey.for_keyword(SENDER_ATTRIBUTE)
_TENANT: Final = SearchAttributeKey.for_keyword(TENANT_ATTRIBUTE)


def list_run(run: RunState, *, below: bool) -> None:
    """Set the run's agent, version, sender and tenant for lists, where the start did not set them, as in a run that a schedule, a session,
    an evaluation or a user's own workflow has started.
    """
    info, owner = workflow.info(), run.identity.owner
    if below or (info.parent is None and info.typed_search_attributes.get(_SCHEDULE) is None):
        return
    named = ((_AGENT, run.agent.name), (_VERSION, run.agent.version), (_SENDER, owner.sender), (_TENANT, owner.tenant))
    updates = [
        key.value_set(value[:LONGEST_KEYWORD])
        for key, value in named
        if value and key.name in run.prepared.attributes and info.typed_search_attributes.get(key) is None
    ]
    if updates:
        workflow.upsert_search_attributes(updates)


def owner_attributes() -> TypedSearchAttributes | None:
    """Return the owner attributes for a child run: this run's own, so that a tenant finds its waiting requests (R10.2)."""
    pairs = [
        each
        for each in workflow.info().typed_search_attributes
        if each.key.name in (SENDER_ATTRIBUTE, TENANT_ATTRIBUTE)
    ]
    return TypedSearchAttributes(pairs) if pairs else None


_REASON: Final = SearchAttributeKey.for_keyword(STOP_ATTRIBUTE)
_COST: Final = SearchAttributeKey.for_float(COST_ATTRIBUTE)


def end(run: RunState, error: BaseException | None, *, below: bool) -> None:
    """Report a run's end, with any outcome. With `below` it is a delegate's: no second report where it is a billed
    Action.
    """
    if isinstance(error, GeneratorExit):  # the run is only evicted from the worker's cache
        return
    if run.progress.usage.by_model and not below:
        workflow.upsert_memo({USAGE_MEMO: cut_to(run.progress.usage.as_json(), MAX_MEMO)})
    reason: str | None
    if error is None:
        status, reason = "completed", run.output.stop_reason
        run.journal.run_ended(run.output.stop_reason, run.output.value)
    elif isinstance(error, ApplicationError):
        refused = error.type == MODEL_REFUSED
        limit = None if run.limits.reached is None or refused else run.limits.reached.reason
        status, reason = "refused" if refused else "failed", limit or error.type
        run.journal.run_failed(status, error.message, limit)
    elif is_cancelled_exception(error):
        status, reason = "cancelled", None
        run.journal.run_failed(status, None)
    else:
        return  # the run continues as new, or has a bug that a fixed worker resolves
    observe(run_ended(run.agent.name, status, reason))
    if not below:
        _list(run, reason)


def _list(run: RunState, reason: str | None) -> None:
    """Set, for lists, why the run ended and its cost, where the namespace has such attributes; one Action."""
    known, cost = run.prepared.attributes, run.progress.usage.cost
    updates: list[SearchAttributeUpdate[Any]] = []
    if STOP_ATTRIBUTE in known and reason is not None:
        updates.append(_REASON.value_set(reason[:LONGEST_KEYWORD]))
    if COST_ATTRIBUTE in known and cost is not None and run.progress.usage.by_model:
        updates.append(_COST.value_set(cost))
    if updates:
        workflow.upsert_search_attributes(updates)


class Watchers:
    """Whether somebody watches a run."""

    def __init__(self) -> None:
        self.until = 0.0
        """The time until which somebody watches, in seconds since 1970; 0 without watchers."""
        self._context: RequestContext | None = None

    def note(self) -> None:
        """Record that the run has watchers. They repeat this once a minute."""
        self.until = workflow.time() + WATCH_LASTS
        if self._context is not None:
            self._context.watched_until = self.until

    def lend(self, number: int, context: RequestContext) -> None:
        """Lend the context of Request `number`, with the time until which somebody watches, to activities of this
        process.
        """
        self._context, context.watched_until = context, self.until
        info = workflow.info()
        NEIGHBOURS.keep(info.workflow_id, info.run_id, number, context, self)


@runtime_checkable
class HasDetails(Protocol):
    """A workflow whose details are computed when they are read."""

    def details(self) -> str:
        """Return the details as Markdown."""


class DetailsInterceptor(worker.Interceptor):
    """An interceptor that computes a run's details when the Web UI reads them: most runs are never viewed."""

    def workflow_interceptor_class(self, _: worker.WorkflowInterceptorClassInput) -> type[_DetailsInbound]:
        return _DetailsInbound


class _DetailsInbound(worker.WorkflowInboundInterceptor):
    async def handle_query(self, input: worker.HandleQueryInput) -> Any:
        answer = await super().handle_query(input)
        if isinstance(answer, WorkflowMetadata) and isinstance(of := workflow.instance(), HasDetails):
            answer.MergeFrom(WorkflowMetadata(current_details=of.details()))
        return answer
