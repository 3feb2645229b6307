"""A plan as a picture: what is drawn, and its Mermaid text (R5.6); `svg` draws it without a browser."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from perdure.plan.calls import Call, LoopForm
from perdure.plan.control.iteration import EACH, UNTIL, WHILE
from perdure.plan.edges.order import is_order
from perdure.plan.plan import Plan
from perdure.run.wire import CallView, RunView
from perdure.values.jsons import shorten
from perdure.values.paths import overlaps
from perdure.values.references import DAGGER, Reference, parse_expression
from perdure.values.sources import Sources, untrusted
from perdure.values.templates import EXPR, Template

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
    """The call's id, `1.0`; inside a loop `1.3[].0`; of a path the path, `†state.x`."""
    tool: str
    """Empty for a path."""
    status: str
    body: Drawing | None = None
    """What stands inside the box: the calls of a loop's body, each once, whatever number of times it was made (R16.5)."""

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
    found = [(plan.calls[writer], plan.calls[reader], str(what)) for writer, reader, what in plan.edges()]
    told = {reader.id for _, reader, what in found if what in _read(reader.condition)}
    given = sources or {call.id: call.sources for call in plan.made()}
    others = {shared_id(id) for id, each in given.items() if untrusted(each)}
    nodes = [_node(call, others, told=paths or call.id in told) for call in plan.calls]
    if not paths:
        between = [(writer.id, reader.id, _carried(reader, what)) for writer, reader, what in found]
        return Drawing(nodes, _merge(between), _by_others(between, others))
    edges: dict[tuple[str, str], str] = {}
    written = {call.id: [Reference("state", path) for paths in call.paths for path in paths] for call in plan.calls}
    for call in plan.calls:
        edges |= {(call.id, str(path)): "" for path in written[call.id]}
        bound = [(writer.id, what) for writer, reader, what in found if reader is call]
        read = [*call.condition.references(), *call.template.references(), *call.soft.references()]
        for reference in dict.fromkeys(read):
            near = [
                path
                for writer, what in bound
                if what == str(reference)
                for path in written[writer]
                if overlaps(path.path, reference.path)
            ]
            # Nobody in the plan writes it: it is the run's input, or stands in the state already.
            text = _carried(call, str(reference))
            edges |= {(str(path), call.id): "" if text == str(path) else text for path in near or [reference]}
        for writer, what in bound:
            if is_order(what):
                edges.setdefault((writer, call.id), what)
    ends = dict.fromkeys(end for edge in edges for end in edge if end.startswith(DAGGER))
    between = [(*pair, what) for pair, what in edges.items()]
    tainted = {writer for writer, _ in edges if writer in others}
    tainted |= {path for writer, path in edges if writer in others and path.startswith(DAGGER)}
    tainted |= {path for path in ends if untrusted(plan.sources_then(_reference(path)))}
    return Drawing(
        [*nodes, *(Node(path, "", "path") for path in ends)],
        between,
        _by_others(between, tainted),
    )


def _read(template: Template) -> set[str]:
    return set(map(str, template.references()))


def _carried(reader: Call, what: str) -> str:
    """What an edge says: of what a condition reads the condition."""
    if what not in _read(reader.condition):
        return what
    condition = f"if {reader.condition_text}"
    return f"{what}, {condition}" if what in _read(reader.template) else condition


def _node(call: Call, others: Collection[str], *, told: bool = True) -> Node:
    """A call; of a loop a box with its body inside. `told`: its condition stands at an edge."""
    condition = "" if told or not call.has_condition else f" if {call.condition_text}"
    if call.loop is None:
        return Node(shared_id(call.id), call.tool_name + condition, call.standing)
    title, forms = _round(call, call.loop) + condition, call.loop.forms
    if call.loop.single:
        return Node(shared_id(call.id), title, call.standing)
    found = [
        (writer, form, str(reference)) for n, form in enumerate(forms) for writer, reference in _bound(forms[:n], form)
    ]
    told_inside = {form.id for _, form, what in found if what in _read(form.condition)}
    body = [_node(form, others, told=form.id in told_inside) for form in forms]
    edges = [(shared_id(writer.id), shared_id(form.id), _carried(form, what)) for writer, form, what in found]
    return Node(shared_id(call.id), title, call.standing, Drawing(body, _merge(edges), _by_others(edges, others)))


