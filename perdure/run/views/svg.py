"""A drawing as SVG, laid out in layers from left to right: edges go around boxes, and say what flows (R5.6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from perdure.plan.edges.order import is_order
from perdure.run.views.drawing import COLOURS, OTHERS, Drawing, Node, shared_id
from perdure.run.views.layers import Layout, laid_out
from perdure.values.sources import BY_OTHERS

Point = tuple[float, float]

HEIGHT: Final = 52
"""Pixels of a box. Letters are large enough to be read at half size."""
_APART: Final = 20
_CHARACTER: Final = 9.1
"""Pixels that a character of a box takes, in 15 px monospace."""
_SMALL: Final = 7.3
"""The same of a label's, in 12 px."""
_LONGEST: Final = 26
"""Characters of a label; all of it is its tooltip."""
_BEND: Final = 64
"""Pixels between two layers in which edges go up and down."""
_MARGIN: Final = 20
_LINES: Final = 3
"""Labels that leave a box apart from each other; more share one line."""


@dataclass(frozen=True)
class Line:
    """One edge: `points` are joined by straight lines where they have one height, else by a curve between two layers."""

    points: list[Point]
    label: str
    """All that goes over it."""
    named: str
    """What stands beside its beginning; empty where another line of its box says it."""
    dashed: bool
    others: bool = False
    """Others have written what flows there (R15.7)."""


@dataclass(frozen=True)
class Picture:
    boxes: list[tuple[float, float, float]]
    """Left, top and width of each node's; all are `HEIGHT` high, but for those with something inside."""
    heights: list[float]
    inner: list[Picture | None]
    """What stands in each, below its title."""
    lines: list[Line]
    size: Point


def picture(drawing: Drawing) -> Picture:
    """Where everything of a drawing stands."""
    index = {node.id: number for number, node in enumerate(drawing.nodes)}
    edges = [(index[writer], index[reader]) for writer, reader, _ in drawing.edges]
    layout = laid_out(len(index), edges)
    inner = [None if node.body is None else picture(node.body) for node in drawing.nodes]
    widths = [
        max(20 + _CHARACTER * len(_title(node)), 0.0 if body is None else body.size[0])
        for node, body in zip(drawing.nodes, inner, strict=True)
    ]
    taller = [0.0 if body is None else body.size[1] - _MARGIN / 2 for body in inner]

    def top(place: float) -> float:
        """Below all that is taller than a box and stands higher up."""
        return _top(place) + sum(
            more for (_, at), more in zip(layout.places, taller, strict=True) if more and at < place - 0.01
        )

    leaving = _leaving(drawing, index)
    columns = _columns(layout, widths, leaving)
    boxes = [
        (columns[layer][0], top(place), width) for (layer, place), width in zip(layout.places, widths, strict=True)
    ]
    arriving = _arriving(edges, layout)
    lowest = max(
        (place for _, place in [*layout.places, *(p for way in layout.routes.values() for p in way)]), default=-1
    )
    lines, named = [], set[tuple[int, str]]()
    for number, ((writer, reader), (_, _, label)) in enumerate(zip(edges, drawing.edges, strict=True)):
        said = leaving[writer][label]
        out = _spread(said, len(set(leaving[writer].values())), 15)
        start = (boxes[writer][0] + boxes[writer][2], boxes[writer][1] + HEIGHT / 2 + out)
        end = (boxes[reader][0], boxes[reader][1] + HEIGHT / 2 + arriving[number])
        way = layout.routes.get((writer, reader))
        if way is None:
            points = _around(start, end, top(lowest + 1) + number % 8 * 3)
        else:
            points = _through(start, end, way, columns, layout.places[writer][0], out / 3, top)
        text = _told(leaving[writer], said)
        others = drawing.edges[number][:2] in drawing.untrusted
        lines.append(Line(points, label, "" if (writer, text) in named else text, is_order(label), others))
        named.add((writer, text))
    height = top(lowest + 1) - _APART + _MARGIN + (40 if len(layout.routes) < len(set(edges)) else 0)
    width = max((x + wide for x, _, wide in boxes), default=0.0) + _MARGIN
    return Picture(boxes, [HEIGHT + more for more in taller], inner, lines, (width, height))


def _title(node: Node) -> str:
    return node.label if len(node.label) <= 36 else node.label[:35] + "…"


def _top(place: float) -> float:
    return _MARGIN + place * (HEIGHT + _APART)


def _leaving(drawing: Drawing, index: dict[str, int]) -> list[dict[str, int]]:
    """Of each box by label the line on which it leaves: `_LINES` at most, the rest on one of them."""
    found: list[dict[str, int]] = [{} for _ in drawing.nodes]
    for writer, _, label in drawing.edges:
        lines = found[index[writer]]
        lines.setdefault(label, min(len(lines), _LINES - 1))
    return found


