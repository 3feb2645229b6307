"""Templates: parameters that hold references and formulas, parsed once and resolved by lookup."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Generator, Iterator, Sequence
from operator import is_
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeGuard

from perdure.errors import FormulaError, ReferenceSyntaxError, TooLargeError, clip
from perdure.values._formula_functions import EvaluationSteps
from perdure.values.formulas import Formula, MissingValueError, parse_formula
from perdure.values.json import MAX_PASSED, Json, JsonObject, WireModel, depth_of, dumps, shorten
from perdure.values.limits import MAX_PAYLOAD, MAX_TEXT, MAX_TEXTS, MAX_TEXTS_KEPT, CheckBudget, bytes_text
from perdure.values.references import (
    DAGGER,
    MISSING,
    UNKNOWN,
    Expression,
    Missing,
    Reference,
    evaluate,
    parse_expression,
    references,
)
from perdure.values.sizes import Sizes, TooManyBytesError


class TextForm(WireModel, frozen=True):
    """The way in which a text shows an output."""

    kind: Literal["text", "json", "member", "remark"] = "text"
    """`text`: the output is this text. `json`: the text is the output's JSON. `member`: the text is the only member of
    the output. `remark`: the text is no output."""
    member: str | None = None
    """Name of the only member."""

    def event_data(self) -> JsonObject:
        """Return the keys of an event's data; none for a plain text."""
        data: JsonObject = {} if self.kind == "text" else {"form": self.kind}
        return data if self.member is None else {**data, "member": self.member}

    @classmethod
    def of_event(cls, data: JsonObject) -> TextForm:
        """Return the form that an event's data names."""
        return cls.model_validate({"kind": data.get("form", "text"), "member": data.get("member")})


PLAIN: Final = TextForm()
AS_JSON: Final = TextForm(kind="json")
REMARK: Final = TextForm(kind="remark")


def text_form(output: Json) -> TextForm:
    """Return the form of the text that shows a whole output."""
    if isinstance(output, dict) and len(output) == 1:
        ((name, only),) = output.items()
        return TextForm(kind="member", member=name) if isinstance(only, str) else AS_JSON
    return PLAIN if output is None or isinstance(output, str) else AS_JSON


_REMEMBERED: Final = 512
"""Characters of a text from which it is cached: a shorter text is built as fast again."""
_MADE: Final = 16
_DEEP: Final = 20_000
"""Bytes of a value from which its depth is cached."""
_DEPTHS: Final = 256
"""Values whose depth is cached."""
_JOINED: Final = 200
"""Bytes of text that take as long to build and to join as one step of a check."""


