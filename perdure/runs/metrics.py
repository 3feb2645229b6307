"""Metrics and log lines of runs: one function for each occurrence, with its counts and its log line.

They hold names, ids, counts and times, never a parameter, a prompt or a result. `workflows.observability` emits them.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args
from weakref import WeakKeyDictionary

from perdure.models.requests import AwayReason, RequestResult, RequestView
from perdure.plan import Call

_SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_PATIENCE: Final = (1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 14400.0, 86400.0, 604800.0)
_SHARES: Final = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_DOLLARS: Final = (0.0001, 0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric, named by Prometheus' conventions: base units, `_total` for counters."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram."""


METRICS: Final[Mapping[str, Metric]] = {
    metric.name: metric
    for metric in (
        Metric("perdure_runs_total", "counter", "Runs that ended, by reason.", ("agent", "status", "reason")),
        Metric("perdure_requests_total", "counter", "Requests to models.", ("agent", "model", "outcome")),
        Metric(
            "perdure_tokens_total", "counter", "Tokens that models read and wrote.", ("agent", "model", "direction")
        ),
        Metric(
            "perdure_request_cost_dollars",
            "histogram",
            "Cost of each Request with a known price; the sum is the money spent.",
            ("agent", "model"),
            _DOLLARS,
        ),
        Metric(
            "perdure_first_call_seconds",
            "histogram",
            "Time from the start of a Request to the start of its first call.",
            ("agent", "model"),
            _SECONDS,
        ),
        Metric(
            "perdure_fallbacks_total",
            "counter",
            "Requests that were sent to another model, by the failed model.",
            ("model",),
        ),
        Metric(
            "perdure_evaluations_total",
            "counter",
            "Evaluators' conditions, by whether they hold.",
            ("agent", "evaluator", "outcome"),
        ),
        Metric(
            "perdure_evaluation_score",
            "histogram",
            "Numbers that evaluators returned.",
            ("agent", "evaluator"),
            _SHARES,
        ),
        Metric("perdure_calls_total", "counter", "Calls that ended, by outcome.", ("tool", "outcome")),
        Metric(
            "perdure_approval_wait_seconds",
            "histogram",
            "Time from an approval request to its decision.",
            ("decision", "by"),
            _PATIENCE,
        ),
        Metric("perdure_decisions_refused_total", "counter", "Decisions that were rejected."),
        Metric(
            "perdure_hooks_total", "counter", "Hooks that refused an operation or failed.", ("event", "hook", "outcome")
        ),
        Metric(
            "perdure_approvals_waiting",
            "gauge",
            "Approval requests in the namespace; every worker reports the same number.",
        ),
        Metric(
            "perdure_approvals_oldest_seconds",
            "gauge",
            "Age of the namespace's oldest approval request; every worker reports it; 0: none.",
        ),
    )
}
"""Metrics that Perdure adds to those of Temporal's SDK."""

MetricLabels: TypeAlias = dict[str, str]
Fields: TypeAlias = dict[str, str | int | float]
DEBUG: Final = 10
INFO: Final = 20
WARNING: Final = 30
_WORD: Final = re.compile(r"[\w.:/@+-]{1,60}\Z")


@dataclass(frozen=True, slots=True)
class Observation:
    """An observation: a line of the log, and its counts."""

    event: str
    level: int = INFO
    """Level, as `logging` names it."""
    fields: Fields = field(default_factory=dict)
    counts: list[tuple[str, float, MetricLabels]] = field(default_factory=list)
    subject: str = ""
    """Its subject: the id of a call, or the number of a Request. With `event` it identifies the observation in its run.
    """


REPLAYED: Final = "ReplayNamespace"
"""Namespace of executions that the SDK's `Replayer` plays from their histories. It runs the last task as a new one."""
MOST_EMISSIONS: Final = 20_000
"""Observations that a process remembers. The same one comes again within seconds."""


