"""Why a call cannot run, in words for a model or a person: short, and naming what would be right (R5.4, R5.5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from perdure.errors import CallError, StateError, clip
from perdure.plan.calls import Call
from perdure.plan.edges.bindings import Binding, Found
from perdure.plan.edges.wiring import Node
from perdure.values.jsons import Json, json_path, shorten
from perdure.values.paths import UNKNOWN, get, near, way_into
from perdure.values.references import MISSING, Expression, Missing, Path, Reference, evaluate, references
from perdure.values.state import Tree, Write

QUOTED: Final = 160
"""Characters of a reference, or of an expression, in these words; it may have thousands."""


def missing_path(reference: Reference, where: str, known: Mapping[str, Json]) -> CallError:
    """Nothing stands at the reference and no call writes it; `known` holds by kind what can be read."""
    if reference.kind not in known:
        kinds = ", ".join(f"†{kind}" for kind in known)
        return CallError.of(
            "missing_path", [f"{where}: there is no {_quoted(reference)}; what can be read are {kinds}"]
        )
    if reference.kind == "input" and reference.path[:1] in (("item",), ("index",)):
        hint = "the item of a call's own _each is †item, its place †index; inside a delegate they are †input.item and †input.index"
        return CallError.of("missing_path", [f"{where}: there is no {_quoted(reference)} here: {hint}"])
    close = near(known[reference.kind], reference.path, root=f"†{reference.kind}")
    hint = _near(close) if close else _without_parts(reference, known[reference.kind])
    return CallError.of("missing_path", [f"{where}: {_quoted(reference)} does not exist and no call writes it; {hint}"])


def missing_inside(
    reference: Reference, where: str, binding: Binding, calls: Sequence[Call], order: Mapping[int, int]
) -> CallError:
    """The path is missing in what its writers wrote, which is told by the keys that are there (R5.5)."""
    start, value = binding.nearest(calls, order)
    root = Reference("state", start)
    close = near(value, reference.path[len(start) :], root=str(root))
    hint = _near(close) if close else _without_parts(reference, value, start)
    writer = calls[max(binding.writers, key=order.__getitem__)]
    return CallError.of("missing_path", [f"{where}: {_quoted(reference)} is not in what {writer.title} wrote; {hint}"])


def _without_parts(reference: Reference, value: Json, start: Path = ()) -> str:
    """What stands in a path's way: nothing can be read of it. `value` is what stands at the path's `start`."""
    at, found = way_into(value, reference.path[len(start) :])
    if found is UNKNOWN:
        return "only the call itself would write it"
    what = "empty" if found in ({}, []) else shorten(found, 60)
    return f"{_quoted(Reference(reference.kind, reference.path[: len(start) + at]))} is {what}"


def unknown_branch(call: Call, addressed: str) -> CallError:
    """A tool chose an alternative that its call's output path does not have (R12.4)."""
    offered = " || ".join(" && ".join(str(Reference("state", path)) for path in paths) for paths in call.paths)
    addressed, offered = clip(addressed, QUOTED), clip(offered, 3 * QUOTED)
    message = f"the tool addressed {addressed}, not one of {offered or 'its paths: it has none'}"
    return CallError("unknown_branch", message)


def impossible(node: Node) -> list[tuple[Reference, str]]:
    """The expressions of a call that nothing can ever satisfy: a reference to blame, and where it stands (R5.5, R5.11)."""
    found: list[tuple[Reference, str]] = []
    for template, bindings, where in (
        (node.call.condition, node.bindings, "$._if"),
        (node.call.template, node.bindings, None),
        (node.call.after.paths, node.order, "$._after"),
        (node.call.after_end.paths, node.ends, "$._after"),
    ):

        def possible(reference: Reference, bindings: Mapping[Reference, Binding] = bindings) -> Json | Missing:
            return True if bindings[reference].possible else MISSING

        found += [
            (
                next(ref for ref in references(site.expression) if possible(ref) is MISSING),
                where or json_path(site.path),
            )
            for site in template.sites
            if evaluate(site.expression, possible) is MISSING
        ]
    return found


def state_shape(state: Json, calls: Iterable[Call]) -> Json:
    """The state as it is, with every path that the calls would write beside it."""
    tree = Tree(state)
    for call in calls:
        for path in () if call.status == "invalid" else (path for alternative in call.paths for path in alternative):
            if get(tree.value, path) is MISSING:
                with suppress(StateError):
                    tree.apply(Write(path=path, value=UNKNOWN))
    return tree.value


def why_skipped(
    bindings: Mapping[Reference, Binding],
    expression: Expression,
    reads: str,
    found: Mapping[Reference, Found],
    calls: Sequence[Call],
) -> tuple[str, bool] | None:
    """Which writer is to blame for an expression without a value, and whether it only took another branch.

    `reads` says where, and how it depends: `$.x reads`. `None` when no writer is: then a path is missing inside a value that is there. A failure is told before a branch.
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
            what = "took another branch" if kind == "branch" else f"did not succeed ({blamed.status})"
            return f"{reads} {_quoted(reference)} from {blamed.title}, which {what}", kind == "branch"
    return None


def _quoted(reference: Reference) -> str:
    return clip(str(reference), QUOTED)


def _near(close: Iterable[str]) -> str:
    return f"near it are {', '.join(clip(each, QUOTED) for each in close)}"


def _blamed(writer: Call, kind: str) -> bool:
    ended_with_a_write = writer.status in ("done", "failed") and bool(writer.writes)
    return ended_with_a_write == (kind == "branch")
