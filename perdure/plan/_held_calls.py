"""Held calls: the plan continues under the next Request after a new message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from perdure.errors import CallError
from perdure.plan._calls import (
    BODY,
    EACH,
    EXECUTED_CALLS_COUNT,
    UNTIL,
    WHILE,
    Call,
    CallStatus,
    Failed,
    Outcome,
    Returned,
)
from perdure.plan._dependency_graph import DependencyGraph
from perdure.plan._loops import Loops
from perdure.plan._scheduler import Scheduler, Slots
from perdure.values.json import Json, dumps, shorten
from perdure.values.limits import CheckBudget

NOT_HELD: Final = "not_held"
"""Code of a call of `keep` that names a call that cannot be kept."""
WRITERS_STAY: Final = "writers-stay"
"""Patch: in runs of 0.2.0 a kept reader of a dropped call that only adds to a value loses the other writers too."""
_REPEATS: Final = frozenset({EACH, UNTIL, WHILE, BODY})


class HeldCalls:
    """The held calls of one plan. A loop is held, kept and dropped with its calls."""

    def __init__(
        self, graph: DependencyGraph, scheduler: Scheduler, slots: Slots, loops: Loops, checks: CheckBudget
    ) -> None:
        self._graph, self._scheduler, self._slots, self._loops, self._checks = graph, scheduler, slots, loops, checks

    @property
    def held(self) -> list[Call]:
        """Return the calls that no Request has kept so far, in the order of the plan."""
        return [call for call in self._scheduler.calls if call.hold.held and not call.state.ended]

    def put_aside(self, call: Call) -> None:
        """Set aside a taken call that does not run yet. Other calls run meanwhile."""
        call.state.status, call.state.started = "waiting", None
        self._slots.give_back(call)

    def hold_back(self) -> None:
        """Hold every call that has not begun, because of a new message, until a Request keeps it or drops it."""
        for call in self._scheduler.calls:
            if call.state.status == "running" and call.hold.queued and not call.spec.safe:
                self.put_aside(call)
            elif call.state.status == "waiting":
                self._slots.give_back(call)  # its client may never return a result
            for inner in self._inside(call):
                inner.hold_back()
            goes_on = call.state.status == "running" and not self._loops.runs(call)  # it begins no iteration while held
            call.hold.held = call.hold.held or not (call.state.ended or goes_on)

    def decide(self, keep: Json, drop: Json) -> Outcome:
        """Keep the first calls as they are, and mark the others to be dropped.

        Running and done calls need no keeping. The outcome tells the model which calls cannot be kept, or dropped.
        """
        known = {call.id: call for call in self._scheduler.calls}
        wrong: list[str] = []
        kept: list[Json] = []
        dropped: list[Json] = []
        for id in drop if isinstance(drop, list) else []:
            call = known.get(id) if isinstance(id, str) else None
            if call is None or not call.hold.held or call.state.ended:
                wrong.append(f"{shorten(id, 60)} is not held, so it cannot be dropped")
            else:
                call.hold.unwanted = True
                dropped.append(call.id)
        for id in keep if isinstance(keep, list) else [] if keep is None else [keep]:
            call = known.get(id) if isinstance(id, str) else None
            if call is None:
                wrong.append(f"there is no call {shorten(id, 60)}")
            elif call.state.ended and call.state.status != "done":
                wrong.append(
                    f"{call.title} has ended: {call.state.status}{f' ({call.state.reason})' if call.state.reason else ''}"
                )
            else:
                kept.append(call.id)
                self.release(call)
        return (
            Failed(CallError.of(NOT_HELD, wrong))
            if wrong
            else Returned({"kept": kept, **({"dropped": dropped} if dropped else {})})
        )

    def release(self, call: Call) -> None:
        """Release a call: it belongs to the running Request's plan now."""
        if call.hold.held and not call.state.ended:
            call.hold.held = call.hold.unwanted = call.hold.pressed = False
            self._scheduler.look_at(self._graph.keep(call))
            for inner in self._inside(call):
                for each in inner.held:
                    inner.release(each)

    def drop(self, reason: str, time: str, calls: Iterable[Call] | None = None) -> list[Call]:
        """Drop these held calls, by default all, without running them. Return the calls dropped, those in loops
        included.

        A loop whose calls still run ends with them. A call that its client has is `unknown`.
        """
        gone = self.held if calls is None else list(calls)
        keeps_others = self._checks.is_patched(WRITERS_STAY)
        self._graph.forget({call.index for call in gone}, keeps_others=keeps_others)
        dropped: list[Call] = []
        for call in gone:
            call.hold.held = False
            for inner in self._inside(call):
                inner.hold_back()  # an iteration may have been opened since
                dropped += inner.drop(reason, time)
            if self._loops.end_early(call.index, reason):
                continue
            call.state.ended_at = time
            status, words = self.judge_unfinished(call, "skipped", reason)
            self._scheduler.give_up(call, status, reason=words)
            dropped.append(call)
        return dropped

    def break_off(self, reason: str, time: str) -> None:
        """End the plan with the run. It is unknown whether running calls took effect (R10.6); other calls do not run."""
        for call in self._scheduler.calls:
            for inner in self._inside(call):
                inner.break_off(reason, time)
            if call.state.ended:
                continue
            call.state.ended_at = time
            status, words = self._judge_effect(
                call, "skipped", f"{reason} while it ran" if call.is_under_way else reason
            )
            self._scheduler.end(call, status, reason=words)

    def judge_unfinished(self, call: Call, status: CallStatus, reason: str) -> tuple[CallStatus, str]:
        """Return the status and the reason of a call that ends without an outcome, although it may be under way."""
        if call.spec.loop is not None or not call.is_under_way or not self._checks.is_patched(EXECUTED_CALLS_COUNT):
            return status, reason
        return self._judge_effect(call, status, f"{reason} while it ran")

    def _judge_effect(self, call: Call, status: CallStatus, reason: str) -> tuple[CallStatus, str]:
        """Return the status and the reason. Both say that it is unknown whether an unsafe call took effect."""
        if call.spec.loop is not None:
            unknown = any(inner.any_unknown for inner in self._inside(call))
        else:
            unknown = call.is_under_way and not call.spec.safe
        return ("unknown", f"{reason}: whether it took effect is not known") if unknown else (status, reason)

    @property
    def any_unknown(self) -> bool:
        """Whether any of them has an unknown effect."""
        return any(call.state.status == "unknown" for call in self._scheduler.calls)

    def _inside(self, call: Call) -> Iterator[HeldCalls]:
        for plan in self._loops.running_of(call) if call.spec.loop is not None else ():
            yield plan.held_calls


