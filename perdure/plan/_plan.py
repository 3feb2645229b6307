"""The plan: calls as a data-flow graph, and the plans of its loops' iterations.

A plain object that does no I/O. Calls arrive by `add`, in the order of the model's list; a driver takes what is ready,
carries it out, and reports each end. All rules of ordering, branching, skipping and writing are decided here.

    plan.add(call) …  plan.take_ready() → run them → plan.end(call, outcome) …  plan.close()  … until plan.settled

A call that arrived can become ready before the list is closed (R6.3): it binds to what stands before it. Only what
nothing before it offers waits for later calls.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from perdure.errors import CallError, StateError, clip
from perdure.plan import _structural_errors as structural_errors
from perdure.plan._calls import EACH, Assumptions, Call, Failed, Outcome, Rejected, Returned, errors_of, find_branch
from perdure.plan._dependency_graph import AFTER_ID, DependencyGraph, Edge
from perdure.plan._loop_spec import LET, PREVIOUS
from perdure.plan._loops import LoopPlace, Loops, RoundBudget, RunningLoop, outside_state
from perdure.plan._scheduler import News, Scheduler, Slots, with_conditions
from perdure.plan._steering import HeldCalls
from perdure.plan._structural_errors import unknown_branch
from perdure.plan._validation import adopt, check_call, find_races, race_text, revise
from perdure.tools.tool import ASK_PERSON, KEEP, Tool
from perdure.values.json import Json, JsonObject
from perdure.values.limits import MAX_PAYLOAD, PART_STEPS, SHORT_TASKS, CheckBudget
from perdure.values.provenance import NOWHERE, USER, KnownSources, Labels, Origins, Sources, join, join_all, tool_source
from perdure.values.references import UNKNOWN, Missing, Path, Reference
from perdure.values.schemas import Schema
from perdure.values.state import State, Write, scope_path, values_for, without_instance
from perdure.values.templates import TextBudget


def write(
    call: Call,
    paths: Iterable[Path],
    value: Json,
    *,
    to: State,
    schema: Schema | None,
    time: str,
    checks: CheckBudget,
    parts: Mapping[Path, Json] | None = None,
) -> str | None:
    """Write the value as the call does, and note the write in the call. Return why the state cannot take it, or `None`.

    `parts`: the values that go to paths of their own.
    """

    def check(write: Write, value: Json) -> None:
        if schema is None or value is UNKNOWN:
            return
        for each in schema.at(without_instance(write.path)) or ():
            if problems := each.errors(value, root=("state", *write.path), checks=checks):
                raise StateError(f"the result breaks the state's schema: {'; '.join(problems[:3])}")

    own = {} if parts is None else {_own(path, call): each for path, each in parts.items()}
    left_out = (
        set() if call.spec.loop is None or parts is None else {_own(path, call) for path in call.spec.loop.writes}
    )
    sources = call.state.sources
    writes = [
        Write(path=path, value=value, method=call.spec.method, call=call.id, time=time, sources=sources)
        for path in paths
        if path not in left_out
    ]
    writes += [Write(path=path, value=each, call=call.id, time=time, sources=sources) for path, each in own.items()]
    try:
        to.append_all(writes, check)
    except StateError as error:
        return str(error)
    call.state.writes.extend(writes)
    return None


def result_sources(call: Call, told: Sources = NOWHERE, *, recalled: bool = False) -> Sources:
    """Return the provenance of a call's result: its tool, all its parameters, and the provenance that a delegate's run
    has reported (R15.1). With `recalled`, `told` replaces the tool's declaration.
    """
    tool = call.spec.tool
    if tool is None or tool.latent:
        return join(call.inputs.origins.written, call.inputs.origins.all)
    if tool.activity == ASK_PERSON:
        return USER
    others_write = tool.others_write and not recalled
    return join(join(tool_source(tool.name, others_write), told), call.inputs.origins.all)


def _own(path: Path, call: Call) -> Path:
    return path if call.spec.instance is None else scope_path(path, call.spec.instance)


class Plan:
    """The calls of one Request, or of one iteration of a loop in it: `inside` says which.

    `data` holds the value of each kind but `state` that references can name. Writes go to `state`, in the order in
    which the calls end. With `execution="step"` only calls that read nothing of this plan run; the rest is deferred
    (R5.10). `parallel` calls run at once, and with `step` so many at all (R5.12). `max_payload` is the bytes that one
    value may have. With `dry_run` results are unknown, so nothing is checked against them (R5.6).
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
        self.drained = False  # closed to run to its end, whatever `execution` says
        self.state = state
        self.checks = CheckBudget() if inside is None else inside.checks
        """The cache of schema checks for its calls; the driver announces the beginning of each task to it."""
        self.max_calls = max_calls
        self._max_payload = max_payload
        self._tools = tools
        self._state_schema = state_schema
        self.parallel = parallel
        self._inside = inside
        self._slots = Slots(parallel, step=execution == "step") if inside is None else inside.slots
        self._dry_run = dry_run
        self._loops = Loops()
        self._rounds = RoundBudget() if inside is None else inside.rounds
        self._begin = 0  # index of the first call of the running Request's list
        self._joined: frozenset[str] = frozenset()  # the calls of earlier Requests
        self._uncounted = 0  # calls beyond the first surplus one, which are not kept
        self._instances = instances
        self._data = data or {}
        self._graph = DependencyGraph({**self._data, "state": state.snapshot()}, request)
        self.known = self._known_now(known or KnownSources())
        """The provenance of the existing values, and of the calls' text (R15.1)."""
        self._named = 0  # references, output paths and calls that the calls name
        self._step, texts = execution == "step", TextBudget(max_payload, state.sizes, self.checks)
        self._scheduler = Scheduler(
            self._graph, state, self.checks, texts, self.known, step=self._step, dry_run=dry_run
        )
        self.calls = self._scheduler.calls
        self.keeping = HeldCalls(self._graph, self._scheduler, self._slots, self._loops)
        """Its held calls."""

    def add(self, raw: Json, written: Sources | None = None) -> Call:
        """Add the next call of the list. It is checked, bound, and ready at once if it waits for nothing (R5.3, R6.6).

        `written`: the provenance of its text, if the plan's author did not write it. Raises `ValueError` once the plan
        is closed: nobody would settle the call.
        """
        if self.closed:
            raise ValueError(f"the plan of Request {self.request} is closed")
        index = len(self.calls)
        number = index - self._begin
        named, parts = structural_errors.names_in(raw)
        self.checks.taken += PART_STEPS * parts
        too_much = structural_errors.too_many_names(named, self._named, self.max_calls)
        id = f"{self.request}.{number}" if self._inside is None else self._inside.id(index)
        call = self._checked(raw, id, index, self.checks, too_much)
        if number < self.max_calls and too_much is None:
            self._named += named + (len(call.spec.paths) if "_outputPath" not in call.spec.raw else 0)
        self._take_in(call, self.known.written(call.spec.raw) if written is None else written)
        return call

    def _take_in(self, call: Call, written: Sources) -> None:
        number = call.index - self._begin
        call.place = (*(() if self._inside is None else self._inside.place), call.index)
        if number >= self.max_calls:
            structural_errors.refuse_surplus(call, self.max_calls, first=number == self.max_calls)
        call.inputs.origins = Origins(written)
        self._scheduler.add(call)
        self._keep_what_is_asked()

    def extend(self, raws: Sequence[Json]) -> None:
        """Add the next calls of the list. Of those beyond `max_calls` the first is kept, with their number (R6.8)."""
        room = max(0, self.max_calls + 1 - self.listed)
        for raw in raws[:room]:
            self.add(raw)
        self._uncounted += max(0, len(raws) - room)

    def _extend_checked(self, forms: Sequence[Call], written: Sources) -> None:
        """Add the calls of a loop's body. They were checked with the loop, and are not checked again in each
        iteration."""
        assert self._inside is not None
        for index, form in enumerate(forms):
            self._take_in(Call.of(self._inside.id(index), index, form.spec), written)

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
        """Return a call that a person would put in the place of one of the plan's, checked."""
        too_much = structural_errors.too_many_names(structural_errors.names_in(raw)[0], self._named, self.max_calls)
        return self._checked(raw, id, index, too_much=too_much)

    def close(self, *, drain: bool = False) -> None:
        """Close the list: no call will arrive any more. `drain` runs the calls that `execution="step"` would defer: no
        further Request follows (R6.4)."""
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
        """Whether calls may be ready that are only examined in the next task: others have used up this one's time
        (R18.5)."""
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
        self._keep_what_is_asked()

    def take_ready(self, time: str = "", *, only_safe: bool = False) -> list[Call]:
        """Return the calls that are ready and have room beside the running ones, now running, with their parameters
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
                    self._begin_loop(self._loop(call))
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
            return []  # the first calls of the list are known at its end
        ready = self._scheduler.ready
        free = [call for call in ready if call.spec.safe or not (only_safe or call.hold.held)]
        taken = self._slots.take_from(free, inside=self._inside is not None)
        self._scheduler.running += len(taken)
        for call in taken:
            ready.remove(call)
            self.keeping.release(call)
            call.state.status, call.state.started = "running", time
        return taken

    def _loop(self, call: Call) -> RunningLoop:
        """Return a loop that begins. Each of its iterations is a plan of its own, with all its calls (R16.4)."""
        assert call.spec.loop is not None
        open_plan = partial(self._iteration, call, around := self.values(call))
        return RunningLoop(
            call,
            call.spec.loop,
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
        assert call.spec.loop is not None
        slots = Slots() if self._dry_run else self._slots  # in a dry run the loop itself holds its own
        inside = LoopPlace(call, number, kinds, slots, self.checks, self._rounds, around, self.now, self)
        items = Labels(call.inputs.origins.params.get(EACH, NOWHERE))
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
                written=lambda _: call.inputs.origins.written,
                decided=join(call.inputs.decided, items.whole),
            ),
        )
        plan.stand_in(self)
        if self.checks.is_patched(SHORT_TASKS):
            plan._extend_checked(call.spec.loop.forms, call.inputs.origins.written)
        else:
            plan.extend(call.spec.loop.raws)
        inside.give(plan.calls[0], items.whole)
        plan.close(drain=True)
        return plan

    def end(self, call: Call, outcome: Outcome, time: str = "") -> None:
        """End a running call: apply its writes, and make ready the calls that waited for it (R4.3, R5.4)."""
        call.state.ended_at = time
        self._scheduler.running -= 1
        self._slots.give_back(call)
        if isinstance(outcome, Rejected):
            call.state.status, call.state.reason = "rejected", outcome.reason
            error = None
        else:
            call.state.sources = self._result_sources(call, outcome)
            error = outcome.error if isinstance(outcome, Failed) else self._end_returned(call, outcome, time)
        if error is not None:
            call.state.status, call.state.error = "failed", error
            if call.spec.branches:
                value: Json = error.as_json()
                value = [value] if call.spec.method == "concat" else value
                problem = self._write(call, call.spec.paths[-1], value, time)
                if problem is not None:
                    call.state.error = CallError(
                        error.code, f"{error.message}; nor could that be written: {clip(problem)}"
                    )
        self._scheduler.note_end(call)
        self._scheduler.go_on()
        self._keep_what_is_asked()

    def hold(self, call: Call) -> None:
        """Let a call that was taken wait for a person. Others run meanwhile (R7.5)."""
        self.keeping.put_aside(call)

    def room_for(self, call: Call) -> bool:
        """Whether a call that was taken may run beside the running ones (R5.12)."""
        return self._slots.free(call)

    def resume(self, call: Call, time: str = "") -> None:
        """Run the call now: there has to be room for it. A held call runs by a person's decision."""
        self.keeping.release(call)
        self._slots.take(call)
        call.state.status, call.state.started = "running", time

    def revised(self, call: Call, raw: JsonObject, kept: JsonObject | None = None) -> Call:
        """Return a waiting call as a person revised it, checked like the model's own (R7.2).

        Its references are resolved as of now. `kept`: parameters as they were shown, which are not resolved again.
        Raises `DecisionError` with everything that is wrong with it.
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
            sources=self.sources_now,
        )

    def adopt(self, call: Call, revised: Call) -> None:
        """Replace the waiting call by a revised one: calls still to arrive read its new writes (R7.2)."""
        adopt(call, revised)
        self._scheduler.refile(call)

    def races(self, *, ended: bool = False) -> list[str]:
        """Return which calls set one path without an order between them (R5.14); with `ended`, which of them have set
        it."""
        found = find_races(self.calls, self._graph.edges(first=True), ended=ended)
        return [race_text(race) for race in found]

    @property
    def settled(self) -> bool:
        """Whether every call has ended and none can arrive: the tick is over (R5.4)."""
        return self._scheduler.settled

    # The end of a call.

    def _end_returned(self, call: Call, outcome: Returned, time: str) -> CallError | None:
        """Write the result and mark the call done, or invalid (R4.5); return an error if the tool chose no real
        branch."""
        alternative = call.spec.paths[0] if call.spec.paths else ()
        if outcome.branch is not None:
            chosen = find_branch(call, outcome.branch)
            if chosen is None:
                return unknown_branch(call, outcome.branch)
            alternative = chosen
        call.state.result, call.state.status = outcome.value, "done"
        if problem := self._write(call, alternative, outcome.value, time, outcome.parts):
            call.state.status, call.state.error = "invalid", CallError.of("invalid_write", [problem])
        return None

    def _write(
        self, call: Call, paths: Iterable[Path], value: Json, time: str, parts: Mapping[Path, Json] | None = None
    ) -> str | None:
        schema, checks = self._state_schema, self.checks
        return write(call, paths, value, to=self.state, schema=schema, time=time, checks=checks, parts=parts)

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

        Its calls see the state as of now, and no held call that was not kept. `known`: the provenance known by now.
        """
        self.request, self._begin, self._tools = request, len(self.calls), tools
        self.known = self._known_now(known or self.known)
        self.reopen(self.known)
        self._uncounted = self._named = 0
        self._joined = frozenset(call.id for call in self.calls)
        self._scheduler.step = self._step
        self._slots.renew()
        self._rounds.renew()
        self._graph.begin(request, {**self._data, "state": self.state.snapshot()})

    def reopen(self, known: KnownSources | None = None) -> None:
        """Reopen the list for more calls."""
        self.closed = self.drained = False
        self._scheduler.reopen(known)

    def _known_now(self, known: KnownSources) -> KnownSources:
        """Return `known` with the provenance of the state's values as of now."""
        return replace(known, base={**known.base, "state": self.state.labels.snapshot()})

    def _keep_what_is_asked(self) -> None:
        """Carry out calls of `keep` as soon as they are ready: they have no effect but on the plan."""
        ready = self._scheduler.ready if self._joined else ()
        for call in [call for call in ready if call.spec.tool is not None and call.spec.tool.activity == KEEP]:
            self._scheduler.ready.remove(call)
            self._scheduler.running += 1
            call.state.status, call.state.started = "running", self.time
            self.end(
                call, self.keeping.decide(call.inputs.params.get("calls"), call.inputs.params.get("drop")), self.time
            )

    # The plan and those of its loops' iterations.

    def assume(self, assumed: Assumptions) -> None:
        """Set the assumptions of a dry run."""
        self._scheduler.assumed = assumed

    def stand_in(self, outer: Plan) -> None:
        """Join the plan that its loop is part of: the assumptions of a dry run, and the news of calls, are shared."""
        self._scheduler.assumed, self._scheduler.news = outer._scheduler.assumed, outer._scheduler.news

    def take_news(self) -> list[News]:
        """Return the news since the last call of this method: calls that have ended, those of loops too, and loops that
        have begun."""
        news = self._scheduler.news.copy()
        self._scheduler.news.clear()
        return news

    def dry_iteration(self, call: Call) -> Plan:
        """Return what one iteration of a loop would be in a dry run, whatever its item (R16.5)."""
        assert call.spec.loop is not None
        for until in (call.spec.loop.before, call.spec.loop.until):  # whatever it will find
            read = () if until is None else until.template.references()
            call.inputs.decided = join_all(
                [call.inputs.decided, *(join(self.sources_then(ref), self.sources_now(ref)) for ref in read)]
            )
        kinds = dict.fromkeys(
            (call.spec.loop.place, *([call.spec.loop.item] if call.spec.loop.kind == "each" else [])), UNKNOWN
        )
        state = outside_state(call)
        if call.spec.loop.kind == "until":
            state.append(Write(path=PREVIOUS.path, value=UNKNOWN))
        return self._iteration(call, self.values(call), 0, kinds, state)

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

    def made(self) -> Iterator[Call]:
        """Yield all calls that exist, those of a loop's iterations behind it."""
        for call in self.calls:
            yield call
            for plan in self._loops.of(call):
                yield from plan.made()

    def made_last(self) -> Iterator[Call]:
        """Yield all calls that exist, from the last to the first."""
        for call in reversed(self.calls):
            for plan in reversed(self._loops.of(call)):
                yield from plan.made_last()
            yield call

    def take_folded(self) -> list[Call]:
        """Return the calls of iterations that have ended since the last call of this method: they change no more."""
        folded, self._loops.folded = self._loops.folded, []
        return folded

    def written(self) -> Iterator[Call]:
        """Yield the calls as written, those of a body behind its loop."""
        for call in self.calls:
            yield from call.written()

    def read_at_end(self, reference: Reference) -> Json | Missing:
        """Return what a call at the end of the list would read, once the plan has settled (R6.4). Raises
        `StateError`."""
        return self._scheduler.read_at_end(reference)

    def sources_at_end(self, reference: Reference) -> Sources:
        """Return the provenance of the value that `read_at_end` returns (R15.1)."""
        return self._scheduler.sources_at_end(reference)

    @property
    def count(self) -> int:
        """The number of calls made."""
        return len(self.calls) + self._loops.count

    @property
    def done(self) -> int:
        """The number of calls that ended well."""
        return self._scheduler.done + self._loops.done

    def edges(self) -> list[Edge]:
        """Return writer, reader and the reference between them, in the order of the readers."""
        return list(self._graph.edges())

    def named_edges(self) -> list[tuple[str, str, str]]:
        """Return the edges with call ids and the reference's text, those of iterations behind."""
        own = [(self.calls[writer].id, self.calls[reader].id, str(what)) for writer, reader, what in self.edges()]
        inside = (plan for loop in self._loops.all.values() for plan in loop.plans.values())
        return [*own, *(edge for plan in inside for edge in plan.named_edges())]

    def newest_edges(self, most: int) -> list[tuple[str, str, str]]:
        """Return the edges with call ids; of those in iterations the newest `most` only. The cost does not grow with
        the others."""
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
        """Return the provenance of the value that a reference finds now."""
        around = NOWHERE if self._inside is None else self._inside.outer.sources_now(reference)
        return join(self.known.now(reference, self.state.labels), around)

    def sources_then(self, reference: Reference) -> Sources:
        """Return the provenance of the value that it found when the plan was made."""
        around = NOWHERE if self._inside is None else self._inside.outer.sources_then(reference)
        return join(self.known.of_kind(reference.kind).at(reference.path), around)

    def _result_sources(self, call: Call, outcome: Returned | Failed) -> Sources:
        """Return the provenance of its tool, its parameters, and the conditions around it. A person's answer is the
        person's."""
        own = self._own_sources(call, outcome)
        if call.spec.tool is not None and call.spec.tool.activity == ASK_PERSON:
            return own
        return with_conditions(own, call.inputs.decided, self.checks)

    def _own_sources(self, call: Call, outcome: Returned | Failed) -> Sources:
        """Return the provenance of its tool and its parameters. Its scopes count whole, unless a delegate's run reports
        better."""
        if (
            isinstance(outcome, Failed) and call.spec.loop is not None
        ):  # its text may hold a value that a condition has read
            outcome = replace(outcome, sources=join(outcome.sources, self._read_inside(call)))
        if call.spec.tool is LET or (call.spec.loop is not None and not call.spec.loop.single):
            return join(outcome.sources, call.inputs.origins.all)
        scoped = call.spec.tool is not None and call.spec.tool.delegate is None and call.spec.tool.scopes
        kinds = [scope.lstrip("†").partition(".")[0] for scope in scoped or ()]
        told = join(outcome.sources, join_all(self.sources_then(Reference(kind)) for kind in kinds))
        return result_sources(call, told, recalled=isinstance(outcome, Returned) and outcome.recalled)

    def _read_inside(self, call: Call) -> Sources:
        """Return the provenance of everything that a loop and the calls in it may have read."""
        read: set[Reference] = set()
        for form in call.written():
            read.update(form.spec.condition.references(), form.spec.template.references())
            for until in (form.spec.loop.until, form.spec.loop.before) if form.spec.loop is not None else ():
                read.update(() if until is None else until.template.references())
        outside = join_all(call.inputs.outside_sources.values())
        return join(outside, join_all(join(self.sources_then(each), self.sources_now(each)) for each in read))

    def now(self) -> Mapping[str, Json]:
        """The values that exist now, by kind."""
        state = self.state.snapshot()
        if self._inside is None:
            return {**self._graph.base, "state": state}
        return self._inside.over(self._inside.now(), state)

    def values(self, call: Call) -> Mapping[str, Json]:
        """Return the value of each kind when the plan was made, as the call's instance sees it."""
        if self._inside is None:
            return values_for(self._graph.base, call.spec.instance)
        return self._inside.over(self._inside.around, self._graph.base["state"])

    @property
    def errors(self) -> list[Call]:
        """Return the calls whose errors go to the model, in the order of the list: no branch took them (R4.3, R6.6)."""
        return errors_of(self.calls)

    def break_off(self, reason: str, time: str = "") -> None:
        """End the plan while calls may run. Calls that are not done do not run, or it is unknown whether they took
        effect (R10.6)."""
        self.closed = self._scheduler.closed = True
        self.keeping.break_off(reason, time)

    def end_all(self, status: Literal["rejected", "skipped"], reason: str, time: str = "") -> None:
        """End every call that has not ended without running it: a person rejects all of them (R7.6), or there is no
        time (R9.5)."""
        self._scheduler.ready.clear()
        for call in self.calls:
            if not call.state.ended:
                for plan in self._loops.stop(call.index):
                    plan.end_all(status, reason, time)
                call.state.ended_at = time
                self._scheduler.end(call, status, reason=reason)

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