class TextBudget:
    """The texts of one plan, or of one output.

    One text may have `most` bytes, the maximum of a value but no more than `MAX_TEXT`, and all together `total`.
    `sizes` has the sizes of the values.

    The key of a value is its identity: it must not be changed once it was embedded. Texts count as steps of `checks`,
    so that work beyond one task is left to the next (R18.5).
    """

    def __init__(
        self,
        most: int = MAX_PAYLOAD,
        sizes: Sizes | None = None,
        checks: CheckBudget | None = None,
        *,
        total: int = MAX_TEXTS,
    ) -> None:
        self._whole, self._most, self._total = most, min(most, MAX_TEXT), total
        self._sizes = Sizes() if sizes is None else sizes
        self._checks = CheckBudget() if checks is None else checks
        # The value is kept beside its text, so that its id cannot be used again while it counts; the oldest first.
        self._made: dict[int, tuple[Json, str]] = {}
        self._kept = 0
        self._joined = 0
        self._deep: dict[int, tuple[Json, int]] = {}

    def join(self, parts: Sequence[Json | Missing]) -> str:
        """Return the parts as one text: a text unchanged, any other value as JSON, an unknown value as `…`.

        Raises `TooLargeError`, before it builds anything, if the text would exceed its limit, by itself or with earlier
        texts.
        """
        known = ["…" if part is UNKNOWN or part is MISSING else part for part in parts]
        if (short := _short(known)) is not None:
            self._joined += len(short)
            return short
        self._check(sum(map(self._least, known)))
        texts = [part if isinstance(part, str) else self._text(part) for part in known]
        size = 2 + sum(self._sizes.of(text) - 2 for text in texts)
        self._check(size)
        text = "".join(texts)
        self._sizes.note(text, size)
        self._joined += size
        self._checks.taken += size // _JOINED
        return text

    def check_whole(self, value: Json) -> None:
        """Raise `TooLargeError` for parameters that exceed the limit of a call: a value may be read a thousand
        times."""
        if (size := self._sizes.of(value)) > self._whole:
            raise TooLargeError(
                f"the parameters have {bytes_text(size)} with their references resolved; the limit is {self._whole:,}"
            )

    def placed(self, value: Json, level: int) -> Json:
        """Return the value, for a place `level` levels deep. Raises `TooLargeError` if it would be nested too deeply to
        be parsed again."""
        if isinstance(value, dict | list) and level + self._depth(value) > MAX_PASSED:
            raise TooLargeError(f"nested more than {MAX_PASSED} levels deep with the referenced values")
        return value

    def _depth(self, value: dict[str, Json] | list[Json]) -> int:
        """Return the levels of a value. The depth of a large one is cached: it may be part of another value the next
        time.
        """
        if (size := self._sizes.of(value)) < _DEEP:
            return depth_of(value)
        if (known := self._deep.get(id(value))) is not None:
            return known[1]
        self._checks.taken += size // _MADE
        inside = value.values() if isinstance(value, dict) else value
        nested = [child for child in inside if isinstance(child, dict | list)]
        measured = [child for child in nested if self._sizes.knows(child)]
        depth = depth_of(nested if not measured else [child for child in nested if not self._sizes.knows(child)])
        for child in measured:
            if depth <= MAX_PASSED:
                depth = max(depth, 1 + self._depth(child))
        if len(self._deep) == _DEPTHS:
            del self._deep[next(iter(self._deep))]
        self._deep[id(value)] = value, depth
        return depth

    def computed(self, formula: Formula, values: Sequence[Json], steps: EvaluationSteps) -> Json:
        """Return the formula's value, within `steps`, which count like those of a check.

        Raises `FormulaError`, with the formula in it. Raises `TooLargeError` if the value, or the sum of all formulas
        and texts, exceeds its limit.
        """
        before = steps.left
        try:
            value, made = formula.measured(values, steps, self._sizes, self._whole)
        except MissingValueError:
            raise
        except FormulaError as error:
            raise FormulaError(f"{error.message}, in {clip(formula.text, 200)!r}", error.line, error.column) from None
        except TooManyBytesError:
            raise TooLargeError(
                f"{clip(formula.text, 200)!r} gives a value of more than {bytes_text(self._whole)}, which is the limit"
            ) from None
        finally:
            self._checks.taken += before - max(steps.left, 0)
        self._check(made)
        self._joined += made
        return value

    def _least(self, part: Json) -> int:
        """Return the minimum of bytes that the part may have: in JSON a text is quoted again."""
        return self._sizes.of(part) - (2 if isinstance(part, str) else 0)

    def _check(self, size: int) -> None:
        if size > self._most:
            raise TooLargeError(
                f"a text would have {bytes_text(size)} with its embedded values; the limit is {self._most:,}"
            )
        if self._joined + size > self._total:
            raise TooLargeError(
                f"the texts here that values are embedded in would have {bytes_text(self._joined + size)} together; "
                f"the limit is {self._total:,}"
            )

    def _text(self, value: Json) -> str:
        made = self._made.get(id(value))
        if made is not None:
            return made[1]
        text = dumps(value)
        self._checks.taken += len(text) // _MADE
        if len(text) >= _REMEMBERED:
            self._made[id(value)] = value, text
            self._kept += len(text)
            while self._kept > MAX_TEXTS_KEPT and len(self._made) > 1:
                self._kept -= len(self._made.pop(next(iter(self._made)))[1])
        return text


def _short(parts: Sequence[Json]) -> str | None:
    """Return the parts as one text if it is too short to need a measurement, as most are."""
    left = _REMEMBERED
    texts = []
    for part in parts:
        if not isinstance(part, str):
            if not isinstance(part, int | float):
                return None
            part = repr(part) if type(part) is int else dumps(part)
        left -= len(part)
        if left < 0:
            return None
        texts.append(part)
    return "".join(texts)


_ESCAPED_OR_OPEN: Final = re.compile(r"††|\{[\s(]*†(?!†)")
"""The mark `††`, or the beginning of an expression in braces: `{†a}`, `{ (†a || †b) }`."""

EXPR: Final = "_expr"
"""The key of a formula, `{"_expr": "len(state.hosts)"}`, in place of any parameter (R16.3)."""

Lookup: TypeAlias = Callable[[Reference], "Json | Missing"]