def written_anew(held: Iterable[Call], calls: Iterable[Call], *, by_method: bool = True) -> list[Call]:
    """Return the held calls that new calls replace.

    A call that sets an output path of its own replaces all held calls of its tool that set the same path. Any other
    call, such as one that adds to a list, replaces one held call with the same parameters and path.
    `by_method`: whether a call's output method counts. Without it, as in runs of 0.2.0, each call with an output path
    replaces all held calls of its tool with that path.
    """

    def is_by_path(call: Call) -> bool:
        fixed = call.spec.tool is not None and call.spec.tool.output_path is not None
        return bool(call.spec.paths) and not (by_method and (fixed or call.spec.method != "set"))

    calls = list(calls)
    paths = {(call.spec.tool_name, call.spec.paths) for call in calls if is_by_path(call)}
    left = [call for call in calls if not is_by_path(call)]
    found = []
    for call in held:
        by_path = is_by_path(call)
        same = None if by_path else next((each for each in left if _is_same(call, each)), None)
        if same is not None:
            left.remove(same)
        if same is not None or (by_path and (call.spec.tool_name, call.spec.paths) in paths):
            found.append(call)
    return found


def _is_same(call: Call, other: Call) -> bool:
    """Whether both calls have the same tool, output path and parameters, as written or as resolved."""
    if (call.spec.tool_name, call.spec.paths) != (other.spec.tool_name, other.spec.paths):
        return False
    if _looped(call) != _looped(other):
        return False
    written = (dumps(each.spec.written_params, sort_keys=True) for each in (call, other))
    resolved = (dumps(each.inputs.params, sort_keys=True) for each in (call, other))
    return len({*written}) == 1 or len({*resolved}) == 1


def _looped(call: Call) -> str:
    return dumps({key: value for key, value in call.spec.raw.items() if key in _REPEATS}, sort_keys=True)
