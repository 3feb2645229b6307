"""The scheduler: ready calls, skipped calls, and calls that may run side by side."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from perdure.errors import CallError, FormulaError, StateError, TooLargeError, clip
from perdure.plan import _structural_errors as structural_errors
from perdure.plan._calls import EACH, IF, Assumptions, Call, CallStatus, LoopForm
from perdure.plan._dependency_graph import PARTS_DECIDED, Binding, CallNode, DependencyGraph, Found
from perdure.plan._provenance import with_conditions
from perdure.plan._structural_errors import (
    LAZY_READS,
    OWN_DECIDES,
    QUOTED,
    find_hidden_values,
    held_back,
    missing_inside,
    missing_path,
    state_shape,
    why_skipped,
)
from perdure.plan._validation import check_resolved
from perdure.values.formulas import MissingValueError
from perdure.values.json import Json, json_path
from perdure.values.limits import LIMITS_OF_CHILDREN, ROUNDS_STEPS, CheckBudget
from perdure.values.provenance import (
    NOWHERE,
    USER,
    KnownSources,
    Sources,
    join,
    join_all,
    origins_of,
    taken_by,
)
from perdure.values.references import MISSING, UNKNOWN, Expression, Missing, Path, Reference, get, references
from perdure.values.state import State, is_prefix, scope_path
from perdure.values.templates import Template, TextBudget


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The end of a call that does not run."""

    status: CallStatus
    error: CallError | None = None
    reason: str = ""
    branch: bool = False
    """Whether the only reason is a branch that was not taken."""


def judge(
    node: CallNode,
    calls: Sequence[Call],
    order: Mapping[int, int],
    missing: Callable[[Reference, str], CallError],
    *,
    dry: Assumptions | None,
    checks: CheckBudget,
    texts: TextBudget,
    known: KnownSources,
) -> Binding | CallEnd | None:
    """Judge a call: `None` means that it is ready, with its parameters resolved.

    A binding: its writers took another branch, so search for the next ones; without any it is `exhausted`, and the call
    is judged again. `order` gives each call's place in the order of completion; `missing` explains a reference to
    nothing.
    """
    return _Judging(node, calls, order, missing, dry, checks, texts, known).outcome()


