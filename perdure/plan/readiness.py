"""What becomes of a call now that all it reads and waits for has ended: it is ready, or why it never will be (R5.3, R5.4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from perdure.errors import CallError, FormulaError, StateError, TooLargeError, clip
from perdure.plan.calls import Call, LoopForm, Status
from perdure.plan.checks import check_resolved
from perdure.plan.control.conditions import IF
from perdure.plan.control.guessing import Assumed
from perdure.plan.edges.bindings import Binding, Found
from perdure.plan.edges.wiring import Node
from perdure.plan.explanations import QUOTED, missing_inside, why_skipped
from perdure.plan.refusals import held_back
from perdure.values.instances import scope_path
from perdure.values.jsons import Json, json_path
from perdure.values.limits.steps import DECIDED, Checks
from perdure.values.paths import UNKNOWN
from perdure.values.references import MISSING, Expression, Missing, Path, Reference, evaluate, references
from perdure.values.sources import NOWHERE, USER, Sources, join, join_all
from perdure.values.sources.origins import Known, Origins, origins_of, taken_by
from perdure.values.templates import Template
from perdure.values.texts import Texts


@dataclass(frozen=True, slots=True)
class End:
    """How a call ends that does not run."""

    status: Status
    error: CallError | None = None
    reason: str = ""
    branch: bool = False
    """Only a branch was not taken."""


def judge(
    node: Node,
    calls: Sequence[Call],
    order: Mapping[int, int],
    missing: Callable[[Reference, str], CallError],
    *,
    dry: Assumed | None,
    checks: Checks,
    texts: Texts,
    known: Known,
) -> Binding | End | None:
    """`None`: the call is ready, its parameters are resolved. A binding: its writers took another branch, so the next ones are
    to be looked for; where there are none it is `exhausted`, and the call is judged again.

    `order` gives each call's place in the order of completion; `missing` explains a reference to nothing.
    """
    return _Judging(node, calls, order, missing, dry, checks, texts, known).outcome()


@dataclass(slots=True)
class _Judging:
    """`judge`, step by step: what it reads, whether its condition holds, with which parameters it is called."""

    node: Node
    calls: Sequence[Call]
    order: Mapping[int, int]
    missing: Callable[[Reference, str], CallError]
    dry: Assumed | None
    checks: Checks
    texts: Texts
    known: Known
    found: dict[Reference, Json | Missing] = field(default_factory=dict)
    why: dict[Reference, Found] = field(default_factory=dict)

    def outcome(self) -> Binding | End | None:
        call = self.node.call
        call.decided = self.known.decided
        outcome = self._outcome()
        if isinstance(outcome, End) and outcome.branch:  # what kept others from writing has kept it from being made
            bindings = (*self.node.bindings.values(), *self.node.order.values())
            call.decided = join_all([call.decided, *(each.decided(self.calls) for each in bindings)])
        return outcome

    def _outcome(self) -> Binding | End | None:
        read = self._read()
        if read is not None:
            return read
        call = self.node.call
        call.decided = join(call.decided, self._decided_by(call.condition))
        # What it would be called with need not exist where it is not called.
        not_taken = self._condition() if call.has_condition else None
        if not_taken is not None:
            return not_taken
        call.origins = origins_of(call.template, call.origins.written, self.found.__getitem__, self._sources)
        call.origins = self._with_what_was_missed(call.template, call.origins)
        params = self._valued(call.template, ())
        if isinstance(params, End):
            return params
        if self.dry is not None:
            return None if call.loop is None else self._dry_loop(self.dry, call, call.loop)
        if call.loop is not None:
            call.items, call.outside = params.get("_each"), _outside(call, self.found)
            call.outside_sources = {each: _loop_sources(call, each, self._sources) for each in call.outside}
        else:
            call.take_resolved(params)
        return _invalid(check_resolved(call, self.checks))

    def _read(self) -> Binding | End | None:
        """Find what each reference reads."""
        held = held_back(self.node, self.calls, self.order)
        if isinstance(held, Binding):
            return held
        unreadable: CallError | None = None
        for reference, binding in self.node.bindings.items():
            if binding.looks_on(self.calls):
                return binding
            try:
                self.why[reference], self.found[reference] = binding.find(self.calls, self.order)
            except StateError as error:
                words = f"{clip(str(reference), QUOTED)} cannot be read: {error}"
                unreadable = unreadable or CallError.of("unreadable", [words])
        if held is not None:
            return End("skipped", reason=held[0], branch=held[1])
        return _invalid(unreadable)

    def _condition(self) -> End | None:
        call, dry = self.node.call, self.dry
        holds = self._valued(call.condition, (IF,))
        if dry is not None and holds is UNKNOWN:
            holds = dry.holds.get(call.id, UNKNOWN)
            holds = _guess(dry, call.condition, call.raw[IF], self.found) if holds is UNKNOWN else holds
        if isinstance(holds, End):
            return holds
        if holds is UNKNOWN or holds:
            return None
        return End("skipped", reason=f"its condition does not hold: {clip(call.condition_text, 200)}", branch=True)

    def _valued(self, template: Template, where: Path) -> Json | End:
        for site in template.sites:
            if evaluate(site.expression, self.found.__getitem__) is MISSING:
                return self._unreadable(site.expression, json_path((*where, *site.path)))
        if self.dry is not None:
            return UNKNOWN
        try:
            value = template.resolve(self.found.__getitem__, self.texts)
            self.texts.check_whole(value)
        except TooLargeError as error:
            return End("invalid", CallError("params_too_large", str(error)))
        except FormulaError as error:
            return End("invalid", CallError("invalid_expression", str(error)))
        return value

    def _dry_loop(self, dry: Assumed, call: Call, loop: LoopForm) -> End | None:
        call.outside = _outside(call, self.found)
        items = UNKNOWN if loop.kind != "each" else _guess(dry, loop.each, call.raw["_each"], self.found)
        if isinstance(items, End):
            return items
        call.items = items if isinstance(items, list) else None
        known_to_be_none = call.items is None and items is not UNKNOWN
        return _invalid(check_resolved(call, self.checks) if known_to_be_none else None)

    def _sources(self, reference: Reference) -> Sources:
        if self.known.vouched(str(reference), self.found[reference]):
            return USER
        binding = self.node.bindings[reference]
        sources = binding.sources(self.calls, self.order, self.known.of_kind(reference.kind))
        return with_conditions(sources, binding.decided(self.calls), self.checks)

    def _decided_by(self, condition: Template) -> Sources:
        """Where what a condition goes by comes from."""
        sites = (site.expression for site in condition.sites)
        return join_all(taken_by(each, self.found.__getitem__, self._sources) for each in sites)

    def _with_what_was_missed(self, template: Template, origins: Origins) -> Origins:
        """Of `a || b` also the conditions that have kept `a` from being written."""
        params = dict(origins.params)
        for site in template.sites:
            name = str(site.path[0])
            for reference in references(site.expression):
                if self.found.get(reference) is MISSING:
                    decided = self.node.bindings[reference].decided(self.calls)
                    params[name] = with_conditions(params.get(name, NOWHERE), decided, self.checks)
        return replace(origins, params=params)

    def _unreadable(self, expression: Expression, where: str) -> End:
        """The expression has no value: a writer is to blame, or the path is missing in what was written (R5.4)."""
        bindings = self.node.bindings
        skipped = why_skipped(bindings, expression, f"{where} reads", self.why, self.calls)
        if skipped is not None:
            return End("skipped", reason=skipped[0], branch=skipped[1])
        absent = next(reference for reference in references(expression) if self.why[reference] == "nowhere")
        binding = bindings[absent]
        if binding.writers:
            return End("invalid", missing_inside(absent, where, binding, self.calls, self.order))
        return End("invalid", self.missing(absent, where))


def with_conditions(sources: Sources, decided: Sources, checks: Checks) -> Sources:
    """Those of a value, with those of the conditions that it stands there by."""
    return sources if decided <= sources or not checks.is_patched(DECIDED) else join(sources, decided)


def _invalid(error: CallError | None) -> End | None:
    return None if error is None else End("invalid", error)


def _guess(dry: Assumed, template: Template, written: Json, found: Mapping[Reference, Json | Missing]) -> Json | End:
    """What a dry run knows of a value, or `UNKNOWN`."""
    try:
        return dry.value(template, written, found.__getitem__)
    except FormulaError as error:
        return End("invalid", CallError("invalid_expression", str(error)))


def _loop_sources(call: Call, reference: Reference, sources: Callable[[Reference], Sources]) -> Sources:
    own = NOWHERE if call.instance is None else sources(Reference("state", scope_path(reference.path, call.instance)))
    return join(own, sources(reference))


def _outside(call: Call, found: Mapping[Reference, Json | Missing]) -> dict[Reference, Json]:
    """What a loop's calls read of the state, as far as it has a value; an instance's own goes first (R8.8)."""
    assert call.loop is not None
    outside: dict[Reference, Json] = {}
    for reference in call.loop.reads:
        value: Json | Missing = MISSING
        if call.instance is not None:
            value = found[Reference("state", scope_path(reference.path, call.instance))]
        value = found.get(reference, MISSING) if value is MISSING else value
        if value is not MISSING:
            outside[reference] = value
    return outside
