"""Structural errors: the reasons why a call is invalid or skipped, as text for a model or a person."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from perdure.errors import CallError, StateError, clip
from perdure.plan._calls import IF, NO_ORDER, Call
from perdure.plan._dependency_graph import AFTER, Binding, CallNode, Edge, Found, find_cycles, has_cycle, show_cycle
from perdure.values.json import Json, JsonObject, json_path, shorten
from perdure.values.limits import MAX_EDGES, MAX_NAMED, MAX_NAMED_BY_CALL, CheckBudget
from perdure.values.references import (
    DAGGER,
    MISSING,
    UNKNOWN,
    Expression,
    Missing,
    Path,
    Reference,
    evaluate,
    get,
    nearest_paths,
    references,
    way_into,
)
from perdure.values.state import ValueTree, Write, scope_path
from perdure.values.templates import EMPTY_TEMPLATE, EXPR, is_formula

OWN_DECIDES: Final = "own-decides"
"""Patch: in runs of 0.2.0 a call of an instance reads the shared value where its own writer failed."""
CONDITION_FIRST: Final = "condition-first"
"""Patch: in runs of 0.2.0 a call is refused for a key that its data lacks, although its condition does not hold."""
LAZY_READS: Final = "lazy-reads"
"""Patch: runs of 0.2.0 need each value that a formula names, also in parts that it does not evaluate.

In these runs, a call without such a value is skipped. An iteration that reads a missing name is refused, even if its
condition is false. A loop without an iteration is refused for a key that its body reads and its data lacks.
"""
QUOTED: Final = 160
"""Characters of a reference, or of an expression, in an error; the full text may have thousands."""


def missing_path(reference: Reference, where: str, known: Mapping[str, Json]) -> CallError:
    """Return the error for a reference without a value or a writer; `known` holds by kind the values that can be
    read."""
    if reference.kind not in known:
        kinds = ", ".join(f"†{kind}" for kind in known)
        return CallError.of(
            "missing_path", [f"{where}: there is no {_quoted(reference)}; what can be read are {kinds}"]
        )
    if reference.kind == "input" and reference.path[:1] in (("item",), ("index",)):
        hint = "the item of a call's own _each is †item, its place †index; inside a delegate they are †input.item and †input.index"
        return CallError.of("missing_path", [f"{where}: there is no {_quoted(reference)} here: {hint}"])
    close = nearest_paths(known[reference.kind], reference.path, root=f"†{reference.kind}")
    hint = _near(close) if close else _without_parts(reference, known[reference.kind])
    return CallError.of("missing_path", [f"{where}: {_quoted(reference)} does not exist and no call writes it; {hint}"])


def missing_inside(
    reference: Reference, where: str, binding: Binding, calls: Sequence[Call], order: Mapping[int, int]
) -> CallError:
    """Return the error for a path that its writers did not write, with the keys that exist (R5.5)."""
    start, value = binding.nearest(calls, order)
    root = Reference("state", start)
    close = nearest_paths(value, reference.path[len(start) :], root=str(root))
    hint = _near(close) if close else _without_parts(reference, value, start)
    writer = calls[max(binding.writers, key=order.__getitem__)]
    return CallError.of("missing_path", [f"{where}: {_quoted(reference)} is not in what {writer.title} wrote; {hint}"])


def _without_parts(reference: Reference, value: Json, start: Path = ()) -> str:
    """Return the value that blocks a path, because it has no parts. `value` is the value at the path's `start`."""
    at, found = way_into(value, reference.path[len(start) :])
    if found is UNKNOWN:
        return "only the call itself would write it"
    what = "empty" if found in ({}, []) else shorten(found, 60)
    return f"{_quoted(Reference(reference.kind, reference.path[: len(start) + at]))} is {what}"


def unknown_branch(call: Call, addressed: str) -> CallError:
    """Return the error for a tool that chose an alternative that its call's output path does not have (R12.4)."""
    offered = " || ".join(" && ".join(str(Reference("state", path)) for path in paths) for paths in call.spec.paths)
    addressed, offered = clip(addressed, QUOTED), clip(offered, 3 * QUOTED)
    message = f"the tool addressed {addressed}, not one of {offered or 'its paths: it has none'}"
    return CallError("unknown_branch", message)


def find_impossible(node: CallNode, checks: CheckBudget) -> list[tuple[Reference, str]]:
    """Return the expressions of a call that can never have a value: the missing reference of each, and its place
    (R5.5, R5.11).

    The scheduler judges two kinds of reads later, once the condition holds: keys of existing data, because the condition
    may ask whether the key exists; and in an iteration, names that no call around the loop has written.
    """
    found: list[tuple[Reference, str]] = []
    if not [binding for binding in node.all_bindings() if not binding.possible]:
        return found
    asks = node.call.spec.has_condition and checks.is_patched(CONDITION_FIRST)
    is_inside = len(node.call.place) > 1 and checks.is_patched(LAZY_READS)
    for template, bindings, where in (
        (node.call.spec.condition, node.bindings, "$._if"),
        (node.call.spec.template, node.bindings, None),
        (node.call.spec.after.paths, node.order, "$._after"),
        (node.call.spec.after_end.paths, node.ends, "$._after"),
    ):
        for site in template.sites:
            judged_later = site.optional or (asks and template is node.call.spec.template)
            lookup = partial(_possible, bindings, judged_later=judged_later, is_inside=is_inside)
            if evaluate(site.expression, lookup) is MISSING:
                found.append((site.missing_reference(lookup), where or json_path(site.path)))
    return found