class Emissions:
    """The latest observations that this process has emitted, so that it emits each once.

    A check for replay is not enough. A failed or timed out task runs again. A worker that does not hold the run in
    memory may run the events of a task for a query just before the task, and not as a replay.
    """

    def __init__(self, most: int = MOST_EMISSIONS) -> None:
        self._most = most
        self._emitted: OrderedDict[tuple[str, int, int], object] = OrderedDict()
        """Tasks use it from threads: each access is one atomic operation."""
        self._made: WeakKeyDictionary[object, Counter[int]] = WeakKeyDictionary()

    def is_due(self, observation: Observation, made_by: object, execution: str, *, replays: bool) -> bool:
        """Whether to emit an observation now; it counts as emitted then.

        `made_by`: the workflow's object, which a replay uses too. `execution`: its id.
        """
        identity = hash((observation.event, observation.subject))
        made = self._made.setdefault(made_by, Counter())
        made[identity] += 1
        if replays:
            return False
        now = object()
        if self._emitted.setdefault((execution, identity, made[identity]), now) is not now:
            return False
        if len(self._emitted) > self._most:
            self._emitted.popitem(last=False)
        return True


EMISSIONS: Final = Emissions()
"""The emissions of this process."""


def label_value(text: object, otherwise: str = "other") -> str:
    """Return a name for a label or a field. A longer text, or one that is no word, may be untrusted: it is
    replaced.
    """
    return text if isinstance(text, str) and _WORD.match(text) else otherwise


def name_of(agent: str) -> str:
    """Return an agent's name, which may have several words."""
    return "".join(each if each.isprintable() else " " for each in agent[:60]) or "unknown"


def run_started(agent: str) -> Observation:
    return Observation("run started", fields={"agent": name_of(agent)})


def run_ended(agent: str, status: str, reason: str | None) -> Observation:
    """Return the observation of a run's end. `reason`: why it stopped, or the type of its failure."""
    labels = {"agent": name_of(agent), "status": status, "reason": label_value(reason, "none")}
    level = WARNING if status in ("failed", "refused") else INFO
    return Observation("run ended", level, dict(labels), [("perdure_runs_total", 1, labels)])


def run_reset() -> Observation:
    """Return the observation of a reset. Approval requests that wait are made again."""
    return Observation("run reset", WARNING)


def request_started(agent: str, request: RequestView) -> Observation:
    return Observation(
        "request started",
        DEBUG,
        {
            "request": request.number,
            "agent": name_of(agent),
            "model": label_value(request.model),
            "messages": request.messages,
        },
        subject=str(request.number),
    )


def request_ended(agent: str, request: RequestView, result: RequestResult, first_call: float | None) -> Observation:
    """Return the observation of a counted Request's end; `first_call`: seconds until its first call started."""
    outcome = "answered" if result.problem is None else label_value(result.problem.get("code"))
    by = {"agent": name_of(agent), "model": label_value(request.model)}
    read, wrote = request.usage.prompt_tokens, request.usage.completion_tokens
    counts: list[tuple[str, float, MetricLabels]] = [
        ("perdure_requests_total", 1, {**by, "outcome": outcome}),
        ("perdure_tokens_total", read, {**by, "direction": "prompt"}),
        ("perdure_tokens_total", wrote, {**by, "direction": "completion"}),
    ]
    if request.cost is not None:
        counts.append(("perdure_request_cost_dollars", request.cost, by))
    fields: Fields = {"request": request.number, **by, "outcome": outcome}
    fields |= {"calls": len(result.calls), "prompt_tokens": read, "completion_tokens": wrote}
    if first_call is not None:
        counts.append(("perdure_first_call_seconds", first_call, by))
        fields["first_call_seconds"] = round(first_call, 3)
    level = INFO if result.problem is None else WARNING
    return Observation("request ended", level, fields, counts, str(request.number))


def request_failed(agent: str, request: RequestView, kind: str | None) -> Observation:
    """Return the observation of a Request that no model answered; `kind`: the type of the failure."""
    labels = {"agent": name_of(agent), "model": label_value(request.model), "outcome": "failed"}
    fields: Fields = {"request": request.number, **labels, "code": label_value(kind)}
    return Observation("request failed", WARNING, fields, [("perdure_requests_total", 1, labels)], str(request.number))