def _told(lines: dict[str, int], line: int) -> str:
    """What is written beside a line: whatever goes over it."""
    text = ", ".join(label for label, number in lines.items() if number == line and label)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _columns(
    layout: Layout, widths: Sequence[float], leaving: Sequence[dict[str, int]]
) -> list[tuple[float, float, float]]:
    """Of each layer: left and right of its boxes, and where its edges begin to go up and down, beside the labels."""
    columns, at = [], float(_MARGIN)
    for layer in range(max((layer for layer, _ in layout.places), default=-1) + 1):
        here = [number for number, (of, _) in enumerate(layout.places) if of == layer]
        right = at + max(widths[number] for number in here)
        words = [
            at + widths[number] + 14 + _SMALL * len(_told(leaving[number], line))
            for number in here
            for line in set(leaving[number].values())
        ]
        turns = max([right + 6, *words])
        columns.append((at, right, turns))
        at = turns + _BEND
    return columns


def _arriving(edges: Sequence[tuple[int, int]], layout: Layout) -> list[float]:
    """How far from the middle of its reader each edge ends: from top to bottom as they come."""
    found = [0.0] * len(edges)
    for reader in {reader for _, reader in edges}:
        ends = [number for number, (_, to) in enumerate(edges) if to == reader]
        ends.sort(key=lambda number: [layout.places[edges[number][0]], *layout.routes.get(edges[number], [])][-1][1])
        for at, number in enumerate(ends):
            found[number] = _spread(at, len(ends), 12)
    return found


def _spread(at: int, count: int, apart: float) -> float:
    """One of several places around the middle of a box's side."""
    return (at - (count - 1) / 2) * min(apart, (HEIGHT - 12) / count)


def _through(
    start: Point,
    end: Point,
    way: Sequence[tuple[int, float]],
    columns: Sequence[tuple[float, float, float]],
    layer: int,
    aside: float,
    top: Callable[[float], float],
) -> list[Point]:
    """Straight through the layers, where a place was kept for it, and up and down between them alone."""
    points = [start, (columns[layer][2], start[1])]
    for passed, place in way:
        height = top(place) + HEIGHT / 2 + aside
        points += [(columns[passed][0], height), (columns[passed][2], height)]
    return [*points, end]


def _around(start: Point, end: Point, below: float) -> list[Point]:
    """Back below everything: an edge that closes a cycle."""
    right, left = start[0] + 16, end[0] - 16
    return [start, (right, start[1]), (right, below), (left, below), (left, end[1]), end]


def to_svg(drawing: Drawing, *, lit: str | None = None) -> str:
    """An SVG document, coloured by status; the call `lit` has a thick border. Edges tell all that they carry as a tooltip."""
    drawn = picture(drawing)
    width, height = drawn.size
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="ui-monospace, monospace" font-size="15">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#555"/></marker><marker id="others" viewBox="0 0 8 8" refX="8" refY="4" '
        f'markerWidth="5" markerHeight="5" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{OTHERS}"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>',
        *_parts(drawing, drawn, None if lit is None else shared_id(lit)),
    ]
    return "\n".join([*parts, "</svg>"])


def _parts(drawing: Drawing, drawn: Picture, lit: str | None) -> Iterator[str]:
    """Lines, their words, and boxes with what is in them."""
    yield from map(_line, drawn.lines)
    for line in drawn.lines:
        if line.named:
            x, y = line.points[0]
            yield f'<text class="flows" x="{x + 6:.0f}" y="{y - 4:.0f}" font-size="12" fill="#444">{escape(line.named)}</text>'
    for node, (x, y, wide), high, body in zip(drawing.nodes, drawn.boxes, drawn.heights, drawn.inner, strict=True):
        fill, colour = COLOURS[node.status]
        border = f'{colour}" stroke-width="4' if node.id == lit else colour
        path = node.status == "path"
        words = f'<text x="10" y="{31 if path else 21}" fill="#222">{escape(_title(node))}</text>'
        words += "" if path else f'<text x="10" y="41" font-size="13" fill="{colour}">{node.status}</text>'
        within = ""
        if node.body is not None and body is not None:
            inner = "\n".join(_parts(node.body, body, lit))
            shape = f'width="{wide - 12:.0f}" height="{high - HEIGHT - 2:.0f}" rx="4" fill="white"'
            within = f'<rect {shape} transform="translate(6,{HEIGHT - 4})"/><g transform="translate(0,{HEIGHT - _MARGIN // 2})">{inner}</g>'
        yield (
            f'<g transform="translate({x:.0f},{y:.0f})"><rect width="{wide:.0f}" height="{high:.0f}" rx="{26 if path else 6}" '
            f'fill="{fill}" stroke="{border}"/>{words}{within}</g>'
        )


def _line(line: Line) -> str:
    x, y = line.points[0]
    path = f"M{x:.0f},{y:.1f}"
    for to_x, to_y in line.points[1:]:
        if abs(to_y - y) < 0.5 or to_x == x:
            path += f" L{to_x:.0f},{to_y:.1f}"
        else:
            middle = (x + to_x) / 2
            path += f" C{middle:.0f},{y:.1f} {middle:.0f},{to_y:.1f} {to_x:.0f},{to_y:.1f}"
        x, y = to_x, to_y
    dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
    colour, width, tip = (OTHERS, "2.5", "others") if line.others else ("#555", "1.5", "tip")
    told = line.label + (BY_OTHERS if line.others else "")
    return (
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes} marker-end="url(#{tip})">'
        f"<title>{escape(told.strip())}</title></path>"
    )
