"""Loops as the model wrote them: items, bodies, and their reads and writes outside."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from perdure.plan._calls import (
    AS,
    AT,
    BODY,
    DEFAULT_ITERATIONS,
    DEFAULT_PARALLEL,
    EACH,
    IF,
    INDEX,
    ITEM,
    LOOP_DONE,
    LOOP_FAILED,
    UNTIL,
    WHILE,
    Call,
    CallSpec,
    LoopForm,
    Until,
    item_call,
    loop_problems,
    parse_condition,
    parse_until,
)
from perdure.tools.tool import Tool, parse_tool
from perdure.values.json import Json, JsonObject, shorten
from perdure.values.limits import MAX_BODY_CALLS, MAX_LOOPS_DEEP, MAX_TURNS
from perdure.values.references import (
    AllOf,
    Expression,
    FirstOf,
    Path,
    Reference,
    array_index,
    overlaps,
    references,
)
from perdure.values.state import is_prefix
from perdure.values.templates import Template, TemplateSite, parse_template

PREVIOUS: Final = Reference("state", ("previous",))
"""The reference to the last result, for a call that is repeated until a condition holds (R8.6)."""
LOOP_ACTIVITY: Final = "perdure.loop"


def _tool(name: str, what: str, **properties: JsonObject) -> Tool:
    definition: JsonObject = {"name": name, "description": what, "properties": properties, "required": [*properties]}
    definition |= {"additionalProperties": False, "_safe": True, "_duration": 0}
    return parse_tool({**definition, "_activity": LOOP_ACTIVITY}, activities=[LOOP_ACTIVITY])


FOR: Final = _tool("_for", "Make the calls of a body for each item of a list.")
WHILE_TOOL: Final = _tool("_while", "Make the calls of a body as long as something holds.")
LOOP_TOOLS: Final = {tool.name: tool for tool in (FOR, WHILE_TOOL)}
"""Tools of the engine's own, by name, whose calls have a `_body`."""
LET: Final = _tool("_let", "Give a value a name.", value={})
OWN_TOOLS: Final = {**LOOP_TOOLS, LET.name: LET}
"""All tools that a plan executes itself."""
BODY_KEYS: Final = {FOR.name: frozenset({BODY}), WHILE_TOOL.name: frozenset({BODY, WHILE})}


def is_inside(raw: JsonObject, tool: Tool) -> bool:
    """Whether the plan runs the loop itself: true for all loops except a delegate's with the same parameters for all
    items.
    """
    if tool.name in LOOP_TOOLS:
        return True
    if tool.delegate is None:
        return EACH in raw or UNTIL in raw
    names = (raw.get(AS, ITEM), raw.get(AT, INDEX))
    written = {key: value for key, value in raw.items() if not key.startswith("_")}
    read = [*parse_template(written)[0].references(), *(parse_condition(raw[IF])[0].references() if IF in raw else ())]
    return EACH in raw and any(reference.kind in names for reference in read)


