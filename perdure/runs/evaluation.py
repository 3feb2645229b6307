"""Evaluations: an agent runs over the cases of a dataset, and evaluators score each run (R22.3).

The workflow `Evaluation` starts an `EvaluatedRun` for each case, model and repetition. That one starts the run, and an activity scores it when
it has ended. Only the scores travel back, so that the history of an evaluation stays small. `config.evaluate` scores finished runs of
production by the same `EvaluatedRun`, which then starts no run (R22.4).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Final, Literal, Self, TypeAlias

from pydantic import Field, ValidationError, model_validator

from perdure.errors import SettingsError
from perdure.runs.agent import Evaluate, parse_agent
from perdure.runs.events import JournalEntry, clip_value
from perdure.runs.ledger import ReservedAmount
from perdure.runs.wire import RunInput
from perdure.values.json import Json, JsonObject, Packed, WireModel, dumps, pack, shorten
from perdure.values.limits import (
    MAX_EVALUATED,
    MAX_EVALUATION,
    MAX_EVENT_DATA,
    MAX_ID,
    MAX_SENT,
    MAX_STORED,
    Seconds,
    bytes_text,
)
from perdure.values.problems import first_problem

EVALUATION_WORKFLOW: Final = "Evaluation"
EVALUATED_RUN_WORKFLOW: Final = "EvaluatedRun"
SCORE_ACTIVITY: Final = "perdure.score"
CHECK_EVALUATORS_ACTIVITY: Final = "perdure.check_evaluators"
PROGRESS_QUERY: Final = "progress"
SCORES_FORM: Final = 1
"""Form of packed `RunScores`."""
BAD_EVALUATORS: Final = "BadEvaluators"
"""Type of the failure of an evaluation with evaluators that the worker does not have."""
NOT_SCORED: Final = "not scored"
"""The status of a run that could not be scored."""
Z: Final = 1.96
"""Standard deviations of a confidence interval of 95 %."""
_ABOUT: Final = 2_000
"""Bytes of a run's input without its agent and case."""
LONGEST_REASON: Final = 300
"""Characters of the reason that an evaluator gives."""
LONGEST_OUTPUT: Final = 500
"""Characters of an output that a score keeps; the run has the whole output."""

Decide: TypeAlias = Literal["approve", "reject", "wait"]


class EvaluationCase(WireModel):
    """One case of a dataset: an input, and the expected result of the run."""

    name: str
    inputs: Json = None
    has_input: bool = False
    messages: list[JsonObject] = Field(default_factory=list)
    """The conversation with which the run begins, in place of an input: that of the session whose run was recorded."""
    expected_output: Json = None
    metadata: Json = None
    """`sender` and `context` in it are those of the run's start."""
    evaluators: list[Json] = Field(default_factory=list)

    @property
    def sender(self) -> str:
        """The person for whom the case runs; empty: nobody."""
        sender = self.metadata.get("sender") if isinstance(self.metadata, dict) else None
        return sender if isinstance(sender, str) else ""


