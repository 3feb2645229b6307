"""Parameters with references and formulas in them: parsed once into a tree, resolved by lookup (R3.1, R16.3)."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from operator import is_
from typing import Final, TypeAlias

from perdure.errors import FormulaError, ReferenceSyntaxError, TooLargeError, clip
from perdure.values.formulas import Formula, parse_formula
from perdure.values.formulas.steps import Steps
from perdure.values.jsons import Json, JsonObject
from perdure.values.references import (
    DAGGER,
    Expression,
    Missing,
    Reference,
    evaluate,
    parse_expression,
    references,
)
from perdure.values.texts import Texts

_ESCAPED_OR_OPEN: Final = re.compile(r"††|\{[\s(]*†(?!†)")
"""`††`, or the beginning of an expression in braces: `{†a}`, `{ (†a || †b) }`."""

EXPR: Final = "_expr"
"""`{"_expr": "len(state.hosts)"}`: a formula, wherever a parameter stands (R16.3)."""

Lookup: TypeAlias = Callable[[Reference], "Json | Missing"]


@dataclass(frozen=True, slots=True)
class Site:
    """One expression and where it stands in the parameters."""

    path: tuple[str | int, ...]
    expression: Expression


@dataclass(frozen=True, slots=True)
class _Text:
    """A longer string with `{†…}` inside."""

    parts: tuple[str | Expression, ...]


@dataclass(frozen=True, slots=True)
class _Computed:
    """A formula, and where each of its references is read."""

    formula: Formula
    values: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class _Literal:
    value: Json


_Node: TypeAlias = "_Literal | _Text | _Computed | Expression | dict[str, _Node] | list[_Node]"


@dataclass(frozen=True, slots=True)
class Template:
    """A JSON value whose strings were read for references."""

    node: _Node
    sites: tuple[Site, ...]
    computes: bool = False
    """Whether there is a formula in it, perhaps one that reads nothing."""

    def resolve(self, lookup: Lookup, texts: Texts | None = None) -> Json:
        """The value with every reference replaced. Call it only when every site's expression has a value.

        `texts` makes those that values are embedded in; all formulas share one budget of steps. Raises `TooLargeError`, with what was embedded, and `FormulaError`.
        """
        return _resolve(self.node, lookup, Texts() if texts is None else texts, Steps(), 0)

    def references(self) -> Iterator[Reference]:
        for site in self.sites:
            yield from references(site.expression)

    @property
    def literal(self) -> bool:
        """Whether it is its value already, as whoever reads it sees."""
        return not self.sites and not self.computes

    def written_out(self) -> list[str]:
        """Of an object, in its order, the members in which something stands that no reference gave: text, a number, a formula."""

        def has(node: _Node) -> bool:
            if isinstance(node, dict | list):
                return any(map(has, node.values() if isinstance(node, dict) else node)) or not node
            return isinstance(node, _Literal | _Text | _Computed)

        return [key for key, node in self.node.items() if has(node)] if isinstance(self.node, dict) else []

    def without(self, keys: Container[str]) -> Template:
        """Of an object, the template without these members."""
        if not isinstance(self.node, dict):
            return self
        node = {key: child for key, child in self.node.items() if key not in keys}
        return Template(node, tuple(site for site in self.sites if site.path[0] not in keys), self.computes)


EMPTY_TEMPLATE: Final = Template({}, ())


@dataclass(frozen=True, slots=True)
class Problem:
    """A malformed reference or formula: where in the parameters, and what is wrong (R3.5, R16.3)."""

    path: tuple[str | int, ...]
    error: ReferenceSyntaxError | FormulaError


def parse_template(value: Json) -> tuple[Template, list[Problem]]:
    """Read a JSON value for references; every malformed one is listed, and stands for itself in the template."""
    sites: list[Site] = []
    problems: list[Problem] = []
    formulas: list[Formula] = []

    def walk(item: Json, path: tuple[str | int, ...]) -> _Node:
        if len(path) == 1 and isinstance(item, dict | list) and _is_plain(item):
            return _Literal(item)
        if isinstance(item, dict):
            return computed(item, path) if looks_computed(item) else {k: walk(v, (*path, k)) for k, v in item.items()}
        if isinstance(item, list):
            return [walk(child, (*path, index)) for index, child in enumerate(item)]
        if not isinstance(item, str) or DAGGER not in item:
            return _Literal(item)
        try:
            node = parse_string(item)
        except ReferenceSyntaxError as error:
            problems.append(Problem(path, error))
            return _Literal(item)
        if isinstance(node, _Text):
            sites.extend(Site(path, part) for part in node.parts if not isinstance(part, str))
        elif not isinstance(node, _Literal):
            sites.append(Site(path, node))
        return node

    def computed(item: JsonObject, path: tuple[str | int, ...]) -> _Node:
        text: str = item[EXPR]
        if not is_formula(item):
            return _Literal({EXPR: text.removeprefix(DAGGER * 2).replace(DAGGER * 2, DAGGER)})
        try:
            formula = parse_formula(text)
        except FormulaError as error:
            problems.append(Problem(path, error))
            return _Literal(item)
        formulas.append(formula)
        sites.extend(Site(path, reference) for reference in formula.references)
        return _Computed(formula, formula.references)

    return Template(walk(value, ()), tuple(sites), bool(formulas)), problems


def _is_plain(value: Json) -> bool:
    """Whether nothing in it is read: a large literal is looked through once, and passed on as it is (R18.5)."""
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            if DAGGER in item:
                return False
        elif isinstance(item, dict):
            if EXPR in item:
                return False
            left.extend(item.values())
        elif isinstance(item, list):
            left.extend(item)
    return True


def map_expressions(template: Template, change: Callable[[Expression], Expression]) -> Template:
    """The template with every expression changed."""

    def walk(node: _Node) -> _Node:
        if isinstance(node, dict):
            return {key: walk(child) for key, child in node.items()}
        if isinstance(node, list):
            return [walk(child) for child in node]
        if isinstance(node, _Literal):
            return node
        if isinstance(node, _Text):
            return _Text(tuple(part if isinstance(part, str) else change(part) for part in node.parts))
        if isinstance(node, _Computed):
            return _Computed(node.formula, tuple(map(change, node.values)))
        return change(node)

    sites = tuple(Site(site.path, change(site.expression)) for site in template.sites)
    return Template(walk(template.node), sites, template.computes)


def without_formulas(value: Json) -> Json:
    """The value with a reference in the place of each formula: what one gives is known as little as what the other does."""
    if isinstance(value, list):
        items = [without_formulas(item) for item in value]
        return value if all(map(is_, items, value)) else items
    if not isinstance(value, dict):
        return value
    if is_formula(value):
        return DAGGER + EXPR
    members = {key: without_formulas(item) for key, item in value.items()}
    return value if all(map(is_, members.values(), value.values())) else members


def is_formula(value: Json) -> bool:
    """Whether the value is a formula (R16.3)."""
    return looks_computed(value) and not value[EXPR].startswith(DAGGER * 2)


def looks_computed(value: Json) -> bool:
    """A formula, or data that looks like one: that is written with `††` before it and its own daggers doubled."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get(EXPR), str)