def read_loop(
    spec: CallSpec,
    id: str,
    check: Callable[[Json, str, int], Call],
    *,
    keeps_values: bool = True,
    reads_lazily: bool = True,
) -> tuple[CallSpec, list[str]]:
    """Return the call with its loop, reads and writes, and its problems (R6.6). `id`: the call's.

    `keeps_values`: whether a value that no iteration writes stays whole. In runs of 0.2.0 only its read parts do.
    `reads_lazily`: whether its conditions need only the values that they evaluate; see `LAZY_READS`.
    """
    raw = spec.raw
    if problems := [*loop_problems(raw, most=MAX_TURNS), *_missing_keys(raw, spec.tool_name)]:
        return spec, problems
    single, kind = BODY not in raw, "each" if EACH in raw else "while" if WHILE in raw else "until"
    names = {str(raw.get(AT, INDEX))} | ({str(raw.get(AS, ITEM))} if kind == "each" else set())
    local = _Local(frozenset(names | ({"output"} if single and kind == "until" else set())), single and kind == "until")
    until, before, problems = _conditions(raw, reads_lazily=reads_lazily)
    each, malformed = parse_template({EACH: raw[EACH]} if EACH in raw else {})
    problems += [f"$.{EACH}: {problem.error}" for problem in malformed]
    by_item = single and IF in raw and any(map(local.holds, parse_condition(raw[IF])[0].references()))
    if IF in raw and not by_item:
        parsed, wrong = parse_condition(raw[IF])
        spec = replace(spec, condition=parsed)
        problems += [wrong] if wrong else []
    raws = (item_call(raw, with_condition=by_item),) if single else tuple(raw[BODY])
    # The id names the loop and the place in it; the iteration is not known yet.
    forms = tuple(check(each, f"{id}[0]" + ("" if single else f".{n}"), n) for n, each in enumerate(raws))
    for n, form in enumerate(forms):
        if form.state.error is not None:
            at = "" if single else f"$.{BODY}[{n}] ({form.spec.tool_name}): "
            problems += [at + each for each in form.state.error.problems or (form.state.error.message,)]
    if problems:
        return spec, problems
    scan = _Scan(local, carries=kind == "while" or (kind == "until" and not single), single=single)
    for n, form in enumerate(forms):
        scan.take(n, form, forms[n:])
    for name, condition in ((UNTIL, until), (WHILE, before)):
        scan.take_condition(name, condition)
    if scan.problems or scan.deep > MAX_LOOPS_DEEP:
        return spec, scan.problems or [f"loops may be {MAX_LOOPS_DEEP} deep"]
    if keeps_values and scan.carries:
        scan.read_whole_values()
    loop = LoopForm(
        kind="each" if kind == "each" else "while" if not single else "until",
        single=single,
        raws=raws,
        forms=forms,
        item=str(raw.get(AS, ITEM)),
        place=str(raw.get(AT, INDEX)),
        parallel=int(raw.get("_parallel", DEFAULT_PARALLEL)),
        most=int(raw.get("_max", DEFAULT_ITERATIONS)),
        first=raw.get("_from"),
        each=parse_template(raw[EACH])[0] if EACH in raw else Template({}, ()),
        until=until,
        before=before,
        writes=tuple(scan.writes()) if not single else (),
        tallies=((LOOP_FAILED,), (LOOP_DONE,)) if raw.get("_from") is not None else (),
        reads=frozenset(scan.reads()),
    )
    paths = tuple((*each, *(loop.writes if n == 0 else ())) for n, each in enumerate(spec.paths or ((),)))
    template = Template(each.node, (*each.sites, *scan.hard), each.computes)
    paths = () if paths == ((),) else paths
    return replace(spec, template=template, soft=Template({}, tuple(scan.soft)), loop=loop, paths=paths), []


def _missing_keys(raw: JsonObject, tool: str) -> list[str]:
    if tool not in LOOP_TOOLS:
        return []
    body = raw.get(BODY)
    problems = []
    if not isinstance(body, list) or not body or len(body) > MAX_BODY_CALLS:
        problems.append(f"$.{BODY} is {shorten(body, 60)}, but must be a list of 1 to {MAX_BODY_CALLS} calls")
    if tool == FOR.name and EACH not in raw:
        problems.append(f"$ lacks '{EACH}': what to go through")
    if tool == WHILE_TOOL.name and (EACH in raw or not (WHILE in raw or UNTIL in raw)):
        problems.append(f"$ needs '{WHILE}' or '{UNTIL}', and no '{EACH}'")
    return problems


def _conditions(raw: JsonObject, *, reads_lazily: bool) -> tuple[Until | None, Until | None, list[str]]:
    found: dict[str, Until] = {}
    problems: list[str] = []
    for key in (UNTIL, WHILE):
        if key in raw:
            condition, problem = parse_until(raw[key], key)
            found[key] = condition if reads_lazily else condition.with_all_needed()
            problems += [problem] if problem else []
    return found.get(UNTIL), found.get(WHILE), problems


@dataclass(frozen=True, slots=True)
class _Local:
    """Names and values that belong to the iteration itself."""

    kinds: Collection[str]
    previous: bool
    """Whether `†state.previous` is the last result."""

    def holds(self, reference: Reference) -> bool:
        return reference.kind in self.kinds or (
            self.previous and reference.kind == "state" and is_prefix(PREVIOUS.path, reference.path)
        )


