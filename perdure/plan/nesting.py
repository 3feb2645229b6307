"""A plan and the plans of its loops' iterations, seen as one (R16.5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Self

from perdure.plan.calls import Call
from perdure.plan.edges.cycles import Edge
from perdure.plan.edges.wiring import Wiring
from perdure.plan.loops.inside import Inside, Loops
from perdure.plan.loops.reading import LET
from perdure.plan.outcomes import Failed, Returned
from perdure.plan.settling import Settling
from perdure.plan.writing import result_sources
from perdure.values.instances import values_for
from perdure.values.jsons import Json
from perdure.values.references import Reference
from perdure.values.sources import NOWHERE, Sources, join, join_all
from perdure.values.sources.origins import Known
from perdure.values.state import State


class Nesting:
    """What a plan tells of all its calls, those in its loops among them."""

    calls: list[Call]
    _loops: Loops
    _wiring: Wiring
    _settling: Settling
    _inside: Inside | None
    state: State
    known: Known
    """Where the values that were there come from, and who has written its calls (R15.1)."""

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

    def sources_now(self, reference: Reference) -> Sources:
        """Where what a reference finds now comes from."""
        around = NOWHERE if self._inside is None else self._inside.outer.sources_now(reference)
        return join(self.known.now(reference, self.state.labels), around)

    def sources_then(self, reference: Reference) -> Sources:
        """Where what it found when the plan was made comes from."""
        around = NOWHERE if self._inside is None else self._inside.outer.sources_then(reference)
        return join(self.known.of_kind(reference.kind).at(reference.path), around)

    def _result_sources(self, call: Call, outcome: Returned | Failed) -> Sources:
        """Its tool's and its parameters'; what its scopes give counts whole, where a run below does not tell better."""
        if call.tool is LET or (call.loop is not None and not call.loop.single):
            return join(outcome.sources, call.origins.all)
        scoped = call.tool is not None and call.tool.delegate is None and call.tool.scopes
        kinds = [scope.lstrip("†").partition(".")[0] for scope in scoped or ()]
        return result_sources(
            call, join(outcome.sources, join_all(self.sources_then(Reference(kind)) for kind in kinds))
        )

    def now(self) -> Mapping[str, Json]:
        """What stands now, by kind."""
        state = self.state.snapshot()
        if self._inside is None:
            return {**self._wiring.base, "state": state}
        return self._inside.over(self._inside.now(), state)

    def values(self, call: Call) -> Mapping[str, Json]:
        """The value of each kind when the plan was made, as the call's instance sees it."""
        if self._inside is None:
            return values_for(self._wiring.base, call.instance)
        return self._inside.over(self._inside.around, self._wiring.base["state"])

    @property
    def errors(self) -> list[Call]:
        """The calls whose errors go to the model, in the order of the list: no branch took them (R4.3, R6.6)."""
        return [call for call in self.calls if call.error is not None and not call.writes]