class TemplateSite(NamedTuple):
    """One expression and its place in the parameters."""

    path: tuple[str | int, ...]
    expression: Expression
    optional: bool = False
    """Whether it needs no value, because its formula may not evaluate it: `d.n if r.ok else 0`."""

    def missing_reference(self, lookup: Lookup) -> Reference:
        """Return the first reference without a value, of a site that `Template.find_missing` yields."""
        return next(each for each in references(self.expression) if lookup(each) is MISSING)


class _Text(NamedTuple):
    """A longer string with `{†…}` inside."""

    parts: tuple[str | Expression, ...]


class _Computed(NamedTuple):
    """A formula, and the sites of its references."""

    formula: Formula
    values: tuple[Expression, ...]


class _Literal(NamedTuple):
    value: Json


_WRITTEN_OUT: Final = (_Literal, _Text, _Computed)
_TemplateNode: TypeAlias = "_Literal | _Text | _Computed | Expression | dict[str, _TemplateNode] | list[_TemplateNode]"


class Template(NamedTuple):
    """A JSON value with its strings parsed for references."""

    node: _TemplateNode
    sites: tuple[TemplateSite, ...]
    computes: bool = False
    """Whether it contains a formula, perhaps one without references."""

    def resolve(self, lookup: Lookup, texts: TextBudget | None = None) -> Any:  # of an object an object
        """Return the value with every reference replaced. Call it only when `find_missing` yields nothing.

        `texts` makes the texts with embedded values; all formulas share one budget of steps. Raises `TooLargeError`,
        with the embedded text, and `FormulaError`.
        """
        return _resolve(self.node, lookup, TextBudget() if texts is None else texts, EvaluationSteps(), 0)

    def find_missing(self, lookup: Lookup) -> Iterator[TemplateSite]:
        """Yield the sites whose expression has no value, except optional sites."""
        return (site for site in self.sites if not site.optional and evaluate(site.expression, lookup) is MISSING)

    def with_all_needed(self) -> Template:
        """Return the template with no optional site."""
        return self._replace(sites=tuple(site._replace(optional=False) for site in self.sites))

    def references(self) -> list[Reference]:
        """Return every reference, in the order of the sites."""
        return [each for site in self.sites for each in references(site.expression)]

    @property
    def literal(self) -> bool:
        """Whether it is its own value, without references or formulas."""
        return not self.sites and not self.computes

    def text(self, lookup: Lookup, texts: TextBudget) -> TemplateText:
        """Yield the text of the resolved value in pieces: a text unchanged, for an object with one text that text, else
        compact JSON.

        `lookup` returns `UNKNOWN` for a reference that has no value yet. The iterator then yields `None`, and looks the
        value up again for the next piece; a missing value stays missing. Raises the errors of `resolve`.
        """
        return TemplateText(self.node, lookup, texts)

    def written_out(self) -> list[str]:
        """Return the members of an object, in its order, that contain a literal: text, a number, a formula."""

        members = self.node.items() if isinstance(self.node, dict) else ()
        return [key for key, node in members if _is_written_out(node)]

    def without(self, keys: Container[str]) -> Template:
        """Return the template of an object without these members."""
        if not isinstance(self.node, dict):
            return self
        node = {key: child for key, child in self.node.items() if key not in keys}
        return Template(node, tuple(site for site in self.sites if site.path[0] not in keys), self.computes)


EMPTY_TEMPLATE: Final = Template({}, ())


def _is_written_out(node: _TemplateNode) -> bool:
    if isinstance(node, dict | list):
        return not node or any(map(_is_written_out, node.values() if isinstance(node, dict) else node))
    return isinstance(node, _WRITTEN_OUT)