@dataclass
class _Scan:
    """A scan of a body in its order, which records the reads of values outside."""

    local: _Local
    carries: bool
    """Whether an iteration reads a value that the one before it wrote."""
    single: bool
    hard: list[TemplateSite] = field(default_factory=list)
    """The values that have to exist for the loop to start."""
    soft: list[TemplateSite] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    deep: int = 1
    """Depth of nested loops, this one included."""
    _written: list[Path] = field(default_factory=list)

    def take(self, n: int, form: Call, rest: Iterable[Call]) -> None:
        """Scan the next call; `rest` are this call and the later ones."""
        where: tuple[str | int, ...] = () if self.single else (BODY, n)
        later = [] if self.single else [(other, path) for other in rest for path in _paths(other)]
        if form.spec.method != "set" and not self.single:
            self.problems.append(f"$.{BODY}[{n}]: what a body writes is a list afterwards: leave '_outputMethod' out")
        if "_instance" in form.spec.raw:
            self.problems.append(f"$.{BODY}[{n}]: '_instance' stands on the loop, not in its body")
        self.deep = max(self.deep, 1 + _depth(form))
        sure = not form.spec.has_condition
        for template, certain in ((form.spec.condition, sure), (form.spec.template, sure), (form.spec.soft, False)):
            for site in template.sites:
                site = site._replace(path=(*where, *site.path))
                self._take_site(site, later, certain=certain and not site.optional, n=n)
        self._written += [] if self.single else _paths(form)

    def take_condition(self, name: str, until: Until | None) -> None:
        for site in until.template.sites if until is not None else ():
            for reference in references(site.expression):
                # Before the first iteration, no call of the body has written yet.
                if not self.local.holds(reference) and (name == WHILE or not self._covered(reference)):
                    self.soft.append(TemplateSite((name,), _beginning(reference)))

    def read_whole_values(self) -> None:
        """Read a value whole if a call of the body may write it. If no iteration writes it, the loop returns it unchanged."""
        paths = list(self.writes())
        for n, site in enumerate(self.soft):
            (reference,) = references(site.expression)
            whole = next((path for path in paths if is_prefix(path, reference.path)), reference.path)
            if reference.kind == "state" and whole != reference.path:
                self.soft[n] = TemplateSite(site.path, Reference("state", whole))

    def writes(self) -> Iterator[Path]:
        """Yield the paths that the body writes, without those inside others."""
        for path in dict.fromkeys(self._written):
            if not any(other != path and is_prefix(other, path) for other in self._written):
                yield path

    def reads(self) -> Iterator[Reference]:
        for site in (*self.hard, *self.soft):
            yield from (reference for reference in references(site.expression) if reference.kind == "state")

    def _covered(self, reference: Reference) -> bool:
        return reference.kind == "state" and any(is_prefix(path, reference.path) for path in self._written)

    def _take_site(self, site: TemplateSite, later: list[tuple[Call, Path]], *, certain: bool, n: int) -> None:
        read = list(references(site.expression))
        outer = [each for each in read if not self.local.holds(each) and not self._covered(each)]
        for reference in outer:
            writer = next(
                (call for call, path in later if reference.kind == "state" and overlaps(path, reference.path)), None
            )
            if writer is not None and not self.carries:
                place = writer.index
                who = "itself" if place == n else f"call {place}"
                self.problems.append(
                    f"$.{BODY}[{n}] reads {reference} before {who} writes it: each iteration begins anew, so give what is "
                    "written another name; afterwards it is the list of what all of them wrote"
                )
            certain = certain and writer is None
        # A path that the body itself adds to may be missing outside.
        certain = certain and not any(overlaps(path, each.path) for each in outer for path in self._written)
        if len(outer) == len(read) and certain:
            self.hard.append(TemplateSite(site.path, _begun(site.expression)))
        else:
            self.soft += [TemplateSite(site.path, _beginning(reference)) for reference in outer]


def _depth(form: Call) -> int:
    return 0 if form.spec.loop is None else 1 + max(map(_depth, form.spec.loop.forms))


def _paths(call: Call) -> list[Path]:
    return [path for alternative in call.spec.paths for path in alternative]


def _begun(expression: Expression) -> Expression:
    if isinstance(expression, Reference):
        return _beginning(expression)
    items = tuple(map(_begun, expression.items))
    return FirstOf(items) if isinstance(expression, FirstOf) else AllOf(items)


def _beginning(reference: Reference) -> Reference:
    """Return the reference up to its last key: a list is read whole, because a part of it cannot be placed alone."""
    if reference.kind != "state":
        return reference
    for at, part in enumerate(reference.path):
        if array_index(part) is not None:
            return Reference(reference.kind, reference.path[:at])
    return reference
