"""Loops that run inside a plan: iterations, their plans, and their results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from perdure.errors import CallError, FormulaError, StateError, TooLargeError
from perdure.plan._calls import (
    INDEX,
    ITEM,
    LOOP_DONE,
    LOOP_FAILED,
    SHOWN_FAILURES,
    Call,
    Failed,
    LoopForm,
    Outcome,
    Rejected,
    Returned,
    Until,
)
from perdure.plan._dependency_graph import PARTS_DECIDED
from perdure.plan._provenance import PlanProvenance, with_conditions
from perdure.plan._scheduler import Slots
from perdure.values.formulas import MissingValueError
from perdure.values.json import Json, JsonObject, shorten
from perdure.values.limits import (
    CALLS_OF_ROUNDS,
    MAX_CALLS_INSIDE,
    RESULT_TOO_LARGE,
    SHORT_TASKS,
    CheckBudget,
    bytes_text,
)
from perdure.values.provenance import NOWHERE, Labels, Sources, join, join_all
from perdure.values.references import MISSING, Missing, Path, Reference, get, overlaps
from perdure.values.sizes import clip_text
from perdure.values.state import State, Write, replay
from perdure.values.templates import Template, parse_template

OPENING: Final = 3_000
"""Steps for the start of an iteration, which is a plan of its own with one call (R18.5)."""
_FURTHER: Final = 1_500
"""Steps for each further call in it."""
_MESSAGE: Final = 500
"""Bytes of an error's message in place of a result."""