class TemplateText(Iterator["str | None"]):
    """The text of a template's value, piece by piece: see `Template.text`."""

    def __init__(self, node: _TemplateNode, lookup: Lookup, texts: TextBudget) -> None:
        self.form = PLAIN
        """Form of the text, once there is a text."""
        self._pieces = self._of(node)
        self._lookup, self._texts = lookup, texts
        self._steps = EvaluationSteps()
        self._waits = False
        """Whether a value that was looked up is unknown."""

    def __next__(self) -> str | None:
        return next(self._pieces)

    def _of(self, node: _TemplateNode) -> Iterator[str | None]:
        name, only = next(iter(node.items())) if isinstance(node, dict) and len(node) == 1 else (None, node)
        text = PLAIN if name is None else TextForm(kind="member", member=name)
        if isinstance(only, _Text):
            self.form = text
            yield from self._parts(only)
        elif isinstance(only, dict | list):
            self.form = AS_JSON
            yield from self._json(node, 0)
        else:
            value = yield from self._value(only, 1)
            whole = value if name is None else {name: value}
            self.form = text if isinstance(value, str) else AS_JSON
            yield value if isinstance(value, str) else "" if whole is None else dumps(whole)

    def _json(self, node: _TemplateNode, level: int) -> Iterator[str | None]:
        if isinstance(node, dict):
            yield "{"
            for number, (key, child) in enumerate(node.items()):
                yield f"{',' if number else ''}{dumps(key)}:"
                yield from self._json(child, level + 1)
            yield "}"
        elif isinstance(node, list):
            yield "["
            for number, child in enumerate(node):
                yield "," if number else ""
                yield from self._json(child, level + 1)
            yield "]"
        elif isinstance(node, _Text):
            yield '"'
            for piece in self._parts(node):
                yield None if piece is None else dumps(piece)[1:-1]
            yield '"'
        else:
            yield dumps((yield from self._value(node, level)))

    def _parts(self, node: _Text) -> Iterator[str | None]:
        for part in node.parts:
            yield part if isinstance(part, str) else self._texts.join([(yield from self._value(part, 0))])

    def _value(self, node: _Literal | _Computed | Expression, level: int) -> Generator[None, None, Json]:
        expressions = node.values if isinstance(node, _Computed) else () if isinstance(node, _Literal) else (node,)
        for expression in expressions:
            while not self._is_known(expression):
                yield
        return _resolve(node, self._lookup, self._texts, self._steps, level)

    def _is_known(self, expression: Expression) -> bool:
        self._waits = False
        return evaluate(expression, self._look) is not MISSING and not self._waits

    def _look(self, reference: Reference) -> Json | Missing:
        value = self._lookup(reference)
        self._waits = self._waits or value is UNKNOWN
        return value


class TemplateProblem(NamedTuple):
    """A malformed reference or formula: its place in the parameters, and its problem (R3.5, R16.3)."""

    path: tuple[str | int, ...]
    error: ReferenceSyntaxError | FormulaError


def parse_template(value: Json) -> tuple[Template, list[TemplateProblem]]:
    """Parse a JSON value for references; every malformed one is listed, and is a plain text in the template."""
    parser = _TemplateParser()
    node = parser.parse(value, ())
    return Template(node, tuple(parser.sites), parser.computes), parser.problems


class _TemplateParser:
    """The parser of one value, and what it has found.

    It is a class, because nested functions that call each other are garbage that only the collector frees.
    """

    __slots__ = ("computes", "problems", "sites")

    def __init__(self) -> None:
        self.sites: list[TemplateSite] = []
        self.problems: list[TemplateProblem] = []
        self.computes = False

    def parse(self, item: Json, path: tuple[str | int, ...]) -> _TemplateNode:
        if isinstance(item, str):
            return self._text(item, path) if DAGGER in item else _Literal(item)
        if not isinstance(item, dict) and not isinstance(item, list):
            return _Literal(item)
        if len(path) == 1 and is_plain(item):
            return _Literal(item)
        if isinstance(item, dict):
            if looks_computed(item):
                return self._computed(item, path)
            return {key: self.parse(child, (*path, key)) for key, child in item.items()}
        return [self.parse(child, (*path, index)) for index, child in enumerate(item)]

    def _text(self, item: str, path: tuple[str | int, ...]) -> _TemplateNode:
        try:
            node = parse_string(item)
        except ReferenceSyntaxError as error:
            self.problems.append(TemplateProblem(path, error))
            return _Literal(item)
        if isinstance(node, _Text):
            self.sites += [TemplateSite(path, part) for part in node.parts if not isinstance(part, str)]
        elif not isinstance(node, _Literal):
            self.sites.append(TemplateSite(path, node))
        return node

    def _computed(self, item: JsonObject, path: tuple[str | int, ...]) -> _TemplateNode:
        text: str = item[EXPR]
        if not is_formula(item):
            return _Literal({EXPR: text.removeprefix(DAGGER * 2).replace(DAGGER * 2, DAGGER)})
        try:
            formula = parse_formula(text)
        except FormulaError as error:
            self.problems.append(TemplateProblem(path, error))
            return _Literal(item)
        self.computes = True
        self.sites += [TemplateSite(path, each, each in formula.optional) for each in formula.references]
        return _Computed(formula, formula.references)