def _bound(before: Sequence[Call], form: Call) -> Iterator[tuple[Call, Reference]]:
    """The calls of a body that one of it reads, and what."""
    for template in (form.condition, form.template, form.soft):
        for reference in template.references():
            for writer in before if reference.kind == "state" else ():
                if any(overlaps(path, reference.path) for paths in writer.paths for path in paths):
                    yield writer, reference


def _round(call: Call, form: LoopForm) -> str:
    """How a loop goes round, in words."""
    words = [call.tool_name] if form.single else []
    for key, word in ((EACH, f"for {form.item} in"), (WHILE, "while"), (UNTIL, "until")):
        if key in call.raw:
            value = call.raw[key]
            value = value[EXPR] if isinstance(value, dict) and EXPR in value else value
            words.append(f"{word} {value if isinstance(value, str) else shorten(value, 40)}")
    if "_if" in call.raw and not call.has_condition:
        words.append(f"if {call.condition_text}")
    return " ".join(words)


_PLACES: Final = re.compile(r"\[\d+\]")


def shared_id(id: str) -> str:
    """Of a call in a loop the id that all iterations share: `1.3[].0`."""
    return _PLACES.sub("[]", id)


def draw_run(view: RunView) -> Drawing:
    """A run with all its Requests; what was made more than once in a loop is drawn once, in the loop's box."""
    made: dict[str, list[CallView]] = {}
    for call in view.calls:
        made.setdefault(shared_id(call.id), []).append(call)
    inner: dict[str, list[str]] = {}
    for id in made:
        inner.setdefault(id.rpartition("[].")[0] if "[]." in id else "" if "[]" not in id else id[:-2], []).append(id)
    others = {shared_id(call.id) for call in view.calls if "" in call.sources}
    edges = _merge((shared_id(writer), shared_id(reader), what) for writer, reader, what in view.edges)

    def drawn(ids: Collection[str]) -> Drawing:
        known = set(ids)
        among = [edge for edge in edges if edge[0] in known and edge[1] in known]
        return Drawing([node(id) for id in ids], among, _by_others(among, others))

    def node(id: str) -> Node:
        calls, items = made[id], made.get(f"{id}[]", [])
        count = len(items) or (len(calls) if "[]" in id else 0)
        body = [each for each in inner.get(id, ()) if each != f"{id}[]"]
        title = calls[0].tool + (f" ×{count}" if count else "")
        return Node(id, title, _standing([call.status for call in calls]), drawn(body) if body else None)

    return drawn(inner.get("", ()))


def _standing(statuses: Sequence[str]) -> str:
    """One status for what was made more than once: what still goes on first, then what went wrong."""
    order = ("waiting", "running", "failed", "invalid", "rejected", "ready", "held", "done", "deferred", "pending")
    return next((status for status in order if status in statuses), statuses[0])


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
    lines += _mermaid(drawing, names, "    ")
    if tainted := [str(number) for number, others in enumerate(_tainted(drawing)) if others]:
        lines.append(f"    linkStyle {','.join(tainted)} stroke:{OTHERS},stroke-width:3px")
    for status in dict.fromkeys(_statuses(drawing)):
        fill, line = COLOURS[status]
        lines.append(f"    classDef {status} fill:{fill},stroke:{line},color:#222")
    return "\n".join(lines)


def _mermaid(drawing: Drawing, names: Mapping[str, str], indent: str) -> Iterator[str]:
    """Nodes and edges; a loop is a subgraph."""
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
    """Of each edge, as Mermaid counts them, whether it carries what others wrote."""
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
    """Mermaid reads entities in quoted text; its own signs must not end it."""
    return "".join(c if c.isalnum() or c in " ._-†,[]()/" else f"#{ord(c)};" for c in text)