class EvaluationPlan(WireModel):
    """The plan of an evaluation: an agent, models and cases."""

    name: str
    """The dataset's name."""
    agent: JsonObject
    delegates: dict[str, JsonObject] = Field(default_factory=dict)
    models: list[str] = Field(default_factory=lambda: [""])
    """Models to compare; `""` is the agent's own choice."""
    cases: list[EvaluationCase]
    evaluators: list[Json] = Field(default_factory=list)
    """Evaluators of all cases."""
    repeat: int = Field(default=1, ge=1)
    parallel: int = Field(default=8, ge=1)
    timeout: Seconds = 3600.0
    """Seconds of one run, people included; then it counts as not passed."""
    decide: Decide = "reject"
    """The decision about calls that ask a person."""
    tenant: str = ""
    id: str = ""

    @property
    def total(self) -> int:
        """The number of runs."""
        return len(self.cases) * len(self.models) * self.repeat

    @property
    def at_once(self) -> int:
        """The most runs that start in one workflow task: `parallel`, or fewer where their inputs have more bytes than one task may send."""
        largest = max((len(case.model_dump_json()) for case in self.cases), default=0)
        size = len(dumps([self.agent, self.delegates, self.evaluators]).encode(errors="replace")) + 4 * largest
        return max(1, min(self.parallel, MAX_SENT // (size + _ABOUT)))

    def place(self, index: int) -> tuple[int, int, int]:
        """Return the places of case and model, and the number of the repetition, of the run at `index`."""
        rest, number = divmod(index, self.repeat)
        case, model = divmod(rest, len(self.models))
        return case, model, number

    def check(self) -> None:
        """Raise `SettingsError` for an evaluation without a case or with too many runs, and for a case that no run
        accepts; `AgentError` for an invalid agent.
        """
        if not self.cases:
            raise SettingsError(f"the dataset {self.name!r} has no cases")
        names = [case.name for case in self.cases]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise SettingsError(f"two cases of the dataset {self.name!r} have the name {twice!r}")
        if self.total > MAX_EVALUATED:
            raise SettingsError(f"{self.total:,} runs are too many: the limit of one evaluation is {MAX_EVALUATED:,}")
        if (size := len(self.model_dump_json().encode())) > MAX_EVALUATION:
            most = bytes_text(MAX_EVALUATION)
            raise SettingsError(f"agent and cases have {bytes_text(size)}; the limit is {most}: split the dataset")
        if len(scored_id(f"{self.id}-{self.total}").encode(errors="replace")) > MAX_ID:
            raise SettingsError(f"the id {shorten(self.id, 60)} is too long: the runs' ids begin with it")
        parse_agent(self.agent)
        for place, case in enumerate(self.cases):
            try:
                evaluated_run(self, place * len(self.models) * self.repeat, self.agent)
            except ValidationError as error:
                raise SettingsError(f"the case {shorten(case.name, 60)} is not valid: {first_problem(error)}") from None


class RunScore(WireModel):
    """The score of one run: the results of its evaluators, and its cost.

    ```python
    if (score := await run.score()) is not None:
        print(score.passed, score.assertions, score.scores)
    ```
    """

    case: int = 0
    """The place of the case in the dataset."""
    model: int = 0
    """The place of the model in the evaluation."""
    number: int = 0
    """The repetition, from 0."""
    run_id: str = ""
    status: str = "failed"
    """The status of the run, or `NOT_SCORED`."""
    error: str = ""
    """The reason why the run failed, or was not scored."""
    output: str = ""
    """The beginning of the output."""
    requests: int = 0
    tokens: int = 0
    cost: float | None = None
    """Dollars; `None`: a price is not known."""
    seconds: float = 0.0
    """Seconds from the run's start to its end."""
    assertions: dict[str, bool] = Field(default_factory=dict)
    """By evaluator whether its condition holds."""
    scores: dict[str, float] = Field(default_factory=dict)
    """By evaluator the number that it returned."""
    labels: dict[str, str] = Field(default_factory=dict)
    reasons: dict[str, str] = Field(default_factory=dict)
    """By evaluator the reason that it gave."""
    problems: list[str] = Field(default_factory=list)
    """Evaluators that failed, each with its error."""

    @property
    def passed(self) -> bool:
        """Whether the run completed, and every assertion holds."""
        return self.status == "completed" and not self.problems and all(self.assertions.values())

    @property
    def share(self) -> float:
        """The share of assertions that hold; without any, 1 for a run that has completed, else 0."""
        if self.assertions:
            return sum(self.assertions.values()) / len(self.assertions)
        return float(self.status == "completed")

    def event(self, at: str) -> JournalEntry:
        """Return the event of the score. `at`: the time of the score, ISO 8601, UTC."""
        data: JsonObject = {"reason": self.error}
        if self.status != NOT_SCORED:
            kept = {"assertions", "scores", "labels", "reasons", "problems"}
            results = {name: value for name, value in self.model_dump(include=kept).items() if value}
            data = {"share": self.share, "passed": self.passed, **results}
        return JournalEntry(topic="score", phase="end", at=at, data=clip_value(data, MAX_EVENT_DATA)[0])

    def __str__(self) -> str:
        return score_words(self.event("").data)


def score_words(data: JsonObject) -> str:
    """Return the score of a run as one line, from the data of its event."""
    if "share" not in data:
        return f"not scored: {data.get('reason')}"
    held, reasons = data.get("assertions") or {}, data.get("reasons") or {}
    parts = [f"{sum(map(bool, held.values()))} of {len(held)} conditions hold"] if held else []
    parts += [f"{name} does not hold{_because(reasons.get(name))}" for name, holds in held.items() if not holds]
    parts += [f"{name} {value}" for kind in ("scores", "labels") for name, value in (data.get(kind) or {}).items()]
    parts += [f"failed: {problem}" for problem in data.get("problems") or ()]
    return "; ".join(parts) or "no results"


def _because(reason: Json) -> str:
    return f" ({reason})" if reason else ""


class RunScores(WireModel):
    """Scores of runs, as they are packed."""

    scores: list[RunScore] = Field(default_factory=list)


class EvaluationInput(WireModel):
    """The input of the workflow `Evaluation`."""

    plan: EvaluationPlan
    began: int = 0
    """Runs that earlier executions have scored."""
    snapshot: Packed | None = None
    """`RunScores` of the executions before; its form is `SCORES_FORM`."""

    @classmethod
    def go_on(cls, plan: EvaluationPlan, scores: Sequence[RunScore]) -> EvaluationInput:
        """Return the input of the next execution."""
        return cls(plan=plan, began=len(scores), snapshot=pack(RunScores(scores=[*scores]), SCORES_FORM))

    def scores(self) -> list[RunScore]:
        """Return the scores of the executions before."""
        if self.snapshot is None:
            return []
        return self.snapshot.read(RunScores, SCORES_FORM, "the scores of the evaluation").scores


class ScoreInput(WireModel):
    """The input of the activity that scores a finished run."""

    run_id: str
    case: EvaluationCase | None = None
    """`None`: a run of production, which has no case."""
    evaluators: list[Json] = Field(default_factory=list)
    agent: str = ""


class EvaluatedRunInput(WireModel):
    """The input of the workflow `EvaluatedRun`: a run to start, or one that has ended; then its score."""

    score: ScoreInput
    start: RunInput | None = None
    """The run to start; `None`: it has ended."""
    timeout: Seconds = 3600.0
    quota: ReservedAmount | None = None
    """The reservation of this score from the agent's daily limit."""
    tenant: str = ""
    agent: str = ""
    version: str = ""
    """The version of the agent, where its file has one."""
    attributes: list[str] = Field(default_factory=list)
    """Search attributes that the namespace knows."""

    @model_validator(mode="after")
    def _can_start(self) -> Self:
        if self.start is not None and not 0 < (size := len(self.score.run_id.encode(errors="replace"))) <= MAX_ID:
            raise ValueError(f"the id of the run has {size:,} bytes, but must have 1 to {MAX_ID:,}")
        return self


class EvaluationProgress(WireModel):
    """The progress of an evaluation.

    ```python
    progress = await evaluation.progress()
    print(f"{progress.done} of {progress.total}, {progress.passed} passed")
    ```
    """

    total: int
    done: int = 0
    passed: int = 0
    running: list[str] = Field(default_factory=list)
    """Ids of the active runs."""


class PackedScores(WireModel):
    """The result of the workflow `Evaluation`: `RunScores`, packed."""

    scores: Packed


def scored_id(run_id: str) -> str:
    """Return the id of the workflow that scores a run."""
    return f"{run_id}/score"


def evaluated_run(plan: EvaluationPlan, index: int, document: JsonObject) -> RunInput:
    """Return the input of the run at `index`. `document`: the agent file with the run's model.

    The run informs nobody, uses no standing approval, and is not sampled. A call that asks a person is decided by the clock, a second later.
    """
    case = plan.cases[plan.place(index)[0]]
    config = {key: value for key, value in (document.get("config") or {}).items() if key not in ("notify", "evaluate")}
    context = case.metadata.get("context") if isinstance(case.metadata, dict) else None
    decided: JsonObject = {} if plan.decide == "wait" else {"timeout": 1, "on_timeout": plan.decide}
    return RunInput.model_validate(
        {
            "agent": {**document, "config": config},
            "input": case.inputs if case.has_input else None,
            "has_input": case.has_input,
            "approval": decided,
            "delegates": plan.delegates,
            "evaluated": True,
            "free": MAX_STORED,  # the history above holds nothing else
            "whose": {
                "tenant": plan.tenant,
                "sender": case.sender,
                "context": context if isinstance(context, dict) else {},
            },
        }
    )


def scores_a_day(agent: str, evaluate: Evaluate) -> ReservedAmount:
    """Return the reservation of one score from the agent's daily limit."""
    key = hashlib.sha256(dumps(["evaluate", agent]).encode(errors="replace")).hexdigest()[:16]
    title = f"scores of the agent {agent}"
    return ReservedAmount(
        account=f"evaluate-{key}", title=title, amount=1, limit=evaluate.per_day, period="day", unit="scores"
    )


class PassRate(WireModel):
    """The share of runs that passed, with the interval in which the true share is, with a confidence of 95 % (Wilson).

    ```python
    rate = result.totals()[0].rate
    print(f"{rate.rate:.0%} ({rate.low:.0%} to {rate.high:.0%}) of {rate.runs} runs")
    ```
    """

    passed: int
    runs: int

    @property
    def rate(self) -> float:
        """The share, from 0 to 1."""
        return self.passed / self.runs if self.runs else 0.0

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return _wilson(self.passed, self.runs)[0]

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return _wilson(self.passed, self.runs)[1]

    def as_json(self) -> JsonObject:
        return {**super().as_json(), "rate": self.rate, "low": self.low, "high": self.high}


def _wilson(passed: int, runs: int) -> tuple[float, float]:
    """Return Wilson's score interval. Unlike the normal interval, it stays within 0 and 1, and is right for few runs."""
    if not runs:
        return 0.0, 1.0
    share, z = passed / runs, Z * Z
    middle = (share + z / (2 * runs)) / (1 + z / runs)
    half = Z / (1 + z / runs) * math.sqrt(share * (1 - share) / runs + z / (4 * runs * runs))
    low = 0.0 if passed == 0 else max(0.0, middle - half)
    return low, 1.0 if passed == runs else min(1.0, middle + half)


class EvaluationRow(WireModel):
    """The runs of one case with one model, or of all cases with one model, in sum.

    ```python
    for row in result.rows():
        print(row.case, row.model, row.rate.passed, row.tokens)
    ```
    """

    case: str
    """The case's name; empty: all cases."""
    model: str
    """The model's name; empty: the agent's own choice."""
    rate: PassRate
    requests: int = 0
    tokens: int = 0
    cost: float | None = None
    """Dollars; `None`: a price is not known."""
    seconds: float = 0.0
    """Seconds of a run, on average."""
    failed: dict[str, int] = Field(default_factory=dict)
    """By evaluator the number of runs that it did not pass; `run` counts those that did not complete."""
    reasons: list[str] = Field(default_factory=list)
    """The reasons why runs did not pass, each once."""
    scores: dict[str, float] = Field(default_factory=dict)
    """By evaluator the average of its numbers."""

    def as_json(self) -> JsonObject:
        return {**super().as_json(), "rate": self.rate.as_json()}


class ComparedRow(WireModel):
    """One case with one model in two evaluations.

    ```python
    for row in compare(before, after).worse:
        print(row.case, row.before.rate, row.after.rate, row.is_clear)
    ```
    """

    case: str
    model: str
    before: PassRate
    after: PassRate

    @property
    def is_clear(self) -> bool:
        """Whether the intervals do not overlap: the difference is more than chance."""
        return self.after.low > self.before.high or self.after.high < self.before.low

    def as_json(self) -> JsonObject:
        rates = {"before": self.before.as_json(), "after": self.after.as_json()}
        return {**super().as_json(), **rates, "clear": self.is_clear}


class Comparison(WireModel):
    """Two evaluations side by side.

    ```python
    comparison = compare(before, after)
    print([row.case for row in comparison.worse])
    ```
    """

    better: list[ComparedRow] = Field(default_factory=list)
    worse: list[ComparedRow] = Field(default_factory=list)
    same: int = 0
    """The number of cases with the same pass rate."""
    added: list[str] = Field(default_factory=list)
    """Cases that only the later one has."""
    removed: list[str] = Field(default_factory=list)
    total: list[ComparedRow] = Field(default_factory=list)
    """By model, all cases that both have."""
    not_compared: str = ""
    """The reason why no case is compared: no model is in both."""

    def as_json(self) -> JsonObject:
        rows = {name: [row.as_json() for row in getattr(self, name)] for name in ("better", "worse", "total")}
        return {**super().as_json(), **rows}


class EvaluationResult(WireModel):
    """The result of an evaluation: the score of each run.

    ```python
    result = await evaluation.wait()
    for row in result.totals():
        print(row.model, row.rate.rate, row.cost)
    ```
    """

    id: str
    name: str
    agent: str
    models: list[str]
    cases: list[str]
    scores: list[RunScore] = Field(default_factory=list)

    def rows(self) -> list[EvaluationRow]:
        """Return a row for each case and model."""
        return [
            self._row(case, model, [each for each in self.scores if each.case == place and each.model == number])
            for place, case in enumerate(self.cases)
            for number, model in enumerate(self.models)
        ]

    def totals(self) -> list[EvaluationRow]:
        """Return a row for each model, over all cases."""
        return [
            self._row("", model, [each for each in self.scores if each.model == number])
            for number, model in enumerate(self.models)
        ]

    def is_at_least(self, rate: float) -> bool:
        """Whether each model's pass rate is at least this share."""
        return all(row.rate.rate >= rate for row in self.totals())

    def as_json(self) -> JsonObject:
        rows, totals = ([each.as_json() for each in found] for found in (self.rows(), self.totals()))
        return {**super().as_json(), "rows": rows, "totals": totals}

    @classmethod
    def from_json(cls, document: Json) -> EvaluationResult:
        """Return a result that `as_json` has written. Raises `ValidationError` for anything else."""
        if isinstance(document, dict):
            document = {name: value for name, value in document.items() if name not in ("rows", "totals")}
        return cls.model_validate(document)

    def _row(self, case: str, model: str, scores: Sequence[RunScore]) -> EvaluationRow:
        costs, failed, reasons = [each.cost for each in scores], dict[str, int](), list[str]()
        for score in scores:
            if score.status != "completed":
                failed["run"] = failed.get("run", 0) + 1
                reasons.append(score.error or score.status)
            for name in [name for name, holds in score.assertions.items() if not holds]:
                failed[name] = failed.get(name, 0) + 1
                reasons.append(f"{name}: {score.reasons.get(name, 'does not hold')}")
            reasons += score.problems
        return EvaluationRow(
            case=case,
            model=model,
            rate=PassRate(passed=sum(each.passed for each in scores), runs=len(scores)),
            requests=sum(each.requests for each in scores),
            tokens=sum(each.tokens for each in scores),
            cost=None if None in costs else sum(each for each in costs if each is not None),
            seconds=sum(each.seconds for each in scores) / len(scores) if scores else 0.0,
            failed=failed,
            reasons=list(dict.fromkeys(reasons)),
            scores=_averages(scores),
        )


def _averages(scores: Iterable[RunScore]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for score in scores:
        for name, value in score.scores.items():
            found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


def compare(before: EvaluationResult, after: EvaluationResult) -> Comparison:
    """Return which cases became better, and which became worse.

    Rows of the same case and model are compared. Where each result has one model, these are compared, whatever their names.

    ```python
    comparison = compare(before, after)
    print(len(comparison.better), len(comparison.worse))
    ```
    """
    single = len(before.models) == len(after.models) == 1
    compared = Comparison(
        added=[name for name in after.cases if name not in before.cases],
        removed=[name for name in before.cases if name not in after.cases],
    )
    was = {(row.case, "" if single else row.model): row.rate for row in before.rows()}
    sums: dict[str, list[tuple[PassRate, PassRate]]] = {}
    for row in after.rows():
        if (earlier := was.get((row.case, "" if single else row.model))) is None:
            continue
        sums.setdefault(row.model, []).append((earlier, row.rate))
        found = ComparedRow(case=row.case, model=row.model, before=earlier, after=row.rate)
        if row.rate.rate == earlier.rate:
            compared.same += 1
        else:
            (compared.better if row.rate.rate > earlier.rate else compared.worse).append(found)
    for model, rates in sums.items():
        first, second = (
            PassRate(passed=sum(rate.passed for rate in each), runs=sum(rate.runs for rate in each))
            for each in ([one for one, _ in rates], [other for _, other in rates])
        )
        compared.total.append(ComparedRow(case="", model=model, before=first, after=second))
    if not sums and set(before.cases) & set(after.cases):
        was_of, now_of = (", ".join(model or "the agent's own" for model in each.models) for each in (before, after))
        compared.not_compared = f"no model is in both: before {was_of}; now {now_of}"
    return compared
