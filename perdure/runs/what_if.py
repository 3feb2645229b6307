"""Reports on recorded runs as they would have been under another policy, agent or model (R22.2).

    question = ask_what_if(recorded, Change(policy={"ask": "unsafe"}))

A change of the policy alone calls no model, and takes some milliseconds for each run. A report has no effects: see
`perdure.runs.run_player`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import Field

from perdure.approvals.policy import parse_policy, policy_problems
from perdure.errors import PerdureError, pluralize
from perdure.models.requests import RequestResult
from perdure.models.usage import Price
from perdure.rules import parse_rules
from perdure.runs.agent import Context, parse_agent, with_model
from perdure.runs.diagrams import Drawing, draw_run
from perdure.runs.run_player import (
    UNKNOWN,
    AskedCall,
    ModelQuestion,
    PlayedRun,
    RecordedRun,
    RefusedCall,
    RunSetup,
    differences,
    first_setup,
    plan_graph,
    play_changed,
    play_record,
)
from perdure.tools.tool import resolve_tools
from perdure.values.json import Json, JsonObject, WireModel
from perdure.values.limits import duration_words

OPEN: Final = 0
"""The first Request of a run."""


@dataclass(frozen=True)
class Change:
    """A change against the recorded runs.

    `policy`: the whole `config.approval` in place of the agent's. `rules`: the same of `config.rules`. `agent`: another agent file. `model`: the model of all Requests. `prices`: by
    model, dollars for a million tokens. Raises `DecisionError` for a policy that is not valid, `AgentError` for an agent or rules that are not.
    """

    policy: JsonObject | None = None
    agent: JsonObject | None = None
    model: str | None = None
    prices: Mapping[str, Price] | None = None
    rules: Sequence[JsonObject] | None = None

    def __post_init__(self) -> None:
        if self.policy is not None:
            parse_policy(self.policy)
        if self.agent is not None:
            parse_agent(self.agent)
        if self.rules is not None:
            parse_rules([*self.rules], source="the rules")

    @property
    def asks_models(self) -> bool:
        """Whether Requests may differ from the recorded ones."""
        return self.agent is not None or self.model is not None

    @property
    def models(self) -> list[str]:
        """The models that the change names."""
        models = ((self.agent or {}).get("config") or {}).get("models") or {}
        named = [self.model, models.get("fast"), models.get("smart")]
        return [name for name in named if isinstance(name, str)]

    def setup(self, recorded: RecordedRun) -> RunSetup:
        """Return the setup of a run under the change. Raises `PerdureError` for a tool that the run did not have."""
        before = first_setup(recorded)
        document, prepared = before.document, before.prepared
        if self.agent is not None:
            document = self.agent
            models = (document.get("config") or {}).get("models") or {}
            left_out = [key for key in (before.document.get("config") or {}).get("models") or {} if key not in models]
            if left_out and self.model is None:
                raise PerdureError(
                    f"config.models: the agent file leaves out {', '.join(left_out)}, which the recorded one has. "
                    "Name the models: the worker's own are not in the record"
                )
            known = {tool.activity or tool.name: tool.definition() for tool in prepared.tools}
            known |= {tool.name: tool.definition() for tool in prepared.tools}
            named = Context(parse_agent(document)).tools
            tools = resolve_tools(named, known)
            had = {tool.name: tool for tool in prepared.tools}
            wanted = {name: name for name in named if isinstance(name, str)}
            prepared = prepared.model_copy(
                update={
                    "tools": [had[name] if isinstance(wanted.get(name), str) else tool for name, tool in tools.items()],
                    "models": prepared.models.model_copy(update=models),
                }
            )
        if self.policy is not None:
            document = {**document, "config": {**(document.get("config") or {}), "approval": self.policy}}
        if self.rules is not None:
            document = {**document, "config": {**(document.get("config") or {}), "rules": [*self.rules]}}
        if self.model is not None:
            document = with_model(document, self.model)
            one = {"fast": self.model, "smart": self.model, "policy": "auto"}
            prepared = prepared.model_copy(update={"models": prepared.models.model_copy(update=one)})
        if self.prices:
            prepared = prepared.model_copy(update={"prices": {**self.prices, **prepared.prices}})
        return RunSetup(document, prepared)


class CallNote(WireModel):
    """A call of a report, with the reason why the report has it.

    ```python
    report = await perdure.what_if(Selection(agent="refunds"), policy={"ask": "unsafe"})
    for each in report.runs[0].approvals_added:
        print(each.call, each.tool, each.reason)
    ```
    """

    call: str
    """The call's id; for a plan the Request's number."""
    tool: str
    """Empty for a plan."""
    reason: str


class RunReport(WireModel):
    """The report on one recorded run under a change.

    ```python
    report = await perdure.what_if(Selection(agent="refunds"), policy={"ask": "unsafe"})
    for run in report.runs:
        print(run.run_id, run.differences)
    ```
    """

    run_id: str
    agent: str = ""
    problem: str | None = None
    """The reason why the run could not be played again; then the report has no results."""
    approvals_added: list[CallNote] = Field(default_factory=list)
    """Calls that would have needed a person's approval, or approvals of more people. They are assumed."""
    approvals_removed: list[CallNote] = Field(default_factory=list)
    """Calls that would have needed no approval."""
    refused: list[CallNote] = Field(default_factory=list)
    """The calls that a rule would have refused."""
    allowed: list[CallNote] = Field(default_factory=list)
    """The calls that a rule has refused, and would not have refused."""
    differences: list[str] = Field(default_factory=list)
    """The differences of calls and references, a line each: `-` was, `+` would be."""
    plan_differs: bool = False
    """Whether the plans have other calls or references."""
    output_differs: bool = False
    requests: int = 0
    """Requests of the recorded run."""
    requests_after: int = 0
    """Requests that are known under the change."""
    calls: int = 0
    """Calls of the recorded run."""
    unknown_from: int | None = None
    """The first Request that is unknown; `None`: all are known."""
    unknown_calls: int = 0
    """Calls of the recorded run, or under the change, with unknown results."""
    tokens: int = 0
    tokens_after: int = 0
    cost: float | None = None
    """Dollars; `None`: a price is not known."""
    cost_after: float | None = None
    """Dollars of the known Requests."""
    without_price: list[str] = Field(default_factory=list)
    """The models without a known price, before or after the change."""
    waited: float = 0.0
    """Sum of the seconds that approval requests have waited for people."""
    waited_after: float = 0.0
    """The same without the removed requests; the waits of added requests are not known."""
    without_effect: list[str] = Field(default_factory=list)
    """Parts of the changed policy and rules that name no tool of the agent, a line each: they apply to no call of this run."""
    not_accepted: list[str] = Field(default_factory=list)
    """Changed rules with an unknown tool or parameter that refuse a call of this run, or ask about it, a line each."""
    judged_alone: list[str] = Field(default_factory=list)
    """The changed rules that hold over several runs. In the report they count the calls of each run alone."""

    drawings: list[Drawing] = Field(default_factory=list, exclude=True, repr=False)
    """The drawings of the calls before and after the change. A run that does not differ has none."""

    @property
    def differs(self) -> bool:
        """Whether anything differs, or is unknown."""
        notes = (self.approvals_added, self.approvals_removed, self.refused, self.allowed, self.differences)
        return any(notes) or bool(self.unknown_calls) or self.unknown_from is not None


