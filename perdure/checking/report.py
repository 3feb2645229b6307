"""The report on the tasks: a row for each model and dialect, and the `config` that follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.values.json import JsonObject

ENOUGH: Final = 2 / 3
"""The least share of done tasks for a recommended dialect: below it, repairs of plans cost more than plans save."""


@dataclass(frozen=True)
class TaskResult:
    """One task, played by one model in one dialect."""

    model: str
    dialect: str
    task: str
    problems: tuple[str, ...] = ()
    """The problems, one line each; none if the task was done."""
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    cost: float | None = 0.0
    """Dollars; `None` if a price is unknown."""
    calls: int = 0
    most_at_once: int = 0
    """The most calls in one answer."""

    @property
    def passed(self) -> bool:
        return not self.problems

    def as_json(self) -> JsonObject:
        return {
            "name": self.task,
            "passed": self.passed,
            "problems": list(self.problems),
            "requests": self.requests,
            "promptTokens": self.prompt_tokens,
            "completionTokens": self.completion_tokens,
            "seconds": round(self.seconds, 2),
            "cost": self.cost,
        }


@dataclass(frozen=True)
class Row:
    """The results of all tasks of one model in one dialect."""

    model: str
    dialect: str
    played: tuple[TaskResult, ...]

    @property
    def passed(self) -> int:
        return sum(each.passed for each in self.played)

    @property
    def completion_tokens(self) -> int:
        return sum(each.completion_tokens for each in self.played)

    @property
    def seconds(self) -> float:
        """The sum of the tasks' seconds."""
        return sum(each.seconds for each in self.played)

    @property
    def cost(self) -> float | None:
        costs = [each.cost for each in self.played]
        return None if None in costs else sum(cost for cost in costs if cost is not None)

    @property
    def failed(self) -> list[str]:
        return [each.task for each in self.played if not each.passed]

    def as_json(self) -> JsonObject:
        return {
            "model": self.model,
            "dialect": self.dialect,
            "passed": self.passed,
            "of": len(self.played),
            "requests": sum(each.requests for each in self.played),
            "promptTokens": sum(each.prompt_tokens for each in self.played),
            "completionTokens": self.completion_tokens,
            "seconds": round(self.seconds, 2),
            "cost": self.cost,
            "tasks": [each.as_json() for each in self.played],
        }


@dataclass(frozen=True)
class Recommendation:
    config: JsonObject | None
    """The recommended `config` of an agent file; `None` if no dialect is good enough."""
    why: tuple[str, ...]


@dataclass(frozen=True)
class CheckReport:
    """The results of all models and dialects."""

    fast: str
    smart: str
    rows: tuple[Row, ...]
    understands: dict[str, JsonObject] = field(default_factory=dict)
    """Model → the features that its server supports; see `understanding`."""

    @property
    def recommendation(self) -> Recommendation:
        return recommend(self.rows, self.fast, self.smart)

    def as_json(self) -> JsonObject:
        advice = self.recommendation
        return {
            "rows": [row.as_json() for row in self.rows],
            "understands": self.understands,
            "recommendation": {"config": advice.config, "why": list(advice.why)},
        }


def understanding(rows: Sequence[Row], found: JsonObject) -> JsonObject:
    """Return the features that a model's server supports, from its rows and its unsupported features
    (`Endpoints.not_understood`).
    """
    played = [each for row in rows for each in row.played]
    native = [each for each in played if each.dialect == "tools"]
    unknown = found["unknown"]
    forms = (("strict", "json_schema, strict"), ("json_schema", "json_schema"), ("json_object", "json_object"))
    known = next((name for less, name in forms if less not in unknown), "none")
    asked_for = any(each.dialect == "solution" and each.requests for each in played)
    return {
        "responseFormat": known if asked_for or known == "none" else None,
        "refusedOfSomeSchemas": found["refused"],
        "streamOptions": "stream_options" not in unknown,
        "usage": any(each.prompt_tokens for each in played),
        "nativeCalls": any(each.calls for each in native) if native else None,
        "parallelCalls": any(each.most_at_once > 1 for each in native) if native else None,
    }


def recommend(rows: Sequence[Row], fast: str, smart: str) -> Recommendation:
    """Return the dialect with the most done tasks, of equals the one with the fewest tokens, and whether both models
    are needed.
    """
    by_dialect: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_dialect.setdefault(row.dialect, {})[row.model] = row
    if not by_dialect:
        return Recommendation(None, ("no task was run",))
    ranked = sorted(by_dialect, key=lambda dialect: _rank(by_dialect[dialect].values()))
    best = by_dialect[ranked[0]]
    scores = tuple(f"{dialect}: {_scores(by_dialect[dialect].values())}" for dialect in ranked)
    if max(row.passed / len(row.played) for row in best.values()) < ENOUGH:
        return Recommendation(
            None, (*scores, f"no dialect is good enough: less than {ENOUGH:.0%} of the tasks at best")
        )
    config: JsonObject = {"dialect": ranked[0], "models": {"fast": fast, "smart": smart}}
    why = [*scores]
    if len(ranked) > 1 and _passed(best.values()) == _passed(by_dialect[ranked[1]].values()):
        why.append(f"{ranked[0]} passes as many tasks as {ranked[1]} with fewer completion tokens")
    if {fast, smart} <= best.keys() and fast != smart:
        config["models"]["policy"], reason = _policy(best[fast], best[smart])
        why.append(reason)
    why += [f"failed with {row.model} in {row.dialect}: {', '.join(row.failed)}" for row in best.values() if row.failed]
    return Recommendation(config, tuple(why))


def _policy(fast: Row, smart: Row) -> tuple[str, str]:
    if fast.passed >= smart.passed:
        return "fast", f"policy fast: {smart.model} passes no more tasks than {fast.model}"
    if fast.passed / len(fast.played) < ENOUGH:
        return "smart", f"policy smart: {fast.model} passes too few tasks"
    return (
        "auto",
        f"policy auto: {smart.model} passes more tasks than {fast.model}, which is good enough for choosing tools",
    )


def _rank(rows: Any) -> tuple[int, int, float]:
    return -_passed(rows), sum(row.completion_tokens for row in rows), sum(row.seconds for row in rows)


def _passed(rows: Any) -> int:
    return sum(row.passed for row in rows)


def _scores(rows: Any) -> str:
    return ", ".join(
        f"{row.passed} of {len(row.played)} with {row.model}, {row.completion_tokens} completion tokens" for row in rows
    )
