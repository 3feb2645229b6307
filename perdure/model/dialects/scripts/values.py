"""What may stand in a script's call, as JSON: literals, and names that become references (R9.2). Nothing is evaluated."""

from __future__ import annotations

import ast
import copy
import io
import re
import tokenize
from collections.abc import Sequence
from typing import Final

from perdure.errors import FormulaError
from perdure.model.dialects.scripts.formulas import Resolve, computes, formula_text
from perdure.model.dialects.scripts.writer import CONSTANTS
from perdure.values.formulas import parse_formula
from perdure.values.jsons import Json
from perdure.values.references import Reference
from perdure.values.templates import EXPR

_ALLOWED: Final = "arguments are names, text, numbers, True, False, None, lists, dicts and expressions"
_HINTS: Final[dict[type[ast.AST], str]] = {
    ast.Lambda: "a lambda is not data",
    ast.NamedExpr: "`:=` is not read: name results before `=` at the line's beginning",
}
_LONG: Final = 2000
"""Characters from which on a statement is looked through before it is parsed."""
_F_STRING: Final = re.compile(r"""[rR]?[fF][rR]?["']""")
_LARGEST: Final = 1.7976931348623157e308
"""Beyond it no 64-bit float lies, and other programs that read the JSON would fail."""


class NotAllowedError(Exception):
    """Something that a script cannot say; `node` is where."""

    def __init__(self, node: ast.AST, message: str) -> None:
        super().__init__(message)
        self.node = node
        self.message = message

    def position(self, lines: Sequence[str]) -> tuple[int, int]:
        """Line and column from 1; `ast` counts bytes."""
        number = min(getattr(self.node, "lineno", 1), len(lines))
        before = lines[number - 1].encode(errors="replace")[: getattr(self.node, "col_offset", 0)]
        return number, len(before.decode(errors="replace")) + 1


def parse(source: str) -> list[ast.stmt]:
    """The statements of a script's text. Raises `SyntaxError`, or `NotAllowedError` for what costs too much to be read at all."""
    # Python 3.11 reads an f-string in the square of its length.
    if len(source) > _LONG and (line := _long_f_string(source)):
        message = f"a line with an f-string in it may have {_LONG:,} characters"
        raise NotAllowedError(ast.Pass(lineno=line, col_offset=0), message)
    return ast.parse(source).body


def _long_f_string(source: str) -> int:
    """The number of a logical line with an f-string in it that is too long; 0 for none."""
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


class Values:
    """Turns nodes into JSON. `resolve` says what a name stands for."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve

    def value(self, node: ast.expr) -> Json:
        """Raises `NotAllowedError`."""
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
        if computes(node):
            return {EXPR: self.formula(node)}
        if isinstance(node, ast.List | ast.Tuple):
            return [self.value(child) for child in node.elts]
        if isinstance(node, ast.Dict):
            keys = [str(key.value) for key in node.keys if isinstance(key, ast.Constant)]
            return {key: self.value(child) for key, child in zip(keys, node.values, strict=True)}
        return self._expression(node)

    def formula(self, node: ast.expr) -> str:
        """What is computed, as a formula's text (R16.3)."""
        text = formula_text(copy.deepcopy(node), self._resolve)
        try:
            parse_formula(text)
        except FormulaError as error:
            raise NotAllowedError(node, error.message) from None
        return text

    def _constant(self, node: ast.Constant) -> Json:
        value = node.value
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
        """A name, or names joined by `or` and `and`, as an expression (R3.3)."""
        if not isinstance(node, ast.BoolOp):
            return str(self.reference(node))
        word = " || " if isinstance(node.op, ast.Or) else " && "
        parts = [self._expression(child) for child in node.values]
        return word.join(
            f"({part})" if isinstance(child, ast.BoolOp) and isinstance(child.op, ast.Or) else part
            for child, part in zip(node.values, parts, strict=True)
        )

    def reference(self, node: ast.expr) -> Reference:
        """`profile.items[0]["odd key"]` as `†state.profile.items[0]["odd key"]`."""
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
                what = _HINTS.get(type(node), f"{words(node)} is not read here; {_ALLOWED}")
                raise NotAllowedError(start if node is start else node, what)
        self._name(node.id, node)
        path.reverse()
        root = self._resolve(node)
        return Reference(root.kind, (*root.path, *path))

    def output_path(self, targets: Sequence[ast.expr]) -> str:
        """`a, error = b, error = f()` as `†state.a && †state.b || †state.error` (R4.3)."""
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
        """The tool that is called, as written."""
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
            raise NotAllowedError(node, f"{name} is no name of this plan")
        return name


def _constant_text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def words(node: ast.AST) -> str:
    """`ListComp` as `list comp`."""
    name = type(node).__name__
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()