class WhatIfReport(WireModel):
    """The report on recorded runs under a change: each run, and sums.

    ```python
    report = await perdure.what_if(Selection(agent="refunds", since="30d"), policy={"ask": "unsafe"})
    print(report.added, report.removed, report.refused)
    ```
    """

    runs: list[RunReport] = Field(default_factory=list)

    @property
    def played(self) -> list[RunReport]:
        """The runs that could be played again."""
        return [run for run in self.runs if run.problem is None]

    @property
    def added(self) -> int:
        """The number of approvals that are added."""
        return sum(len(run.approvals_added) for run in self.runs)

    @property
    def removed(self) -> int:
        """The number of approvals that are removed."""
        return sum(len(run.approvals_removed) for run in self.runs)

    @property
    def refused(self) -> int:
        """The number of calls that are refused now."""
        return sum(len(run.refused) for run in self.runs)

    def totals(self) -> JsonObject:
        """Return the sums over all runs that were played."""
        runs = self.played
        costs, after = [run.cost for run in runs], [run.cost_after for run in runs]
        return {
            "runs": len(self.runs),
            "notPlayed": len(self.runs) - len(runs),
            "differ": sum(run.differs for run in runs),
            "approvalsAdded": self.added,
            "approvalsRemoved": self.removed,
            "refused": self.refused,
            "allowed": sum(len(run.allowed) for run in runs),
            "plansDiffer": sum(run.plan_differs for run in runs),
            "outputsDiffer": sum(run.output_differs for run in runs),
            "unknownRuns": sum(run.unknown_from is not None or run.unknown_calls > 0 for run in runs),
            "unknownCalls": sum(run.unknown_calls for run in runs),
            "tokens": sum(run.tokens for run in runs),
            "tokensAfter": sum(run.tokens_after for run in runs),
            "cost": None if None in costs else sum(cost for cost in costs if cost is not None),
            "costAfter": None if None in after else sum(cost for cost in after if cost is not None),
            "waited": round(sum(run.waited for run in runs), 3),
            "waitedAfter": round(sum(run.waited_after for run in runs), 3),
        }

    def total_lines(self) -> Iterator[str]:
        """Yield the sums in words, each line with a title: `runs: 2, 1 differ`."""
        totals = self.totals()
        left_out = f", {totals['notPlayed']:,} not compared" if totals["notPlayed"] else ""
        yield f"runs: {totals['runs']:,}{left_out}, {totals['differ']:,} differ"
        yield (
            f"approvals: {totals['approvalsAdded']:,} added, {totals['approvalsRemoved']:,} removed;"
            f" calls: {totals['refused']:,} newly refused, {totals['allowed']:,} no more"
        )
        yield f"plans: {totals['plansDiffer']:,} differ; outputs: {totals['outputsDiffer']:,} differ"
        costs = totals["cost"], totals["costAfter"]
        cost = "" if None in costs else f"; ${costs[0]:.4f} -> ${costs[1]:.4f}"
        yield f"tokens: {totals['tokens']:,} -> {totals['tokensAfter']:,}{cost}"
        if unpriced := ", ".join(dict.fromkeys(model for run in self.played for model in run.without_price)):
            yield f"no cost: the price of {unpriced} is not known"
        yield f"waiting for people: {_seconds(totals['waited'])} -> {_seconds(totals['waitedAfter'])}"
        yield from self._without_effect()
        for line in dict.fromkeys(line for run in self.played for line in run.not_accepted):
            yield f"not valid in an agent file: {line}"
        for words in dict.fromkeys(words for run in self.played for words in run.judged_alone):
            yield f"judged in each run alone: {words}"
        if totals["unknownRuns"]:
            where = f"{pluralize(totals['unknownCalls'], 'call')} in {pluralize(totals['unknownRuns'], 'run')}"
            yield f"unknown: {where}; tokens and cost count known calls only"

    def _without_effect(self) -> Iterator[str]:
        """Yield the parts of the change that can apply to no run."""
        runs = [{line.partition(": ")[0]: line for line in run.without_effect} for run in self.played]
        for place, line in runs[0].items() if runs else ():
            if all(place in others for others in runs):
                yield f"no effect: {line}"

    def as_json(self) -> JsonObject:
        return {"totals": self.totals(), "runs": [run.as_json() for run in self.runs]}