@dataclass(slots=True)
class _Judging:
    """The steps of `judge`: the call's reads, its condition, its parameters."""

    node: CallNode
    calls: Sequence[Call]
    order: Mapping[int, int]
    missing: Callable[[Reference, str], CallError]
    dry: Assumptions | None
    checks: CheckBudget
    texts: TextBudget
    known: KnownSources
    found: dict[Reference, Json | Missing] = field(default_factory=dict)
    why: dict[Reference, Found] = field(default_factory=dict)

    def outcome(self) -> Binding | CallEnd | None:
        call = self.node.call
        call.inputs.decided = self.known.decided
        outcome = self._outcome()
        if isinstance(outcome, CallEnd) and outcome.status == "invalid":
            read = (each for each, value in self.found.items() if value is not MISSING)
            call.inputs.decided = join_all([call.inputs.decided, *map(self._sources, read)])
        return outcome

    def _outcome(self) -> Binding | CallEnd | None:
        read = self._read()
        if read is not None:
            return read
        call = self.node.call
        if call.spec.condition.sites:
            call.inputs.decided = join(call.inputs.decided, self._decided_by(call.spec.condition))
        # The values for its parameters need not exist if the call does not run.
        not_taken = self._condition() if call.spec.has_condition else None
        if not_taken is not None:
            return not_taken
        call.inputs.origins = origins_of(
            call.spec.template, call.inputs.origins.written, self.found.__getitem__, self._sources, self._absent
        )
        params = self._valued(call.spec.template, ())
        if isinstance(params, CallEnd):
            if params.status != "invalid" or call.spec.loop is None or not self._has_no_iteration(call.spec.loop):
                return params
            params = {EACH: []} if call.spec.loop.kind == "each" else {}
        if self.dry is not None:
            return None if call.spec.loop is None else self._dry_loop(self.dry, call, call.spec.loop)
        if call.spec.loop is not None:
            call.inputs.items, call.inputs.outside = params.get(EACH), _outside(call, call.spec.loop, self.found)
            call.inputs.outside_sources = {
                each: _loop_sources(call, each, self._sources if each in call.inputs.outside else self._absent)
                for each in call.spec.loop.reads
            }
        else:
            call.inputs.take_resolved(params)
        return _invalid(check_resolved(call, self.checks))

    def _has_no_iteration(self, loop: LoopForm) -> bool:
        """Whether the loop ends before its first iteration. Then the keys that its body reads need not exist."""
        if self.dry is not None or not self.checks.is_patched(LAZY_READS):
            return False
        try:
            if loop.kind == "each":
                return bool(loop.each.resolve(self._part, self.texts) == [])
            before = loop.before
            return (
                before is not None
                and not any(before.template.find_missing(self._part))
                and not before.holds(self._part)
            )
        except (FormulaError, TooLargeError):
            return False

    def _part(self, reference: Reference) -> Json | Missing:
        """Return the value of a reference, which may be a part of a value that was read whole."""
        whole = next(
            (each for each in self.found if each.kind == reference.kind and is_prefix(each.path, reference.path)), None
        )
        return MISSING if whole is None else get(self.found[whole], reference.path[len(whole.path) :])

    def _read(self) -> Binding | CallEnd | None:
        """Find the value of each reference."""
        instance = self.node.call.spec.instance
        if instance is not None and not self.checks.is_patched(OWN_DECIDES):
            instance = None
        held = held_back(self.node, self.calls, self.order, instance)
        if isinstance(held, Binding):
            return held
        unreadable: CallError | None = None
        for reference, binding in self.node.bindings.items():
            if binding.deciding_write(self.calls) is None and binding.looks_on(self.calls):
                return binding
            try:
                self.why[reference], self.found[reference] = binding.find(self.calls, self.order)
            except StateError as error:
                words = f"{clip(str(reference), QUOTED)} cannot be read: {error}"
                unreadable = unreadable or CallError.of("unreadable", [words])
        if instance is not None:
            hidden = find_hidden_values(instance, self.node.bindings, self.why)
            self.why |= hidden
            self.found |= dict.fromkeys(hidden, MISSING)
        if held is not None:
            return CallEnd("skipped", reason=held[0], branch=held[1])
        return _invalid(unreadable)

    def _condition(self) -> CallEnd | None:
        call, dry = self.node.call, self.dry
        holds = self._valued(call.spec.condition, (IF,))
        if dry is not None and holds is UNKNOWN:
            holds = dry.holds.get(call.id, UNKNOWN)
            holds = self._guess(dry, call.spec.condition, call.spec.raw[IF], (IF,)) if holds is UNKNOWN else holds
        if isinstance(holds, CallEnd):
            return holds
        if holds is UNKNOWN or holds:
            return None
        return CallEnd(
            "skipped", reason=f"its condition does not hold: {clip(call.spec.condition_text, 200)}", branch=True
        )

    def _valued(self, template: Template, where: Path) -> Any:  # a `CallEnd`, or a value; for parameters an object
        if MISSING in self.found.values():
            for site in template.find_missing(self.found.__getitem__):
                return self._unreadable(site.expression, json_path((*where, *site.path)))
        if self.dry is not None:
            return UNKNOWN
        return self._resolved(lambda: template.resolve(self.found.__getitem__, self.texts), template, where)

    def _resolved(self, resolve: Callable[[], Any], template: Template, where: Path) -> Any:  # as `_valued` returns
        """Return what `resolve` makes of the template, or the end of a call whose value is too large or has an error."""
        try:
            value = resolve()
            if value is not UNKNOWN:
                self.texts.check_whole(value)
        except TooLargeError as error:
            return CallEnd("invalid", CallError("params_too_large", str(error)))
        except FormulaError as error:
            return self._unevaluated(error, template, where)
        return value

    def _unevaluated(self, error: FormulaError, template: Template, where: Path) -> CallEnd:
        """Return the end of a call whose formula has failed, or has read a value that no call wrote."""
        if not isinstance(error, MissingValueError):
            return CallEnd("invalid", CallError("invalid_expression", str(error)))
        site = next(site for site in template.sites if site.optional and error.reference in references(site.expression))
        return self._unreadable(site.expression, json_path((*where, *site.path)))

    def _guess(self, dry: Assumptions, template: Template, written: Json, where: Path) -> Json | CallEnd:
        """Return the value that a dry run knows, or `UNKNOWN`. Once its formulas have taken `ROUNDS_STEPS`, it computes
        none: a query shows it.
        """
        if dry.taken >= ROUNDS_STEPS:
            return UNKNOWN
        before = self.checks.taken
        found: Json | CallEnd = self._resolved(
            lambda: dry.value(template, written, self.found.__getitem__, self.texts), template, where
        )
        dry.taken += self.checks.taken - before
        return found

    def _dry_loop(self, dry: Assumptions, call: Call, loop: LoopForm) -> CallEnd | None:
        call.inputs.outside = _outside(call, loop, self.found)
        items = UNKNOWN if loop.kind != "each" else self._guess(dry, loop.each, call.spec.raw["_each"], ())
        if isinstance(items, CallEnd):
            return items
        call.inputs.items = items if isinstance(items, list) else None
        known_to_be_none = call.inputs.items is None and items is not UNKNOWN
        return _invalid(check_resolved(call, self.checks) if known_to_be_none else None)

    def _sources(self, reference: Reference) -> Sources:
        value = self.found[reference]
        if value is not MISSING and self.known.vouched(reference, value):
            return USER
        binding = self.node.bindings[reference]
        alone = binding.deciding_write(self.calls)
        # The binding reads a later call's value. A condition may have kept an earlier call from writing one.
        later = binding.forward and self.checks.is_patched(PARTS_DECIDED)
        if alone is not None and not (binding.turned or later):
            return alone.sources
        sources = binding.sources(self.calls, self.order, self.known.of_kind(reference.kind))
        decided = self._absent(reference) if later else binding.decided(self.calls, self.checks)
        return with_conditions(sources, decided, self.checks)

    def _decided_by(self, condition: Template) -> Sources:
        """Return the provenance of the values of a condition."""
        sites = (site.expression for site in condition.sites)
        return join_all(taken_by(each, self.found.__getitem__, self._sources, self._absent) for each in sites)

    def _absent(self, reference: Reference) -> Sources:
        """Return the provenance of the conditions that have kept the reference from being written: in this plan, or
        before the loop around it."""
        decided = self.node.bindings[reference].decided(self.calls, self.checks)
        around = self.known.of_kind(reference.kind).of_absent(reference.path)
        return with_conditions(NOWHERE, join(decided, around), self.checks)

    def _unreadable(self, expression: Expression, where: str) -> CallEnd:
        """Return the end of a call whose expression has no value: a writer is the cause, or the path is missing in a
        written value (R5.4).
        """
        bindings = self.node.bindings
        skipped = why_skipped(bindings, expression, f"{where} reads", self.why, self.calls)
        if skipped is not None:
            return CallEnd("skipped", reason=skipped[0], branch=skipped[1])
        absent = next(reference for reference in references(expression) if self.why[reference] == "nowhere")
        binding = bindings[absent]
        if binding.writers:
            return CallEnd("invalid", missing_inside(absent, where, binding, self.calls, self.order))
        return CallEnd("invalid", self.missing(absent, where))


