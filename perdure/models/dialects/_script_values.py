"""Expressions of a `script` answer, as values, references and formulas."""

from __future__ import annotations

import ast
import copy
import io
import re
import tokenize
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from perdure.errors import FormulaError, ReferenceSyntaxError
from perdure.models.dialects.script_writer import CONSTANTS
from perdure.values.formulas import is_function, parse_formula, parse_statements
from perdure.values.json import Json
from perdure.values.references import DAGGER, Reference
from perdure.values.templates import EXPR, has_reference, parse_string, parse_template

Resolve: TypeAlias = Callable[[ast.Name], Reference]
"""A function that returns the reference of a name: a result, an item of a loop, a kind of data."""

_COMPUTES: Final = (
    ast.BinOp,
    ast.Compare,
    ast.IfExp,
    ast.JoinedStr,
    ast.ListComp,
    ast.GeneratorExp,
    ast.DictComp,
    ast.SetComp,
    ast.Set,
    ast.UnaryOp,
    ast.Call,
)


def _is_computed(node: ast.expr) -> bool:
    """Whether the node is computed: neither a reference, nor references joined by `or` and `and`, which are looked up
    (R3.3)."""
    if isinstance(node, ast.BoolOp):
        return any(
            _is_computed(value) or isinstance(value, ast.Constant | ast.List | ast.Dict) for value in node.values
        )
    if isinstance(node, ast.Subscript):
        fixed = isinstance(node.slice, ast.Constant) and not isinstance(node.slice.value, float | bool)
        return not fixed or _is_computed(node.value)
    if isinstance(node, ast.Attribute):
        return _is_computed(node.value)
    if isinstance(node, ast.List | ast.Tuple):
        return any(isinstance(item, ast.Starred) for item in node.elts)
    if isinstance(node, ast.Dict):
        return not all(isinstance(key, ast.Constant) and isinstance(key.value, str) for key in node.keys)
    return isinstance(node, _COMPUTES)


def formula_text(node: ast.expr, resolve: Resolve) -> str:
    """Return the formula in its general notation, in which names of results are keys of the state.

    Raises `NotAllowedError` for an f-string that Python 3.11 cannot write: it allows no backslash in the braces.
    """
    named: ast.expr = _NameRewriter(resolve).visit(node)
    try:
        return ast.unparse(named)
    except ValueError:
        message = "a text in the braces of this f-string needs a backslash: give that text a name on the line before"
        raise NotAllowedError(node, message) from None


def path_node(reference: Reference, like: ast.AST) -> ast.expr:
    """Return the path as a formula writes it: `state.profile`, `_pair[0]`."""
    node: ast.expr = ast.Name(reference.kind, ast.Load())
    for step in reference.path:
        if isinstance(step, str) and step.isidentifier():
            node = ast.Attribute(node, step, ast.Load())
        else:
            node = ast.Subscript(node, ast.Constant(step), ast.Load())
    return ast.fix_missing_locations(ast.copy_location(node, like))


def _check_read(reference: Reference, resolve: Resolve, like: ast.AST) -> None:
    """Raise `NotAllowedError` if the script may not read the name `x` of a reference `†state.x` here. `resolve` records
    the read."""
    if reference.kind == "state" and reference.path:
        resolve(ast.copy_location(ast.Name(str(reference.path[0]), ast.Load()), like))


_NAMES_VALUE: Final = re.compile(rf"{DAGGER}\w")
"""The beginning of a reference. Any other dagger is a character of its text."""


