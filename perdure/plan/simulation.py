"""A dry run of a plan: what would run when, in parallel, and what would need approval (R5.6)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from perdure.errors import CallError
from perdure.plan.calls import Call, Status
from perdure.plan.outcomes import Failed, Outcome, Returned
from perdure.plan.plan import Plan
from perdure.tools.tool import Tool
from perdure.values.jsons import Json
from perdure.values.paths import UNKNOWN

DEFAULT_DURATION: Final = 1.0
"""Seconds for a tool of which no duration is known."""


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a dry run. Times are seconds from the plan's start; `None` when it would not run."""

    call: Call
    level: int
    """1 for what waits for no other call; else one more than the highest level that it waits for."""
    start: float | None
    end: float | None
    asks: bool
    """Whether a person would be asked before it."""

    @property
    def status(self) -> Status:
        return self.call.status


@dataclass(frozen=True, slots=True)
class Simulation:
    steps: Sequence[Step]
    makespan: float
    """Seconds from the first start to the last end, with all that can run in parallel doing so."""
    total: float
    """Seconds if one call ran after the other."""

    def levels(self) -> dict[int, list[Step]]:
        """The calls that would run, by level."""
        levels: dict[int, list[Step]] = {}
        for step in sorted(self.steps, key=lambda step: step.level):
            if step.start is not None:
                levels.setdefault(step.level, []).append(step)
        return levels


def simulate(
    plan: Plan,
    calls: Iterable[Json],
    *,
    durations: Mapping[str, float] | None = None,
    assume: Mapping[str, str] | None = None,
    asks: Callable[[Call], bool] = lambda call: call.tool is not None and call.tool.dangerous,
) -> Simulation:
    """Play the calls on an empty plan made with `dry_run=True`.

    `durations`: seconds by tool name, before the tools' own and `DEFAULT_DURATION`. `assume`: call id → `failed`, or the
    alternative of its output path that it takes; all other calls are taken to succeed. `asks`: whether a
    person would be asked about a call; by default about what is dangerous.
    """
    for raw in calls:
        plan.add(raw)
    plan.close()
    known, assumed = durations or {}, assume or {}
    starts: dict[int, float] = {}
    ends: dict[int, float] = {}
    running: list[tuple[float, int]] = []
    now = 0.0
    while True:
        for call in plan.take_ready():
            starts[call.index] = now
            heapq.heappush(running, (now + _duration(call.tool, known), call.index))
        if not running:
            break
        now, index = heapq.heappop(running)
        ends[index] = now
        plan.end(plan.calls[index], _outcome(assumed.get(plan.calls[index].id)))
    levels = _levels(plan)
    steps = [
        Step(
            call=call,
            level=levels[call.index],
            start=starts.get(call.index),
            end=ends.get(call.index),
            asks=call.index in starts and call.tool is not None and asks(call),
        )
        for call in plan.calls
    ]
    return Simulation(steps, makespan=now, total=sum(ends[index] - starts[index] for index in ends))


def _duration(tool: Tool | None, known: Mapping[str, float]) -> float:
    if tool is None or tool.latent:
        return 0.0
    return known.get(tool.name, DEFAULT_DURATION if tool.duration is None else tool.duration)


def _outcome(assumed: str | None) -> Outcome:
    if assumed == "failed":
        return Failed(CallError("assumed", "assumed to fail"))
    return Returned(UNKNOWN, assumed)


def _levels(plan: Plan) -> list[int]:
    """Level of each call: calls that end in a ring, or wait for one, stay at the level that they are known to have."""
    waits: dict[int, list[int]] = {}
    for writer, reader, _ in plan.edges():
        waits.setdefault(reader, []).append(writer)
    levels = [0] * len(plan.calls)
    for start in range(len(levels)):
        stack = [start]
        while stack:
            index = stack[-1]
            if levels[index] == 0:
                levels[index] = -1  # being visited: a writer found at -1 closes a ring
                stack.extend(writer for writer in waits.get(index, ()) if levels[writer] == 0)
            else:
                stack.pop()
                if levels[index] == -1:
                    levels[index] = 1 + max((levels[writer] for writer in waits.get(index, ())), default=0)
                    levels[index] = max(levels[index], 1)
    return levels