def _possible(
    bindings: Mapping[Reference, Binding], reference: Reference, *, judged_later: bool, is_inside: bool
) -> Json | Missing:
    """Return `True` for a reference that may have a value, or that the scheduler judges later; else `MISSING`."""
    binding = bindings[reference]
    later = binding.reads_data or (is_inside and binding.base is not MISSING)
    return True if binding.possible or (judged_later and later) else MISSING


def state_shape(state: JsonObject, calls: Iterable[Call]) -> JsonObject:
    """Return the present state, with every path that the calls would write."""
    tree = ValueTree(state)
    for call in calls:
        for path in (
            () if call.state.status == "invalid" else (path for alternative in call.spec.paths for path in alternative)
        ):
            if get(tree.value, path) is MISSING:
                with suppress(StateError):
                    tree.apply(Write(path=path, value=UNKNOWN))
    shape: JsonObject = tree.value
    return shape


def why_skipped(
    bindings: Mapping[Reference, Binding],
    expression: Expression,
    reads: str,
    found: Mapping[Reference, Found],
    calls: Sequence[Call],
) -> tuple[str, bool] | None:
    """Return the reason why a writer left an expression without a value, and whether it only took another branch.

    `reads` is the place and the kind of dependency: `$.x reads`. `None` if no writer is the cause: a path is missing
    inside an existing value. A failure is reported before a branch.
    """
    for kind in ("broken", "branch"):
        reference = next((each for each in references(expression) if found[each] == kind), None)
        if reference is not None:
            binding = bindings[reference]
            writers = [calls[index] for index in binding.writers]
            blamed = next((writer for writer in writers if _blamed(writer, kind)), writers[0] if writers else None)
            if kind == "branch" and binding.passed is not None:
                blamed = calls[binding.passed]
            if blamed is None:
                return f"{reads} {reference}, which no call wrote", kind == "branch"
            what = "took another branch" if kind == "branch" else f"did not succeed ({blamed.state.status})"
            return f"{reads} {_quoted(reference)} from {blamed.title}, which {what}", kind == "branch"
    return None


def find_hidden_values(
    instance: str, bindings: Mapping[Reference, Binding], found: Mapping[Reference, Found]
) -> dict[Reference, Found]:
    """Return the references whose shared value an instance does not read, each with the reason.

    The reason is that a writer of the instance's own path did not succeed, or took another branch. A shared value
    counts only if the instance has no writer of the path (R8.8).
    """
    hidden: dict[Reference, Found] = {}
    for reference in found:
        own = Reference("state", scope_path(reference.path, instance))
        binding, why = bindings.get(own), found.get(own)
        if reference.kind != "state" or binding is None or why is None or not binding.decides:
            continue
        if why == "broken" or (why == "branch" and (binding.order or binding.passed is not None)):
            hidden[reference] = why
    return hidden


def _quoted(reference: Reference) -> str:
    return clip(str(reference), QUOTED)


def _near(close: Iterable[str]) -> str:
    return f"near it are {', '.join(clip(each, QUOTED) for each in close)}"


def _blamed(writer: Call, kind: str) -> bool:
    ended_with_a_write = writer.state.status in ("done", "failed") and bool(writer.state.writes)
    return ended_with_a_write == (kind == "branch")


def surplus_words(limit: int, count: int | None = None) -> str:
    """Return the error text for a list with too many calls; `count`: their number, once it is known."""
    return f"a Solution may have {limit:,} calls at most" + (
        f", and this one has {count:,}" if count is not None else ""
    )


def refuse_surplus(call: Call, limit: int, count: int | None = None, *, first: bool = True) -> None:
    """Refuse a call beyond the limit: it reads nothing and does not run; the first of them has the reason (R6.8)."""
    call.state.status = "invalid" if first else "skipped"
    call.state.reason = f"beyond the limit of {limit} calls"
    message = f"{surplus_words(limit, count)}; this call and all after it were not run"
    call.state.error = CallError("too_many_calls", message) if first else None
    _read_nothing(call)


def _read_nothing(call: Call) -> None:
    nothing = EMPTY_TEMPLATE
    call.spec = replace(
        call.spec, template=nothing, condition=nothing, soft=nothing, after=NO_ORDER, after_end=NO_ORDER
    )


