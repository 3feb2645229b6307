"""A dry run of a plan: levels, parallel calls, approvals, and the estimated makespan."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from perdure.errors import CallError
from perdure.plan._calls import Assumptions, Call, CallStatus, Failed, LoopForm, Outcome, Returned
from perdure.plan._loop_spec import LET
from perdure.plan._plan import Plan
from perdure.tools.tool import Tool
from perdure.values.json import Json
from perdure.values.references import UNKNOWN, show

DEFAULT_DURATION: Final = 1.0
"""Seconds for a tool without a known duration."""


@dataclass(frozen=True, slots=True)
class SimulatedCall:
    """One call of a dry run. Times are seconds from the plan's start; `None` if it would not run."""

    call: Call
    level: int
    """1 for a call that waits for no other call; else one more than the highest level that it waits for."""
    start: float | None
    end: float | None
    asks: bool
    """Whether the call, or a call of its body, needs approval."""
    times: int = 1
    """The number of iterations of a loop; 1 also if it is unknown."""
    guessed: bool = False
    """Whether the number of iterations is unknown: set it by `len(†state.x)=12`, or by the call's id."""
    inside: Simulation | None = None
    """The simulation of one iteration, for a loop."""

    @property
    def status(self) -> CallStatus:
        return self.call.state.status


@dataclass(frozen=True, slots=True)
class Simulation:
    steps: Sequence[SimulatedCall]
    makespan: float
    """Seconds from the first start to the last end, with all possible calls in parallel."""
    total: float
    """Seconds if the calls ran one after the other."""

    def levels(self) -> dict[int, list[SimulatedCall]]:
        """Return the calls that would run, by level."""
        levels: dict[int, list[SimulatedCall]] = {}
        for step in sorted(self.steps, key=lambda step: step.level):
            if step.start is not None:
                levels.setdefault(step.level, []).append(step)
        return levels


def most_at_once(steps: Sequence[SimulatedCall]) -> int:
    """Return the largest number of these calls that would run at one time."""
    spans = [(step.start, step.end) for step in steps if step.start is not None and step.end is not None]
    starts = {start for start, _ in spans}
    return max((sum(start == now or start < now < end for start, end in spans) for now in starts), default=0)


def simulate(
    plan: Plan,
    calls: Iterable[Json],
    *,
    durations: Mapping[str, float] | None = None,
    assume: Mapping[str, str] | None = None,
    asks: Callable[[Call], bool] = lambda call: call.spec.tool is not None and call.spec.tool.dangerous,
) -> Simulation:
    """Simulate the calls on an empty plan made with `dry_run=True`.

    `durations`: seconds by tool name, before the tools' own and `DEFAULT_DURATION`. `assume`: call id → `failed`, or
    the alternative of its output path that it takes, `true` or `false` for its condition, or a number of iterations;
    `len(†state.x)` → a number of items. All other calls are assumed to succeed, unknown conditions to hold, and loops
    to run once. A formula is also unknown once others have taken 150,000 steps. `asks`: whether a call needs approval;
    by default, whether it is dangerous.
    """
    assumed, outcomes = Assumptions(), {}
    for what, value in (assume or {}).items():
        if not assumed.take(what, value):
            outcomes[what] = value
    plan.assume(assumed)
    for raw in calls:
        plan.add(raw)
    plan.close()
    return _Player(durations or {}, outcomes, assumed, asks).play(plan)


