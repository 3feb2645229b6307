"""A plan and the plans of its loops' iterations, seen as one (R16.5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal, Self

from perdure.plan.calls import Call, errors_of
from perdure.plan.control.guessing import Assumed
from perdure.plan.edges.cycles import Edge
from perdure.plan.edges.wiring import Wiring
from perdure.plan.held.keeping import Keeping
from perdure.plan.loops.inside import Inside, Loops
from perdure.plan.loops.reading import LET, PREVIOUS
from perdure.plan.loops.running import Loop, outside_state
from perdure.plan.outcomes import Failed, Outcome, Returned
from perdure.plan.readiness import with_conditions
from perdure.plan.settling import News, Settling
from perdure.plan.writing import result_sources
from perdure.tools.tool import ASK_PERSON
from perdure.values.instances import values_for
from perdure.values.jsons import Json
from perdure.values.limits.steps import Checks
from perdure.values.paths import UNKNOWN
from perdure.values.references import Missing, Reference
from perdure.values.sources import NOWHERE, Sources, join, join_all
from perdure.values.sources.origins import Known
from perdure.values.state import State, Write


class Nesting:
    """What a plan tells of all its calls, those in its loops among them."""

    calls: list[Call]
    closed: bool
    keeping: Keeping
    checks: Checks
    _loops: Loops
    _wiring: Wiring
    _settling: Settling
    _inside: Inside | None
    state: State
    known: Known
    """Where the values that were there come from, and who has written its calls (R15.1)."""

    def assume(self, assumed: Assumed) -> None:
        """What a dry run goes by."""
        self._settling.assumed = assumed

    def stand_in(self, outer: Nesting) -> None:
        """It is the plan of an iteration: what a dry run goes by, and what is told of its calls, are those of the plan that its loop is of."""
        self._settling.assumed, self._settling.news = outer._settling.assumed, outer._settling.news

    def take_news(self) -> list[News]:
        """What has happened since it was asked last: calls that have ended, those of loops too, and loops that have begun."""
        news = self._settling.news.copy()
        self._settling.news.clear()
        return news

    def dry_iteration(self, call: Call) -> Self:
        """Of a dry run, what one iteration of a loop would be, whatever its item (R16.5)."""
        assert call.loop is not None
        for until in (call.loop.before, call.loop.until):  # whatever it will find
            read = () if until is None else until.template.references()
            call.decided = join_all(
                [call.decided, *(join(self.sources_then(ref), self.sources_now(ref)) for ref in read)]
            )
        kinds = dict.fromkeys((call.loop.place, *([call.loop.item] if call.loop.kind == "each" else [])), UNKNOWN)
        state = outside_state(call)
        if call.loop.kind == "until":
            state.append(Write(path=PREVIOUS.path, value=UNKNOWN))
        return self._iteration(call, self.values(call), 0, kinds, state)

    def _iteration(
        self, call: Call, around: Mapping[str, Json], number: int, kinds: Mapping[str, Json], state: State
    ) -> Self:
        raise NotImplementedError

    def end(self, call: Call, outcome: Outcome, time: str = "") -> None:
        raise NotImplementedError

    def iterations(self) -> Iterator[Self]:
        """The plans of those iterations of its loops that run."""
        for plan in self._loops.iterations():
            assert isinstance(plan, type(self))
            yield plan

    def home(self, call: Call) -> Self:
        """The plan that the call stands in: this one, or that of an iteration inside it."""
        plan = self
        for index, number in zip(call.place[:-1:2], call.place[1::2], strict=True):
            plan = plan._running(index, number)
        return plan

    def _running(self, index: int, number: int) -> Self:
        inner = self._loops.all[index].plans[number]
        assert isinstance(inner, type(self))
        return inner

    def is_held(self, call: Call) -> bool:
        """Whether the call, or a loop that it is in, waits for a Request to keep it (R10.5)."""
        at = (call.place[: 2 * depth + 1] for depth in range((len(call.place) + 1) // 2))
        return any(self._at(place).held for place in at)

    def _at(self, place: tuple[int, ...]) -> Call:
        plan = self
        for index, number in zip(place[:-1:2], place[1::2], strict=True):
            plan = plan._running(index, number)
        return plan.calls[place[-1]]

    def made(self) -> Iterator[Call]:
        """All calls that there are, those of a loop's iterations behind it."""
        for call in self.calls:
            yield call
            for plan in self._loops.of(call):
                yield from plan.made()

    def made_last(self) -> Iterator[Call]:
        """The same from the last to the first."""
        for call in reversed(self.calls):
            for plan in reversed(self._loops.of(call)):
                yield from plan.made_last()
            yield call

    def take_folded(self) -> list[Call]:
        """Calls of iterations that have ended since it was asked last: nothing of them changes any more."""
        folded, self._loops.folded = self._loops.folded, []
        return folded

    def written(self) -> Iterator[Call]:
        """The calls as written, those of a body behind its loop."""
        for call in self.calls:
            yield from call.written()

    def read_at_end(self, reference: Reference) -> Json | Missing:
        """Return what a call at the end of the list would read, once the plan has settled (R6.4). Raises `StateError`."""
        return self._settling.read_at_end(reference)

    def sources_at_end(self, reference: Reference) -> Sources:
        """Return where what `read_at_end` gives comes from (R15.1)."""
        return self._settling.sources_at_end(reference)

    @property
    def count(self) -> int:
        """How many were made."""
        return len(self.calls) + self._loops.count

    @property
    def done(self) -> int:
        """How many of them ended well."""
        return self._settling.done + self._loops.done

    def edges(self) -> list[Edge]:
        """Writer, reader and what the reader reads, in the order of the readers."""
        return list(self._wiring.edges())

    def named_edges(self) -> list[tuple[str, str, str]]:
        """The same with call ids and the reference's text, those of iterations behind."""
        own = [(self.calls[writer].id, self.calls[reader].id, str(what)) for writer, reader, what in self.edges()]
        inside = (plan for loop in self._loops.all.values() for plan in loop.plans.values())
        return [*own, *(edge for plan in inside for edge in plan.named_edges())]

    def newest_edges(self, most: int) -> list[tuple[str, str, str]]:
        """The same, but of those in iterations the newest, `most` at most: costs no more than these, however many there are."""
        blocks: list[list[tuple[str, str, str]]] = []
        for loop in reversed(self._loops.all.values()):
            for plan in reversed(loop.plans.values()):
                if most <= 0:
                    break
                found = plan.newest_edges(most)[-most:]
                blocks.append(found)
                most -= len(found)
        own = [(self.calls[writer].id, self.calls[reader].id, str(what)) for writer, reader, what in self.edges()]
        return [*own, *(edge for block in reversed(blocks) for edge in block)]

    def sources_now(self, reference: Reference) -> Sources:
        """Where what a reference finds now comes from."""
        around = NOWHERE if self._inside is None else self._inside.outer.sources_now(reference)
        return join(self.known.now(reference, self.state.labels), around)

    def sources_then(self, reference: Reference) -> Sources:
        """Where what it found when the plan was made comes from."""
        around = NOWHERE if self._inside is None else self._inside.outer.sources_then(reference)
        return join(self.known.of_kind(reference.kind).at(reference.path), around)

    def _result_sources(self, call: Call, outcome: Returned | Failed) -> Sources:
        """Its tool's and its parameters', and those of the conditions that it is made under. A person's answer is the person's."""
        own = self._own_sources(call, outcome)
        if call.tool is not None and call.tool.activity == ASK_PERSON:
            return own
        return with_conditions(own, call.decided, self.checks)

    def _own_sources(self, call: Call, outcome: Returned | Failed) -> Sources:
        """Its tool's and its parameters'; what its scopes give counts whole, where a run below does not tell better."""
        if isinstance(outcome, Failed) and call.loop is not None:  # its words may hold what a condition has read
            outcome = replace(outcome, sources=join(outcome.sources, self._read_inside(call)))
        if call.tool is LET or (call.loop is not None and not call.loop.single):
            return join(outcome.sources, call.origins.all)
        scoped = call.tool is not None and call.tool.delegate is None and call.tool.scopes
        kinds = [scope.lstrip("†").partition(".")[0] for scope in scoped or ()]
        return result_sources(
            call, join(outcome.sources, join_all(self.sources_then(Reference(kind)) for kind in kinds))
        )

    def _read_inside(self, call: Call) -> Sources:
        """Where all comes from that a loop and the calls in it may have read."""
        read: set[Reference] = set()
        for form in call.written():
            read.update(form.condition.references(), form.template.references())
            for until in (form.loop.until, form.loop.before) if form.loop is not None else ():
                read.update(() if until is None else until.template.references())
        outside = join_all(call.outside_sources.values())
        return join(outside, join_all(join(self.sources_then(each), self.sources_now(each)) for each in read))

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
        return errors_of(self.calls)

    def break_off(self, reason: str, time: str = "") -> None:
        """The run ends while calls may run: what is not done is not run, or nobody knows whether it took effect (R10.6)."""
        self.closed = self._settling.closed = True
        self.keeping.break_off(reason, time)

    def end_all(self, status: Literal["rejected", "skipped"], reason: str, time: str = "") -> None:
        """Every call that has not ended is not run: a person does not want any of it (R7.6), or there is no time (R9.5)."""
        self._settling.ready.clear()
        for call in self.calls:
            if not call.ended:
                for plan in self._loops.stop(call.index):
                    plan.end_all(status, reason, time)
                call.ended_at = time
                self._settling.end(call, status, reason=reason)

    def _begin_loop(self, loop: Loop) -> None:
        self._loops.begin(loop)
        self._settling.news.append((loop.call, "began"))

    def _end_loop(self, loop: Loop, time: str) -> None:
        if not loop.dropped:
            self.end(loop.call, loop.outcome(), time)
            return
        loop.call.ended_at = time
        self._settling.running -= 1
        self._settling.end(loop.call, "skipped", reason=loop.dropped)