def waits_for_model(agent: str, request: RequestView, reason: str) -> Observation:
    """Return the observation of a Request that waits for its model's provider, with the `reason`."""
    fields: Fields = {"request": request.number, "agent": name_of(agent), "model": label_value(request.model)}
    code = reason.replace(" ", "_") if reason in get_args(AwayReason) else label_value(reason)
    return Observation("waits for its model", WARNING, fields | {"code": code}, subject=str(request.number))


def fell_back(number: int, model: str, other: str, kind: str | None) -> Observation:
    """Return the observation of a Request that falls back from `model` to the `other`."""
    fields: Fields = {
        "request": number,
        "model": label_value(model),
        "to": label_value(other),
        "code": label_value(kind),
    }
    counts: list[tuple[str, float, MetricLabels]] = [("perdure_fallbacks_total", 1, {"model": label_value(model)})]
    return Observation("fell back", WARNING, fields, counts, str(number))


def call_ended(call: Call) -> Observation:
    """Return the observation of a call's end, or of a call that ends with its run."""
    fields: Fields = {"call": call.id, "tool": tool_of(call), "outcome": _outcome(call)}
    if call.state.error is not None:
        fields["code"] = label_value(call.state.error.code)
    if call.state.attempts:
        fields["attempts"] = call.state.attempts
    level = {"failed": WARNING, "invalid": WARNING, "skipped": DEBUG, "deferred": DEBUG}.get(call.state.status, INFO)
    return Observation("call ended", level, fields, calls_counted([call]), call.id)


def calls_counted(calls: Iterable[Call]) -> list[tuple[str, float, MetricLabels]]:
    """Return the counts of ended calls, together."""
    found = Counter((tool_of(call), _outcome(call)) for call in calls)
    return [("perdure_calls_total", number, {"tool": tool, "outcome": how}) for (tool, how), number in found.items()]


def _outcome(call: Call) -> str:
    return call.state.status if call.state.ended else "cancelled"


def waiting_observation(call: str, tool: str, *, question: bool, client: bool) -> Observation:
    """Return the observation of a request that waits for a person or the run's client; the `tool` of a plan is empty."""
    if client:
        return Observation("waits for its client", fields={"call": call, "tool": tool}, subject=call)
    fields: Fields = {"call": call, "kind": "question" if question else "approval"}
    return Observation("waits for a person", fields=fields | ({"tool": tool} if tool else {}), subject=call)


def decided(call: str, decision: str | None, by: str, seconds: float) -> Observation:
    """Return the observation of a decision.

    `by`: `person`, `program`, `policy` or `timeout`; of a dropped request `model` or `run`.
    """
    labels = {"decision": label_value(decision), "by": by}
    fields: Fields = {"call": call, **labels, "waited_seconds": round(seconds, 3)}
    return Observation("decided", INFO, fields, [("perdure_approval_wait_seconds", seconds, labels)], call)


def refused(update: str = "") -> Observation:
    """Return the observation of a refused decision. `update`: the id of the update that brought it; a signal has none."""
    counts: list[tuple[str, float, MetricLabels]] = [("perdure_decisions_refused_total", 1, {})]
    return Observation("decision refused", WARNING, counts=counts, subject=update)


def hook_failed(event: str, hook: str) -> Observation:
    """Return the observation of an observing hook's failure; its subject continues (R10.17)."""
    return _hook("hook failed", event, hook, "failed")


def hook_refused(event: str, hook: str) -> Observation:
    """Return the observation of a guarding hook that refused or failed, and so prevented its subject."""
    return _hook("hook refused", event, hook, "refused")


def _hook(words: str, event: str, hook: str, outcome: str) -> Observation:
    labels = {"event": label_value(event), "hook": label_value(hook), "outcome": outcome}
    subject = f"{labels['event']} {labels['hook']}"
    return Observation(words, WARNING, dict(labels), [("perdure_hooks_total", 1, labels)], subject)


def tool_of(call: Call) -> str:
    """Return the tool's name; the name of an unknown tool is replaced, because the model may have made it up."""
    return "unknown" if call.spec.tool is None else label_value(call.spec.tool.name)
