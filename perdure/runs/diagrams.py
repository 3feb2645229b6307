"""Drawings of a plan: layers, Mermaid, and SVG."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from perdure.plan import EACH, UNTIL, WHILE, Call, LoopForm, Plan, is_order
from perdure.runs.wire import CallView, RunView
from perdure.values.json import shorten
from perdure.values.provenance import BY_OTHERS, Sources, untrusted_sources
from perdure.values.references import DAGGER, Path, Reference, overlaps, parse_expression, parse_output_path
from perdure.values.state import is_prefix
from perdure.values.templates import EXPR, Template

if TYPE_CHECKING:
    import networkx

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
"""Fill and line by status. Words in a line's colour have a contrast of 4.5 : 1 at least on its fill."""


DRAWN: Final = 300
"""Most calls of a run that pages draw; a larger run is shown as a table only."""
OTHERS: Final = "#c62828"
"""Line colour of untrusted values."""


@dataclass(frozen=True, slots=True)
class DrawnNode:
    id: str
    """The call's id, such as `1.0`, or `1.3[].0` inside a loop; for a path the path, such as `†state.x`."""
    tool: str
    """Empty for a path."""
    status: str
    body: Drawing | None = None
    """Drawing inside the box: the calls of a loop's body, each once for all its iterations (R16.5)."""

    @property
    def label(self) -> str:
        return f"{self.id} {self.tool}".strip()


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawing of calls, optional paths, and edges: from, to, and the read path. `after …` is order without data."""

    nodes: Sequence[DrawnNode]
    edges: Sequence[tuple[str, str, str]]
    untrusted: frozenset[tuple[str, str]] = frozenset()
    """Ends of the edges that carry untrusted values (R15.7)."""


def draw_plan(plan: Plan, *, paths: bool = False, sources: Mapping[str, Sources] | None = None) -> Drawing:
    """Return the drawing of a plan; with `paths`, the paths that are read and written are nodes of their own.

    `sources`: of the calls' results by id, for a plan that was not simulated itself.
    """
    found = [(plan.calls[writer], plan.calls[reader], str(what)) for writer, reader, what in plan.edges()]
    on_edges = {reader.id for _, reader, what in found if what in _read(reader.spec.condition)}
    by_call = sources or {call.id: call.state.sources for call in plan.every_call()}
    others = {shared_id(id) for id, each in by_call.items() if untrusted_sources(each)}
    nodes = [_node(call, others, condition_on_edge=paths or call.id in on_edges) for call in plan.calls]
    if not paths:
        between = [(writer.id, reader.id, _carried(reader, what)) for writer, reader, what in found]
        return Drawing(nodes, _merge(between), _by_others(between, others))
    edges: dict[tuple[str, str], str] = {}
    written = {
        call.id: [Reference("state", path) for paths in call.spec.paths for path in paths] for call in plan.calls
    }
    for call in plan.calls:
        edges |= {(call.id, str(path)): "" for path in written[call.id]}
        bound = [(writer.id, what) for writer, reader, what in found if reader is call]
        read = [*call.spec.condition.references(), *call.spec.template.references(), *call.spec.soft.references()]
        for reference in dict.fromkeys(read):
            near = [
                path
                for writer, what in bound
                if what == str(reference)
                for path in written[writer]
                if overlaps(path.path, reference.path)
            ]
            # No call of the plan writes it: it is the run's input, or the state already has it.
            text = _carried(call, str(reference))
            edges |= {(str(path), call.id): "" if text == str(path) else text for path in near or [reference]}
        for writer, what in bound:
            if is_order(what):
                edges.setdefault((writer, call.id), what)
    ends = dict.fromkeys(end for edge in edges for end in edge if end.startswith(DAGGER))
    between = [(*pair, what) for pair, what in edges.items()]
    tainted = {writer for writer, _ in edges if writer in others}
    tainted |= {path for writer, path in edges if writer in others and path.startswith(DAGGER)}
    tainted |= {path for path in ends if untrusted_sources(plan.provenance.then(_reference(path)))}
    return Drawing([*nodes, *(DrawnNode(path, "", "path") for path in ends)], between, _by_others(between, tainted))


def _read(template: Template) -> set[str]:
    return set(map(str, template.references()))


def _carried(reader: Call, what: str) -> str:
    """Return the label of an edge. A value that a condition reads has the condition as its label."""
    if what not in _read(reader.spec.condition):
        return what
    condition = f"if {reader.spec.condition_text}"
    return f"{what}, {condition}" if what in _read(reader.spec.template) else condition


def _node(call: Call, others: Collection[str], *, condition_on_edge: bool = True) -> DrawnNode:
    """Return the node of a call; a loop's has its body inside. An edge shows the call's condition, if
    `condition_on_edge`."""
    condition = "" if condition_on_edge or not call.spec.has_condition else f" if {call.spec.condition_text}"
    if call.spec.loop is None:
        return DrawnNode(shared_id(call.id), call.spec.tool_name + condition, call.standing)
    title, forms = _round(call, call.spec.loop) + condition, call.spec.loop.forms
    if call.spec.loop.single:
        return DrawnNode(shared_id(call.id), title, call.standing)
    found = [
        (writer, form, str(reference)) for n, form in enumerate(forms) for writer, reference in _bound(forms[:n], form)
    ]
    on_edges = {form.id for _, form, what in found if what in _read(form.spec.condition)}
    body = [_node(form, others, condition_on_edge=form.id in on_edges) for form in forms]
    edges = [(shared_id(writer.id), shared_id(form.id), _carried(form, what)) for writer, form, what in found]
    return DrawnNode(shared_id(call.id), title, call.standing, Drawing(body, _merge(edges), _by_others(edges, others)))


def _bound(before: Sequence[Call], form: Call) -> Iterator[tuple[Call, Reference]]:
    """Yield the calls of a body that one of its calls reads, and the reference."""
    for template in (form.spec.condition, form.spec.template, form.spec.soft):
        for reference in template.references():
            for writer in before if reference.kind == "state" else ():
                if any(overlaps(path, reference.path) for paths in writer.spec.paths for path in paths):
                    yield writer, reference


def _round(call: Call, form: LoopForm) -> str:
    """Describe the kind of a loop."""
    words = [call.spec.tool_name] if form.single else []
    for key, word in ((EACH, f"for {form.item} in"), (WHILE, "while"), (UNTIL, "until")):
        if key in call.spec.raw:
            value = call.spec.raw[key]
            value = value[EXPR] if isinstance(value, dict) and EXPR in value else value
            words.append(f"{word} {value if isinstance(value, str) else shorten(value, 40)}")
    if "_if" in call.spec.raw and not call.spec.has_condition:
        words.append(f"if {call.spec.condition_text}")
    return " ".join(words)


_PLACES: Final = re.compile(r"\[\d+\]")


def shared_id(id: str) -> str:
    """Return the id that all iterations of a call in a loop share: `1.3[].0`."""
    return _PLACES.sub("[]", id)


def draw_run(view: RunView) -> Drawing:
    """Return the drawing of a run with all its Requests. A call that a loop made many times is drawn once, in its box."""
    made: dict[str, list[CallView]] = {}
    for call in view.calls:
        made.setdefault(shared_id(call.id), []).append(call)
    inner: dict[str, list[str]] = {}
    for id in made:
        inner.setdefault(id.rpartition("[].")[0] if "[]." in id else "" if "[]" not in id else id[:-2], []).append(id)
    others = {shared_id(call.id) for call in view.calls if "" in call.sources}
    found = [*view.edges, *_edges_between_requests(view)]
    edges = _merge((shared_id(writer), shared_id(reader), what) for writer, reader, what in found)

    def drawn(ids: Collection[str]) -> Drawing:
        known = set(ids)
        among = [edge for edge in edges if edge[0] in known and edge[1] in known]
        return Drawing([node(id) for id in ids], among, _by_others(among, others))

    def node(id: str) -> DrawnNode:
        calls, items = made[id], made.get(f"{id}[]", [])
        count = len(items) or (len(calls) if "[]" in id else 0)
        body = [each for each in inner.get(id, ()) if each != f"{id}[]"]
        title = calls[0].tool + (f" ×{count}" if count else "")
        return DrawnNode(id, title, _standing([call.status for call in calls]), drawn(body) if body else None)

    return drawn(inner.get("", ()))


def _edges_between_requests(view: RunView) -> Iterator[tuple[str, str, str]]:
    """Yield the edges of references to writes of earlier Requests: the newest write of the path, and later writes of
    its parts.
    """
    bound = {(reader, what) for _, reader, what in view.edges}
    writers: dict[str, list[tuple[str, Path]]] = {}
    """Ended calls of earlier Requests and the paths that they wrote, oldest first, by the first part of the path."""
    for _, request in groupby(view.calls, lambda call: call.id.partition(".")[0]):
        calls = list(request)
        for call in calls:
            for what in view.reads.get(call.id, ()):
                read = parse_expression(what)
                if not isinstance(read, Reference) or read.kind != "state" or (call.id, what) in bound:
                    continue
                for writer, path in reversed(writers.get(str(read.path[0]), ()) if read.path else ()):
                    if overlaps(path, read.path):
                        yield writer, call.id, what
                    if is_prefix(path, read.path):
                        break
        for call in sorted(calls, key=lambda each: each.ended_at or ""):
            for path in _written_paths(call, view.writes.get(call.id, "")):
                writers.setdefault(str(path[0]), []).append((call.id, path))


def _written_paths(call: CallView, target: str) -> Iterator[Path]:
    """Yield the paths that a call has written, by its output path. A failure is written by a branch (R4.3)."""
    if not target or call.status not in ("done", "failed"):
        return
    alternatives = parse_output_path(target)
    for paths in alternatives if call.status == "done" else alternatives[1:]:
        yield from (path for path in paths if path)


def _standing(statuses: Sequence[str]) -> str:
    """Return one status for many calls: an unfinished one comes first, then a failed one."""
    order = ("waiting", "running", "failed", "invalid", "rejected", "ready", "held", "done", "deferred", "pending")
    return next((status for status in order if status in statuses), statuses[0])


def _by_others(edges: Iterable[tuple[str, str, str]], others: Collection[str]) -> frozenset[tuple[str, str]]:
    """Return the edges that begin at untrusted values; an edge of order alone carries no value."""
    return frozenset((writer, reader) for writer, reader, what in edges if writer in others and not is_order(what))


def _reference(path: str) -> Reference:
    found = parse_expression(path)
    assert isinstance(found, Reference)
    return found


def _merge(edges: Iterable[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Return one edge for each pair of calls, with all its labels."""
    merged: dict[tuple[str, str], list[str]] = {}
    for writer, reader, reference in edges:
        merged.setdefault((writer, reader), []).append(reference)
    return [(writer, reader, ", ".join(dict.fromkeys(names))) for (writer, reader), names in merged.items()]