def _invalid(error: CallError | None) -> CallEnd | None:
    return None if error is None else CallEnd("invalid", error)


def _loop_sources(call: Call, reference: Reference, sources: Callable[[Reference], Sources]) -> Sources:
    own = (
        NOWHERE
        if call.spec.instance is None
        else sources(Reference("state", scope_path(reference.path, call.spec.instance)))
    )
    return join(own, sources(reference))


def _outside(call: Call, loop: LoopForm, found: Mapping[Reference, Json | Missing]) -> dict[Reference, Json]:
    """Return the existing values of the state that a loop's calls read; an instance's own values have precedence
    (R8.8).
    """
    outside: dict[Reference, Json] = {}
    for reference in loop.reads:
        value: Json | Missing = MISSING
        if call.spec.instance is not None:
            value = found[Reference("state", scope_path(reference.path, call.spec.instance))]
        value = found.get(reference, MISSING) if value is MISSING else value
        if value is not MISSING:
            outside[reference] = value
    return outside


News: TypeAlias = tuple[Call, Literal["began", "ended"]]
"""A call that has ended, or a loop that has begun; the driver knows other starts, because it takes the calls."""


class Scheduler:
    """The calls of one plan that may be ready, and the order in which calls have ended. Each call is settled or waits
    for one that is not."""

    def __init__(
        self,
        graph: DependencyGraph,
        state: State,
        checks: CheckBudget,
        texts: TextBudget,
        known: KnownSources,
        *,
        step: bool,
        dry_run: bool,
    ) -> None:
        self.calls: list[Call] = []
        self.done = 0
        """The number of done calls."""
        self.ready: list[Call] = []
        self.running = 0
        self.step = step
        """Whether calls that read results of the same plan are left for the next Request (R5.10)."""
        self.closed = False
        self._graph = graph
        self._state = state
        self._checks, self._texts = checks, texts
        self._dry_run = dry_run
        self.news: list[News] = []
        """The news that was not taken yet."""
        self.assumed = Assumptions()
        """The assumptions of a dry run."""
        self._sources = known
        self._sources_then: list[KnownSources] = []
        """The known provenance, for each call, when its Request began."""
        self._completion: dict[int, int] = {}
        self._queue: deque[CallNode] = deque()
        self._known: Mapping[str, Json] | None = None

    def add(self, call: Call) -> None:
        """Add the next call of the list, bound to the calls before it, and bind the calls that have waited for it."""
        self.calls.append(call)
        self._sources_then.append(self._sources)
        self._known = None
        node = self._graph.add(call)
        if call.state.ended:
            self._completion[call.index] = len(self._completion)
            self.news.append((call, "ended"))
            node.refused = True
        self._refuse_impossible(node)
        self._queue.append(node)
        self._queue.extend(self._graph.rebind_open(call))
        self.go_on()

    def close(self) -> None:
        """Close the list: open nodes are bound to the existing writers, or refused."""
        self.closed = True
        for node in self._graph.close():
            self._refuse_impossible(node)
        self._refuse_cycles(first=True)
        for node in self._graph.nodes:
            if self.step and node.call.state.status == "pending" and node.wired:
                self.end(node.call, "deferred", reason="step mode: it reads what another call of this plan writes")
        self._queue.extend(self._graph.nodes)

    def binding_at_end(self, reference: Reference) -> Binding:
        """Return the binding of a reference for a call at the end of the list, once all calls have ended (R6.4)."""
        return self._graph.binding_at_end(reference, self.calls)

    def read_at_end(self, reference: Reference) -> Json | Missing:
        """Return the value that a call at the end of the list would read. Raises `StateError` as `Binding.find` does."""
        return self.binding_at_end(reference).find(self.calls, self._completion)[1]

    def read_final(self, reference: Reference) -> Json | Missing:
        """Return the value of `read_at_end`; `UNKNOWN` while a call may change it. Raises `StateError`."""
        binding = self._graph.final_binding(reference, self.calls) if self.closed else None
        return UNKNOWN if binding is None else binding.find(self.calls, self._completion)[1]

    def sources_at_end(self, reference: Reference) -> Sources:
        """Return the provenance of the value that `read_at_end` returns (R15.1)."""
        base = self._sources.of_kind(reference.kind)
        binding = self.binding_at_end(reference)
        sources = binding.sources(self.calls, self._completion, base)
        return with_conditions(sources, binding.decided(self.calls, self._checks), self._checks)

    def absent_at_end(self, reference: Reference) -> Sources:
        """Return the provenance of the conditions that keep `read_at_end` from finding a value."""
        return with_conditions(NOWHERE, self.binding_at_end(reference).decided(self.calls, self._checks), self._checks)

    def reopen(self, known: KnownSources | None = None) -> None:
        """Reopen the list for more calls; with `known`, for those of another Request (R10.5)."""
        self.closed, self._known, self._sources = False, None, known or self._sources

    def refile(self, call: Call) -> None:
        """Replace the call's writes in the graph."""
        self.look_at(self._graph.refile(call))
        self.go_on()

    def look_at(self, nodes: Iterable[CallNode]) -> None:
        """Mark nodes whose dependencies have changed: they may be ready."""
        self._queue.extend(nodes)

    def give_up(self, call: Call, status: CallStatus, *, error: CallError | None = None, reason: str = "") -> None:
        """End the call without running it, although it may be ready or taken, or wait for a person or its client."""
        if call.state.status in ("waiting", "running"):
            self.running -= 1
        elif call in self.ready:
            self.ready.remove(call)
        self.end(call, status, error=error, reason=reason)

    @property
    def held_back(self) -> bool:
        """Whether calls that may be ready are examined only in the next task (R18.5)."""
        return bool(self._queue)

    @property
    def ended(self) -> int:
        return len(self._completion)

    @property
    def settled(self) -> bool:
        return self.closed and len(self._completion) == len(self.calls)

    def go_on(self) -> None:
        """Examine all calls that may be ready, within this task's time."""
        while True:
            while self._queue:
                if self._checks.spent and not self._dry_run:
                    return
                node = self._queue.popleft()
                if node.waiting or node.call.state.status != "pending" or (self.step and node.wired):
                    continue
                self._settle(node)
            if self.closed and not self.running and not self.ready and not self.settled:
                self._refuse_cycles()  # readers wait for each other, after they moved past a branch not taken (R5.4)
            if not self._queue:
                return

    def end(
        self, call: Call, status: CallStatus, *, error: CallError | None = None, reason: str = "", branch: bool = False
    ) -> None:
        """End the call without a result. The conditions that kept its writers from writing have decided that."""
        call.state.status, call.state.error, call.state.reason, call.state.branch = status, error, reason, branch
        decided = self._graph.nodes[call.index].decided(self.calls, self._checks)
        call.inputs.decided = join(call.inputs.decided, decided)
        self.note_end(call)

    def note_end(self, call: Call) -> None:
        """Record that the call has ended and written: calls that waited for it may be ready."""
        self.done += call.state.status == "done"
        self._completion[call.index] = len(self._completion)
        self.news.append((call, "ended"))
        self._queue.extend(self._graph.end(call))

    def _settle(self, node: CallNode) -> None:
        """Settle a call that waits for no other, if its dependencies are all known: it is ready, skipped or invalid."""
        if node.crowded:
            self._refuse_impossible(node)
            return
        if node.open:
            return
        verdict = judge(
            node,
            self.calls,
            self._completion,
            self._missing,
            dry=self.assumed if self._dry_run else None,
            checks=self._checks,
            texts=self._texts,
            known=self._sources_then[node.call.index],
        )
        if isinstance(verdict, Binding):
            verdict.exhausted = not self._graph.move_on(node, verdict)
            self._queue.append(node)
        elif verdict is not None:
            self.end(node.call, verdict.status, error=verdict.error, reason=verdict.reason, branch=verdict.branch)
        else:
            node.call.state.status = "ready"
            self.ready.append(node.call)

    def _refuse_impossible(self, node: CallNode) -> None:
        """Refuse an expression that can never have a value, as a structural error (R5.5)."""
        crowded = structural_errors.refuse_crowded(node.call) if node.crowded else None
        error = crowded or structural_errors.impossible_error(node, self._graph.id_of, self._missing, self._checks)
        if error is not None and node.call.state.ended:
            node.call.state.error = error
        elif error is not None:
            node.refused = True
            self.end(node.call, "invalid", error=error)

    def _refuse_cycles(self, *, first: bool = False) -> None:
        refused = list(structural_errors.cycle_errors(self._graph.edges(first=first), self.calls))
        decided = join_all(self._graph.nodes[index].decided(self.calls, self._checks) for index, _ in refused)
        for index, error in refused:
            self.calls[index].inputs.decided = join(self.calls[index].inputs.decided, decided)
            self.end(self.calls[index], "invalid", error=error)

    def _missing(self, reference: Reference, where: str) -> CallError:
        if self._known is None:
            self._known = {**self._graph.base, "state": state_shape(self._state.snapshot(), self.calls)}
        return missing_path(reference, where, self._known)