class _NameRewriter(ast.NodeTransformer):
    """A rewrite of `profile.age` to `state.profile.age`, unless a comprehension defines the name."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._bound: list[str] = []

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._bound or node.id in ("true", "false", "null") or isinstance(node.ctx, ast.Store):
            return node
        return path_node(self._resolve(node), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id not in self._bound:
            _check_read(Reference(node.value.id, (node.attr,)), self._resolve, node)
        node.value = self.visit(node.value)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        """Return a text that names values as the f-string of these values, and `"†state.x"` as the value itself."""
        if not isinstance(node.value, str) or DAGGER not in node.value:
            return node
        try:
            if not _NAMES_VALUE.search(node.value) or not has_reference(node.value):
                return ast.copy_location(ast.Constant(node.value.replace(DAGGER * 2, DAGGER)), node)
            text = parse_string(node.value)
        except ReferenceSyntaxError as error:
            raise NotAllowedError(node, str(error)) from None
        if isinstance(text, Reference):
            _check_read(text, self._resolve, node)
            return path_node(text, node)
        parts: list[ast.expr] = []
        for part in getattr(text, "parts", [text]):  # without parts: references joined by || or &&
            if not isinstance(part, str | Reference):
                message = "a text inside an expression cannot join references by || or &&: write an f-string, such as "
                raise NotAllowedError(node, message + 'f"Dear {user.name or user.mail}"')
            if isinstance(part, Reference):
                _check_read(part, self._resolve, node)
            value = ast.Constant(part) if isinstance(part, str) else ast.FormattedValue(path_node(part, node), -1)
            parts.append(value)
        return ast.fix_missing_locations(ast.copy_location(ast.JoinedStr(parts), node))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        node.values = [self.visit(part) if isinstance(part, ast.FormattedValue) else part for part in node.values]
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if not isinstance(node.func, ast.Name):
            node.func = self.visit(node.func)
        node.args = [self.visit(each) for each in node.args]
        for keyword in node.keywords:
            # key=len names a function
            named = isinstance(keyword.value, ast.Name) and is_function(keyword.value.id)
            keyword.value = keyword.value if named else self.visit(keyword.value)
        return node

    def _scoped(self, node: Any) -> Any:  # one of the comprehensions
        before = list(self._bound)
        for generator in node.generators:
            generator.iter = self.visit(generator.iter)
            self._bound += [each.id for each in ast.walk(generator.target) if isinstance(each, ast.Name)]
            generator.ifs = [self.visit(test) for test in generator.ifs]
        for part in ("elt", "key", "value"):
            if hasattr(node, part):
                setattr(node, part, self.visit(getattr(node, part)))
        self._bound = before
        return node

    visit_ListComp = visit_GeneratorExp = visit_DictComp = visit_SetComp = _scoped

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        before = list(self._bound)
        self._bound += [each.arg for each in node.args.args]
        node.body = self.visit(node.body)
        self._bound = before
        return node


_ALLOWED: Final = "arguments are names, text, numbers, True, False, None, lists, dicts and expressions"
_HINTS: Final[dict[type[ast.AST], str]] = {
    ast.Lambda: "a lambda is not data",
    ast.NamedExpr: "`:=` is not read: name results before `=` at the line's beginning",
}
_LONG: Final = 2000
"""Characters from which a statement is searched before it is parsed."""
_F_STRING: Final = re.compile(r"""[rR]?[fF][rR]?["']""")
_LARGEST: Final = 1.7976931348623157e308
"""The largest 64-bit float: other JSON readers fail on a larger number."""


class NotAllowedError(Exception):
    """An expression that a script cannot contain; `node` is its place."""

    def __init__(self, node: ast.AST, message: str) -> None:
        super().__init__(message)
        self.node = node
        self.message = message

    def position(self, lines: Sequence[str]) -> tuple[int, int]:
        """Return line and column, counted from 1 in characters; `ast` counts bytes."""
        number = min(getattr(self.node, "lineno", 1), len(lines))
        before = lines[number - 1].encode(errors="replace")[: getattr(self.node, "col_offset", 0)]
        return number, len(before.decode(errors="replace")) + 1


def parse(source: str) -> list[ast.stmt]:
    """Return the statements of a script. Raises `SyntaxError`, or `NotAllowedError` for a text that is too costly to
    parse."""
    # Python 3.11 reads an f-string in time that grows with the square of its length.
    if len(source) > _LONG and (line := _long_f_string(source)):
        message = f"a line with an f-string in it may have {_LONG:,} characters"
        raise NotAllowedError(ast.Pass(lineno=line, col_offset=0), message)
    return parse_statements(source)


def _long_f_string(source: str) -> int:
    """Return the number of a logical line with an f-string that is too long; 0 for none."""
    length, first, formats = 0, 0, False
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            first = first or token.start[0]
            length += len(token.string) + 1
            formats = formats or bool(_F_STRING.match(token.string))
            if formats and length > _LONG:
                return first
            if token.type == tokenize.NEWLINE:
                length, first, formats = 0, 0, False
    except (tokenize.TokenError, SyntaxError):
        return 0
    return 0