def to_mermaid(drawing: Drawing) -> str:
    """Return a Mermaid flowchart, coloured by status."""
    lines = ["graph LR"]
    names = {node.id: f"p{n}" if node.status == "path" else _name(node.id) for n, node in enumerate(drawing.nodes)}
    lines += _mermaid(drawing, names, "    ")
    if tainted := [str(number) for number, others in enumerate(_tainted(drawing)) if others]:
        lines.append(f"    linkStyle {','.join(tainted)} stroke:{OTHERS},stroke-width:3px")
    for status in dict.fromkeys(_statuses(drawing)):
        fill, line = COLOURS[status]
        lines.append(f"    classDef {status} fill:{fill},stroke:{line},color:#222")
    return "\n".join(lines)


def _mermaid(drawing: Drawing, names: Mapping[str, str], indent: str) -> Iterator[str]:
    """Yield nodes and edges; a loop is a subgraph."""
    for node in drawing.nodes:
        first, last = ("{{", "}}") if node.status == "path" else ("[", "]")
        name, label = names.get(node.id) or _name(node.id), _mermaid_text(node.label)
        if node.body is None:
            yield f'{indent}{name}{first}"{label}"{last}:::{node.status}'
        else:
            yield f'{indent}subgraph {name}["{label}"]'
            yield from _mermaid(node.body, {}, indent + "    ")
            yield f"{indent}end"
            yield f"{indent}class {name} {node.status}"
    for writer, reader, label in drawing.edges:
        line, arrow = ("-.", ".->") if is_order(label) else ("--", "-->")
        text = f' {line} "{_mermaid_text(label)}" {arrow} ' if label else " --> "
        yield f"{indent}{names.get(writer) or _name(writer)}{text}{names.get(reader) or _name(reader)}"


