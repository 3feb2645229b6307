"""A plan as a picture: what is drawn, and its Mermaid text (R5.6); `svg` draws it without a browser."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from perdure.plan.edges.order import is_order
from perdure.plan.plan import Plan
from perdure.run.wire import RunView
from perdure.values.paths import overlaps
from perdure.values.references import DAGGER, Reference, parse_expression
from perdure.values.sources import Sources, untrusted

COLOURS: Final = {
    "done": ("#e3f6e5", "#1b6e2b"),
    "running": ("#fff4d1", "#7a5600"),
    "ready": ("#fff4d1", "#7a5600"),
    "waiting": ("#ffe6cc", "#9a3a00"),
    "failed": ("#fde0e0", "#b01c1c"),
    "invalid": ("#fde0e0", "#b01c1c"),
    "rejected": ("#f3e1f7", "#7a1f92"),
    "skipped": ("#eeeeee", "#5c5c5c"),
    "deferred": ("#eeeeee", "#5c5c5c"),
    "pending": ("#e8eefc", "#2f4ba8"),
    "held": ("#e0f2f1", "#00564c"),
    "unknown": ("#fff0f0", "#a01050"),
    "path": ("#ffffff", "#455a64"),
}
"""Fill and line by status; words in a line's colour are read on its fill, at a contrast of 4.5 : 1 at least."""


OTHERS: Final = "#c62828"
"""The line of what others wrote."""


@dataclass(frozen=True, slots=True)
class Node:
    id: str
    """The call's id, `1.0`; of a path the path, `†state.x`."""
    tool: str
    """Empty for a path."""
    status: str

    @property
    def label(self) -> str:
        return f"{self.id} {self.tool}".strip()


@dataclass(frozen=True, slots=True)
class Drawing:
    """Calls, and paths where they are drawn; the edges between them: from, to, and what is read. `after …` is order without data."""

    nodes: Sequence[Node]
    edges: Sequence[tuple[str, str, str]]
    untrusted: frozenset[tuple[str, str]] = frozenset()
    """Ends of the edges that carry what others wrote (R15.7)."""


def draw_plan(plan: Plan, *, paths: bool = False, sources: Mapping[str, Sources] | None = None) -> Drawing:
    """A plan; with `paths` what is read and written stands between the calls, as nodes of their own.

    `sources`: of the calls' results by id, where the plan itself was not played.
    """
    nodes = [Node(call.id, call.tool_name, call.standing) for call in plan.calls]
    given = sources or {call.id: call.sources for call in plan.made()}
    others = {id for id, each in given.items() if untrusted(each)}
    if not paths:
        return Drawing(nodes, _merge(plan.named_edges()), _by_others(plan.named_edges(), others))
    edges: dict[tuple[str, str], str] = {}
    written = {call.id: [Reference("state", path) for paths in call.paths for path in paths] for call in plan.calls}
    for call in plan.calls:
        edges |= {(call.id, str(path)): "" for path in written[call.id]}
        bound = [(writer, what) for writer, reader, what in plan.named_edges() if reader == call.id]
        for reference in dict.fromkeys([*call.condition.references(), *call.template.references()]):
            near = [
                path
                for writer, what in bound
                if what == str(reference)
                for path in written[writer]
                if overlaps(path.path, reference.path)
            ]
            # Nobody in the plan writes it: it is the run's input, or stands in the state already.
            edges |= {(str(path), call.id): "" if path == reference else str(reference) for path in near or [reference]}
        for writer, what in bound:
            if is_order(what):
                edges.setdefault((writer, call.id), what)
    found = dict.fromkeys(end for edge in edges for end in edge if end.startswith(DAGGER))
    tainted = {writer for ends in edges if (writer := ends[0]) in others}
    tainted |= {path for writer, path in edges if writer in others and path.startswith(DAGGER)}
    tainted |= {path for path in found if untrusted(plan.sources_then(_reference(path)))}
    return Drawing(
        [*nodes, *(Node(path, "", "path") for path in found)],
        [(*ends, what) for ends, what in edges.items()],
        _by_others([(*ends, what) for ends, what in edges.items()], tainted),
    )


def draw_run(view: RunView) -> Drawing:
    """A run with all its Requests."""
    nodes = [Node(call.id, call.tool, call.status) for call in view.calls]
    others = {call.id for call in view.calls if "" in call.sources}
    return Drawing(nodes, _merge(view.edges), _by_others(view.edges, others))


def _by_others(edges: Iterable[tuple[str, str, str]], others: Collection[str]) -> frozenset[tuple[str, str]]:
    """The edges that begin where others wrote; order alone carries nothing."""
    return frozenset((writer, reader) for writer, reader, what in edges if writer in others and not is_order(what))


def _reference(path: str) -> Reference:
    found = parse_expression(path)
    assert isinstance(found, Reference)
    return found


def _merge(edges: Iterable[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """One edge for a pair of calls, with all that goes over it."""
    merged: dict[tuple[str, str], list[str]] = {}
    for writer, reader, reference in edges:
        merged.setdefault((writer, reader), []).append(reference)
    return [(writer, reader, ", ".join(dict.fromkeys(names))) for (writer, reader), names in merged.items()]


def to_mermaid(drawing: Drawing) -> str:
    """A Mermaid flowchart, coloured by status."""
    lines = ["graph LR"]
    names = {node.id: f"p{n}" if node.status == "path" else _name(node.id) for n, node in enumerate(drawing.nodes)}
    for node in drawing.nodes:
        first, last = ("{{", "}}") if node.status == "path" else ("[", "]")
        lines.append(f'    {names[node.id]}{first}"{_mermaid_text(node.label)}"{last}:::{node.status}')
    for writer, reader, label in drawing.edges:
        line, arrow = ("-.", ".->") if is_order(label) else ("--", "-->")
        text = f' {line} "{_mermaid_text(label)}" {arrow} ' if label else " --> "
        lines.append(f"    {names[writer]}{text}{names[reader]}")
    tainted = [number for number, edge in enumerate(drawing.edges) if edge[:2] in drawing.untrusted]
    if tainted:
        lines.append(f"    linkStyle {','.join(map(str, tainted))} stroke:{OTHERS},stroke-width:3px")
    for status in dict.fromkeys(node.status for node in drawing.nodes):
        fill, line = COLOURS[status]
        lines.append(f"    classDef {status} fill:{fill},stroke:{line},color:#222")
    return "\n".join(lines)


def _name(id: str) -> str:
    return "c" + id.replace(".", "_")


def _mermaid_text(text: str) -> str:
    """Mermaid reads entities in quoted text; its own signs must not end it."""
    return "".join(c if c.isalnum() or c in " ._-†,[]()/" else f"#{ord(c)};" for c in text)
