"""What is refused before it runs, and what does not run because of what it comes after (R5.2, R5.5, R5.11, R6.8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from perdure.errors import CallError, clip
from perdure.plan.calls import After, Call
from perdure.plan.control.conditions import IF
from perdure.plan.edges.bindings import Binding, Found
from perdure.plan.edges.cycles import Edge, find_cycles, has_cycle, show_cycle
from perdure.plan.edges.order import AFTER
from perdure.plan.edges.wiring import Node
from perdure.plan.explanations import QUOTED, impossible, why_skipped
from perdure.values.jsons import Json
from perdure.values.limits import MAX_EDGES, MAX_NAMED, MAX_NAMED_BY_CALL
from perdure.values.references import DAGGER, MISSING, Reference, evaluate
from perdure.values.templates import EMPTY_TEMPLATE, EXPR, is_formula


def surplus_words(limit: int, count: int | None = None) -> str:
    """That a list has too many calls; `count`: how many, once that is known."""
    return f"a Solution may have {limit:,} calls at most" + (
        f", and this one has {count:,}" if count is not None else ""
    )


def refuse_surplus(call: Call, limit: int, count: int | None = None, *, first: bool = True) -> None:
    """A call beyond the limit reads nothing and does not run; the first of them says why (R6.8)."""
    call.status = "invalid" if first else "skipped"
    call.reason = f"beyond the limit of {limit} calls"
    message = f"{surplus_words(limit, count)}; this call and all after it were not run"
    call.error = CallError("too_many_calls", message) if first else None
    _read_nothing(call)


def _read_nothing(call: Call) -> None:
    call.template = call.condition = call.soft = EMPTY_TEMPLATE
    call.after = call.after_end = After()


def names_in(raw: Json) -> tuple[int, int]:
    """How many references, output paths and calls a call names, and how many parts it has; counted as written, so that none of them
    has to be read."""
    if not isinstance(raw, dict):
        return 0, 1
    after = raw.get(AFTER)
    count = sum(DAGGER not in item for item in after if isinstance(item, str)) if isinstance(after, list) else 0
    left: list[Json] = [value for key, value in raw.items() if key != "_output"]
    if isinstance(raw.get(IF), str):
        count += _weight(raw[IF])
    parts = 0
    while left:
        item = left.pop()
        parts += 1
        if isinstance(item, str):
            count += item.count(DAGGER) - 2 * item.count(DAGGER * 2)
        elif isinstance(item, dict) and is_formula(item):
            count += _weight(item[EXPR])
        elif isinstance(item, dict | list):
            left.extend(item.values() if isinstance(item, dict) else item)
    return count, parts


def _weight(formula: str) -> int:
    """How many names a formula counts as: reading it takes time by its length."""
    return 1 + len(formula) // 20


def too_many_names(count: int, before: int, max_calls: int) -> str | None:
    """Why a call that names so much is not even read: too much, or too much with the calls `before` it (R18.5).

    Whoever allows a plan more calls allows it more names.
    """
    what = "references, output paths and calls"
    if count > MAX_NAMED_BY_CALL:
        return f"the call names {count:,} {what}; a call may name {MAX_NAMED_BY_CALL:,} at most"
    if before + count > (most := max(MAX_NAMED, MAX_NAMED * max_calls // 500)):
        return f"the call names {count:,} {what}, and those before it {before:,}; a plan may name {most:,} at most"
    return None


def refuse_crowded(call: Call) -> CallError:
    """A call that would bring the plan more edges than it has room for; it reads nothing (R18.5)."""
    _read_nothing(call)
    message = f"too many calls write what this one reads: a plan has {MAX_EDGES:,} edges at most, from a writer to a reference"
    return CallError("too_many_edges", message)


def impossible_error(
    node: Node, id_of: Callable[[Node, int], str], missing: Callable[[Reference, str], CallError]
) -> CallError | None:
    """What nothing can ever satisfy, as a structural error (R5.5); `missing` explains a reference to nothing."""
    found = [missing(reference, where) for reference, where in impossible(node)]
    found += [
        CallError("missing_call", f"$._after: there is no call {id_of(node, index)} in this plan")
        for index in sorted(node.absent if node.closed else ())
    ]
    if not found:
        return None
    # A call that was refused before learns of this too: everything that is wrong with a call is told at once.
    before = () if node.call.error is None else (node.call.error.problems or (node.call.error.message,))
    problems = tuple(dict.fromkeys((*before, *(error.message for error in found))))
    code = found[0].code if node.call.error is None or node.call.error.code == found[0].code else "invalid_call"
    return CallError.of(code, problems)


def cycle_errors(edges: Iterable[Edge], calls: Sequence[Call]) -> Iterator[tuple[int, CallError]]:
    """The calls that wait for themselves, by index, each with a cycle that shows it (R5.2)."""
    pending = [edge for edge in edges if not (calls[edge[0]].ended or calls[edge[1]].ended)]
    if all(writer < reader for writer, reader, _ in pending) or not has_cycle(pending):
        return
    names = [call.title for call in calls]
    for index, cycle in find_cycles(pending).items():
        message = f"the call is on a cycle, so it can never start: {show_cycle(cycle, index, names)}"
        yield index, CallError("cycle", message)


def held_back(node: Node, calls: Sequence[Call], order: Mapping[int, int]) -> tuple[str, bool] | Binding | None:
    """What `_after` means for a call now that all it names have ended (R5.11).

    `None`: it may start. A reason, and whether only branches were not taken: it is skipped. A binding: its writers took another
    branch, so the next ones are to be looked for.
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
    held = [
        (
            f"$._after names {other.title}, which did not succeed ({other.status})",
            other.status == "skipped" and other.branch,
        )
        for other in (calls[index] for index in node.after if index not in node.any_end)
        if other.status != "done"
    ]
    for site in node.call.after.paths.sites:
        if evaluate(site.expression, lambda reference: True if why[reference] == "value" else MISSING) is MISSING:
            skipped = why_skipped(node.order, site.expression, "$._after names", why, calls)
            held.append(
                skipped or (f"$._after names {clip(str(site.expression), QUOTED)}, which was not written", True)
            )
    # A failure is told before a branch, in whatever order they are named.
    return min(held, key=lambda each: each[1], default=None)