def _tainted(drawing: Drawing) -> Iterator[bool]:
    """Yield, for each edge in Mermaid's order, whether it carries untrusted values."""
    for node in drawing.nodes:
        yield from _tainted(node.body) if node.body is not None else ()
    for edge in drawing.edges:
        yield edge[:2] in drawing.untrusted


def _statuses(drawing: Drawing) -> Iterator[str]:
    for node in drawing.nodes:
        yield node.status
        yield from _statuses(node.body) if node.body is not None else ()


def _name(id: str) -> str:
    return "c" + re.sub(r"\W", "_", id)


def _mermaid_text(text: str) -> str:
    """Return text for a quoted Mermaid label: entities replace the signs that would end it."""
    return "".join(c if c.isalnum() or c in " ._-†,[]()/" else f"#{ord(c)};" for c in text)


SWEEPS: Final = 8
"""Times that the layers are sorted, in both directions; more change little."""


Position: TypeAlias = tuple[int, float]
"""A layer, and a place in it."""


# The layout is written here, because no library does it as well under a licence that an MIT project can take.
# Of networkx, `multipartite_layout` needs numpy, leaves crossings, and routes no edge past the layers between its ends.
# igraph and grandalf have a layered layout, under the GPL (grandalf also under the EPL). Graphviz is a program to install.
class Layout(NamedTuple):
    places: list[Position]
    """Place of each node."""
    routes: dict[tuple[int, int], list[Position]]
    """Places by which an edge passes the layers between its ends. An edge that closes a cycle has none."""


