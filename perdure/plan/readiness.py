"""What becomes of a call now that all it reads and waits for has ended: it is ready, or why it never will be (R5.3, R5.4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from perdure.errors import CallError, FormulaError, StateError, TooLargeError, clip
from perdure.plan.calls import Call, Status
from perdure.plan.checks import check_resolved
from perdure.plan.control.conditions import IF
from perdure.plan.control.guessing import Assumed
from perdure.plan.edges.bindings import Binding, Found
from perdure.plan.edges.wiring import Node
from perdure.plan.explanations import QUOTED, missing_inside, why_skipped
from perdure.plan.refusals import held_back
from perdure.values.instances import scope_path
from perdure.values.jsons import Json, json_path
from perdure.values.limits.steps import Checks
from perdure.values.paths import UNKNOWN
from perdure.values.references import MISSING, Expression, Missing, Path, Reference, evaluate, references
from perdure.values.sources import NOWHERE, USER, Sources, join
from perdure.values.sources.origins import Known, origins_of
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
    held = held_back(node, calls, order)
    if isinstance(held, Binding):
        return held
    found: dict[Reference, Json | Missing] = {}
    why: dict[Reference, Found] = {}
    unreadable: CallError | None = None
    for reference, binding in node.bindings.items():
        if binding.looks_on(calls):
            return binding
        try:
            why[reference], found[reference] = binding.find(calls, order)
        except StateError as error:
            words = f"{clip(str(reference), QUOTED)} cannot be read: {error}"
            unreadable = unreadable or CallError.of("unreadable", [words])
    if held is not None:
        return End("skipped", reason=held[0], branch=held[1])
    if unreadable is not None:
        return End("invalid", unreadable)
    call = node.call

    def sources(reference: Reference) -> Sources:
        if known.vouched(str(reference), found[reference]):
            return USER
        return node.bindings[reference].sources(calls, order, known.of_kind(reference.kind))

    def valued(template: Template, where: Path) -> Json | End:
        for site in template.sites:
            if evaluate(site.expression, found.__getitem__) is MISSING:
                return _unreadable(node, site.expression, json_path((*where, *site.path)), why, calls, order, missing)
        if dry is not None:
            return UNKNOWN
        try:
            value = template.resolve(found.__getitem__, texts)
            texts.check_whole(value)
        except TooLargeError as error:
            return End("invalid", CallError("params_too_large", str(error)))
        except FormulaError as error:
            return End("invalid", CallError("invalid_expression", str(error)))
        return value

    if call.has_condition:
        # What it would be called with need not exist where it is not called.
        holds = valued(call.condition, (IF,))
        if dry is not None and holds is UNKNOWN:
            holds = dry.holds.get(call.id, UNKNOWN)
            holds = _guess(dry, call.condition, call.raw[IF], found) if holds is UNKNOWN else holds
        if isinstance(holds, End):
            return holds
        if holds is not UNKNOWN and not holds:
            return End("skipped", reason=f"its condition does not hold: {clip(call.condition_text, 200)}", branch=True)
    call.origins = origins_of(
        call.template,
        call.origins.written,
        found.__getitem__,
        sources,
    )
    params = valued(call.template, ())
    if isinstance(params, End):
        return params
    if dry is not None and call.loop is None:
        return None
    if dry is not None and call.loop is not None:
        call.outside = _outside(call, found)
        items = UNKNOWN if call.loop.kind != "each" else _guess(dry, call.loop.each, call.raw["_each"], found)
        if isinstance(items, End):
            return items
        call.items = items if isinstance(items, list) else None
        wrong = check_resolved(call, checks) if call.items is None and items is not UNKNOWN else None
        return None if wrong is None else End("invalid", wrong)
    if call.loop is not None:
        call.items, call.outside = params.get("_each"), _outside(call, found)
        call.outside_sources = {reference: _sources(call, reference, sources) for reference in call.outside}
    else:
        call.take_resolved(params)
    problem = check_resolved(call, checks)
    return End("invalid", problem) if problem else None


def _guess(dry: Assumed, template: Template, written: Json, found: Mapping[Reference, Json | Missing]) -> Json | End:
    """What a dry run knows of a value, or `UNKNOWN`."""
    try:
        return dry.value(template, written, found.__getitem__)
    except FormulaError as error:
        return End("invalid", CallError("invalid_expression", str(error)))


def _sources(call: Call, reference: Reference, sources: Callable[[Reference], Sources]) -> Sources:
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


def _unreadable(
    node: Node,
    expression: Expression,
    where: str,
    why: Mapping[Reference, Found],
    calls: Sequence[Call],
    order: Mapping[int, int],
    missing: Callable[[Reference, str], CallError],
) -> End:
    """The expression has no value: a writer is to blame, or the path is missing in what was written (R5.4)."""
    skipped = why_skipped(node.bindings, expression, f"{where} reads", why, calls)
    if skipped is not None:
        return End("skipped", reason=skipped[0], branch=skipped[1])
    absent = next(reference for reference in references(expression) if why[reference] == "nowhere")
    binding = node.bindings[absent]
    if binding.writers:
        return End("invalid", missing_inside(absent, where, binding, calls, order))
    return End("invalid", missing(absent, where))
