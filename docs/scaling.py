"""What so many runs a second need, from measured figures: `python docs/scaling.py [FIGURES.json] [--rates 1,10,100,10000]`.

Needs nothing but Python. The file has a kind of run in each key (`scaling.json` beside this is the form), and may change what is assumed under
`assume`; docs/scaling.md says where each number comes from.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass, fields
from pathlib import Path

DAY = 86_400


@dataclass(frozen=True)
class Kind:
    """What one run (or message, with its run) takes; measured."""

    worker_cpu_ms: float
    server_cpu_ms: float
    actions: float
    bytes: float
    transitions: float
    """Updates of workflows' state on the server: each is one at a time in its history shard."""
    activities: float
    workflow_tasks: float

    @property
    def requests(self) -> float:
        """Requests to the server: a poll and an answer for each task, and what else is an Action. Computed, not measured."""
        return 2 * (self.activities + self.workflow_tasks) + max(0.0, self.actions - self.activities)


@dataclass(frozen=True)
class Assumed:
    """What no run tells: change it under `assume`."""

    seconds_in_calls: float = 20.0
    """Seconds that a run's Requests and calls take together: each holds a place of a worker so long."""
    places: float = 100.0
    """Of one worker process (`--activities`)."""
    busy: float = 0.6
    """Share of a core that is planned with."""
    retention_days: float = 30.0
    shard_ms: float = 10.0
    """Milliseconds of the database for one transition, in which its shard does nothing else."""
    shard_busy: float = 0.1
    """Share of a shard's time that is planned with, for runs do not come evenly."""
    partition_tasks: float = 67.0
    """Tasks a second of one partition of a task queue."""
    shards: float = 512.0
    """That there are: for the limit alone."""
    partitions: float = 4.0
    cloud_actions: float = 500.0
    cloud_requests: float = 2_000.0
    own_requests: float = 2_400.0
    action_dollars: float = 50.0
    """Of a million Actions in the Cloud: the list price of the first five million of a month. More of them cost less."""
    core_dollars: float = 0.04
    """Of a worker's core, for an hour."""


@dataclass(frozen=True)
class Need:
    """Of so many runs a second."""

    cores: int
    processes: int
    server_cores: int
    partitions: int
    shards: int
    gigabytes: float
    worker_dollars: float
    """A day."""
    action_dollars: float
    """A day, at most."""


def need(kind: Kind, rate: float, assumed: Assumed) -> Need:
    """What `rate` runs a second of this kind need.

    `cores` are the workers'; `processes` as many as have both the cores and the places; `server_cores` without its database; `gigabytes` of
    histories, over the whole retention. The dollars are those of a day, in which the rate never falls.
    """
    cores = _up(rate * kind.worker_cpu_ms / 1_000 / assumed.busy)
    return Need(
        cores=cores,
        processes=max(cores, _up(rate * assumed.seconds_in_calls / assumed.places)),
        server_cores=_up(rate * kind.server_cpu_ms / 1_000 / assumed.busy),
        partitions=max(4, _up(rate * kind.activities / assumed.partition_tasks)),
        shards=2 ** math.ceil(math.log2(max(1.0, rate * _of_shard(kind, assumed)))),
        gigabytes=rate * kind.bytes * DAY * assumed.retention_days / 1e9,
        worker_dollars=cores * 24 * assumed.core_dollars,
        action_dollars=rate * kind.actions * DAY * assumed.action_dollars / 1e6,
    )


def limits(kind: Kind, assumed: Assumed) -> list[tuple[float, str]]:
    """Runs a second at which each limit is reached, the first one first."""
    found = [
        (assumed.busy * 1_000 / kind.worker_cpu_ms, "one worker process, by its core"),
        (assumed.places / assumed.seconds_in_calls, f"one worker process, by its {assumed.places:g} places"),
        (assumed.cloud_actions / kind.actions, f"{assumed.cloud_actions:g} Actions a second (Cloud, a namespace)"),
        (assumed.cloud_requests / kind.requests, f"{assumed.cloud_requests:g} requests a second (Cloud, a namespace)"),
        (assumed.own_requests / kind.requests, f"{assumed.own_requests:g} requests a second (own server, a frontend)"),
        (assumed.partitions * assumed.partition_tasks / kind.activities, f"{assumed.partitions:g} partitions"),
        (assumed.shards / _of_shard(kind, assumed), f"{assumed.shards:g} history shards"),
    ]
    return sorted(found)


def _of_shard(kind: Kind, assumed: Assumed) -> float:
    """Shards for one run a second."""
    return kind.transitions * assumed.shard_ms / 1_000 / assumed.shard_busy


def _up(number: float) -> int:
    return max(1, math.ceil(number))


def kinds_of(figures: dict[str, dict[str, float]]) -> dict[str, Kind]:
    """Those of the file that have all that a kind has; others (who waits, who watches) are not started by the second."""
    names = [each.name for each in fields(Kind)]
    return {
        name: Kind(**{field: found[field] for field in names})
        for name, found in figures.items()
        if name != "assume" and all(field in found for field in names)
    }


def report(figures: dict[str, dict[str, float]], rates: list[float]) -> str:
    """Both tables. Raises `TypeError` for an assumption that there is not."""
    assumed = Assumed(**figures.get("assume", {}))
    lines = [
        "| kind | runs / s | workers' cores | worker processes | server's cores | partitions | history shards | GB kept "
        "| workers, $ a day | Cloud, $ a day |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    kinds = kinds_of(figures)
    for name, kind in kinds.items():
        for rate in rates:
            it = need(kind, rate, assumed)
            lines.append(
                f"| {name} | {rate:,g} | {it.cores:,} | {it.processes:,} | {it.server_cores:,} | {it.partitions:,} | {it.shards:,} "
                f"| {it.gigabytes:,.0f} | {it.worker_dollars:,.0f} | {it.action_dollars:,.0f} |"
            )
    lines += ["", "| kind | limit | reached at runs / s |", "|---|---|--:|"]
    for name, kind in kinds.items():
        lines += [f"| {name} | {what} | {rate:,.1f} |" for rate, what in limits(kind, assumed)]
    return "\n".join(lines)


def rates(text: str) -> list[float]:
    """Runs a second, with commas between. Raises `ValueError`."""
    return [float(rate) for rate in text.split(",")]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="What so many runs a second need, from measured figures.")
    parser.add_argument("figures", nargs="?", type=Path, default=Path(__file__).with_name("scaling.json"))
    parser.add_argument("--rates", type=rates, default="1,10,100,10000", help="runs a second, with commas between")
    given = parser.parse_args()
    try:
        told = report(json.loads(given.figures.read_text(encoding="utf-8")), given.rates)
    except (OSError, ValueError, TypeError, AttributeError, ZeroDivisionError) as error:
        parser.error(f"{given.figures}: {error}")
    print(told)


if __name__ == "__main__":
    main()