def laid_out(count: int, edges: Iterable[tuple[int, int]]) -> Layout:
    """Return the layout of nodes, with places at least 1 apart, and of edges.

    A reader is in a later layer than each node that it reads; one edge of a cycle is ignored. An edge over several
    layers has a place in each layer between, so that no box covers it.
    """
    import networkx  # a sixth of the start of a command

    graph = _acyclic(count, edges)
    layers = [list(layer) for layer in networkx.topological_generations(graph)]
    layer_of = {node: number for number, layer in enumerate(layers) for node in layer}
    before: dict[int, list[int]] = {node: [] for node in layer_of}
    for writer in range(count):
        _lead(writer, sorted(graph.successors(writer)), layer_of, layers, before)
    after: dict[int, list[int]] = {node: [] for node in before}
    for reader, writers in before.items():
        for writer in writers:
            after[writer].append(reader)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for one, other in _neighbours(layers, down=down):
            _order(one, other, before if down else after)
    places: dict[int, float] = {}
    for layer in layers:
        places |= _spread(layer, before, places)
    lowest = min(places.values(), default=0.0)
    at = {node: (layer_of[node], place - lowest) for node, place in places.items()}
    routes = {edge: [at[node] for node in _between(*edge, before, count)] for edge in graph.edges}
    return Layout([at[node] for node in range(count)], routes)


def _between(writer: int, reader: int, before: Mapping[int, list[int]], count: int) -> list[int]:
    """Return the places that were kept for an edge, in its direction."""
    for last in before[reader]:
        passed = []
        while last >= count:  # indexes after the nodes are places of edges, each with one before it
            passed.append(last)
            last = before[last][0]
        if last == writer:
            return passed[::-1]
    return []


def _acyclic(count: int, edges: Iterable[tuple[int, int]]) -> networkx.DiGraph[int]:
    import networkx

    graph: networkx.DiGraph[int] = networkx.DiGraph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(edges)
    if networkx.is_directed_acyclic_graph(graph):
        return graph
    kept: networkx.DiGraph[int] = networkx.DiGraph()
    kept.add_nodes_from(range(count))
    for writer, reader in graph.edges:
        if not networkx.has_path(kept, reader, writer):
            kept.add_edge(writer, reader)
    return kept


def _lead(
    writer: int, readers: Sequence[int], layer_of: dict[int, int], layers: list[list[int]], before: dict[int, list[int]]
) -> None:
    """Keep one place for all edges of a writer, in every layer on their way."""
    last, at = writer, layer_of[writer]
    for reader in sorted(readers, key=lambda reader: layer_of[reader]):
        while at < layer_of[reader] - 1:
            at += 1
            place = len(layer_of)
            layer_of[place] = at
            layers[at].append(place)
            before[place] = [last]
            last = place
        before[reader].append(last)


def _neighbours(layers: list[list[int]], *, down: bool) -> Iterable[tuple[list[int], list[int]]]:
    """Return each layer with the neighbour that sets its order."""
    if down:
        return zip(layers[1:], layers, strict=False)
    return zip(reversed(layers[:-1]), reversed(layers), strict=False)