def ask_what_if(recorded: RecordedRun, change: Change) -> Generator[ModelQuestion, RequestResult | None, RunReport]:
    """Play a recorded run under the change; yield the Requests that the record cannot answer, and return the report.

    An answer of `None` leaves the rest of the run unknown. A run that cannot be played has its reason in `problem`.
    """
    report = RunReport(run_id=recorded.run_id)
    try:
        before = play_record(recorded)
        report.agent = str(first_setup(recorded).document.get("name", ""))
        if wrong := _why_unlike(recorded, before):
            report.problem = f"the record does not replay: {wrong}"
            return report
        setup = change.setup(recorded)
        rules = parse_agent(setup.document).config.rules
        report.judged_alone = [
            rule.words for rule in rules if (rule.is_of_session or rule.is_of_tenant) and rule.key not in before.rules
        ]
        after = yield from play_changed(recorded, setup, before, asks_models=change.asks_models)
    except PerdureError as error:
        report.problem = str(error)
        return report
    _note_problems(report, change, setup, after)
    _compare(report, before, after)
    return report


def _note_problems(report: RunReport, change: Change, setup: RunSetup, after: PlayedRun) -> None:
    """Add each mistake in the changed policy and rules to the report: to `not_accepted` if the rule applied to a call,
    otherwise to `without_effect`.
    """
    config = dict(setup.document.get("config") or {})
    for key, value in (("approval", change.policy), ("rules", change.rules)):
        if value is None:
            config.pop(key, None)  # the recorded run's own, or the other agent's
    refusing = frozenset(each.rule for each in after.refused.values())
    applied = refusing.union(*(each.rules for each in after.asked.values()))
    for problem in policy_problems({**setup.document, "config": config}, setup.prepared.tools, after.tools_below):
        named = [rule for place, rule in enumerate(change.rules or ()) if problem.place == ("config", "rules", place)]
        has_effect = not applied.isdisjoint(rule.key for rule in parse_rules([*named]))
        (report.not_accepted if has_effect else report.without_effect).append(str(problem))


