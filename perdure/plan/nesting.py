"""A plan and the plans of its loops' iterations, seen as one (R16.5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from perdure.plan.calls import Call
from perdure.plan.edges.cycles import Edge
from perdure.plan.edges.wiring import Wiring
from perdure.plan.loops.inside import Loops
from perdure.plan.settling import Settling


class Nesting:
    """What a plan tells of all its calls, those in its loops among them."""

    calls: list[Call]
    _loops: Loops
    _wiring: Wiring
    _settling: Settling

    def iterations(self) -> Iterator[Self]:
        """The plans of those of all its loops that were begun."""
        for plan in self._loops.iterations():
            assert isinstance(plan, type(self))
            yield plan

    def home(self, call: Call) -> Self:
        """The plan that the call stands in: this one, or that of an iteration inside it."""
        plan = self
        for index, number in zip(call.place[:-1:2], call.place[1::2], strict=True):
            inner = plan._loops.all[index].plans[number]
            assert isinstance(inner, type(self))
            plan = inner
        return plan

    def made(self) -> Iterator[Call]:
        """All calls that there are, those of a loop's iterations behind it."""
        for call in self.calls:
            yield call
            for plan in self._loops.of(call):
                yield from plan.made()

    def written(self) -> Iterator[Call]:
        """The calls as written, those of a body behind its loop."""
        for call in self.calls:
            yield from call.written()

    @property
    def count(self) -> int:
        """How many were made."""
        return len(self.calls) + sum(plan.count for plan in self._loops.iterations())

    @property
    def done(self) -> int:
        """How many of them ended well."""
        return self._settling.done + sum(plan.done for plan in self._loops.iterations())

    def edges(self) -> list[Edge]:
        """Writer, reader and what the reader reads, in the order of the readers."""
        return list(self._wiring.edges())

    def named_edges(self) -> list[tuple[str, str, str]]:
        """The same with call ids and the reference's text, those of iterations behind."""
        own = [(self.calls[writer].id, self.calls[reader].id, str(what)) for writer, reader, what in self.edges()]
        return [*own, *(edge for plan in self._loops.iterations() for edge in plan.named_edges())]