def _order(layer: list[int], by: list[int], neighbours: Mapping[int, list[int]]) -> None:
    """Sort each node to the middle of its neighbours; a node without neighbours stays in its place."""
    place = {node: float(number) for number, node in enumerate(by)}
    wanted = {
        node: fmean([place[other] for other in neighbours[node]]) if neighbours[node] else float(number)
        for number, node in enumerate(layer)
    }
    layer.sort(key=lambda node: wanted[node])


def _spread(layer: list[int], before: Mapping[int, list[int]], places: Mapping[int, float]) -> dict[int, float]:
    """Return places for an ordered layer, at least 1 apart: each node beside the nodes that it reads, where there is
    room.
    """
    wanted = [fmean([places[n] for n in before[node]]) if before[node] else None for node in layer]
    found: list[float] = []
    for number, place in enumerate(wanted):
        least = found[-1] + 1 if found else -float("inf")
        found.append(max(least, place if place is not None else (least if number else 0.0)))
    off = [place - at for place, at in zip(wanted, found, strict=True) if place is not None]
    shift = fmean(off) if off else 0.0
    return {node: at + shift for node, at in zip(layer, found, strict=True)}


Point = tuple[float, float]

HEIGHT: Final = 52
"""Pixels of a box. Letters are large enough to be read at half size."""
_APART: Final = 20
_CHARACTER: Final = 9.1
"""Pixels that a character of a box takes, in 15 px monospace."""
_SMALL: Final = 7.3
"""Pixels that a character of a label takes, in 12 px monospace."""
_LONGEST: Final = 26
"""Characters of a label; the tooltip shows the whole label."""
_BEND: Final = 64
"""Pixels between two layers in which edges go up and down."""
_MARGIN: Final = 20
_LINES: Final = 3
"""Labels of a box with a line of their own; more labels share one line."""


@dataclass(frozen=True)
class Line:
    """An edge of a picture. A straight line joins `points` of one height; else a curve joins two layers."""

    points: list[Point]
    label: str
    """Names of all values that the edge carries."""
    named: str
    """Label at the edge's beginning; empty where another line of its box has it."""
    dashed: bool
    others: bool = False
    """Whether the edge carries untrusted values (R15.7)."""
    down: bool = False
    """Whether the line leads from top to bottom, in a turned drawing."""
    row: int = 0
    """Index of its label among the labels of its box."""


@dataclass(frozen=True)
class SvgDrawing:
    boxes: list[tuple[float, float, float]]
    """Left, top and width of each node's box. Boxes are `HEIGHT` high, unless they hold a drawing."""
    heights: list[float]
    inner: list[SvgDrawing | None]
    """Picture inside each box, below its title."""
    lines: list[Line]
    size: Point


class _Arrangement:
    """Parts of a picture that do not depend on its direction."""

    def __init__(self, drawing: Drawing) -> None:
        self.drawing = drawing
        index = {node.id: number for number, node in enumerate(drawing.nodes)}
        self.edges = [(index[writer], index[reader]) for writer, reader, _ in drawing.edges]
        self.layout = laid_out(len(index), self.edges)
        self.inner = [None if node.body is None else place_drawing(node.body) for node in drawing.nodes]
        self.widths = [
            max(20 + _CHARACTER * len(_title(node)), 0.0 if body is None else body.size[0])
            for node, body in zip(drawing.nodes, self.inner, strict=True)
        ]
        self.heights = [HEIGHT + (0.0 if body is None else body.size[1] - _MARGIN / 2) for body in self.inner]
        self.leaving = _leaving(drawing, index)
        self.arriving = _arriving(self.edges, self.layout)
        self.has_cycle = len(self.layout.routes) < len(set(self.edges))

    def lines(self, points: Callable[[int, float], list[Point]], *, down: bool = False) -> list[Line]:
        """Return the edges as lines; each label is drawn once beside its box.

        `points` returns the points of an edge, by its number and the distance of its start from the middle of the
        writer's side.
        """
        lines, named = [], set[tuple[int, str]]()
        for number, ((writer, _), edge) in enumerate(zip(self.edges, self.drawing.edges, strict=True)):
            rows, label = self.leaving[writer], edge[2]
            text = _row_text(rows, rows[label])
            others = edge[:2] in self.drawing.untrusted
            route = points(number, _place_on_side(rows[label], len(set(rows.values())), 15))
            label_here = "" if (writer, text) in named else text
            lines.append(Line(route, label, label_here, is_order(label), others, down=down, row=rows[label]))
            named.add((writer, text))
        return lines


