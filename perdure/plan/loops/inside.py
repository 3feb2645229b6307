"""Where the plan of an iteration stands, and the loops that a plan has begun (R16.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from perdure.plan.calls import Call
from perdure.plan.control.iteration import INDEX, ITEM
from perdure.plan.loops.running import EndedIteration, Iteration, Loop, Rounds
from perdure.plan.slots import Slots
from perdure.values.jsons import Json
from perdure.values.limits.steps import Checks
from perdure.values.references import Reference
from perdure.values.sources import Sources


class Outer(Protocol):
    """What an iteration asks of the plan round it about where values come from (R15.1)."""

    def sources_now(self, reference: Reference) -> Sources: ...
    def sources_then(self, reference: Reference) -> Sources: ...


@dataclass(frozen=True, slots=True)
class Inside:
    """Where the plan of an iteration stands: in a loop, of a plan."""

    loop: Call
    number: int
    kinds: Mapping[str, Json]
    """The item and its place."""
    slots: Slots
    checks: Checks
    rounds: Rounds
    around: Mapping[str, Json]
    """What stood round the loop, by kind, when its plan was made."""
    now: Callable[[], Mapping[str, Json]]
    """The same as it stands now."""
    outer: Outer
    """The plan that the loop is of."""

    @property
    def place(self) -> tuple[int, ...]:
        return (*self.loop.place, self.number)

    def id(self, index: int) -> str:
        """A call's: `1.3[0].1`, or `1.3[0]` of one that loops over itself."""
        assert self.loop.loop is not None
        id = f"{self.loop.id}[{(self.loop.loop.first or 0) + self.number}]"
        return id if self.loop.loop.single else f"{id}.{index}"

    def give(self, call: Call, sources: Sources) -> None:
        """What a delegate that is made for an item reads beside its parameters (R8.5)."""
        form = self.loop.loop
        assert form is not None
        if form.single and form.kind == "each":
            call.given = {ITEM: self.kinds[form.item], INDEX: self.kinds[form.place]}
            call.given_sources = sources

    def data(self) -> dict[str, Json]:
        """What its calls read by reference, beside the state."""
        return {kind: value for kind, value in self.around.items() if kind != "state"} | {**self.kinds}

    def over(self, around: Mapping[str, Json], state: Json) -> dict[str, Json]:
        """What stands round it, with the iteration's own over it."""
        outer = around.get("state")
        whole = {**outer, **state} if isinstance(outer, dict) and isinstance(state, dict) else state
        return {**around, **self.kinds, "state": whole}


@dataclass
class Loops:
    """The loops that a plan has begun, by their calls' indexes."""

    all: dict[int, Loop] = field(default_factory=dict)
    running: dict[int, Loop] = field(default_factory=dict)
    folded: list[Call] = field(default_factory=list)
    """Calls of iterations that have ended since somebody took them, those of loops inside them among them."""

    @property
    def held_back(self) -> bool:
        """Whether something of them is left for the next task (R18.5)."""
        return any(loop.held_back for loop in self.running.values())

    def begin(self, loop: Loop) -> None:
        self.all[loop.call.index] = self.running[loop.call.index] = loop

    def take_ready(self, time: str, *, only_safe: bool = False) -> tuple[list[Call], list[Loop]]:
        """The calls that start now, and the loops that are over."""
        taken = [call for loop in self.running.values() for call in loop.take_ready(time, only_safe=only_safe)]
        for loop in self.running.values():
            self.folded += loop.take_folded()
        over = [loop for loop in self.running.values() if loop.over]
        for loop in over:
            del self.running[loop.call.index]
        return taken, over

    def go_on(self) -> None:
        for loop in self.running.values():
            loop.go_on()

    def stop(self, index: int) -> list[Iteration]:
        """The loop goes no further. Its iterations that run."""
        loop = self.running.pop(index, None)
        return [] if loop is None else list(loop.running.values())

    def runs(self, call: Call) -> bool:
        """Whether it is a loop that has begun, and is not over."""
        return call.index in self.running

    def end_early(self, index: int, reason: str) -> bool:
        """The loop goes no further than what of it runs. Whether it has begun, and is not over yet (R10.5)."""
        loop = self.running.get(index)
        if loop is not None:
            loop.end_early(reason)
        return loop is not None

    def iterations(self) -> Iterator[Iteration]:
        """Those that run, loop by loop."""
        for loop in self.all.values():
            yield from loop.running.values()

    def running_of(self, call: Call) -> list[Iteration]:
        """Those of one call that run, in their order."""
        loop = self.all.get(call.index)
        return [] if loop is None else list(loop.running.values())

    def of(self, call: Call) -> list[Iteration | EndedIteration]:
        """Those of one call that were begun, in their order."""
        loop = self.all.get(call.index)
        return [] if loop is None else list(loop.plans.values())

    @property
    def count(self) -> int:
        """Calls in all iterations."""
        return sum(loop.count for loop in self.all.values())

    @property
    def done(self) -> int:
        """Those of them that ended well."""
        return sum(loop.done for loop in self.all.values())
