"""Telling operators what happens in a run: counted and logged once, whatever is replayed."""

from __future__ import annotations

import logging
from typing import Final

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.model.wire import RequestResult
    from perdure.run.running import Run
    from perdure.run.views.observing import METRICS, Labels, Told, request_ended

MOST_VALUES: Final = 500
"""Values of a label that one worker tells apart; the rest are `other`. Whoever starts runs may name agents as they like."""
_LOG: Final = logging.getLogger("perdure.run")
_seen: dict[str, set[str]] = {}


def tell(told: Told) -> None:
    """Count it and write its line, unless the run is only replayed. A task that is done again counts again."""
    if workflow.unsafe.is_replaying():
        return
    meter = workflow.metric_meter()
    for name, value, labels in told.counts:
        metric = METRICS[name]
        bounded = _bounded(labels)
        if metric.kind == "counter":
            meter.create_counter(name, metric.help).add(int(value), bounded)
        else:
            meter.create_histogram_float(name, metric.help).record(value, bounded)
    if _LOG.isEnabledFor(told.level):
        _LOG.log(told.level, told.event, extra={"perdure": {"run": workflow.info().workflow_id, **told.fields}})


def tell_request(run: Run, number: int, result: RequestResult, first_call: float | None) -> None:
    """A Request is closed; one of number 0 asked no model. `first_call`: seconds until its first call started."""
    if number:
        tell(request_ended(run.agent.name, run.past.log[-1], result, first_call))


def _bounded(labels: Labels) -> Labels:
    for name, value in labels.items():
        seen = _seen.setdefault(name, set())
        if value not in seen:
            if len(seen) >= MOST_VALUES:
                labels = {**labels, name: "other"}
            else:
                seen.add(value)
    return labels