def what_if(recorded: RecordedRun, change: Change) -> RunReport:
    """Return the report on a run, without a model: Requests that only a model could answer are unknown."""
    playing = ask_what_if(recorded, change)
    try:
        next(playing)
        while True:
            playing.send(None)
    except StopIteration as ended:
        report: RunReport = ended.value
        return report


def _why_unlike(recorded: RecordedRun, before: PlayedRun) -> str:
    """Return the first difference between the record and its play; empty if there is none."""
    if recorded.view is None:
        return ""
    was = _document(plan_graph(recorded.view), recorded.view.output)
    return next(iter(differences(was, _document(before.graph, before.output))), "")


def _document(graph: JsonObject, output: Json) -> JsonObject:
    return {**graph, "status": None, "output": output}


def _compare(report: RunReport, before: PlayedRun, after: PlayedRun) -> None:
    known = after.unknown_from
    report.unknown_from = known
    lost = {call["id"] for call in before.graph["calls"] if known is not None and _request(call["id"]) >= known}
    statuses = {call["id"]: call["status"] for call in after.graph["calls"]}
    report.unknown_calls = len(lost | after.unknown)
    report.calls, report.requests, report.requests_after = len(before.graph["calls"]), before.requests, after.requests
    if known is not None:
        report.requests_after = min(report.requests_after, max(0, known - 1))
    gone = lost | after.unknown | {id for id, status in statuses.items() if status in ("skipped", UNKNOWN)}
    report.approvals_added = [
        _call_note(each) for id, each in after.asked.items() if each.assumed or id not in before.asked
    ]
    removed = {
        id
        for id in before.asked
        if id not in before.without_person | {*after.asked}
        and (id not in gone or id in after.started)
        and (known is None or _request(id) < known)
    }
    report.approvals_removed = [_call_note(each) for id, each in before.asked.items() if id in removed]
    report.refused = [_call_note(each) for id, each in after.refused.items() if id not in before.refused]
    report.allowed = [
        _call_note(each)
        for id, each in before.refused.items()
        if id not in after.refused and id not in lost and (id not in gone or id in after.started)
    ]
    was, would_be = (_until(graph, known) for graph in (before.graph, after.graph))
    report.output_differs = known is None and before.output != after.output
    outputs = (None, None) if known is not None else (before.output, after.output)
    report.differences = differences(_document(was, outputs[0]), _document(would_be, outputs[1]))
    report.plan_differs = _written(before, known) != _written(after, known)
    report.tokens, report.tokens_after = before.tokens, after.tokens
    report.cost, report.cost_after = before.cost, after.cost
    report.without_price = list(dict.fromkeys([*before.without_price, *after.without_price]))
    waited = {id: seconds for id, seconds in before.waited.items() if id not in before.without_person}
    report.waited = sum(waited.values())
    if report.differs:
        report.drawings = [draw_run(played.view) for played in (before, after) if played.view is not None]
    report.waited_after = sum(seconds for id, seconds in waited.items() if id not in removed)


def _request(id: str) -> int:
    number = id.partition(".")[0]
    return int(number) if number.isdigit() else OPEN


def _written(played: PlayedRun, known: int | None) -> JsonObject:
    return {id: raw for id, raw in played.written.items() if known is None or _request(id) < known}


def _until(graph: JsonObject, request: int | None) -> JsonObject:
    """Return the calls of the Requests before this one, and their edges."""
    if request is None:
        return graph
    return {
        "calls": [call for call in graph["calls"] if _request(call["id"]) < request],
        "edges": [edge for edge in graph["edges"] if _request(edge[1]) < request],
    }


def _call_note(each: AskedCall | RefusedCall) -> CallNote:
    return CallNote(call=each.id, tool=each.tool, reason=each.reason)


def _seconds(seconds: float) -> str:
    return duration_words(seconds) if seconds >= 60 else f"{seconds:.1f} s"
