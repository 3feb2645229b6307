"""The plan: calls as a data-flow graph, and which of them is ready (section 5).

A plain object that does no I/O. Calls arrive by `add`, in the order of the model's list; a driver takes what is ready,
carries it out, and reports each end. All rules of ordering, branching, skipping and writing are decided here.

    plan.add(call) …  plan.take_ready() → run them → plan.end(call, outcome) …  plan.close()  … until plan.settled

A call that arrived can become ready before the list is closed (R6.3): it binds to what stands before it. Only what nothing
before it offers waits for later calls.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from perdure.errors import CallError, clip
from perdure.plan import refusals
from perdure.plan.calls import Call, find_branch
from perdure.plan.checks import check_call
from perdure.plan.control.iteration import EACH
from perdure.plan.edges.order import AFTER_ID
from perdure.plan.edges.races import find_races, race_text
from perdure.plan.edges.wiring import Wiring
from perdure.plan.explanations import unknown_branch
from perdure.plan.held.keeping import Keeping
from perdure.plan.held.revising import Revising
from perdure.plan.loops.inside import Inside, Loops
from perdure.plan.loops.reading import LET
from perdure.plan.loops.running import Loop, Rounds
from perdure.plan.nesting import Nesting
from perdure.plan.outcomes import Failed, Outcome, Rejected, Returned
from perdure.plan.revisions import adopt, revise
from perdure.plan.settling import Settling
from perdure.plan.slots import Slots
from perdure.plan.writing import write
from perdure.tools.tool import Tool
from perdure.values.jsons import Json, JsonObject
from perdure.values.limits import MAX_PAYLOAD
from perdure.values.limits.steps import PART_STEPS, SHORT_TASKS, Checks
from perdure.values.references import Path
from perdure.values.schemas import Schema
from perdure.values.sources import NOWHERE, Labels, Sources, join
from perdure.values.sources.origins import Known, Origins
from perdure.values.state import State
from perdure.values.texts import Texts


class Plan(Nesting, Revising):
    """The calls of one Request, or of one iteration of a loop in it: `inside` says which.

    `data` holds the value of each kind but `state` that references can name. Writes go to `state`, in the order in which
    the calls end. With `execution="step"` only calls that read nothing of this plan run; the rest is deferred (R5.10).
    `parallel` calls run at once, and with `step` so many at all (R5.12).
    `max_payload` is the bytes that one value may have.
    With `dry_run` results are unknown, so nothing is checked against them (R5.6).
    """

    def __init__(
        self,
        request: int,
        *,
        tools: Mapping[str, Tool],
        state: State,
        data: Mapping[str, Json] | None = None,
        state_schema: Schema | None = None,
        execution: Literal["drain", "step"] = "drain",
        max_calls: int = 500,
        parallel: int | None = None,
        dry_run: bool = False,
        instances: Collection[str] = (),
        max_payload: int = MAX_PAYLOAD,
        inside: Inside | None = None,
        known: Known | None = None,
    ) -> None:
        self.request = request
        self.closed = False
        self.drained = False  # closed to run to its end, whatever `execution` says
        self.state = state
        self.checks = Checks() if inside is None else inside.checks
        """What its calls' schemas were found to say; who drives the plan tells it when a task begins."""
        self.max_calls = max_calls
        self._max_payload = max_payload
        self._tools = tools
        self._state_schema = state_schema
        self.parallel = parallel
        self._inside = inside
        self._slots = Slots(parallel, step=execution == "step") if inside is None else inside.slots
        self._dry_run = dry_run
        self._loops = Loops()
        self._rounds = Rounds() if inside is None else inside.rounds
        self._uncounted = 0  # how many of the list are beyond the first surplus call, and not kept
        self._instances = instances
        self._data = data or {}
        self._wiring = Wiring({**self._data, "state": state.snapshot()}, request)
        self.known = self._known_now(known or Known())
        """Where the values that were there come from, and who has written its calls (R15.1)."""
        self._named = 0  # references, output paths and calls that the calls name
        self._step, texts = execution == "step", Texts(max_payload, state.sizes, self.checks)
        self._settling = Settling(self._wiring, state, self.checks, texts, self.known, step=self._step, dry_run=dry_run)
        self.calls = self._settling.calls
        self.keeping = Keeping(self._wiring, self._settling, self._slots, self._loops)

    def add(self, raw: Json, written: Sources | None = None) -> Call:
        """The next call of the list, which `written` says who has written, where it is not the plan's author. It is checked, bound, and ready at once if nothing holds it (R5.3, R6.6).

        Raises `ValueError` once the plan is closed: nobody would settle the call.
        """
        if self.closed:
            raise ValueError(f"the plan of Request {self.request} is closed")
        index = len(self.calls)
        number = index - self._begin
        named, parts = refusals.names_in(raw)
        self.checks.taken += PART_STEPS * parts
        too_much = refusals.too_many_names(named, self._named, self.max_calls)
        id = f"{self.request}.{number}" if self._inside is None else self._inside.id(index)
        call = self._checked(raw, id, index, self.checks, too_much)
        if number < self.max_calls and too_much is None:
            self._named += named + (len(call.paths) if "_outputPath" not in call.raw else 0)
        self._take_in(call, self.known.written(call.raw) if written is None else written)
        return call

    def _take_in(self, call: Call, written: Sources) -> None:
        number = call.index - self._begin
        call.place = (*(() if self._inside is None else self._inside.place), call.index)
        if number >= self.max_calls:
            refusals.refuse_surplus(call, self.max_calls, first=number == self.max_calls)
        call.origins = Origins(written)
        self._settling.add(call)
        self._keep_what_is_asked()

    def extend(self, raws: Sequence[Json]) -> None:
        """The next calls of the list. Of those beyond `max_calls` the first is kept, to say how many there were (R6.8)."""
        room = max(0, self.max_calls + 1 - self.listed)
        for raw in raws[:room]:
            self.add(raw)
        self._uncounted += max(0, len(raws) - room)

    def _extend_checked(self, forms: Sequence[Call], written: Sources) -> None:
        """The calls of a loop's body, which were checked with the loop and are not checked again in each iteration."""
        assert self._inside is not None
        for index, form in enumerate(forms):
            self._take_in(form.copied(self._inside.id(index), index), written)

    def _checked(
        self, raw: Json, id: str, index: int, checks: Checks | None = None, too_much: str | None = None
    ) -> Call:
        return check_call(
            raw,
            id=id,
            index=index,
            tools=self._tools,
            state_schema=self._state_schema,
            instances=self._instances,
            kinds=self._wiring.base.keys(),
            checks=checks,
            too_much=too_much,
            joined=self._joined,
        )

    def _rechecked(self, raw: Json, id: str, index: int) -> Call:
        """A call that a person would put in the place of one of the plan's."""
        too_much = refusals.too_many_names(refusals.names_in(raw)[0], self._named, self.max_calls)
        return self._checked(raw, id, index, too_much=too_much)

    def close(self, *, drain: bool = False) -> None:
        """No call will arrive any more. `drain` runs what `execution="step"` would defer: nobody will ask again (R6.4)."""
        self.closed, self.drained = True, drain
        if self.listed > self.max_calls:
            surplus = self.calls[self._begin + self.max_calls]
            refusals.refuse_surplus(surplus, self.max_calls, self.listed + self._uncounted)
        if drain:
            self._settling.step = False
            self._slots.drain()
        self._settling.close()
        self.go_on()

    @property
    def held_back(self) -> bool:
        """Whether calls may be ready, and are looked at in the next task: those before them took this one's time (R18.5)."""
        return self._settling.held_back or self._loops.held_back

    def go_on(self) -> None:
        """Look at what was held back."""
        self._settling.go_on()
        ready = self._settling.ready
        surplus = self._slots.surplus(ready) if self._inside is None and self.closed and not self.held_back else []
        for call in surplus:
            ready.remove(call)
            self._settling.end(call, "deferred", reason="step mode: other calls of this plan go first")
        self._settling.go_on()
        self._loops.go_on()
        self._keep_what_is_asked()

    def take_ready(self, time: str = "", *, only_safe: bool = False) -> list[Call]:
        """The calls that are ready and have room beside what runs, now running, with their parameters resolved.

        Of a loop those of its iterations, and not itself: it runs until they have ended (R16.5). What is held is only taken if it is
        safe; with `only_safe` so is everything (R10.5).
        """
        taken: list[Call] = []
        while True:
            own = self._take_own(time, only_safe)
            named = []
            for call in own:
                if self._dry_run or call.far or (call.loop is None and call.tool is not LET):
                    taken.append(call)
                elif call.loop is None:
                    named.append(call)
                else:
                    self._slots.give_back(call)
                    self._begin_loop(self._loop(call))
            inner, over = self._loops.take_ready(time, only_safe=only_safe)
            taken += inner
            for call in named:
                self.end(call, Returned(call.params["value"]), time)
            for loop in over:
                self._end_loop(loop, time)
            if not (named or over):
                return taken

    def _take_own(self, time: str, only_safe: bool) -> list[Call]:
        by_list = self._slots.by_list and self._inside is None
        if by_list and not self.closed and any(node.open for node in self._wiring.nodes):
            return []  # which calls are the first of the list shows at its end
        ready = self._settling.ready
        free = [call for call in ready if call.safe or not (only_safe or call.held)]
        taken = self._slots.take_from(free, inside=self._inside is not None)
        self._settling.running += len(taken)
        for call in taken:
            ready.remove(call)
            self.keeping.release(call)
            call.status, call.started = "running", time
        return taken

    def _loop(self, call: Call) -> Loop:
        """A loop that begins. Each of its iterations is a plan of its own, with all its calls (R16.4)."""
        assert call.loop is not None
        open_plan = partial(self._iteration, call, around := self.values(call))
        return Loop(
            call,
            call.loop,
            open_plan,
            around,
            self.state,
            self.checks,
            self._max_payload,
            self._rounds,
            self.sources_then,
        )

    def _iteration(
        self, call: Call, around: Mapping[str, Json], number: int, kinds: Mapping[str, Json], state: State
    ) -> Plan:
        assert call.loop is not None
        slots = Slots() if self._dry_run else self._slots  # in a dry run the loop itself holds its own
        inside = Inside(call, number, kinds, slots, self.checks, self._rounds, around, self.now, self)
        items = Labels(call.origins.params.get(EACH, NOWHERE))
        base = {**self.known.base, **dict.fromkeys(kinds, items)}
        plan = Plan(
            self.request,
            tools=self._tools,
            state=state,
            data=inside.data(),
            max_calls=self.max_calls,
            max_payload=self._max_payload,
            dry_run=self._dry_run,
            inside=inside,
            known=replace(
                self.known,
                base=base,
                written=lambda _: call.origins.written,
                decided=join(call.decided, items.whole),
            ),
        )
        plan.stand_in(self)
        if self.checks.is_patched(SHORT_TASKS):
            plan._extend_checked(call.loop.forms, call.origins.written)
        else:
            plan.extend(call.loop.raws)
        inside.give(plan.calls[0], items.whole)
        plan.close(drain=True)
        return plan

    def end(self, call: Call, outcome: Outcome, time: str = "") -> None:
        """A running call ended. Its writes are made, and what waited for it may become ready (R4.3, R5.4)."""
        call.ended_at = time
        self._settling.running -= 1
        self._slots.give_back(call)
        if isinstance(outcome, Rejected):
            call.status, call.reason = "rejected", outcome.reason
            error = None
        else:
            call.sources = self._result_sources(call, outcome)
            error = outcome.error if isinstance(outcome, Failed) else self._end_returned(call, outcome, time)
        if error is not None:
            call.status, call.error = "failed", error
            if call.branches:
                value: Json = error.as_json()
                value = [value] if call.method == "concat" else value
                problem = self._write(call, call.paths[-1], value, time)
                if problem is not None:
                    call.error = CallError(error.code, f"{error.message}; nor could that be written: {clip(problem)}")
        self._settling.note_end(call)
        self._settling.go_on()
        self._keep_what_is_asked()

    def hold(self, call: Call) -> None:
        """A call that was taken waits for a person. Others run meanwhile (R7.5)."""
        self.keeping.put_aside(call)

    def room_for(self, call: Call) -> bool:
        """Whether a call that was taken may run beside what runs (R5.12)."""
        return self._slots.free(call)

    def resume(self, call: Call, time: str = "") -> None:
        """It runs now: there has to be room for it. What was held runs by a person's word."""
        self.keeping.release(call)
        self._slots.take(call)
        call.status, call.started = "running", time

    def revised(self, call: Call, raw: JsonObject, kept: JsonObject | None = None) -> Call:
        """A waiting call as a person would have it, checked like the model's own (R7.2).

        What it refers to is read as it stands now, but `kept`, parameters as they were offered, are not read again. Raises `DecisionError` with everything that is wrong with it.
        """
        readers = {str(what) for writer, _, what in self._wiring.edges() if writer == call.index and what != AFTER_ID}
        return revise(
            call,
            raw,
            check=self._rechecked,
            tools=self._tools,
            values=self.now(),
            readers=readers,
            kept=kept,
            texts=Texts(self._max_payload),
            sources=self.sources_now,
        )

    def adopt(self, call: Call, revised: Call) -> None:
        """Put a revised call in the place of the one that waits: what is still to arrive reads what it writes now (R7.2)."""
        adopt(call, revised)
        self._settling.refile(call)

    def races(self, *, ended: bool = False) -> list[str]:
        """Say which calls set one path without an order between them (R5.14); with `ended`, which of them have set it."""
        found = find_races(self.calls, self._wiring.edges(first=True), ended=ended)
        return [race_text(race) for race in found]

    @property
    def settled(self) -> bool:
        """Whether every call has ended and none can arrive: the tick is over (R5.4)."""
        return self._settling.settled

    # How a call ends.

    def _end_returned(self, call: Call, outcome: Returned, time: str) -> CallError | None:
        """Write the result and mark the call done, or invalid (R4.5); an error where the tool chose no real branch."""
        alternative = call.paths[0] if call.paths else ()
        if outcome.branch is not None:
            chosen = find_branch(call, outcome.branch)
            if chosen is None:
                return unknown_branch(call, outcome.branch)
            alternative = chosen
        call.result, call.status = outcome.value, "done"
        if problem := self._write(call, alternative, outcome.value, time, outcome.parts):
            call.status, call.error = "invalid", CallError.of("invalid_write", [problem])
        return None

    def _write(
        self, call: Call, paths: Iterable[Path], value: Json, time: str, parts: Mapping[Path, Json] | None = None
    ) -> str | None:
        schema, checks = self._state_schema, self.checks
        return write(call, paths, value, to=self.state, schema=schema, time=time, checks=checks, parts=parts)