def is_plain(value: Json) -> bool:
    """Whether no part of it is parsed: a large literal is searched once, and passed unchanged (R18.5)."""
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
    """Return the template with every expression changed."""

    def walk(node: _TemplateNode) -> _TemplateNode:
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

    sites = tuple(site._replace(expression=change(site.expression)) for site in template.sites)
    return Template(walk(template.node), sites, template.computes)


def without_formulas(value: Json) -> Json:
    """Return the value with a reference in place of each formula: both have unknown values."""
    if isinstance(value, list):
        items = [without_formulas(item) for item in value]
        return value if all(map(is_, items, value)) else items
    if not isinstance(value, dict):
        return value
    if is_formula(value):
        return DAGGER + EXPR
    members = {key: without_formulas(item) if isinstance(item, dict | list) else item for key, item in value.items()}
    return value if all(map(is_, members.values(), value.values())) else members


def is_formula(value: Json) -> TypeGuard[JsonObject]:
    """Whether the value is a formula (R16.3)."""
    return looks_computed(value) and not str(value[EXPR]).startswith(DAGGER * 2)


def looks_computed(value: Json) -> TypeGuard[JsonObject]:
    """Whether the value is a formula, or data that resembles one. Such data is written with `††` before it and its own
    daggers doubled.
    """
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get(EXPR), str)


def is_expression(text: str) -> bool:
    """Whether the whole string is meant as an expression: it starts with a reference, perhaps in parentheses (R3.1)."""
    start = text.lstrip(" \t\r\n(")
    return start.startswith(DAGGER) and not start.startswith(DAGGER * 2)


def as_data(value: Json) -> Json:
    """Return the value in the notation of references, so that each of its strings is parsed to itself."""
    if isinstance(value, str):
        return value.replace(DAGGER, DAGGER * 2)
    if isinstance(value, list):
        return [as_data(item) for item in value]
    if not isinstance(value, dict):
        return value
    written = {key: as_data(item) for key, item in value.items()}
    return {EXPR: f"{DAGGER * 2}{written[EXPR]}"} if looks_computed(value) else written


def has_reference(value: Json) -> bool:
    """Whether any string in the value holds a reference, in whole or inside text, or any part is a formula."""
    if isinstance(value, str):
        return DAGGER in value and (is_expression(value) or _split(value)[1])
    if isinstance(value, dict):
        return is_formula(value) or any(map(has_reference, value.values()))
    return isinstance(value, list) and any(map(has_reference, value))


def parse_string(text: str) -> _Literal | _Text | Expression:
    """Parse one string: an expression, text with `{†…}` inside, or plain text in which `††` stands for a dagger."""
    if is_expression(text):
        return parse_expression(text.strip())
    parts, embeds = _split(text)
    return _Text(tuple(parts)) if embeds else _Literal("".join(map(str, parts)))


def _split(text: str) -> tuple[list[str | Expression], bool]:
    """Return the parts of a text, and whether expressions are among them."""
    parts: list[str | Expression] = []
    embeds = False
    start = 0
    while found := _ESCAPED_OR_OPEN.search(text, start):
        parts.append(text[start : found.start()])
        if found.group() == DAGGER * 2:
            parts.append(DAGGER)
            start = found.end()
        else:
            inside = found.start() + 1
            end = _closing_brace(text, inside)
            try:
                parts.append(parse_expression(text[inside:end]))
            except ReferenceSyntaxError as error:
                raise ReferenceSyntaxError(error.message, error.position + inside) from None
            embeds, start = True, end + 1
    parts.append(text[start:])
    return parts, embeds


def _closing_brace(text: str, start: int) -> int:
    """Return the `}` that ends an embedded expression; a quoted key may hold one."""
    if (end := text.find("}", start)) >= 0 and text.find('"', start, end) < 0:
        return end
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


def _resolve(node: _TemplateNode, lookup: Lookup, texts: TextBudget, steps: EvaluationSteps, level: int) -> Json:
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
        value = texts.computed(node.formula, [_value(value, lookup) for value in node.values], steps)
        return texts.placed(value, level)
    return texts.placed(_value(node, lookup), level)


def _value(expression: Expression, lookup: Lookup) -> Any:  # the next line excludes it
    # A caller with a `lookup` that may return `MISSING` checks the result for it; a formula checks its optional values.
    return evaluate(expression, lookup)


# `mark_references` returns a text with references in the form for people, `parse_marked` translates a person's text into the engine's
# notation.

REF: Final = "_ref"
DATA: Final = "_data"
"""The key of data that only resembles a mark: in a plan, `{"_data": {"_ref": "…"}}`."""