def place_drawing(drawing: Drawing) -> SvgDrawing:
    """Return the places of all parts of a drawing."""
    parts = _Arrangement(drawing)
    layout = parts.layout

    def top(place: float) -> float:
        """Return the top of a place, below all taller boxes above it."""
        return _top(place) + sum(
            high - HEIGHT
            for (_, at), high in zip(layout.places, parts.heights, strict=True)
            if high > HEIGHT and at < place - 0.01
        )

    columns = _columns(layout, parts.widths, parts.leaving)
    boxes = [
        (columns[layer][0], top(place), width)
        for (layer, place), width in zip(layout.places, parts.widths, strict=True)
    ]
    lowest = max(
        (place for _, place in [*layout.places, *(p for way in layout.routes.values() for p in way)]), default=-1
    )

    def points(number: int, out: float) -> list[Point]:
        writer, reader = parts.edges[number]
        start = (boxes[writer][0] + boxes[writer][2], boxes[writer][1] + HEIGHT / 2 + out)
        end = (boxes[reader][0], boxes[reader][1] + HEIGHT / 2 + parts.arriving[number])
        way = layout.routes.get((writer, reader))
        if way is None:
            return _around(start, end, top(lowest + 1) + number % 8 * 3)
        return _through(start, end, way, columns, layout.places[writer][0], out / 3, top)

    height = top(lowest + 1) - _APART + _MARGIN + (40 if parts.has_cycle else 0)
    width = max((x + wide for x, _, wide in boxes), default=0.0) + _MARGIN
    return SvgDrawing(boxes, parts.heights, parts.inner, parts.lines(points), (width, height))


def turned_picture(drawing: Drawing) -> SvgDrawing:
    """Return the places of all parts of a drawing that leads from top to bottom: layers are rows."""
    parts = _Arrangement(drawing)
    layout, heights = parts.layout, parts.heights
    apart = max(parts.widths, default=0.0) + _APART
    rows: list[tuple[float, float]] = []
    for layer in range(max((layer for layer, _ in layout.places), default=-1) + 1):
        high = max(high for (of, _), high in zip(layout.places, heights, strict=True) if of == layer)
        above = rows[-1][1] + _BEND if rows else _MARGIN
        rows.append((above, above + high))

    def middle(place: float) -> float:
        return _MARGIN + place * apart + (apart - _APART) / 2

    boxes = [
        (middle(place) - width / 2, rows[layer][0], width)
        for (layer, place), width in zip(layout.places, parts.widths, strict=True)
    ]
    width = max((x + wide for x, _, wide in boxes), default=0.0)

    def points(number: int, out: float) -> list[Point]:
        writer, reader = parts.edges[number]
        layer, place = layout.places[writer]
        start = (middle(place) + out, rows[layer][0] + heights[writer])
        end = (middle(layout.places[reader][1]) + parts.arriving[number], boxes[reader][1])
        way = layout.routes.get((writer, reader))
        if way is None:  # it closes a cycle: it goes back beside all boxes
            side, below, above = width + 12 + number % 8 * 3, rows[layer][1] + 16, end[1] - 16
            return [start, (start[0], below), (side, below), (side, above), (end[0], above), end]
        between = [(middle(at) + out / 3, edge) for passed, at in way for edge in rows[passed]]
        return [start, (start[0], rows[layer][1]), *between, end]

    size = (width + _MARGIN + (40 if parts.has_cycle else 0), (rows[-1][1] if rows else 0.0) + _MARGIN)
    return SvgDrawing(boxes, heights, parts.inner, parts.lines(points, down=True), size)


def _title(node: DrawnNode) -> str:
    return node.label if len(node.label) <= 36 else node.label[:35] + "…"


def _top(place: float) -> float:
    return _MARGIN + place * (HEIGHT + _APART)


def _leaving(drawing: Drawing, index: dict[str, int]) -> list[dict[str, int]]:
    """Return, for each box, the line of each label: at most `_LINES`; the other labels share the last one."""
    found: list[dict[str, int]] = [{} for _ in drawing.nodes]
    for writer, _, label in drawing.edges:
        lines = found[index[writer]]
        lines.setdefault(label, min(len(lines), _LINES - 1))
    return found


