"""A plan as a picture: Mermaid text, and SVG without a browser (R5.6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from perdure.plan.edges.order import is_order
from perdure.plan.plan import Plan
from perdure.run.views.layers import layered
from perdure.run.wire import RunView
from perdure.values.paths import overlaps
from perdure.values.references import DAGGER, Reference

_COLOURS: Final = {
    "done": ("#e3f6e5", "#2c8a3d"),
    "running": ("#fff4d1", "#c48a00"),
    "ready": ("#fff4d1", "#c48a00"),
    "waiting": ("#ffe6cc", "#e65100"),
    "failed": ("#fde0e0", "#c62828"),
    "invalid": ("#fde0e0", "#c62828"),
    "rejected": ("#f3e1f7", "#8e24aa"),
    "skipped": ("#eeeeee", "#9e9e9e"),
    "deferred": ("#eeeeee", "#9e9e9e"),
    "pending": ("#e8eefc", "#3d5fc4"),
    "path": ("#ffffff", "#607d8b"),
}
"""Fill and line by status."""


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


def draw_plan(plan: Plan, *, paths: bool = False) -> Drawing:
    """A plan; with `paths` what is read and written stands between the calls, as nodes of their own."""
    nodes = [Node(call.id, call.tool_name, call.status) for call in plan.calls]
    if not paths:
        return Drawing(nodes, _merge(plan.named_edges()))
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
    return Drawing(
        [*nodes, *(Node(path, "", "path") for path in found)], [(*ends, what) for ends, what in edges.items()]
    )


def draw_run(view: RunView) -> Drawing:
    """A run with all its Requests."""
    nodes = [Node(call.id, call.tool, call.status) for call in view.calls]
    return Drawing(nodes, _merge(view.edges))


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
    for status in dict.fromkeys(node.status for node in drawing.nodes):
        fill, line = _COLOURS[status]
        lines.append(f"    classDef {status} fill:{fill},stroke:{line},color:#222")
    return "\n".join(lines)


def _name(id: str) -> str:
    return "c" + id.replace(".", "_")


def _mermaid_text(text: str) -> str:
    """Mermaid reads entities in quoted text; its own signs must not end it."""
    return "".join(c if c.isalnum() or c in " ._-†,[]()/" else f"#{ord(c)};" for c in text)


_HEIGHT: Final = 44
_CHARACTER: Final = 7.3
"""Pixels that a character of the 12 px monospace label takes at most."""


def to_svg(drawing: Drawing, *, lit: str | None = None) -> str:
    """An SVG document, laid out in layers from left to right, coloured by status; the call `lit` has a thick border.

    Edges tell what they carry as a tooltip.
    """
    places, widths = _layout(drawing)
    width = max((x + widths[n] for n, (x, _) in enumerate(places)), default=0) + 20
    height = max((y for _, y in places), default=0) + _HEIGHT + 20
    index = {node.id: number for number, node in enumerate(drawing.nodes)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="ui-monospace, monospace" font-size="12">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#777"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>',
    ]
    for writer, reader, label in drawing.edges:
        (x1, y1), (x2, y2) = places[index[writer]], places[index[reader]]
        start, y1, y2 = x1 + widths[index[writer]], y1 + _HEIGHT / 2, y2 + _HEIGHT / 2
        bend = max(30.0, abs(x2 - start) / 2)
        dashes = ' stroke-dasharray="5 4"' if is_order(label) else ""
        parts.append(
            f'<path d="M{start:.0f},{y1:.0f} C{start + bend:.0f},{y1:.0f} {x2 - bend:.0f},{y2:.0f} {x2:.0f},{y2:.0f}" '
            f'fill="none" stroke="#777"{dashes} marker-end="url(#tip)"><title>{escape(label)}</title></path>'
        )
    for number, node in enumerate(drawing.nodes):
        (x, y), (fill, line) = places[number], _COLOURS[node.status]
        border = f'{line}" stroke-width="4' if node.id == lit else line
        parts.append(
            f'<g transform="translate({x:.0f},{y:.0f})"><rect width="{widths[number]:.0f}" height="{_HEIGHT}" rx="{22 if node.status == "path" else 6}" '
            f'fill="{fill}" stroke="{border}"/><text x="10" y="18" fill="#222">{escape(_label(node))}</text>'
            f'<text x="10" y="34" fill="{line}">{node.status}</text></g>'
        )
    return "\n".join([*parts, "</svg>"])


def _label(node: Node) -> str:
    return node.label if len(node.label) <= 36 else node.label[:35] + "…"


def _layout(drawing: Drawing) -> tuple[list[tuple[float, float]], list[float]]:
    """Top left corner and width of each node, in layers."""
    widths = [20 + _CHARACTER * len(_label(node)) for node in drawing.nodes]
    index = {node.id: number for number, node in enumerate(drawing.nodes)}
    places = layered(len(index), [(index[a], index[b]) for a, b, _ in drawing.edges])
    left, at = {}, 20.0
    for layer in range(max((layer for layer, _ in places), default=-1) + 1):
        left[layer] = at
        at += max(width for width, place in zip(widths, places, strict=True) if place[0] == layer) + 70
    return [(left[layer], 20 + place * (_HEIGHT + 18)) for layer, place in places], widths