class ScriptValues:
    """A translator of nodes into JSON. `resolve` returns the reference of a name."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve

    def value(self, node: ast.expr, *, by_truth: bool = False) -> Json:
        """Return a node as JSON. Raises `NotAllowedError`.

        `by_truth`: whether `and` and `or` choose by truth, as in Python, and not by existence, as a reference does.
        """
        if by_truth and isinstance(node, ast.BoolOp):
            return {EXPR: self.formula(node)}
        if isinstance(node, ast.Constant):
            return self._constant(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            number = self._constant(node.operand)
            if isinstance(number, int | float) and not isinstance(number, bool):
                return -number
        if isinstance(node, ast.Name) and node.id in CONSTANTS:
            return CONSTANTS[node.id]
        if isinstance(node, ast.Dict):
            self._check_keys(node)
        if _is_computed(node):
            return {EXPR: self.formula(node)}
        if isinstance(node, ast.List | ast.Tuple):
            return [self.value(child, by_truth=by_truth) for child in node.elts]
        if isinstance(node, ast.Dict):
            keys = [str(key.value) for key in node.keys if isinstance(key, ast.Constant)]
            children = [self.value(child, by_truth=by_truth) for child in node.values]
            return dict(zip(keys, children, strict=True))
        return self._expression(node)

    def formula(self, node: ast.expr) -> str:
        """Return a computed expression as a formula's text (R16.3)."""
        text = formula_text(copy.deepcopy(node), self._resolve)
        try:
            parse_formula(text)
        except FormulaError as error:
            raise NotAllowedError(node, error.message) from None
        return text

    def _constant(self, node: ast.Constant) -> Json:
        value = node.value
        if isinstance(value, str):
            for reference in parse_template(value)[0].references():
                _check_read(reference, self._resolve, node)
        if isinstance(value, str | bool) or value is None:
            return value
        if isinstance(value, int | float):
            if abs(value) > _LARGEST:
                raise NotAllowedError(node, "the number is outside the range of a 64-bit float")
            return value
        raise NotAllowedError(node, f"{type(value).__name__} is not JSON; {_ALLOWED}")

    def _check_keys(self, node: ast.Dict) -> None:
        for key in node.keys:
            if isinstance(key, ast.Constant) and not isinstance(key.value, str):
                raise NotAllowedError(key, "the keys of a dict are text")

    def _expression(self, node: ast.expr) -> str:
        """Return a name, or names joined by `or` and `and`, as an expression (R3.3)."""
        if not isinstance(node, ast.BoolOp):
            return str(self.reference(node))
        word = " || " if isinstance(node.op, ast.Or) else " && "
        parts = [self._expression(child) for child in node.values]
        return word.join(
            f"({part})" if isinstance(child, ast.BoolOp) and isinstance(child.op, ast.Or) else part
            for child, part in zip(node.values, parts, strict=True)
        )

    def reference(self, node: ast.expr) -> Reference:
        """Return `profile.items[0]["odd key"]` as `†state.profile.items[0]["odd key"]`."""
        path: list[str | int] = []
        start = node
        while not isinstance(node, ast.Name):
            if isinstance(node, ast.Attribute):
                path.append(self._name(node.attr, node))
                node = node.value
            elif isinstance(node, ast.Subscript):
                path.append(self._index(node))
                node = node.value
            else:
                what = _HINTS.get(type(node), f"{kind_name(node)} is not read here; {_ALLOWED}")
                raise NotAllowedError(start if node is start else node, what)
        self._name(node.id, node)
        path.reverse()
        root = self._resolve(node)
        if not root.path:
            _check_read(Reference(root.kind, tuple(path)), self._resolve, node)
        return Reference(root.kind, (*root.path, *path))

    def output_path(self, targets: Sequence[ast.expr]) -> str:
        """Return `a, error = b, error = f()` as `†state.a && †state.b || †state.error` (R4.3)."""
        rows = [list(each.elts) if isinstance(each, ast.Tuple | ast.List) else [each] for each in targets]
        if len({len(row) for row in rows}) != 1 or not rows[0]:
            raise NotAllowedError(targets[-1], "every name before = needs as many alternatives as the first")
        columns = zip(*rows, strict=True)
        return " || ".join(" && ".join(dict.fromkeys(str(self._target(node)) for node in column)) for column in columns)

    def _target(self, node: ast.expr) -> Reference:
        if isinstance(node, ast.Starred):
            raise NotAllowedError(node, "a * before a name is not read: take items by their place, rows[1:]")
        reference = self.reference(node)
        if reference.kind != "state" or not reference.path or (isinstance(node, ast.Name) and node.id in CONSTANTS):
            raise NotAllowedError(node, f"results are kept in the state; write state.{reference.kind} = …")
        return reference

    def dotted(self, node: ast.expr) -> str:
        """Return the called tool's name, as written."""
        parts: list[str] = []
        start = node
        while isinstance(node, ast.Attribute):
            parts.append(self._name(node.attr, node))
            node = node.value
        if not isinstance(node, ast.Name):
            raise NotAllowedError(start, "what is called must be a tool's name")
        return ".".join([self._name(node.id, node), *reversed(parts)])

    def _index(self, node: ast.Subscript) -> str | int:
        index = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if isinstance(index, str) or (isinstance(index, int) and not isinstance(index, bool) and index < 10**9):
            return index
        raise NotAllowedError(node.slice, 'an index is a number from 0 or text: items[0], d["odd key"]')

    @staticmethod
    def _name(name: str, node: ast.expr) -> str:
        if name.startswith("__"):
            raise NotAllowedError(node, f"{name} is not a name of this plan")
        return name


def kind_name(node: ast.AST) -> str:
    """Return a node's kind as text: `ListComp` is `list comp`."""
    name = type(node).__name__
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()