def names_in(raw: Json) -> tuple[int, int]:
    """Return the number of references, output paths and calls that a call names, and the number of its parts. It counts
    the text as written, so that none of them has to be parsed."""
    if not isinstance(raw, dict):
        return 0, 1
    after = raw.get(AFTER)
    count = sum(DAGGER not in item for item in after if isinstance(item, str)) if isinstance(after, list) else 0
    left: list[Json] = [value for key, value in raw.items() if key != "_output"]
    if isinstance(condition := raw.get(IF), str):
        count += _weight(condition)
    parts = 0
    while left:
        item = left.pop()
        parts += 1
        if isinstance(item, str):
            if DAGGER in item:
                count += item.count(DAGGER) - 2 * item.count(DAGGER * 2)
        elif isinstance(item, dict) and is_formula(item):
            count += _weight(item[EXPR])
        elif isinstance(item, dict | list):
            left.extend(item.values() if isinstance(item, dict) else item)
    return count, parts


def _weight(formula: str) -> int:
    """Return the number of names that a formula counts as: parsing takes time by its length."""
    return 1 + len(formula) // 20


def too_many_names(count: int, before: int, max_calls: int) -> str | None:
    """Return the reason why a call with so many names is not parsed: too many, or too many with the calls `before` it
    (R18.5).

    A plan with a higher limit of calls may have more names.
    """
    what = "references, output paths and calls"
    if count > MAX_NAMED_BY_CALL:
        return f"the call names {count:,} {what}; a call may name {MAX_NAMED_BY_CALL:,} at most"
    if before + count > (most := max(MAX_NAMED, MAX_NAMED * max_calls // 500)):
        return f"the call names {count:,} {what}, and those before it {before:,}; a plan may name {most:,} at most"
    return None


def refuse_crowded(call: Call) -> CallError:
    """Refuse a call that would exceed the plan's limit of edges; it reads nothing (R18.5)."""
    _read_nothing(call)
    message = f"too many calls write what this one reads: a plan has {MAX_EDGES:,} edges at most, from a writer to a reference"
    return CallError("too_many_edges", message)


def impossible_error(
    node: CallNode,
    id_of: Callable[[CallNode, int], str],
    missing: Callable[[Reference, str], CallError],
    checks: CheckBudget,
) -> CallError | None:
    """Return the structural error for expressions that can never have a value (R5.5); `missing` explains a reference to
    nothing.
    """
    found = [missing(reference, where) for reference, where in find_impossible(node, checks)]
    found += [
        CallError("missing_call", f"$._after: there is no call {id_of(node, index)} in this plan")
        for index in sorted(node.absent if node.closed else ())
    ]
    if not found:
        return None
    # A call that was refused before also gets this problem: all problems of a call are reported at once.
    before = (
        () if node.call.state.error is None else (node.call.state.error.problems or (node.call.state.error.message,))
    )
    problems = tuple(dict.fromkeys((*before, *(error.message for error in found))))
    code = (
        found[0].code
        if node.call.state.error is None or node.call.state.error.code == found[0].code
        else "invalid_call"
    )
    return CallError.of(code, problems)


def cycle_errors(edges: Iterable[Edge], calls: Sequence[Call]) -> Iterator[tuple[int, CallError]]:
    """Yield the calls that wait for themselves, by index, each with a cycle that shows it (R5.2)."""
    ended = [call.state.ended for call in calls]
    pending = [edge for edge in edges if not (ended[edge[0]] or ended[edge[1]])]
    if all(writer < reader for writer, reader, _ in pending) or not has_cycle(pending):
        return
    names = [call.title for call in calls]
    for index, cycle in find_cycles(pending).items():
        message = f"the call is on a cycle, so it can never start: {show_cycle(cycle, index, names)}"
        yield index, CallError("cycle", message)


def held_back(
    node: CallNode, calls: Sequence[Call], order: Mapping[int, int], instance: str | None
) -> tuple[str, bool] | Binding | None:
    """Return the effect of `_after` on a call whose named calls have all ended (R5.11).

    `instance`: the call's instance, where its own writers decide: see `find_hidden_values`.
    `None`: it may start. A reason, and whether only branches were not taken: it is skipped. A binding: its writers took
    another branch, so search for the next ones.
    """
    if not (node.order or node.after or node.ends):
        return None
    if (passed := next((each for each in node.ends.values() if each.looks_on(calls)), None)) is not None:
        return passed
    why: dict[Reference, Found] = {}
    for reference, binding in node.order.items():
        if binding.looks_on(calls):
            return binding
        why[reference], _ = binding.find(calls, order)
    if instance is not None:
        why |= find_hidden_values(instance, node.order, why)
    held = [
        (
            f"$._after names {other.title}, which did not succeed ({other.state.status})",
            other.state.status == "skipped" and other.state.branch,
        )
        for other in (calls[index] for index in node.after if index not in node.any_end)
        if not other.state.executed
    ]
    for site in node.call.spec.after.paths.sites:
        if evaluate(site.expression, lambda reference: True if why[reference] == "value" else MISSING) is MISSING:
            skipped = why_skipped(node.order, site.expression, "$._after names", why, calls)
            held.append(
                skipped or (f"$._after names {clip(str(site.expression), QUOTED)}, which was not written", True)
            )
    # A failure is reported before a branch, in any order of their names.
    return min(held, key=lambda each: each[1], default=None)