def _row_text(lines: dict[str, int], line: int) -> str:
    """Return the label beside a line: the names of all values that it carries."""
    text = ", ".join(label for label, number in lines.items() if number == line and label)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _columns(
    layout: Layout, widths: Sequence[float], leaving: Sequence[dict[str, int]]
) -> list[tuple[float, float, float]]:
    """Return, for each layer, the left and right of its boxes, and where its edges begin to bend, beside the labels."""
    columns, at = [], float(_MARGIN)
    for layer in range(max((layer for layer, _ in layout.places), default=-1) + 1):
        here = [number for number, (of, _) in enumerate(layout.places) if of == layer]
        right = at + max(widths[number] for number in here)
        words = [
            at + widths[number] + 14 + _SMALL * len(_row_text(leaving[number], line))
            for number in here
            for line in set(leaving[number].values())
        ]
        turns = max([right + 6, *words])
        columns.append((at, right, turns))
        at = turns + _BEND
    return columns


def _arriving(edges: Sequence[tuple[int, int]], layout: Layout) -> list[float]:
    """Return how far from the middle of its reader each edge ends, in order from top to bottom."""
    found = [0.0] * len(edges)
    for reader in {reader for _, reader in edges}:
        ends = [number for number, (_, to) in enumerate(edges) if to == reader]
        ends.sort(key=lambda number: [layout.places[edges[number][0]], *layout.routes.get(edges[number], [])][-1][1])
        for at, number in enumerate(ends):
            found[number] = _place_on_side(at, len(ends), 12)
    return found


def _place_on_side(at: int, count: int, apart: float) -> float:
    """Return one of `count` places around the middle of a box's side."""
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
    """Return points that cross layers straight, at the edge's kept places, and bend only between layers."""
    points = [start, (columns[layer][2], start[1])]
    for passed, place in way:
        height = top(place) + HEIGHT / 2 + aside
        points += [(columns[passed][0], height), (columns[passed][2], height)]
    return [*points, end]


def _around(start: Point, end: Point, below: float) -> list[Point]:
    """Return points of an edge that closes a cycle: it goes back below all boxes."""
    right, left = start[0] + 16, end[0] - 16
    return [start, (right, start[1]), (right, below), (left, below), (left, end[1]), end]


def to_svg(drawing: Drawing, *, lit: Collection[str] = (), most: float = math.inf) -> str:
    """Return an SVG document, coloured by status. The calls `lit` have a thick border; tooltips name the values of
    edges.

    A drawing wider than `most` pixels leads from top to bottom, if that makes it narrower.
    """
    drawn = place_drawing(drawing)
    if drawn.size[0] > most:
        drawn = min(drawn, turned_picture(drawing), key=lambda each: each.size[0])
    width, height = drawn.size
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="ui-monospace, monospace" font-size="15">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#555"/></marker><marker id="others" viewBox="0 0 8 8" refX="8" refY="4" '
        f'markerWidth="5" markerHeight="5" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{OTHERS}"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>',
        *_parts(drawing, drawn, {shared_id(call) for call in lit}),
    ]
    return "\n".join([*parts, "</svg>"])


def _parts(drawing: Drawing, drawn: SvgDrawing, lit: Collection[str]) -> Iterator[str]:
    """Yield the lines, their labels, and the boxes with their contents."""
    yield from map(_line, drawn.lines)
    for line in drawn.lines:
        if line.named:
            x, y = line.points[0]
            y += 16 + 14 * line.row if line.down else -4
            yield f'<text class="flows" x="{x + 6:.0f}" y="{y:.0f}" font-size="12" fill="#444">{escape(line.named)}</text>'
    for node, (x, y, wide), high, body in zip(drawing.nodes, drawn.boxes, drawn.heights, drawn.inner, strict=True):
        fill, colour = COLOURS[node.status]
        border = f'{colour}" stroke-width="4' if node.id in lit else colour
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
        elif line.down:
            middle = (y + to_y) / 2
            path += f" C{x:.0f},{middle:.1f} {to_x:.0f},{middle:.1f} {to_x:.0f},{to_y:.1f}"
        else:
            middle = (x + to_x) / 2
            path += f" C{middle:.0f},{y:.1f} {middle:.0f},{to_y:.1f} {to_x:.0f},{to_y:.1f}"
        x, y = to_x, to_y
    dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
    colour, width, tip = (OTHERS, "2.5", "others") if line.others else ("#555", "1.5", "tip")
    tooltip = line.label + (BY_OTHERS if line.others else "")
    return (
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes} marker-end="url(#{tip})">'
        f"<title>{escape(tooltip.strip())}</title></path>"
    )
