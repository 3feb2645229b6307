"""The plan: calls as a data-flow graph, and the plans of its loops' iterations.

A plain object that does no I/O. Calls arrive by `add`, in the order of the model's list; a driver takes ready calls,
executes them, and reports each end. The plan decides all rules of order, branches, skips and writes.

    plan.add(call) …  plan.take_ready() → run them → plan.end(call, outcome) …  plan.close()  … until plan.settled

A call that arrived can become ready before the list is closed (R6.3): it binds to earlier calls. Only a value that no
earlier call offers waits for later calls.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

from perdure.errors import CallError
from perdure.plan import _structural_errors as structural_errors
from perdure.plan._calls import (
    EACH,
    STEERED_RUNS_GO_ON,
    Assumptions,
    Call,
    LoopForm,
    Outcome,
    RefusedByRule,
    Rejected,
    Returned,
)
from perdure.plan._dependency_graph import AFTER_ID, DependencyGraph, Edge, request_of
from perdure.plan._held_calls import HeldCalls
from perdure.plan._loop_spec import LET, PREVIOUS
from perdure.plan._loops import LoopPlace, Loops, RoundBudget, RunningLoop, outside_state
from perdure.plan._provenance import PlanProvenance
from perdure.plan._requirements import Requirements, requirements_of
from perdure.plan._scheduler import News, Scheduler, Slots
from perdure.plan._state_writer import StateWriter
from perdure.plan._validation import check_call, find_concurrent, find_races, race_text, replace_call, revise
from perdure.tools.tool import KEEP, Tool
from perdure.values.json import Json, JsonObject
from perdure.values.limits import CALL_STEPS, MAX_PAYLOAD, PART_STEPS, SHORT_TASKS, CheckBudget
from perdure.values.provenance import NOWHERE, KnownSources, Labels, Origins, Sources, join
from perdure.values.references import MISSING, UNKNOWN, Missing, Path, Reference, get, overlaps
from perdure.values.schemas import Schema
from perdure.values.state import State, Write, covers, values_for
from perdure.values.templates import TextBudget


class Plan:
    """The calls of one Request, or of one iteration of a loop in it: `inside` says which.

    `data` holds the value of each kind but `state` that references can name. Writes go to `state`, in the order in
    which the calls end. With `execution="step"` only calls that read nothing of this plan run; other calls are deferred
    (R5.10). At most `parallel` calls run at once, and with `step` in total (R5.12). `max_payload` is the maximum of
    bytes of one value. With `dry_run` results are unknown, so nothing is checked against them (R5.6).
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
        inside: LoopPlace | None = None,
        known: KnownSources | None = None,
    ) -> None:
        self.request = request
        self.time = ""
        """The time of the current task."""
        self.closed = False
        self.drained = False  # closed, to run to its end with any `execution`
        self.rejected = False
        """Whether a decision has rejected it as a whole. Calls of earlier Requests may run on."""
        self.state = state
        self.checks = CheckBudget() if inside is None else inside.checks
        """The cache of schema checks for its calls; the driver reports the beginning of each task to it."""
        self.max_calls = max_calls
        self._max_payload = max_payload
        self._tools = tools
        self._state_schema = state_schema
        self.parallel = parallel
        self._inside = inside
        self._slots = Slots(self.checks, parallel, step=execution == "step") if inside is None else inside.slots
        self._dry_run = dry_run
        self._loops = Loops()
        self._rounds = RoundBudget() if inside is None else inside.rounds
        self._begin = 0  # index of the first call of the running Request's list
        self._joined: frozenset[str] = frozenset()  # the calls of earlier Requests
        self._uncounted = 0  # the number of calls beyond the first surplus one, which are not kept
        self._instances = instances
        self._data = data or {}
        self._graph = DependencyGraph({**self._data, "state": state.snapshot()}, request, self.checks)
        outer = None if inside is None else inside.outer
        self.provenance = PlanProvenance(known or KnownSources(), state, self.checks, outer)
        """The provenance of the values that its calls read and return (R15.1)."""
        self._writer = StateWriter(state, state_schema, self.checks)
        self._named = 0  # references, output paths and calls that the calls name
        self._step, texts = execution == "step", TextBudget(max_payload, state.sizes, self.checks)
        self._scheduler = Scheduler(
            self._graph, state, self.checks, texts, self.provenance.known, step=self._step, dry_run=dry_run
        )
        self.calls = self._scheduler.calls
        self.held_calls = HeldCalls(self._graph, self._scheduler, self._slots, self._loops, self.checks)
        """Its held calls."""
        self._read_by_edits: list[tuple[str, str, str]] = []
        """The edges of references in people's edits: writer, edited call and reference."""
        self.continuations: list[tuple[int, set[str]]] = []
        """For each later Request that continues the plan, the index of its first call, and the ids of the calls that had
        ended before it."""

    def data_at(self, reference: Reference) -> Json | Missing:
        """Return the value of a reference to data, such as the input; `MISSING` for one to the state."""
        return MISSING if reference.kind == "state" else get(self._data.get(reference.kind, MISSING), reference.path)

    def add(self, raw: Json, written: Sources | None = None) -> Call:
        """Add the next call of the list. It is checked, bound, and ready at once if it waits for nothing (R5.3, R6.6).

        `written`: the provenance of its text, if the plan's author did not write it. Raises `ValueError` once the plan
        is closed: nothing would settle the call.
        """
        if self.closed:
            raise ValueError(f"the plan of Request {self.request} is closed")
        index = len(self.calls)
        number = index - self._begin
        named, parts = structural_errors.names_in(raw)
        self.checks.taken += PART_STEPS * parts
        if self.checks.is_patched(SHORT_TASKS):
            self.checks.taken += CALL_STEPS
        too_much = structural_errors.too_many_names(named, self._named, self.max_calls)
        id = f"{self.request}.{number}" if self._inside is None else self._inside.id(index)
        call = self._checked(raw, id, index, self.checks, too_much)
        if number < self.max_calls and too_much is None:
            self._named += named + (len(call.spec.paths) if "_outputPath" not in call.spec.raw else 0)
        self._take_in(call, self.provenance.known.written(call.spec.raw) if written is None else written)
        return call

    def _take_in(self, call: Call, written: Sources) -> None:
        number = call.index - self._begin
        call.place = (*(() if self._inside is None else self._inside.place), call.index)
        if number >= self.max_calls:
            structural_errors.refuse_surplus(call, self.max_calls, first=number == self.max_calls)
        call.inputs.origins = Origins(written)
        self._scheduler.add(call)
        self._carry_out_keeps()

    def extend(self, raws: Sequence[Json]) -> None:
        """Add the next calls of the list. Of those beyond `max_calls` the first is kept, with their number (R6.8)."""
        room = max(0, self.max_calls + 1 - self.listed)
        for raw in raws[:room]:
            self.add(raw)
        self._uncounted += max(0, len(raws) - room)

    def _extend_checked(self, inside: LoopPlace, forms: Sequence[Call], written: Sources) -> None:
        """Add the calls of a loop's body. They were checked with the loop, and are not checked again in each
        iteration."""
        for index, form in enumerate(forms):
            self._take_in(Call.of(inside.id(index), index, form.spec), written)

    def _checked(
        self, raw: Json, id: str, index: int, checks: CheckBudget | None = None, too_much: str | None = None
    ) -> Call:
        return check_call(
            raw,
            id=id,
            index=index,
            tools=self._tools,
            state_schema=self._state_schema,
            instances=self._instances,
            kinds=self._graph.base.keys(),
            checks=checks,
            too_much=too_much,
            joined=self._joined,
        )

    def _rechecked(self, raw: Json, id: str, index: int) -> Call:
        """Return a person's replacement for a call of the plan, checked."""
        too_much = structural_errors.too_many_names(structural_errors.names_in(raw)[0], self._named, self.max_calls)
        return self._checked(raw, id, index, too_much=too_much)

    def close(self, *, drain: bool = False) -> None:
        """Close the list: no further call arrives. `drain` runs the calls that `execution="step"` would defer: no
        further Request follows (R6.4).
        """
        self.closed, self.drained = True, drain
        if self.listed > self.max_calls:
            surplus = self.calls[self._begin + self.max_calls]
            structural_errors.refuse_surplus(surplus, self.max_calls, self.listed + self._uncounted)
        if drain:
            self._scheduler.step = False
            self._slots.drain()
        self._scheduler.close()
        self.go_on()

    @property
    def held_back(self) -> bool:
        """Whether calls that may be ready are examined only in the next task: others have used up this one's time
        (R18.5).
        """
        return self._scheduler.held_back or self._loops.held_back

    def go_on(self) -> None:
        """Examine the calls that were held back."""
        self._scheduler.go_on()
        ready = self._scheduler.ready
        surplus = self._slots.surplus(ready) if self._inside is None and self.closed and not self.held_back else []
        for call in surplus:
            ready.remove(call)
            self._scheduler.end(call, "deferred", reason="step mode: other calls of this plan go first")
        self._scheduler.go_on()
        self._loops.go_on()
        self._carry_out_keeps()

    def take_ready(self, time: str = "", *, only_safe: bool = False) -> list[Call]:
        """Return the ready calls that have room beside the running ones. They are running now, with their parameters
        resolved.

        A loop is represented by the calls of its iterations: it runs until they have ended (R16.5). A held call is only
        taken if it is safe; with `only_safe`, the same holds for every call (R10.5).
        """
        taken: list[Call] = []
        while True:
            own = self._take_own(time, only_safe)
            named = []
            for call in own:
                if self._dry_run or call.far or (call.spec.loop is None and call.spec.tool is not LET):
                    taken.append(call)
                elif call.spec.loop is None:
                    named.append(call)
                else:
                    self._slots.give_back(call)
                    self._begin_loop(self._loop(call, call.spec.loop))
            inner, over = self._loops.take_ready(time, only_safe=only_safe)
            taken += inner
            for call in named:
                self.end(call, Returned(call.inputs.params["value"]), time)
            for loop in over:
                self._end_loop(loop, time)
            if not (named or over):
                return taken

    def _take_own(self, time: str, only_safe: bool) -> list[Call]:
        by_list = self._slots.by_list and self._inside is None
        if by_list and not self.closed and any(node.open for node in self._graph.nodes):
            return []  # the first calls of the list are known only at its end
        ready = self._scheduler.ready
        free = [call for call in ready if call.spec.safe or not (only_safe or call.hold.held)]
        free = [call for call in free if not call.hold.unfollowed]
        taken = self._slots.take_from(free, inside=self._inside is not None)
        self._scheduler.running += len(taken)
        starting = set(taken)
        ready[:] = [call for call in ready if call not in starting]
        for call in taken:
            self.held_calls.release(call)
            call.state.status, call.state.started = "running", time
        return taken

    def _loop(self, call: Call, form: LoopForm) -> RunningLoop:
        """Return a loop that begins. Each of its iterations is a plan of its own, with all its calls (R16.4)."""
        open_plan = partial(self._iteration, call, form, around := self.values(call))
        return RunningLoop(
            call,
            form,
            open_plan,
            around,
            self.state,
            self.checks,
            self._max_payload,
            self._rounds,
            self.provenance.then,
        )

    def _iteration(
        self,
        call: Call,
        form: LoopForm,
        around: Mapping[str, Json],
        number: int,
        kinds: Mapping[str, Json],
        state: State,
    ) -> Plan:
        slots = Slots(self.checks) if self._dry_run else self._slots  # in a dry run the loop itself occupies a slot
        inside = LoopPlace(
            call,
            form,
            number,
            kinds,
            slots,
            self.checks,
            self._rounds,
            around,
            self.now,
            self.writers_now,
            self.provenance,
        )
        items = Labels(call.inputs.origins.params.get(EACH, NOWHERE))
        plan = Plan(
            request_of(call.id),  # the loop may begin under a later Request than its own
            tools=self._tools,
            state=state,
            data=inside.data(),
            max_calls=self.max_calls,
            max_payload=self._max_payload,
            dry_run=self._dry_run,
            inside=inside,
            known=self.provenance.of_iteration(call, items, kinds),
        )
        plan.stand_in(self)
        if self.checks.is_patched(SHORT_TASKS):
            plan._extend_checked(inside, form.forms, call.inputs.origins.written)
        else:
            plan.extend(form.raws)
        inside.give(plan.calls[0], items.whole)
        plan.close(drain=True)
        return plan

    def end(self, call: Call, outcome: Outcome, time: str = "") -> None:
        """End a running call: apply its writes, and make ready the calls that waited for it (R4.3, R5.4)."""
        if isinstance(outcome, RefusedByRule):
            self.refuse(call, outcome.error, time)
            return
        call.state.ended_at, call.state.outcome = time, outcome
        self._scheduler.running -= 1
        self._slots.give_back(call)
        if isinstance(outcome, Rejected):
            call.state.status, call.state.reason = "rejected", outcome.reason
        else:
            call.state.sources = self.provenance.of_result(call, outcome)
            self._writer.write(call, outcome, time)
        self._scheduler.note_end(call)
        self._scheduler.go_on()
        self._carry_out_keeps()

    def hold(self, call: Call, *, is_with_client: bool = False) -> None:
        """Let a taken call wait for a person. Other calls run meanwhile (R7.5), as beside a running call if the call
        waits for the client that executes it (R5.12).
        """
        self.held_calls.put_aside(call)
        if is_with_client:
            call.hold.with_client = True
            self._slots.keep(call)

    def room_for(self, call: Call) -> bool:
        """Whether a taken call may run beside the running ones (R5.12)."""
        return self._slots.free(call)

    def resume(self, call: Call, time: str = "") -> None:
        """Run the call now. It requires room for the call. A person's decision can run a held call."""
        self.held_calls.release(call)
        self._slots.take(call)
        call.state.status, call.state.started = "running", time

    def revised(self, call: Call, raw: JsonObject, kept: JsonObject | None = None) -> Call:
        """Return a person's revision of a waiting call, checked like the model's own calls (R7.2).

        Its references are resolved now. `kept`: parameters as they were shown, which are not resolved again. Raises
        `DecisionError` with all of its problems.
        """
        readers = {str(what) for writer, _, what in self._graph.edges() if writer == call.index and what != AFTER_ID}
        return revise(
            call,
            raw,
            check=self._rechecked,
            tools=self._tools,
            values=self.now(),
            readers=readers,
            kept=kept,
            texts=TextBudget(self._max_payload),
            sources=self.provenance.now,
        )

    def adopt(self, call: Call, revised: Call) -> None:
        """Replace the waiting call by a revised one: later calls read its new writes (R7.2)."""
        replace_call(call, revised)
        read = [each for each in revised.spec.template.references() if each.kind == "state"]
        self._read_by_edits = [edge for edge in self._read_by_edits if edge[1] != call.id]
        self._read_by_edits += [(writer, call.id, str(each)) for each in read for writer in self.writers_now(each.path)]
        self._scheduler.refile(call)

    def writers_now(self, path: Path) -> list[str]:
        """Return the calls of this plan, and of the plans around it, that have written the present value of a path."""
        own, found = {call.id for call in self.calls}, list[str]()
        for write in reversed(self.state.writes):
            if write.call in own and overlaps(write.path, path):
                found.append(write.call)
                if covers(write, path):
                    return found
        return found if self._inside is None else found + self._inside.writers_now(path)

    def requirements(self, index: int) -> Requirements:
        """Return the requirements that the plan has to meet before the call of this index begins."""
        node = self._graph.nodes[index]
        own_decides = self.checks.is_patched(structural_errors.OWN_DECIDES)
        return requirements_of(node, self._graph.writers_for(node), own_decides=own_decides)

    def writers_of(self, index: int, reference: Reference) -> tuple[int, ...] | None:
        """Return the calls whose writes the call of this index reads there; `None` while further calls may be needed."""
        return self._graph.nodes[index].writers_of(reference)

    @property
    def ended(self) -> int:
        """The number of its ended calls."""
        return self._scheduler.ended

    @property
    def is_stepwise(self) -> bool:
        """Whether calls that read results of the same plan are left for the next Request (R5.10)."""
        return self._step and not self.drained

    def refuse(
        self, call: Call, error: CallError, time: str = "", *, status: Literal["invalid", "skipped"] = "invalid"
    ) -> None:
        """End a call that has not begun, because it may not run; its readers do not run either."""
        call.state.ended_at = time
        self._scheduler.give_up(call, status, error=error)
        self._slots.give_back(call)
        self._scheduler.go_on()
        self._carry_out_keeps()

    def races(self, *, ended: bool = False) -> list[str]:
        """Return the calls that set one path without an order between them (R5.14); with `ended`, those that have set
        it.
        """
        found = find_races(self.calls, self._graph.edges(first=True), ended=ended)
        return [race_text(race) for race in found]

    def concurrent_tools(self, names: Container[str]) -> list[str]:
        """Return the tools among `names` that may have two calls at once, as far as the list shows it (R5.12)."""
        groups: dict[str, list[tuple[Call, bool]]] = {}
        for call in self.calls:
            for form, at_once in _forms(call):
                if form.spec.tool_name in names:
                    groups.setdefault(form.spec.tool_name, []).append((call, at_once))
        return find_concurrent(self.calls, self._graph.edges(first=True), groups)

    @property
    def settled(self) -> bool:
        """Whether every call has ended and none can arrive: the tick is over (R5.4)."""
        return self._scheduler.settled

    # The plan under the next Requests.

    @property
    def own(self) -> list[Call]:
        """The calls of the running Request's list, without those of earlier ones."""
        return self.calls[self._begin :]

    @property
    def listed(self) -> int:
        """The number of calls of the running Request."""
        return len(self.calls) - self._begin

    @property
    def goes_on(self) -> bool:
        """Whether calls of earlier Requests are in it."""
        return bool(self._joined)

    def is_past(self, call: Call) -> bool:
        """Whether the call belongs to an earlier Request, and runs or has ended."""
        return call.index < self._begin and (call.state.ended or call.state.status == "running")

    def begin(self, request: int, tools: Mapping[str, Tool], known: KnownSources | None = None) -> None:
        """Begin the list of the next Request, with the running calls and those that it keeps.

        Its calls see the present state, and no held call that was not kept. `known`: the present provenance.
        """
        self.request, self._begin, self._tools = request, len(self.calls), tools
        self.continuations.append((self._begin, {call.id for call in self.calls if call.state.ended}))
        self.provenance.renew(known)
        self.reopen(self.provenance.known)
        self._uncounted = self._named = 0
        self._joined = frozenset(call.id for call in self.calls)
        self._scheduler.step = self._step
        self._slots.renew()
        self._rounds.renew()
        self._graph.begin(request, {**self._data, "state": self.state.snapshot()})

    def reopen(self, known: KnownSources | None = None) -> None:
        """Reopen the list for more calls."""
        self.closed = self.drained = self.rejected = False
        self._scheduler.reopen(known)

    def _carry_out_keeps(self) -> None:
        """Execute calls of `keep` as soon as they are ready: they affect only the plan."""
        if not self._joined:
            return
        ready = self._scheduler.ready
        for call in [call for call in ready if call.spec.tool is not None and call.spec.tool.activity == KEEP]:
            self._scheduler.ready.remove(call)
            self._scheduler.running += 1
            call.state.status, call.state.started = "running", self.time
            self.end(
                call, self.held_calls.decide(call.inputs.params.get("calls"), call.inputs.params.get("drop")), self.time
            )

    # The plan and those of its loops' iterations.

    def assume(self, assumed: Assumptions) -> None:
        """Set the assumptions of a dry run."""
        self._scheduler.assumed = assumed

    def stand_in(self, outer: Plan) -> None:
        """Join the plan of its loop: both share the assumptions of a dry run, and the news of calls."""
        self._scheduler.assumed, self._scheduler.news = outer._scheduler.assumed, outer._scheduler.news

    def take_news(self) -> list[News]:
        """Return the news since the last call of this method: ended calls, those of loops too, and loops that have
        begun.
        """
        news = self._scheduler.news.copy()
        self._scheduler.news.clear()
        return news

    def dry_iteration(self, call: Call, loop: LoopForm) -> Plan:
        """Return one iteration of a loop in a dry run, for any item (R16.5)."""
        call.inputs.decided = join(call.inputs.decided, self.provenance.of_conditions(loop))
        kinds = dict.fromkeys((loop.place, *([loop.item] if loop.kind == "each" else [])), UNKNOWN)
        state = outside_state(call)
        if loop.kind == "until":
            state.append(Write(path=PREVIOUS.path, value=UNKNOWN))
        return self._iteration(call, loop, self.values(call), 0, kinds, state)

    def iterations(self) -> Iterator[Plan]:
        """Yield the plans of its loops' iterations that run."""
        for plan in self._loops.iterations():
            assert isinstance(plan, Plan)
            yield plan

    def home(self, call: Call) -> Plan:
        """Return the plan that contains the call: this one, or that of an iteration inside it."""
        plan = self
        for index, number in zip(call.place[:-1:2], call.place[1::2], strict=True):
            plan = plan._running(index, number)
        return plan

    def _running(self, index: int, number: int) -> Plan:
        inner = self._loops.all[index].plans[number]
        assert isinstance(inner, Plan)
        return inner

    def is_held(self, call: Call) -> bool:
        """Whether the call, or a loop around it, waits for a Request to keep it (R10.5)."""
        at = (call.place[: 2 * depth + 1] for depth in range((len(call.place) + 1) // 2))
        return any(self._at(place).hold.held for place in at)

    def _at(self, place: tuple[int, ...]) -> Call:
        plan = self
        for index, number in zip(place[:-1:2], place[1::2], strict=True):
            plan = plan._running(index, number)
        return plan.calls[place[-1]]

    def every_call(self) -> Iterator[Call]:
        """Yield all calls that exist, those of a loop's iterations after it."""
        for call in self.calls:
            yield call
            for plan in self._loops.of(call):
                yield from plan.every_call()

    def every_call_reversed(self) -> Iterator[Call]:
        """Yield all calls that exist, from the last to the first."""
        for call in reversed(self.calls):
            for plan in reversed(self._loops.of(call)):
                yield from plan.every_call_reversed()
            yield call

    def take_folded(self) -> list[Call]:
        """Return the calls of iterations that have ended since the last call of this method: they no longer change."""
        folded, self._loops.folded = self._loops.folded, []
        return folded

    def written(self) -> Iterator[Call]:
        """Yield the calls as written, those of a body after its loop."""
        for call in self.calls:
            yield from call.written()

    def read_at_end(self, reference: Reference) -> Json | Missing:
        """Return the value that a call at the end of the list would read, once the plan has settled (R6.4). Raises
        `StateError`.
        """
        return self._scheduler.read_at_end(reference)

    def read_final(self, reference: Reference) -> Json | Missing:
        """Return the value of `read_at_end` as soon as no call of the list can change it; `UNKNOWN` before (R19.4).
        Raises `StateError`.
        """
        return self._scheduler.read_final(reference)

    def sources_at_end(self, reference: Reference) -> Sources:
        """Return the provenance of the value that `read_at_end` returns (R15.1)."""
        return self._scheduler.sources_at_end(reference)

    def absent_at_end(self, reference: Reference) -> Sources:
        """Return the provenance of the conditions that keep `read_at_end` from finding a value."""
        return self._scheduler.absent_at_end(reference)

    @property
    def count(self) -> int:
        """The number of calls made."""
        return len(self.calls) + self._loops.count

    @property
    def done(self) -> int:
        """The number of done calls."""
        return self._scheduler.done + self._loops.done

    def edges(self) -> list[Edge]:
        """Return writer, reader and the reference between them, in the order of the readers."""
        return list(self._graph.edges())

    def named_edges(self) -> list[tuple[str, str, str]]:
        """Return the edges with call ids and the reference's text, those of iterations last."""
        inside = (plan for loop in self._loops.all.values() for plan in loop.plans.values())
        return [*self._own_edges(), *(edge for plan in inside for edge in plan.named_edges())]

    def _own_edges(self) -> list[tuple[str, str, str]]:
        """Return the edges outside of iterations. They include the reads of people's edits, which are no dependencies:
        the values existed at the time of the edit.
        """
        own = [(self.calls[writer].id, self.calls[reader].id, str(what)) for writer, reader, what in self.edges()]
        return [*dict.fromkeys([*own, *self._read_by_edits])] if self._read_by_edits else own

    def newest_edges(self, most: int) -> list[tuple[str, str, str]]:
        """Return the edges with call ids, and only the newest `most` in iterations. The cost does not grow with the
        others.
        """
        blocks: list[list[tuple[str, str, str]]] = []
        for loop in reversed(self._loops.all.values()):
            for plan in reversed(loop.plans.values()):
                if most <= 0:
                    break
                found = plan.newest_edges(most)[-most:]
                blocks.append(found)
                most -= len(found)
        return [*self._own_edges(), *(edge for block in reversed(blocks) for edge in block)]

    def now(self) -> Mapping[str, Json]:
        """Return the values that exist now, by kind."""
        state = self.state.snapshot()
        if self._inside is None:
            return {**self._graph.base, "state": state}
        return self._inside.over(self._inside.now(), state)

    def values(self, call: Call) -> Mapping[str, Json]:
        """Return the value of each kind when the plan was made, from the view of the call's instance."""
        if self._inside is None:
            return values_for(self._graph.base, call.spec.instance)
        return self._inside.over(self._inside.around, self._graph.base["state"])

    def break_off(self, reason: str, time: str = "") -> None:
        """End the plan while calls may run. Waiting calls do not run; it is unknown whether running calls took effect
        (R10.6).
        """
        self.closed = self._scheduler.closed = True
        self.held_calls.break_off(reason, time)

    def end_all(
        self, status: Literal["rejected", "skipped"], reason: str, time: str = "", *, but: Collection[str] = ()
    ) -> None:
        """End every unfinished call without running it: a person rejects all of them (R7.6), or there is no time
        (R9.5). `but`: ids of calls that continue. A loop around such calls ends with them. A call that its client has
        is `unknown`.
        """
        self._scheduler.ready.clear()
        for call in self.calls:
            if call.state.ended or call.id in but:
                continue
            rounds = list(self._loops.running_of(call))
            for plan in rounds:
                plan.end_all(status, reason, time, but=but)
            if any(not inner.state.ended for plan in rounds for inner in plan.calls):
                self._loops.end_early(call.index, reason)
                call.hold.held = False
                continue
            self._loops.stop(call.index)
            call.state.ended_at = time
            ends, words = self.held_calls.judge_unfinished(call, status, reason)
            if self.checks.is_patched(STEERED_RUNS_GO_ON):
                self._scheduler.give_up(call, ends, reason=words)
                self._slots.give_back(call)
            else:
                self._scheduler.end(call, ends, reason=words)

    def _begin_loop(self, loop: RunningLoop) -> None:
        self._loops.begin(loop)
        self._scheduler.news.append((loop.call, "began"))

    def _end_loop(self, loop: RunningLoop, time: str) -> None:
        if not loop.dropped:
            self.end(loop.call, loop.outcome(), time)
            return
        loop.call.state.ended_at = time
        self._scheduler.running -= 1
        self._scheduler.end(loop.call, "skipped", reason=loop.dropped)


def _forms(call: Call, at_once: bool = False) -> Iterator[tuple[Call, bool]]:
    """Yield the call, or the calls in its loop, each with whether items of a list run it at once."""
    loop = call.spec.loop
    if loop is None:
        yield call, at_once
    for form in loop.forms if loop is not None else ():
        yield from _forms(form, at_once or (loop is not None and loop.kind == "each" and loop.parallel > 1))
