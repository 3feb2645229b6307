"""The versions of an agent, compared by their runs (R24.10)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from perdure.client.selection import ListedRun
from perdure.values.json import JsonObject, fields_as_json

__all__ = ["VersionFigures", "compare"]


@dataclass
class VersionFigures:
    """The figures of one version of an agent, from the list of its runs.

    ```python
    for each in await perdure.compare_versions("shopper", since="7d"):
        print(each.version, each.runs, each.completed, each.cost)
    ```
    """

    version: str
    """Empty: the runs of files without a version."""
    runs: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    """Runs that failed, and those whose model refused."""
    stopped: int = 0
    """Runs that were cancelled or terminated, or whose time was over."""
    waiting: int = 0
    """Running runs in which something waits for a person."""
    _tokens: list[int] = field(default_factory=list, repr=False)
    _costs: list[float] = field(default_factory=list, repr=False)
    _seconds: list[float] = field(default_factory=list, repr=False)
    _scores: list[float] = field(default_factory=list, repr=False)

    @property
    def tokens(self) -> float | None:
        """Mean tokens of the runs that have ended; `None`: none has."""
        return _mean(self._tokens)

    @property
    def cost(self) -> float | None:
        """Mean cost in dollars of the ended runs whose cost is known."""
        return _mean(self._costs)

    @property
    def seconds(self) -> float | None:
        """Mean of the seconds from the start to the end, with waits for people."""
        return _mean(self._seconds)

    @property
    def score(self) -> float | None:
        """Mean score of the runs that `config.evaluate` has scored: the share of conditions that hold. `None`: no run has a score."""
        return _mean(self._scores)

    def add_score(self, score: float) -> None:
        """Count the score of a run.

        ```python
        from perdure.client.versions import VersionFigures

        figures = VersionFigures("2")
        figures.add_score(0.5)
        ```
        """
        self._scores.append(score)

    def add(self, run: ListedRun) -> None:
        """Count a run.

        ```python
        from perdure.client.versions import VersionFigures

        figures = VersionFigures("2")
        async for run in perdure.list_runs(Selection(agent="shopper", version="2"), limit=100):
            figures.add(run)
        ```
        """
        self.runs += 1
        self.running += run.status == "running"
        self.completed += run.status == "completed"
        self.failed += run.status in ("failed", "refused")
        self.stopped += run.status in ("cancelled", "terminated", "timed_out")
        self.waiting += run.waiting > 0
        if run.tokens is not None:
            self._tokens.append(run.tokens)
        if run.cost is not None:
            self._costs.append(run.cost)
        if run.ended_at is not None:
            self._seconds.append((run.ended_at - run.started_at).total_seconds())

    def as_json(self) -> JsonObject:
        """Return the figures as `perdure rollout show --json` prints them.

        ```python
        from perdure.client.versions import VersionFigures

        print(VersionFigures("2").as_json())
        ```
        """
        means = {name: getattr(self, name) for name in ("tokens", "cost", "seconds", "score")}
        return fields_as_json(self) | means


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


async def compare(
    runs: AsyncIterator[ListedRun], scores: AsyncIterator[tuple[str, float]] | None = None
) -> list[VersionFigures]:
    """Return the figures of each version among these runs, by version. `scores`: versions with the score of one run each."""
    found: dict[str, VersionFigures] = {}
    async for run in runs:
        version = run.version or ""
        found.setdefault(version, VersionFigures(version)).add(run)
    if scores is not None:
        async for version, score in scores:
            if version in found:
                found[version].add_score(score)
    return [found[version] for version in sorted(found)]