class Slots:
    """The slots for calls that run at once: `parallel` of them (`None`: no limit), and never two of one exclusive tool
    or group.

    With `step`, only so many calls start in total: the next Request decides about the others.
    """

    def __init__(self, checks: CheckBudget, parallel: int | None = None, *, step: bool = False) -> None:
        self._checks = checks
        self._parallel = parallel
        self._step = step
        self.renew()
        self._taken: dict[str, frozenset[str]] = {}
        """The exclusive groups of each running call, by the call's id."""

    def renew(self) -> None:
        """Renew the slots for another Request's calls."""
        self._to_start = self._parallel if self._step else None

    @property
    def by_list(self) -> bool:
        """Whether only the first calls of the list are started, so that later calls wait until those are known."""
        return self._to_start is not None

    def take_from(self, ready: list[Call], *, inside: bool = False) -> list[Call]:
        """Return the `ready` calls that may start now. If not all may, the first ones of the model's list start.

        `inside`: the calls belong to a loop, which has started as a whole.
        """
        if self._parallel is not None or any(map(self._groups, ready)):
            ready = sorted(ready, key=lambda call: call.index)
        taken: list[Call] = []
        # With `step` the first calls of the list start: a later call does not replace one that has no room yet.
        for call in ready[: None if inside else self._to_start]:
            if self.free(call):
                self.take(call)
                self._to_start = None if self._to_start is None else self._to_start - (not inside)
                taken.append(call)
        return taken

    def surplus(self, ready: list[Call]) -> list[Call]:
        """Return the calls that will not be started in this Request."""
        if self._to_start is None:
            return []
        return sorted(ready, key=lambda call: call.index)[self._to_start :]

    def drain(self) -> None:
        """Let all calls run, one step after the other."""
        self._to_start = None

    def free(self, call: Call) -> bool:
        """Whether the call may run now, or runs already."""
        if call.id in self._taken:
            return True
        groups = self._groups(call)
        full = self._parallel is not None and len(self._taken) >= self._parallel
        return not full and (not groups or all(map(groups.isdisjoint, self._taken.values())))

    def take(self, call: Call) -> None:
        self._taken[call.id] = self._groups(call)

    def keep(self, call: Call) -> None:
        """Occupy the slot of a call that waits for the client that executes it."""
        if self._checks.is_patched(LIMITS_OF_CHILDREN):
            self.take(call)

    def give_back(self, call: Call) -> None:
        """Free the slot of a call that has ended, or waits for a person. A call without a slot frees none."""
        self._taken.pop(call.id, None)

    def _groups(self, call: Call) -> frozenset[str]:
        """Return the exclusive groups of a call. A loop in child workflows has those of its body too."""
        with_body = call.far and self._checks.is_patched(LIMITS_OF_CHILDREN)
        return exclusive_groups(call.written() if with_body else [call])


def exclusive_groups(calls: Iterable[Call]) -> frozenset[str]:
    """Return the exclusive groups of the tools of these calls."""
    groups = (call.spec.tool.exclusive_group for call in calls if call.spec.tool is not None)
    return frozenset(group for group in groups if group is not None)