class Iteration(Protocol):
    """The interface of an iteration's plan for its loop and for the plan around it."""

    state: State
    calls: list[Call]

    @property
    def done(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def settled(self) -> bool: ...
    @property
    def held_back(self) -> bool: ...
    @property
    def held_calls(self) -> Any: ...  # `HeldCalls`, which imports this module
    def take_ready(self, time: str = "", *, only_safe: bool = False) -> list[Call]: ...
    def go_on(self) -> None: ...
    def end_all(
        self, status: Literal["rejected", "skipped"], reason: str, time: str = "", *, but: Collection[str] = ()
    ) -> None: ...
    def every_call(self) -> Iterator[Call]: ...
    def every_call_reversed(self) -> Iterator[Call]: ...
    def named_edges(self) -> list[tuple[str, str, str]]: ...
    def newest_edges(self, most: int) -> list[tuple[str, str, str]]: ...


class RoundBudget:
    """The number of calls that a Request may still begin in iterations of its loops, at all levels (R16.6)."""

    def __init__(self) -> None:
        self.left = MAX_CALLS_INSIDE

    def renew(self) -> None:
        """Renew the budget for the next Request."""
        self.left = MAX_CALLS_INSIDE


class EndedIteration:
    """The immutable record of an ended iteration: its calls, and those of loops inside it, with their edges."""

    def __init__(self, plan: Iteration) -> None:
        self.calls = plan.calls
        self.count, self.done = plan.count, plan.done
        self._made = list(plan.every_call())
        self._edges = plan.named_edges()

    def every_call(self) -> list[Call]:
        return self._made

    def every_call_reversed(self) -> Iterator[Call]:
        return reversed(self._made)

    def named_edges(self) -> list[tuple[str, str, str]]:
        return self._edges

    def newest_edges(self, most: int) -> list[tuple[str, str, str]]:
        return self._edges[-most:]


class RunningLoop:
    """One loop that runs. `open_plan` makes the plan of an iteration, with all its calls, from its number, its values
    by kind, and its state.

    `around` is the values around the loop, by kind, and `sources_around` their provenance.
    """

    def __init__(
        self,
        call: Call,
        form: LoopForm,
        open_plan: Callable[[int, Mapping[str, Json], State], Iteration],
        around: Mapping[str, Json],
        state: State,
        checks: CheckBudget,
        max_payload: int,
        rounds: RoundBudget,
        sources_around: Callable[[Reference], Sources],
    ) -> None:
        self._rounds, self._sources_around = rounds, sources_around
        self.call, self.form = call, form
        self.plans: dict[int, Iteration | EndedIteration] = {}
        """Iterations by number, also ended ones."""
        self._ended_count = self._ended_done = 0
        self._folded: list[Call] = []
        self.running: dict[int, Iteration] = {}
        self._open_plan, self._checks, self._around = open_plan, checks, around
        self._sizes, self._room = state.sizes, max_payload
        self._base = outside_state(call).snapshot()
        self._before = self._base
        self._carried = State([Write(path=(), value=self._base)], self._sizes)
        """The writes of the iterations, over the state outside. In a sequential loop, the next iteration reads them."""
        self._labels, self._sources = _labels_outside(call), NOWHERE
        """The provenance of the state that the next iteration reads, and of the results of all (R15.1)."""
        self._items: list[Json] = call.inputs.items or []
        self._first = form.first or 0
        self._next = 0
        self.dropped = ""
        """The reason why its results are dropped."""
        self._over: CallError | bool = False
        """Whether a loop with a condition is over, or the error that ended it."""
        count = len(self._items)
        self._results: list[Json] = [None] * count
        self._lists: dict[Path, list[Json]] = {path: [None] * count for path in form.writes}
        self._errors: list[CallError] = []
        self._failed: list[Json] = []
        """The failures to report, as data, for a part of a longer list."""
        self._ends: dict[str, int] = {}
        """The number of calls for each end, calls of loops inside included."""
        self._rejected = ""

    @property
    def count(self) -> int:
        """The number of calls in its iterations."""
        return self._ended_count + sum(plan.count for plan in self.running.values())

    @property
    def done(self) -> int:
        """The number of its done calls."""
        return self._ended_done + sum(plan.done for plan in self.running.values())

    def take_folded(self) -> list[Call]:
        """Return the calls of iterations that have ended since the last call of this method."""
        folded, self._folded = self._folded, []
        return folded

    @property
    def over(self) -> bool:
        return not self.running and not self._more()

    @property
    def held_back(self) -> bool:
        """Whether work is left for the next task (R18.5)."""
        if any(plan.held_back for plan in self.running.values()):
            return True
        if not self._checks.full:
            return False
        # This check changes nothing: otherwise the end of a loop, found here, would never be processed. Runs of 0.1.0
        # decide here.
        return self._may_open() if self._checks.is_patched(SHORT_TASKS) else self._opens()

    def go_on(self) -> None:
        for plan in list(self.running.values()):
            plan.go_on()

    def take_ready(self, time: str, *, only_safe: bool = False) -> Iterator[Call]:
        """Yield the calls of its iterations that start now; ended iterations make room for others.

        With `only_safe`, and for a held loop, only safe calls start (R10.5).
        """
        while True:
            while not self._checks.full and self._opens():
                self._open()
            for plan in list(self.running.values()):
                yield from plan.take_ready(time, only_safe=only_safe or self.call.hold.held)
            ended = [number for number, plan in self.running.items() if plan.settled]
            for number in ended:
                self._close(number, self.running.pop(number))
            if not ended:
                return

    def end_early(self, reason: str) -> None:
        """Drop the loop: nothing follows its running calls (R10.5)."""
        done = sum(number not in self.running for number in self.plans)
        most = f" of {len(self._items)}" if self.form.kind == "each" else ""
        self.dropped = f"{reason} after {done}{most} iterations"
        self._next, self._over = len(self._items), self._over or True

    def outcome(self) -> Outcome:
        """Return the loop's outcome; the call holds further notes for the model."""
        notes, count = self._errors, len(self._results)
        if isinstance(self._over, CallError):
            return Failed(self._over, self._sources)
        if len(notes) > SHOWN_FAILURES:
            more = f"{len(notes) - SHOWN_FAILURES} more calls failed; see the results"
            notes = [*notes[:SHOWN_FAILURES], CallError("iteration_failed", more)]
        bad, done = self._ends.get("error", 0), self._ends.get("done", 0)
        if self.form.first is not None:
            parts: dict[Path, Json] = {**self._lists, (LOOP_FAILED,): self._failed, (LOOP_DONE,): done}
            return Returned(self._results, parts=parts, sources=self._sources)
        if self.form.kind == "each" and not done and (bad or self._rejected):
            if not bad:
                return Rejected(self._rejected)
            return Failed(
                CallError("iterations_failed", f"all {count} iterations failed; the first: {notes[0].message}"),
                self._sources,
            )
        self.call.state.notes = notes
        if self.form.kind == "each":
            return Returned(self._results, parts=self._lists, sources=self._sources)
        last = self._carried.snapshot()
        left = {path: value for path in self.form.writes if (value := get(last, path)) is not MISSING}
        # A value that no iteration has rewritten keeps its own provenance.
        carried = join_all(self._labels.at(path) for path in left)
        return Returned(self._last(), parts=left, sources=with_conditions(self._sources, carried, self._checks))

    # The next iterations.

    def _more(self) -> bool:
        return not self._over and (self.form.kind != "each" or self._next < len(self._items))

    def _may_open(self) -> bool:
        parallel = self.form.parallel if self.form.kind == "each" else 1
        return len(self.running) < parallel and self._more()

    def _opens(self) -> bool:
        return self._may_open() and self._goes_on()

    def _goes_on(self) -> bool:
        """Whether a loop with a condition has another iteration; sets `_over` if not."""
        form = self.form
        if form.kind == "each":
            return self._has_round()
        if form.before is not None:
            holds = self._holds(form.before, None, needed=True)
            if holds is not True:
                self._over = self._over or True
                return False
        if self._next >= form.most:
            last = shorten(self._last(), 200)
            message = f"the condition to end did not come true in {form.most} iterations; the last result was {last}"
            self._over = CallError("max_iterations", message)
        return not self._over and self._has_round()

    def _has_round(self) -> bool:
        """Whether one more iteration may begin, of all loops of the Request; sets `_over` if not (R16.6)."""
        if self._rounds.left < self._cost:
            most = f"{MAX_CALLS_INSIDE:,} calls in their iterations, and those of loops inside loops count"
            message = f"ended after {self._next} iterations: all loops of a Request together have at most {most}; let a delegate or a tool do a part"
            self._over = CallError("too_many_iterations", message)
        return not self._over

    @property
    def _cost(self) -> int:
        """The share of the Request's budget that an iteration takes: its calls, and 1 in runs of 0.1.0."""
        return len(self.form.forms) if self._checks.is_patched(CALLS_OF_ROUNDS) else 1

    def _open(self) -> None:
        number, form = self._next, self.form
        self._next += 1
        self._rounds.left -= self._cost
        self._checks.taken += OPENING
        if self._checks.is_patched(SHORT_TASKS):
            self._checks.taken += _FURTHER * (len(form.forms) - 1)
        kinds: dict[str, Json] = {form.place: self._first + number}
        if form.kind == "each":
            kinds[form.item] = self._items[number]
        self._before = self._read()
        state = State([Write(path=(), value=self._before)], self._sizes)
        state.labels = self._labels.copy()
        if form.kind == "until":
            state.labels.write(("previous",), None, "set", self._sources)
        self.running[number] = self.plans[number] = self._open_plan(number, kinds, state)

    def _read(self) -> JsonObject:
        """Return the state that the next iteration reads."""
        if self.form.kind == "each":
            return self._base
        carried = self._carried.snapshot()
        return carried if self.form.kind == "while" else {**carried, "previous": self._last()}

    def _last(self) -> Json:
        return self._results[-1] if self._results else None

    # The results of an iteration.

    def _close(self, number: int, plan: Iteration) -> None:
        shown = number + self._first
        ended = self.plans[number] = EndedIteration(plan)
        self._ended_count += ended.count
        self._ended_done += ended.done
        self._folded += ended.every_call()
        for call in plan.calls:
            self._count(call, shown)
            own = join(call.state.sources, call.inputs.origins.all)
            self._sources = join(self._sources, with_conditions(own, call.inputs.decided, self._checks))
        result = self._fitting(_place(plan.calls[-1], shown), shown)
        if self.form.kind != "each":
            self._results = [result]
            # In the order of the body, not of the ends of its calls.
            writes = [write for call in plan.calls for write in call.state.writes]
            try:
                self._carried = State([Write(path=(), value=self._before), *writes], self._sizes)
            except StateError:  # a path leads into a value that another call has replaced: only the order of ends fits
                self._carried, writes = State(plan.state.writes, self._sizes), plan.state.writes[1:]
            for write in writes:
                self._labels.write(write.path, write.value, write.method, write.sources)
            self._note_skipped(plan)
            self._end_turn(number, plan)
            return
        self._results[number] = result
        if self.form.writes:
            for path, values in self._lists.items():
                values[number] = self._fitting(_written(plan, path, shown), shown)

    def _note_skipped(self, plan: Iteration) -> None:
        """If a condition has kept a call from writing, add the condition's provenance to the value at its path, and to
        the loop, which may write nothing.
        """
        for call in plan.calls:
            decided = with_conditions(NOWHERE, call.inputs.decided, self._checks)
            if decided and not call.state.writes:
                self.call.inputs.decided = join(self.call.inputs.decided, decided)
                for path in (path for paths in call.spec.paths for path in paths):
                    self._labels.add(path, decided)

    def _count(self, call: Call, number: int) -> None:
        bad = call.state.error is not None and not call.state.writes
        if bad and self._checks.is_patched(PARTS_DECIDED):  # it may make the loop fail, which then writes nothing
            self.call.inputs.decided = join(self.call.inputs.decided, call.inputs.decided)
        self._ends["done"] = self._ends.get("done", 0) + (call.state.status == "done")
        if bad and call.state.error is not None:
            self._ends["error"] = self._ends.get("error", 0) + 1
            who = "" if self.form.single else f"{call.title}: "
            self._add_error(number, call.state.error, who)
        elif call.state.status == "rejected":
            self._rejected = self._rejected or call.state.reason
        self._errors += call.state.notes

    def _add_error(self, number: int, error: CallError, who: str = "") -> None:
        words = f"iteration {number} failed: {who}{error.code}: {error.message}"
        self._errors.append(CallError("iteration_failed", words))
        self._failed.append({"index": number, "code": error.code, "message": clip_text(who + error.message, _MESSAGE)})

    def _end_turn(self, number: int, plan: Iteration) -> None:
        """Decide whether an iteration was the last. A failed iteration is the last: the next would have no result to
        start from (R8.6).
        """
        for call in plan.calls:
            if call.state.error is not None and not call.state.writes:
                self._over = CallError(
                    "iteration_failed", f"iteration {number} failed: {call.title}: {call.state.error.message}"
                )
            elif call.state.status == "rejected" or (call.state.status == "skipped" and not call.state.branch):
                self._over = self._over or CallError(
                    "iteration_failed", f"iteration {number}: {call.title}: {call.state.reason}"
                )
        if self.form.until is not None and not self._over:
            self._over = self._holds(self.form.until, number) or self._over

    def _read_by(self, reference: Reference) -> Sources:
        """Return the provenance of the value that the condition reads there."""
        if reference.kind in (self.form.place, INDEX):
            return NOWHERE
        if reference.kind == "output" or (self.form.kind == "until" and reference.path[:1] == ("previous",)):
            return self._sources
        if reference.kind != "state":
            return self._sources_around(reference)
        return self._labels.at(reference.path) if reference.path else join(self._labels.whole, self._sources)

    def _holds(self, until: Until, number: int | None, *, needed: bool = False) -> bool:
        """Whether the condition holds now. A formula without a value ends the loop, as does a missing value if it is
        `needed`.
        """
        number = self._next if number is None else number
        self.call.inputs.decided = join_all(
            [self.call.inputs.decided, *map(self._read_by, until.template.references())]
        )
        state: JsonObject = self._carried.snapshot()
        if self.form.kind == "until":
            state = {**state, "previous": self._last()}
        own: dict[str, Json] = {self.form.place: number, INDEX: number, "state": state, "output": self._last()}

        def lookup(reference: Reference) -> Json | Missing:
            known = own if reference.kind in own else self._around
            return get(known[reference.kind], reference.path) if reference.kind in known else MISSING

        absent = next((str(site.expression) for site in until.template.find_missing(lookup)), None)
        try:
            holds = until.holds(lookup)
        except MissingValueError as error:
            holds, absent = False, str(error.reference)
        except FormulaError as error:
            self._over = CallError("invalid_expression", str(error))
            return False
        if needed and absent is not None:
            self._over = CallError("missing_path", f"the condition reads {absent}, which does not exist")
        return holds

    def _fitting(self, value: Json, number: int) -> Json:
        """Return the value if all results together have room for it, else its substitute (R18.4)."""
        size = self._sizes.of(value)
        if size > self._room:
            message = f"its result has {bytes_text(size)}, and the loop's results have room for {self._room:,} more"
            self._add_error(number, CallError(RESULT_TOO_LARGE, message))
            return _error(number, RESULT_TOO_LARGE, message)
        self._room -= size if self.form.kind == "each" else 0
        return value


def outside_state(call: Call) -> State:
    """Return the part of the state that the loop reads, each value at its path."""
    state = State()
    for reference, value in sorted(call.inputs.outside.items(), key=lambda pair: len(pair[0].path)):
        try:
            state.append(Write(path=reference.path, value=value))
        except StateError:  # its parent is not an object here: it was read whole before
            continue
    return state


def recorded_iterations(loop: Call, around: Mapping[str, Json], outcome: Outcome) -> list[Call]:
    """Return the ended calls of a loop over items whose `outcome` another run has recorded.

    Each has the parameters that follow from the item, the state that the loop reads, and the values `around` it by
    kind. A call whose condition does not hold is left out. A failed iteration of several calls does not tell which of
    them have failed: they are failed and carried out, and have no outcome.
    """
    results = outcome.value if isinstance(outcome, Returned) else None
    return list(_iterations(loop, {**around, "state": outside_state(loop).snapshot()}, results))


def _iterations(loop: Call, around: Mapping[str, Json], results: Json) -> Iterator[Call]:
    form = loop.spec.loop
    assert form is not None
    params = [{name: parse_template(value)[0] for name, value in each.spec.params.items()} for each in form.forms]
    for number, item in enumerate(loop.inputs.items or ()):
        known, at = {**around, form.place: number, form.item: item}, f"{loop.id}[{number}]"
        result = results[number] if isinstance(results, list) and number < len(results) else _error(number, "", "")
        for n, each in enumerate(form.forms):
            if each.spec.has_condition and (holds := _known(each.spec.condition, known)) is not MISSING and not holds:
                continue
            call = Call.of(at if form.single else f"{at}.{n}", n, each.spec)
            values = {name: _known(template, known) for name, template in params[n].items()}
            call.inputs.params = {name: value for name, value in values.items() if value is not MISSING}
            call.state.status = "failed" if _is_error(result, number) else "done"
            call.state.carried_out = not form.single  # any call of the body may have failed, and any may be done
            if each.spec.loop is None:
                yield call
            else:
                items = _known(each.spec.loop.each, known)
                call.inputs.items = items if isinstance(items, list) else None
                yield from _iterations(call, known, result)


def _known(template: Template, known: Mapping[str, Json]) -> Json | Missing:
    """Return the template's value, or `MISSING` if it reads anything that is not known."""

    def lookup(reference: Reference) -> Json | Missing:
        return get(known[reference.kind], reference.path) if reference.kind in known else MISSING

    if next(template.find_missing(lookup), None) is not None:
        return MISSING
    try:
        value: Json = template.resolve(lookup)
    except (FormulaError, TooLargeError):
        return MISSING
    return value


def _labels_outside(call: Call) -> Labels:
    labels = Labels()
    for reference, sources in sorted(call.inputs.outside_sources.items(), key=lambda pair: len(pair[0].path)):
        labels.write(reference.path, None, "set", sources)
    return labels


def _error(number: int, code: str, message: str) -> JsonObject:
    return {"error": {"index": number, "code": code, "message": clip_text(message, _MESSAGE)}}


def _is_error(value: Json, number: int) -> bool:
    """Whether the value is the substitute for the result of this iteration: a hundred of them have a message."""
    error = value.get("error") if isinstance(value, dict) else None
    keys = error.keys() - {"message"} if isinstance(error, dict) else ()
    return isinstance(error, dict) and keys == {"index", "code"} and error["index"] == number


def _place(call: Call, number: int) -> Json:
    """Return the substitute for a result."""
    if call.state.status == "done":
        return call.state.result
    if call.state.status == "skipped" and call.state.branch:
        return None
    if call.state.error is not None:
        return _error(number, call.state.error.code, call.state.error.message)
    return _error(number, call.state.status, call.state.reason)


def _written(plan: Iteration, path: Path, number: int) -> Json:
    """Return the value at the path for a reader at the end of an iteration's body, or its substitute."""
    writers = [call for call in plan.calls if any(overlaps(path, each) for paths in call.spec.paths for each in paths)]
    if writes := [write for call in writers for write in call.state.writes if overlaps(path, write.path)]:
        try:
            value = replay(writes, path)
        except StateError:  # a path into a replaced value, or an index after items that the iteration has not written
            value = get(plan.state.snapshot(), path)
        return None if value is MISSING else value
    return next((place for call in writers if call.state.status != "done" and (place := _place(call, number))), None)


@dataclass(frozen=True, slots=True)
class LoopPlace:
    """The place of an iteration's plan: in a loop, of a plan."""

    loop: Call
    form: LoopForm
    number: int
    kinds: Mapping[str, Json]
    """The item and its index, by kind."""
    slots: Slots
    checks: CheckBudget
    rounds: RoundBudget
    around: Mapping[str, Json]
    """The values around the loop, by kind, when its plan was made."""
    now: Callable[[], Mapping[str, Json]]
    """The present values around the loop, by kind."""
    writers_now: Callable[[Path], list[str]]
    """The calls around the loop that have written the present value of a path."""
    outer: PlanProvenance
    """The provenance of the plan that contains the loop."""

    @property
    def place(self) -> tuple[int, ...]:
        return (*self.loop.place, self.number)

    def id(self, index: int) -> str:
        """Return a call's id: `1.3[0].1`, or `1.3[0]` for one that loops over itself."""
        id = f"{self.loop.id}[{(self.form.first or 0) + self.number}]"
        return id if self.form.single else f"{id}.{index}"

    def give(self, call: Call, sources: Sources) -> None:
        """Set the values that a delegate of one item reads beside its parameters (R8.5)."""
        form = self.form
        if form.single and form.kind == "each":
            call.inputs.item_values = {ITEM: self.kinds[form.item], INDEX: self.kinds[form.place]}
            call.inputs.item_sources = sources

    def data(self) -> dict[str, Json]:
        """Return the values that its calls read by reference, beside the state."""
        return {kind: value for kind, value in self.around.items() if kind != "state"} | {**self.kinds}

    def over(self, around: Mapping[str, Json], state: Json) -> dict[str, Json]:
        """Return the values around it, overridden by the iteration's own."""
        outer = around.get("state")
        whole = {**outer, **state} if isinstance(outer, dict) and isinstance(state, dict) else state
        return {**around, **self.kinds, "state": whole}


@dataclass
class Loops:
    """The loops that a plan has begun, by their calls' indexes."""

    all: dict[int, RunningLoop] = field(default_factory=dict)
    running: dict[int, RunningLoop] = field(default_factory=dict)
    folded: list[Call] = field(default_factory=list)
    """Calls of ended iterations that were not taken yet, those of loops inside included."""

    @property
    def held_back(self) -> bool:
        """Whether work of the loops is left for the next task (R18.5)."""
        return any(loop.held_back for loop in self.running.values())

    def begin(self, loop: RunningLoop) -> None:
        self.all[loop.call.index] = self.running[loop.call.index] = loop

    def take_ready(self, time: str, *, only_safe: bool = False) -> tuple[list[Call], list[RunningLoop]]:
        """Return the calls that start now, and the loops that are over."""
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

    def stop(self, index: int) -> None:
        """Stop the loop, if it has begun."""
        self.running.pop(index, None)

    def runs(self, call: Call) -> bool:
        """Whether the call is a loop that has begun, and is not over."""
        return call.index in self.running

    def end_early(self, index: int, reason: str) -> bool:
        """Drop the loop: nothing follows its running calls. Return whether it has begun, and is not over yet
        (R10.5)."""
        loop = self.running.get(index)
        if loop is not None:
            loop.end_early(reason)
        return loop is not None

    def iterations(self) -> Iterator[Iteration]:
        """Yield the iterations that run, loop by loop."""
        for loop in self.all.values():
            yield from loop.running.values()

    def running_of(self, call: Call) -> list[Iteration]:
        """Return the running iterations of one call, in their order."""
        loop = self.all.get(call.index)
        return [] if loop is None else list(loop.running.values())

    def of(self, call: Call) -> list[Iteration | EndedIteration]:
        """Return all iterations of one call that were begun, in their order."""
        loop = self.all.get(call.index)
        return [] if loop is None else list(loop.plans.values())

    @property
    def count(self) -> int:
        """The number of calls in all iterations."""
        return sum(loop.count for loop in self.all.values())

    @property
    def done(self) -> int:
        """The number of calls that ended well."""
        return sum(loop.done for loop in self.all.values())