def is_expression(text: str) -> bool:
    """Whether the whole string is meant as an expression: it starts with a reference, perhaps in parentheses (R3.1)."""
    start = text.lstrip(" \t\r\n(")
    return start.startswith(DAGGER) and not start.startswith(DAGGER * 2)


def as_data(value: Json) -> Json:
    """The value as one writes it where references are read, so that it stands for itself whatever its strings look like."""
    if isinstance(value, str):
        return value.replace(DAGGER, DAGGER * 2)
    if isinstance(value, list):
        return [as_data(item) for item in value]
    if not isinstance(value, dict):
        return value
    written = {key: as_data(item) for key, item in value.items()}
    return {EXPR: DAGGER * 2 + written[EXPR]} if looks_computed(value) else written


def has_reference(value: Json) -> bool:
    """Whether any string in the value holds a reference, in whole or inside text, or anything in it is a formula."""
    if isinstance(value, str):
        return DAGGER in value and (is_expression(value) or any(not isinstance(p, str) for p in _split(value)))
    if isinstance(value, dict):
        return is_formula(value) or any(map(has_reference, value.values()))
    return isinstance(value, list) and any(map(has_reference, value))


def parse_string(text: str) -> _Literal | _Text | Expression:
    """One string: an expression, text with `{†…}` inside, or plain text in which `††` stands for a dagger."""
    if is_expression(text):
        return parse_expression(text.strip())
    parts = tuple(_split(text))
    if any(not isinstance(part, str) for part in parts):
        return _Text(parts)
    return _Literal("".join(part for part in parts if isinstance(part, str)))


def _split(text: str) -> Iterator[str | Expression]:
    start = 0
    while found := _ESCAPED_OR_OPEN.search(text, start):
        yield text[start : found.start()]
        if found.group() == DAGGER * 2:
            yield DAGGER
            start = found.end()
        else:
            inside = found.start() + 1
            end = _closing_brace(text, inside)
            try:
                yield parse_expression(text[inside:end])
            except ReferenceSyntaxError as error:
                raise ReferenceSyntaxError(error.message, error.position + inside) from None
            start = end + 1
    yield text[start:]


def _closing_brace(text: str, start: int) -> int:
    """The `}` that ends an embedded expression; a quoted key may hold one."""
    quoted = escaped = False
    for index in range(start, len(text)):
        character = text[index]
        if escaped:
            escaped = False
        elif quoted and character == "\\":
            escaped = True
        elif character == '"':
            quoted = not quoted
        elif character == "}" and not quoted:
            return index
    raise ReferenceSyntaxError("'{†' opens a reference that no '}' closes; to write it as text use '{††'", start)


def _resolve(node: _Node, lookup: Lookup, texts: Texts, steps: Steps, level: int) -> Json:
    if isinstance(node, dict):
        return {key: _resolve(child, lookup, texts, steps, level + 1) for key, child in node.items()}
    if isinstance(node, list):
        return [_resolve(child, lookup, texts, steps, level + 1) for child in node]
    if isinstance(node, _Literal):
        return node.value
    if isinstance(node, _Text):
        try:
            return texts.join([part if isinstance(part, str) else evaluate(part, lookup) for part in node.parts])
        except TooLargeError as error:
            embedded = ", ".join(dict.fromkeys(str(part) for part in node.parts if not isinstance(part, str)))
            hint = "a reference alone passes a value on as it is"
            raise TooLargeError(f"{error}; it embeds {clip(embedded, 200)}: {hint}") from None
    if isinstance(node, _Computed):
        value = texts.computed(node.formula, [evaluate(value, lookup) for value in node.values], steps)
        return texts.placed(value, level)
    return texts.placed(evaluate(node, lookup), level)