class _Player:
    def __init__(
        self,
        durations: Mapping[str, float],
        outcomes: Mapping[str, str],
        assumed: Assumptions,
        asks: Callable[[Call], bool],
    ) -> None:
        self._durations, self._outcomes, self._assumed, self._asks = durations, outcomes, assumed, asks

    def play(self, plan: Plan) -> Simulation:
        """Simulate a dry run's plan with all its calls."""
        starts: dict[int, float] = {}
        ends: dict[int, float] = {}
        rounds: dict[int, tuple[int, bool, Simulation]] = {}
        running: list[tuple[float, int]] = []
        now = 0.0
        while True:
            for call in plan.take_ready():
                starts[call.index] = now
                if call.spec.loop is not None:
                    rounds[call.index] = (
                        *self._times(call, call.spec.loop),
                        self.play(plan.dry_iteration(call, call.spec.loop)),
                    )
                heapq.heappush(running, (now + self._takes(plan, call, rounds), call.index))
            if not running:
                break
            now, index = heapq.heappop(running)
            ends[index] = now
            plan.end(plan.calls[index], self._end(plan.calls[index], rounds))
        levels = _levels(plan)
        steps = [
            SimulatedCall(
                call,
                levels[call.index],
                starts.get(call.index),
                ends.get(call.index),
                self._needs_approval(call, rounds) if call.index in starts else False,
                *rounds.get(call.index, ()),
            )
            for call in plan.calls
        ]
        total = sum(
            rounds[index][0] * rounds[index][2].total if index in rounds else ends[index] - starts[index]
            for index in ends
        )
        return Simulation(steps, makespan=now, total=total)

    def _times(self, call: Call, loop: LoopForm) -> tuple[int, bool]:
        """Return the number of iterations of a loop, and whether it is a guess."""
        known = self._assumed.counts.get(call.id)
        if known is None:
            known = None if call.inputs.items is None else len(call.inputs.items)
        if known is None:
            known = self._assumed.length(loop.each)
        return (1, True) if known is None else (known, False)

    def _takes(self, plan: Plan, call: Call, rounds: Mapping[int, tuple[int, bool, Simulation]]) -> float:
        if call.spec.loop is None:
            return _duration(call.spec.tool, self._durations)
        times, _, inside = rounds[call.index]
        parallel = min(call.spec.loop.parallel if call.spec.loop.kind == "each" else 1, max(times, 1))
        # At least the time of its iterations in their slots, and that of all its calls with the maximum in parallel.
        return max(
            -(-times // parallel) * inside.makespan,
            times * inside.total / (plan.parallel or math.inf),
            times * _alone(inside),
        )

    def _end(self, call: Call, rounds: Mapping[int, tuple[int, bool, Simulation]]) -> Outcome:
        outcome = _outcome(self._outcomes.get(call.id))
        if call.spec.loop is None or not isinstance(outcome, Returned):
            return outcome
        times, guessed, _ = rounds[call.index]
        if call.spec.loop.kind == "each" and not guessed:
            paths = [path for paths in call.spec.paths[:1] for path in paths]
            self._assumed.lengths |= {show(path): times for path in paths}
        return Returned(UNKNOWN, outcome.branch, parts=dict.fromkeys(call.spec.loop.writes, UNKNOWN))

    def _needs_approval(self, call: Call, rounds: Mapping[int, tuple[int, bool, Simulation]]) -> bool:
        if call.index in rounds:
            return any(step.asks for step in rounds[call.index][2].steps)
        return call.spec.tool is not None and call.spec.tool is not LET and self._asks(call)


def _alone(inside: Simulation) -> float:
    """Return the longest sum of seconds of calls that exclude each other."""
    alone: dict[str, float] = {}
    for step in inside.steps:
        group = None if step.call.spec.tool is None or step.inside is not None else step.call.spec.tool.exclusive_group
        if group is not None and step.start is not None and step.end is not None:
            alone[group] = alone.get(group, 0.0) + step.end - step.start
    return max(alone.values(), default=0.0)


def _duration(tool: Tool | None, known: Mapping[str, float]) -> float:
    if tool is None or tool.latent:
        return 0.0
    return known.get(tool.name, DEFAULT_DURATION if tool.duration is None else tool.duration)


def _outcome(assumed: str | None) -> Outcome:
    if assumed == "failed":
        return Failed(CallError("assumed", "assumed to fail"))
    return Returned(UNKNOWN, assumed)


def _levels(plan: Plan) -> list[int]:
    """Return the level of each call. Calls on a cycle, or that wait for one, keep the level known so far."""
    waits: dict[int, list[int]] = {}
    for writer, reader, _ in plan.edges():
        waits.setdefault(reader, []).append(writer)
    levels = [0] * len(plan.calls)
    for start in range(len(levels)):
        stack = [start]
        while stack:
            index = stack[-1]
            if levels[index] == 0:
                levels[index] = -1  # being visited: a writer found at -1 closes a cycle
                stack.extend(writer for writer in waits.get(index, ()) if levels[writer] == 0)
            else:
                stack.pop()
                if levels[index] == -1:
                    levels[index] = 1 + max((levels[writer] for writer in waits.get(index, ())), default=0)
                    levels[index] = max(levels[index], 1)
    return levels