def mark_references(value: Json) -> Json:
    """Return a value with each string that has references marked; every other string is plain text.

    Data that resembles a mark, or the wrapping of one, is wrapped: `{"_data": {"_ref": "…"}}`. A formula, `{"_expr":
    "…"}`, is a mark of its own.
    """
    if is_formula(value):
        return value
    if isinstance(value, dict):
        if looks_computed(value):
            return {DATA: parse_template(value)[0].resolve(_nothing)}
        shown = {key: mark_references(item) for key, item in value.items()}
        return {DATA: shown} if _is_mark(shown) or (len(shown) == 1 and DATA in shown) else shown
    if isinstance(value, list):
        return [mark_references(item) for item in value]
    if not isinstance(value, str) or DAGGER not in value:
        return value
    template, malformed = parse_template(value)
    if malformed:
        return value
    return {REF: value} if template.sites else template.resolve(_nothing)


def _nothing(_: object) -> Json:
    return None


def _is_mark(value: JsonObject) -> bool:
    return len(value) == 1 and isinstance(value.get(REF), str)


def parse_marked(value: Json, held: Collection[str] | None = None) -> Json:
    """Return a person's value in the notation of references: only a marked string is parsed.

    A plan that `mark_references` returned is translated back unchanged. A call is shown with values: `held` are the texts of
    marks in these, which stay data, because their authors meant no references. Raises `ReferenceSyntaxError` for a mark
    without a reference in it.
    """
    if isinstance(value, list):
        return [parse_marked(item, held) for item in value]
    if not isinstance(value, dict):
        return as_data(value)
    if held is None and len(value) == 1 and isinstance(data := value.get(DATA), dict):
        return as_data(data) if looks_computed(data) else {key: parse_marked(item) for key, item in data.items()}
    if looks_computed(value):
        return value if held is None else as_data(value)
    text = value.get(REF)
    if not isinstance(text, str) or not _is_mark(value) or text in (held or ()):
        return {key: parse_marked(item, held) for key, item in value.items()}
    if not has_reference(text):
        raise ReferenceSyntaxError(f'{{"{REF}": {shorten(text, 60)}}} holds no reference such as †state.name')
    return text


def held_marks(value: Json) -> Iterator[str]:
    """Yield the texts of parts that resemble marks in a value that is data."""
    if isinstance(value, list):
        for item in value:
            yield from held_marks(item)
    elif isinstance(value, dict):
        if _is_mark(value):
            yield str(value[REF])
        for item in value.values():
            yield from held_marks(item)


def marked_call(call: Json) -> Json:
    """Return a call as written, with the references in its parameters marked. Paths and conditions are marked by their
    keys.
    """
    return _each_parameter(call, mark_references)


def written_call(call: Json, held: Collection[str] | None = None) -> Json:
    """Return a call that a person wrote, in the engine's notation. Raises `ReferenceSyntaxError`."""
    return _each_parameter(call, lambda value: parse_marked(value, held))


def _each_parameter(call: Json, change: Callable[[Json], Json]) -> Json:
    if not isinstance(call, dict):
        return call
    return {
        key: [_each_parameter(inner, change) for inner in value]
        if key == "_body" and isinstance(value, list)
        else change(value)
        if _is_read(key, value)
        else value
        for key, value in call.items()
    }


def _is_read(key: str, value: Json) -> bool:
    """Whether references are parsed there: among the meta-properties only in the items of `_each`, or in a marked
    value."""
    return not key.startswith("_") or (key == "_each" and not isinstance(value, str))


def changes(offered: JsonObject, wanted: JsonObject) -> JsonObject:
    """Return the changed parameters in the form of an edit; `null` for a removed one."""
    gone = {key: None for key in offered if key not in wanted}
    return gone | {
        key: value for key, value in wanted.items() if key not in offered or _text(value) != _text(offered[key])
    }


def _text(value: Json) -> str:
    """Return a text that is the same for the same JSON, unlike Python's equality: `1` and `true`."""
    return dumps(value, sort_keys=True)


def parse_output(output: Json) -> tuple[Template, list[TemplateProblem]]:
    """Return the template of an output, and its malformed references. A call in it, an object with `_tool`, is data."""
    return parse_template(_calls_as_data(output))


def _calls_as_data(output: Json) -> Json:
    if isinstance(output, list):
        return [_calls_as_data(item) for item in output]
    if isinstance(output, dict):
        return as_data(output) if "_tool" in output else {key: _calls_as_data(item) for key, item in output.items()}
    return output
